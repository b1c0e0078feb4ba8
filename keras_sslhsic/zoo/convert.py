"""From the official JAX checkpoints to Keras networks.

Every array of the online network is used exactly once, or the conversion stops and lists the rest.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_sslhsic import lock
from keras_sslhsic.encoders import ARCHITECTURES, Architecture, Encoder, Head, build_head, with_preprocessing
from keras_sslhsic.encoders.resnet import architecture as named_architecture
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.files import display
from keras_sslhsic.zoo import model_files
from keras_sslhsic.zoo.official import Checkpoint, listed, read_checkpoint
from keras_sslhsic.zoo.registry import IMAGENET_MEAN, IMAGENET_STD

MAX_BLOCKS = 500  # a ResNet-200 has 66; a network of many more would take hours to build


class Networks(NamedTuple):
    """Keras networks with the checkpoint's weights. The encoder reads normalised images [B, H, W, 3]."""

    architecture: Architecture
    encoder: keras.Model
    projector: keras.Model
    predictor: keras.Model
    classifier: keras.layers.Dense | None
    kernel_scale: float | None


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
        raise ValueError(f"{display(checkpoint)}: {display(error)}") from error


def _networks(checkpoint: Checkpoint) -> Networks:
    pool = _Pool(checkpoint)
    architecture, stem = pool.architecture()
    encoder = resnet(
        architecture,
        (None, None, stem[2]),
        stem="imagenet" if stem[0] == 7 else "small",
        name=architecture_name(architecture) or "resnet",
    )
    for layer in encoder.layers:
        pool.fill(layer, f"{pool.root}/~/{haiku_name(layer.name)}")
    features = architecture.channels[-1]
    projection = pool.head("projector", features)
    prediction = pool.head("predictor", projection.output_shape[-1])
    classifier = pool.classifier(features)
    pool.check_empty()
    return Networks(architecture, encoder, projection, prediction, classifier, checkpoint.kernel_scale)


def architecture_name(architecture: Architecture) -> str | None:
    """The name of an architecture in `encoders.ARCHITECTURES`, or None."""
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
    """One model of all the networks: images as the encoder reads them -> embedding, projection, prediction (and logits)."""
    images = keras.Input(networks.encoder.input_shape[1:], name="image")
    embedding = networks.encoder(images)
    projection = networks.projector(embedding)
    prediction = networks.predictor(projection)
    outputs = {"embedding": embedding, "projection": projection, "prediction": prediction}
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
        heads: write projector, predictor and classifier too: the model of `networks_model`, of pixels, to ``NAME.keras``.
        expect: name of the architecture that it has to be, e.g. ``"r50_1x"``.

    Returns:
        What was converted, as noted in the file too: architecture, method, kernel_scale, parameters ...; the note has
        the encoder's spec as well.

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
    return {key: value for key, value in note.items() if key != "spec"}


def converted(
    source: str | os.PathLike, pixels: bool = False, heads: bool = False, expect: str | None = None
) -> tuple[keras.Model, dict[str, Any]]:
    """Returns the model and the note that `convert` writes; `pixels` for resizing and normalisation inside."""
    checkpoint = read_checkpoint(source)
    networks = networks_from_checkpoint(checkpoint)
    name = architecture_name(networks.architecture)
    if expect is not None and expect != name:
        raise ValueError(f"{display(source)} holds {name or networks.architecture}, expected {expect}.")
    encoder = with_preprocessing(networks.encoder, IMAGENET_MEAN, IMAGENET_STD, size=224)
    read = encoder if pixels or heads else networks.encoder
    model = networks_model(networks._replace(encoder=read)) if heads else read
    return model, {
        **weights_note(networks.architecture, encoder),
        "method": checkpoint.method,
        "kernel_scale": checkpoint.kernel_scale,
        "parameters": model_files.count_parameters(model),
    }


def weights_note(architecture: Architecture, encoder: Encoder) -> dict[str, Any]:
    """What a file of weights says of a network of `build_encoder`, here with its preprocessing, to build it again."""
    return {
        "architecture": architecture_name(architecture),
        "shape": architecture._asdict(),
        "stem": "small" if "P0" in encoder.spec.stages else "imagenet",
        "channels": encoder.spec.channels,
        "spec": encoder.spec.to_dict(),
    }


