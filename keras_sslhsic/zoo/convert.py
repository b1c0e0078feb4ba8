"""From the official JAX checkpoints to Keras networks.

Reads SSL-HSIC's ``checkpoint.npy`` (parameters: their moving average in ``ema_state``, statistics: those of
``experiment_state``) and BYOL's ``.pkl`` (``experiment_state``'s online parameters and statistics), whose
networks have the same shape. Neither JAX nor Haiku is needed. Every array of the online network is used
exactly once, or the conversion stops and lists the rest.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_sslhsic import compat, files, lock
from keras_sslhsic.networks import ARCHITECTURES, Architecture, projector, resnet, with_preprocessing
from keras_sslhsic.networks.resnet import architecture as named_architecture
from keras_sslhsic.zoo import model_files, unpickle
from keras_sslhsic.zoo.registry import IMAGENET_MEAN, IMAGENET_STD

Arrays = dict[str, dict[str, np.ndarray]]  # Haiku: module name -> parameter name -> array


class Checkpoint(NamedTuple):
    """The online network in a checkpoint, by Haiku's names, and the kernel's scale (None in BYOL's)."""

    params: Arrays
    state: Arrays
    kernel_scale: float | None
    method: str


class Networks(NamedTuple):
    """Keras networks with the checkpoint's weights. The encoder reads normalised images [B, H, W, 3]."""

    architecture: Architecture
    encoder: keras.Model
    projector: keras.Model
    predictor: keras.Model
    classifier: keras.layers.Dense | None
    kernel_scale: float | None


def read_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Reads the online network of an official checkpoint.

    Raises:
        FileNotFoundError: if there is no such file.
        IsADirectoryError: if it is a folder.
        unpickle.UnsafePickleError: if the pickle asks for anything outside the allow-list.
        unpickle.BrokenPickleError: if the file is damaged or no pickle.
        ValueError: if it is neither of the two layouts.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(
            f"{files.display(path)} is a folder: expected checkpoint.npy, or a .pkl of BYOL."
        )
    tree = _named(unpickle.load(Path(path)))
    experiment = _named(tree.get("experiment_state")) if isinstance(tree, Mapping) else None
    if not isinstance(experiment, Mapping) or not {"online_params", "online_state"} <= set(experiment):
        found = ", ".join(map(str, tree)) if isinstance(tree, Mapping) else type(tree).__name__
        raise ValueError(
            f"{files.display(path)} is not an SSL-HSIC or BYOL checkpoint: expected experiment_state with online_params and "
            f"online_state, found {files.display(found[:300])}."
        )
    try:
        state = _arrays(experiment["online_state"])
        if "ema_state" not in tree:
            return Checkpoint(_arrays(experiment["online_params"]), state, None, "BYOL")
        average = _named(tree["ema_state"])
        if not isinstance(average, Mapping) or not {"online_params", "kernel_params"} <= set(average):
            raise ValueError("its ema_state has no online_params and kernel_params.")
        kernel = [array for module in _arrays(average["kernel_params"]).values() for array in module.values()]
        if [array.size for array in kernel] != [1]:
            raise ValueError(f"expected one kernel parameter, found {len(kernel)} arrays.")
        return Checkpoint(_arrays(average["online_params"]), state, float(kernel[0].item()), "SSL-HSIC")
    except ValueError as error:
        raise ValueError(f"{files.display(path)}: {files.display(error)}") from error


def networks_from_checkpoint(checkpoint: Checkpoint | str | os.PathLike) -> Networks:
    """Builds encoder and heads with a checkpoint's weights; their architecture is read off the shapes.

    Args:
        checkpoint: a `Checkpoint`, or the path of one.

    Raises:
        ValueError: if the arrays are not those of a network of this family: one is missing, one is left over,
            or a shape differs. The message lists them.

    Example:
        >>> networks = networks_from_checkpoint("checkpoint.npy")
        >>> projection = networks.projector(networks.encoder(normalised_images))
    """
    if isinstance(checkpoint, Checkpoint):
        return _networks(checkpoint)
    read = read_checkpoint(checkpoint)
    try:
        return _networks(read)
    except ValueError as error:
        raise ValueError(f"{files.display(checkpoint)}: {files.display(error)}") from error


def _networks(checkpoint: Checkpoint) -> Networks:
    pool = _Pool(checkpoint)
    with compat.variables_within(*pool.found):
        architecture, stem = pool.architecture()
        encoder = resnet(
            architecture,
            (None, None, stem.shape[2]),
            stem="imagenet" if stem.shape[0] == 7 else "small",
            name=architecture_name(architecture) or "resnet",
        )
        for layer in encoder.layers:
            pool.fill(layer, f"{pool.root}/~/{haiku_name(layer.name)}")
        networks = Networks(
            architecture,
            encoder,
            pool.head("projector"),
            pool.head("predictor"),
            pool.classifier(),
            checkpoint.kernel_scale,
        )
    pool.check_empty()
    return networks


def architecture_name(architecture: Architecture) -> str | None:
    """The name of an architecture in `networks.ARCHITECTURES`, or None."""
    return next((name for name in ARCHITECTURES if named_architecture(name) == architecture), None)


def haiku_name(layer: str) -> str:
    """Haiku's module name (after the root) of one of our layers.

    Example:
        >>> haiku_name("group0_block1_conv2")
        'block_group_0/~/block_1/~/conv_2'
    """
    kinds = {"conv": "conv", "bn": "batchnorm"}
    if match := re.fullmatch(r"stem_(conv|bn)", layer):
        return f"initial_{kinds[match[1]]}"
    if match := re.fullmatch(r"group(\d+)_block(\d+)_(shortcut_)?(conv|bn)(\d*)", layer):
        group, block, shortcut, kind, index = match.groups()
        last = f"shortcut_{kinds[kind]}" if shortcut else f"{kinds[kind]}_{index}"
        return f"block_group_{group}/~/block_{block}/~/{last}"
    return layer


def networks_model(networks: Networks) -> keras.Model:
    """One model of all the networks: normalised images -> embedding, projection, prediction (and logits)."""
    images = keras.Input(networks.encoder.input_shape[1:], name="image")
    embedding = networks.encoder(images)
    projection = networks.projector(embedding)
    outputs = {
        "embedding": embedding,
        "projection": projection,
        "prediction": networks.predictor(projection),
    }
    if networks.classifier is not None:
        outputs["logits"] = networks.classifier(embedding)
    return keras.Model(images, outputs, name=f"{networks.encoder.name}_networks")


def convert(
    source: str | os.PathLike,
    target: str | os.PathLike,
    heads: bool = False,
    expect: str | None = None,
) -> dict[str, Any]:
    """Converts an official checkpoint to a file of Keras weights.

    Args:
        source: SSL-HSIC's ``checkpoint.npy`` or BYOL's ``.pkl``.
        target: ``NAME.weights.h5`` (the encoder's weights, and how to build it) or ``NAME.keras`` (the
            encoder with resizing to 224 and normalisation inside). `load_pretrained` reads both.
        heads: write projector, predictor and classifier too: the model of `networks_model`, to
            ``NAME.keras``.
        expect: name of the architecture that it has to be, e.g. ``"r50_1x"``.

    Returns:
        What was converted, as noted in the file too: architecture, method, kernel_scale, parameters ...

    Raises:
        ValueError: for another architecture than expected, arrays left over, or another kind of target.
        OSError: if `source` cannot be read or `target` cannot be written; the message names it.
        lock.InUseError: if another process is writing `target`.
    """
    target = Path(target)
    if not target.name.endswith((".weights.h5", ".keras")):
        raise ValueError(f"The target must end in .weights.h5 or .keras, found {target.name!r}.")
    if heads and target.suffix != ".keras":
        raise ValueError(f"Weights with heads need a .keras target, found {target.name!r}.")
    model, note = converted(source, target.suffix == ".keras", heads, expect)
    with lock.held(target):
        model_files.save_model(model, target, note)
    return note


def converted(
    source: str | os.PathLike, pixels: bool = False, heads: bool = False, expect: str | None = None
) -> tuple[keras.Model, dict[str, Any]]:
    """Returns the model and the note that `convert` writes; `pixels` for resizing and normalisation inside."""
    checkpoint = read_checkpoint(source)
    networks = networks_from_checkpoint(checkpoint)
    name = architecture_name(networks.architecture)
    if expect is not None and expect != name:
        raise ValueError(f"{files.display(source)} holds {name or networks.architecture}, expected {expect}.")
    if heads:
        model = networks_model(networks)
    elif pixels:
        model = with_preprocessing(networks.encoder, IMAGENET_MEAN, IMAGENET_STD, size=224)
    else:
        model = networks.encoder
    return model, {
        "architecture": name,
        "shape": networks.architecture._asdict(),
        "stem": "small" if networks.encoder.get_layer("stem_conv").strides == (1, 1) else "imagenet",
        "channels": networks.encoder.input_shape[-1],
        "method": checkpoint.method,
        "kernel_scale": checkpoint.kernel_scale,
        "parameters": model_files.count_parameters(model),
    }


class _Pool:
    """The arrays of a checkpoint, each to be taken once."""

    def __init__(self, checkpoint: Checkpoint):
        self._arrays = {
            f"{module}/{name}": array
            for tree in (checkpoint.params, checkpoint.state)
            for module, arrays in tree.items()
            for name, array in arrays.items()
        }
        self.found = len(self._arrays), sum(array.size for array in self._arrays.values())
        roots = {key.split("/~/")[0] for key in self._arrays if "/~/initial_conv" in key}
        if len(roots) != 1:
            raise ValueError(
                f"Expected one residual network in the checkpoint, found {len(roots)}: {sorted(roots)}."
            )
        self.root = roots.pop()
        # Haiku numbers a name that was used before: the stem may be `initial_conv_1`.
        self._arrays = {
            re.sub(r"/~/(initial_conv|initial_batchnorm)_1/", r"/~/\1/", key): array
            for key, array in self._arrays.items()
        }

    def take(self, key: str, shape: tuple[int, ...]) -> np.ndarray:
        """Takes an array out, reshaped: Haiku keeps leading axes of 1 on batch statistics."""
        if key not in self._arrays:
            raise ValueError(f"The checkpoint has no {key!r}.")
        array = self._arrays.pop(key)
        if array.size != np.prod(shape) or array.shape[array.ndim - len(shape) :] != shape:
            raise ValueError(f"{key} has shape {array.shape}, expected {shape}.")
        return array.reshape(shape)

    def fill(self, layer: keras.Layer, module: str) -> None:
        """Gives a layer its weights."""
        keys: tuple[str, ...] = ("w", "b")
        if isinstance(layer, keras.layers.BatchNormalization):
            keys = ("scale", "offset", "~/mean_ema/average", "~/var_ema/average")
            for moment in ("mean_ema", "var_ema"):  # the parts of the average, which is all that is needed
                for part in ("hidden", "counter"):
                    self._arrays.pop(f"{module}/~/{moment}/{part}", None)
        weights = zip(layer.weights, keys, strict=False)
        layer.set_weights([self.take(f"{module}/{key}", tuple(weight.shape)) for weight, key in weights])

    def head(self, name: str) -> keras.Model:
        """Builds the projector or predictor and gives it its weights."""
        input_dim, hidden = self._shape(f"{name}/linear/w")
        network = projector(input_dim, hidden, self._shape(f"{name}/linear_1/w")[1], name=name)
        for layer, module in (("hidden", "linear"), ("hidden_bn", "batch_norm"), ("output", "linear_1")):
            self.fill(network.get_layer(layer), f"{name}/{module}")
        return network

    def classifier(self) -> keras.layers.Dense:
        """Builds the online classifier and gives it its weights."""
        features, classes = self._shape("classifier/w")
        layer = keras.layers.Dense(classes, name="logits")
        layer.build((None, features))
        self.fill(layer, "classifier")
        return layer

    def architecture(self) -> tuple[Architecture, np.ndarray]:
        """Reads the architecture off the names and shapes; also returns the first convolution's kernel."""
        pattern = re.compile(re.escape(self.root) + r"/~/block_group_(\d+)/~/block_(\d+)/~/conv_(\d+)/w")
        convs = {
            tuple(map(int, m.groups())): a for k, a in self._arrays.items() if (m := pattern.fullmatch(k))
        }
        last = max((conv for _, _, conv in convs), default=0)
        if last not in (1, 2):
            raise ValueError(f"Expected blocks of 2 or 3 convolutions under {self.root}, found {last + 1}.")
        groups = sorted({group for group, _, _ in convs})
        found = [sorted(block for g, block, conv in convs if (g, conv) == (group, last)) for group in groups]
        stem = self._arrays.get(f"{self.root}/~/initial_conv/w", np.zeros(0))
        if (
            groups != list(range(len(groups)))
            or any(numbers != list(range(len(numbers))) or not numbers for numbers in found)
            or any(array.ndim != 4 for array in (stem, *convs.values()))
        ):
            raise ValueError(f"The convolutions under {self.root} are not those of a residual network.")
        blocks = tuple(map(len, found))
        channels = tuple(convs[group, 0, last].shape[-1] for group in groups)
        return Architecture(blocks, channels, bottleneck=last == 2, stem_channels=stem.shape[-1]), stem

    def check_empty(self) -> None:
        """Raises ValueError if any array was not used."""
        if self._arrays:
            rest = ", ".join(sorted(self._arrays))
            raise ValueError(f"{len(self._arrays)} arrays of the checkpoint fit nowhere: {rest}.")

    def _shape(self, key: str) -> tuple[int, int]:
        if key not in self._arrays or self._arrays[key].ndim != 2:
            raise ValueError(f"The checkpoint has no matrix {key!r}.")
        return self._arrays[key].shape


def _named(value: Any) -> Any:
    return value.as_dict() if isinstance(value, unpickle.Record) and value.fields else value


def _arrays(tree: Any) -> Arrays:
    """Checks that a tree is Haiku's: module names to parameter names to finite numeric arrays."""
    if not isinstance(tree, Mapping) or not all(isinstance(module, Mapping) for module in tree.values()):
        raise ValueError(
            f"Expected Haiku parameters, a mapping of mappings of arrays, found {type(tree).__name__}."
        )
    arrays = {m: {n: np.asarray(a) for n, a in module.items()} for m, module in tree.items()}
    for module, named in arrays.items():
        for name, array in named.items():
            if array.dtype.kind not in "fiu":
                raise ValueError(f"{module}/{name} has dtype {array.dtype}, expected numbers.")
            if not np.all(np.isfinite(array)):
                raise ValueError(f"{module}/{name} holds NaN or Inf.")
    return arrays