def _kernels(architecture: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of the convolutions after the stem, as `encoders.resnet` calls them, and the shapes of their kernels."""
    inputs = architecture.stem_channels
    for group, (blocks, channels) in enumerate(zip(architecture.blocks, architecture.channels, strict=True)):
        inner = max(1, channels // 4)
        for block in range(blocks):
            if architecture.bottleneck:
                kernels = [(1, 1, inputs, inner), (3, 3, inner, inner), (1, 1, inner, channels)]
            else:
                kernels = [(3, 3, inputs, channels), (3, 3, channels, channels)]
            for index, kernel in enumerate(kernels):
                yield f"group{group}_block{block}_conv{index}", kernel
            if block == 0:
                yield f"group{group}_block{block}_shortcut_conv", (1, 1, inputs, channels)
            inputs = channels


class _Pool:
    """The arrays of a checkpoint, each to be taken once."""

    def __init__(self, checkpoint: Checkpoint):
        named = [
            # Haiku numbers a name that was used before: the stem may be `initial_conv_1`.
            (re.sub(r"/~/(initial_conv|initial_batchnorm)_1/", r"/~/\1/", f"{module}/{name}"), array)
            for tree in (checkpoint.params, checkpoint.state)
            for module, arrays in tree.items()
            for name, array in arrays.items()
        ]
        self._arrays = dict(named)
        if len(self._arrays) < len(named):
            raise ValueError(f"{len(named) - len(self._arrays)} arrays of the checkpoint share their names.")
        roots = {key.split("/~/")[0] for key in self._arrays if "/~/initial_conv" in key}
        if len(roots) != 1:
            raise ValueError(f"Expected one residual network, found {len(roots)}: {listed(roots)}.")
        self.root = roots.pop()

    def take(self, key: str, shape: tuple[int, ...]) -> np.ndarray:
        """Takes an array out, reshaped: Haiku keeps leading axes of 1 on batch statistics."""
        if key not in self._arrays:
            raise ValueError(f"The checkpoint has no {key!r}.")
        array = self._arrays.pop(key)
        if "var_ema" in key and (array < 0).any():
            raise ValueError(f"{key} holds negative variances, of which features would be NaN.")
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

    def head(self, name: str, inputs: int) -> keras.Model:
        """Builds the projector or predictor and gives it its weights."""
        hidden = self._shape(f"{name}/linear/w", (inputs, None))[1]
        output = self._shape(f"{name}/linear_1/w", (hidden, None))[1]
        network = build_head(inputs, Head(hidden, output), name)
        for layer, module in (("hidden", "linear"), ("hidden_bn", "batch_norm"), ("output", "linear_1")):
            self.fill(network.get_layer(layer), f"{name}/{module}")
        return network

    def classifier(self, features: int) -> keras.layers.Dense:
        """Builds the online classifier and gives it its weights."""
        layer = keras.layers.Dense(self._shape("classifier/w", (features, None))[1], name="logits")
        layer.build((None, features))
        self.fill(layer, "classifier")
        return layer

    def architecture(self) -> tuple[Architecture, tuple[int, ...]]:
        """Reads the architecture off the names and shapes; also returns the shape of the first kernel.

        Every kernel is compared with it: the network that is built of it is as large as the arrays that are there.
        """
        pattern = re.compile(re.escape(self.root) + r"/~/block_group_(\d+)/~/block_(\d+)/~/conv_(\d+)/w")
        convs = {tuple(map(int, m.groups())) for m in map(pattern.fullmatch, self._arrays) if m}
        last = max((conv for _, _, conv in convs), default=0)
        counts: dict[int, int] = {}
        for group, block, _ in convs:
            counts[group] = max(counts.get(group, 0), block + 1)
        groups, blocks = sorted(counts), tuple(counts[group] for group in sorted(counts))
        if last not in (1, 2):
            raise ValueError(f"Expected blocks of 2 or 3 convolutions under {self.root}, found {last + 1}.")
        if groups != list(range(len(blocks))) or sum(blocks) > MAX_BLOCKS:
            raise ValueError(
                f"Expected groups of blocks under {self.root}, numbered from 0, of at most {MAX_BLOCKS} blocks, "
                f"found groups {listed(groups)} of {listed(blocks)} blocks."
            )

        def kernel(layer: str, shape: tuple[int | None, ...]) -> tuple[int, ...]:
            return self._shape(f"{self.root}/~/{haiku_name(layer)}/w", shape)

        channels = tuple(kernel(f"group{g}_block0_conv{last}", (None,) * 4)[-1] for g in groups)
        stem = kernel("stem_conv", (None,) * 4)
        if stem[:2] not in ((3, 3), (7, 7)):
            raise ValueError(f"Expected a first kernel of 3x3 or 7x7 pixels, found the shape {stem}.")
        architecture = Architecture(blocks, channels, bottleneck=last == 2, stem_channels=stem[-1])
        for layer, shape in _kernels(architecture):
            kernel(layer, shape)
        return architecture, stem

    def check_empty(self) -> None:
        """Raises ValueError if any array was not used."""
        if self._arrays:
            rest = listed(self._arrays)
            raise ValueError(f"{len(self._arrays)} arrays of the checkpoint fit nowhere: {rest}.")

    def _shape(self, key: str, expected: tuple[int | None, ...]) -> tuple[int, ...]:
        """The shape of an array that has to be there, with the expected sizes where they are not None."""
        kind = "matrix" if len(expected) == 2 else "kernel"
        if key not in self._arrays or self._arrays[key].ndim != len(expected):
            raise ValueError(f"The checkpoint has no {kind} {key!r}.")
        shape = self._arrays[key].shape
        if any(size not in (None, found) for size, found in zip(expected, shape, strict=True)):
            sizes = ", ".join("any" if size is None else str(size) for size in expected)
            raise ValueError(f"{key} has shape {shape}, expected ({sizes}).")
        return shape
