"""The contract of an encoder: images [B, H, W, C] in [0, 255] to features [B, F], and to the maps of its stages."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np

from keras_sslhsic import checks, compat, files
from keras_sslhsic.encoders import unlabelled
from keras_sslhsic.encoders.checks import check_given, check_images, check_network
from keras_sslhsic.encoders.dilation import StageMaps, dense_copy
from keras_sslhsic.encoders.preprocess import beside, per_channel, preprocess
from keras_sslhsic.encoders.spec import EncoderSpec, find_stages
from keras_sslhsic.words import warn


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class Encoder(keras.Model):
    """A functional model from images, uint8 or float in [0, 255], to float32 features [B, F].

    It looks at what it is given before it computes: eager calls, `predict` of arrays, and of the first batch of a
    dataset, raise ValueError for images of another shape or range; see `check_images`. Within a graph it sees shapes alone.

    Its ``.keras`` file (`save`) is that of a plain functional model, which loads where keras_sslhsic is not installed;
    `load_pretrained` reads the spec in it too. So do files of models that contain it.

    Args:
        inputs: symbolic images.
        outputs: symbolic features.
        spec: what it reads and gives.
        name: of the model.

    Attributes:
        spec: `EncoderSpec`.
        entry: `zoo.registry.Entry` of what `load_pretrained` loaded; None where nothing is known of it.
        measured: `encoder_hash` of the weights that the metrics of the entry belong to.

    Raises:
        ValueError: if it does not map images to features, or the spec is of another model.
    """

    def __init__(self, inputs: Any, outputs: Any, spec: EncoderSpec, name: str | None = None) -> None:
        super().__init__(inputs, outputs, name=name)
        self.spec = spec
        self.entry: Any = None
        self.measured: str | None = None
        found = (*self.input_shape[1:], self.output_shape[-1])
        if found != (*spec.shape, spec.feature_size):
            raise ValueError(
                f"(height, width, channels, features) are {found}, and in the spec {(*spec.shape, spec.feature_size)}."
            )
        network = _network_in(self, spec)
        if missing := {stage.layer for stage in spec.stages.values() if stage.map_of(network) is None}:
            raise ValueError(f"The spec has stages of layers that the network has not: {sorted(missing)}.")

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the features, float32 [B, F], of images [B, H, W, C], uint8 or float in [0, 255]."""
        if not keras.utils.is_keras_tensor(images):
            check_images(images, self.spec.shape)
        return super().__call__(images, *args, **kwargs)

    def call(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        """As in Keras; without a word on training it infers, where Keras's random layers (RandomFlip) would train."""
        return super().call(inputs, training=training, mask=mask)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.predict`."""
        check_given(x, self.spec.shape, endless=kwargs.get("steps") is not None)
        return super().predict(x, *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        """As `keras.Model.predict_on_batch`."""
        check_images(x, self.spec.shape)
        return super().predict_on_batch(x)

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.export`."""
        self(self.inputs[0])  # ONNX wants a model that was called
        return super().export(filepath, *args, **kwargs)

    def maps(self) -> StageMaps:
        """Returns a model from images in [0, 255] to the maps of the stages, with this encoder's weights.

        Returns:
            keras.Model from images [B, H, W, C] to {"P<k>": float32 [B, h, w, channels] of stride 2^k}, strides in
            pixels of what the network sees (`spec.shape_seen`).

        Raises:
            ValueError: if the stages are not known.

        Example:
            >>> list(encoder.maps()(images_uint8))
            ['P2', 'P3', 'P4', 'P5']
        """
        network = self._network_of_stages()
        found = {name: stage.map_of(network) for name, stage in self.spec.stages.items()}
        return _from_pixels(keras.Model(network.inputs, found), self.spec, f"{self.name}_maps")

    def dense_maps(self, output_stride: int) -> StageMaps:
        """Returns a network of its own for dense prediction, which starts with this encoder's weights, all of them trainable.

        Args:
            output_stride: of the last map: the stride of the last stage (32), or half of it (16): the convolutions of the
                stage have stride 1 then, and those of 3x3 dilation 2.

        Returns:
            keras.Model as `maps` gives it, of images of any size, which are not resized: an `image_encoder` for keras-hub.

        Raises:
            ValueError: for another output stride, or if the stages are not known.

        Example:
            >>> size = 64  # a map of 2 x 2 is one of 4 x 4 then
            >>> encoder.dense_maps(16)(np.zeros([1, size, size, 1]))["P5"].shape[1:3]
            TensorShape([4, 4])
        """
        network = dense_copy(self._network_of_stages(), self.spec.stages, output_stride)
        compat.set_trainable(network, True)
        spec = dataclasses.replace(self.spec, height=None, width=None, resize=None)
        return _from_pixels(network, spec, f"{self.name}_dense")

    def _network_of_stages(self) -> keras.Model:
        if not self.spec.stages:
            raise ValueError(
                f"The stages of {self.name!r} are not known: put its network, which reads normalised pixels, is built for "
                "images of any size (input_shape=(None, None, channels)) and is functional or sequential, into "
                "encoders.with_preprocessing."
            )
        network = self.get_layer(self.spec.network)
        return keras.Model(network.inputs[0], network.outputs[0], name=network.name)

    def plain(self) -> keras.Model:
        """The same layers and weights as a functional model of Keras's own."""
        return keras.Model(self.inputs[0], self.outputs[0], name=self.name)

    def archive(self, note: Mapping[str, Any] | None = None) -> bytes:
        """What `save` writes; the note is kept beside the spec."""
        return compat.archive(self.plain(), {**(note or {}), "spec": self.spec.to_dict()})

    def save(self, filepath: str | os.PathLike, overwrite: bool = True) -> None:
        """Writes ``NAME.keras``: a plain functional model, and the spec beside it.

        Raises:
            ValueError: for another ending.
            FileExistsError: if the file is there and `overwrite` is false.
            OSError: if it cannot be written; the message names it.
        """
        if not os.fspath(filepath).endswith(".keras"):
            raise ValueError(f"An encoder is saved to NAME.keras, found {files.display(filepath)}.")
        if not overwrite and os.path.exists(filepath):
            raise FileExistsError(f"{files.display(filepath)} is there already: choose another name.")
        files.write_bytes(filepath, self.archive())

    def get_config(self) -> dict[str, Any]:
        """That of the plain model, as which Keras writes an encoder, also within other models."""
        return compat.for_older_keras(self.plain().get_config())

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> keras.Model:
        """Makes the plain model of its config; an encoder of {"model", "spec"}, as it was within other models before."""
        if "model" not in config:
            return keras.Model.from_config(config, custom_objects)
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
        return encoder_again(model, EncoderSpec.from_dict(config["spec"]))

    def __reduce__(self) -> Any:
        """For copies, which are encoders too."""
        return encoder_again, (self.plain(), self.spec)


def encoder_again(model: keras.Model, spec: EncoderSpec) -> Encoder:
    """Returns the encoder that a plain model was, which was loaded or copied.

    Raises:
        ValueError: as `Encoder`.
    """
    return Encoder(model.inputs[0], model.outputs[0], spec.named_in(_network_in(model, spec)), model.name)


def _network_in(model: keras.Model, spec: EncoderSpec) -> keras.Layer | None:
    return next((layer for layer in model.layers if layer.name == spec.network), None)


compat.write_as_functional(Encoder)


def _from_pixels(network: keras.Model, spec: EncoderSpec, name: str) -> StageMaps:
    """A network of several maps with the preprocessing in front of it."""
    images = keras.Input(spec.shape, dtype="float32", name=beside(spec.network, "image"))
    computed = network(preprocess(images, spec))
    outputs = {
        key: keras.layers.Identity(dtype="float32", name=beside(spec.network, key))(computed[key])
        for key in computed
    }
    return StageMaps(images, outputs, name=name)


@runtime_checkable
class TrainsEncoder(Protocol):
    """A model that trains an encoder: `training.trainer.Trainer`."""

    def serving_encoder(self) -> Encoder:
        """The encoder to evaluate and to keep, which reads images in [0, 255]."""
        ...


def encoder_of(model: Any) -> Encoder:
    """Returns the encoder that a model is, or trains.

    Args:
        model: an `Encoder`; a model that trains one; or any functional or sequential keras.Model from images [B, H, W,
            C] in [0, 255] to features [B, F].

    Raises:
        ValueError: if it is none of these, or a network that reads normalised pixels.
    """
    if isinstance(model, Encoder):
        return model
    if isinstance(model, TrainsEncoder):
        return model.serving_encoder()
    spec = unlabelled.spec_of(model)
    return Encoder(model.inputs[0], model.outputs[0], spec, name=model.name)


def network_to_train(model: keras.Model, mean: Sequence[float], std: Sequence[float]) -> keras.Model:
    """Returns the network to train on images that are normalised by a mean and a standard deviation.

    Args:
        model: a network that reads such images: itself; or an `Encoder`, as `load_pretrained` gives it: the network in it,
            unfrozen if none of its weights can be trained. It shares the weights, which are trained where they are.
        mean: of each channel, of pixels in [0, 1].
        std: likewise.

    Raises:
        ValueError: for an encoder that normalises otherwise.

    Warns:
        UserWarning: for another model that normalises images itself, if they are normalised before; for an encoder that was
            frozen.
    """
    spec = model.spec if isinstance(model, Encoder) else unlabelled.of_with_preprocessing(model)
    advice = "as in dataclasses.replace(keras_sslhsic.views.get(views), mean={}, std={})."
    if spec is None:
        if unlabelled.normalises(model) and np.any(mean):
            warn(
                f"{model.name} normalises its images itself, and is given normalised ones: give views that leave pixels in "
                "[0, 255], if it reads those, " + advice.format((0.0,) * len(mean), (1 / 255,) * len(std)),
            )
        return model
    known, found = spec.normalisation, (tuple(mean), tuple(std))
    if np.shape(known) != np.shape(found) or not np.allclose(
        known, found, rtol=0, atol=1e-5
    ):  # files round them
        raise ValueError(
            f"{model.name} reads images normalised by (mean, std) {known}, and the views have {found}: give views of its "
            "normalisation, by the fields views.mean and views.std of a config, or " + advice.format(*known)
        )
    network = (
        model.get_layer(spec.network) if spec.network else keras.Model(model.inputs[0], model.outputs[0])
    )
    if not network.trainable_variables:
        warn(
            f"{model.name} was frozen, and is to be trained: its own weights will change. load_pretrained(..., trainable=True) "
            "gives it so; freeze model.encoder before compile() to train the heads alone."
        )
        compat.set_trainable(model, True)
    return network


def with_preprocessing(
    encoder: keras.Model,
    mean: Sequence[float] | float,
    std: Sequence[float] | float,
    size: int | Sequence[int] | None = None,
    antialias: bool = False,
    name: str | None = None,
    trained_at: int | None = None,
) -> Encoder:
    """Makes an encoder of a network: puts resizing and normalisation in front of it.

    The result computes ``encoder((images / 255 - mean) / std)``. It is made of Keras's own layers alone, so
    its ``.keras`` file loads, and its exports run, where keras_sslhsic is not installed.

    Args:
        encoder: keras.Model from normalised float images [B, H, W, C] to features [B, F]; its weights are
            shared.
        mean: mean of each channel, of pixels in [0, 1]; one number or C of them.
        std: standard deviation of each channel, of pixels in [0, 1]; positive.
        size: side, or (height, width), that the largest central part of that aspect ratio is resized to (bilinear). None
            leaves images as they are.
        antialias: whether shrinking averages over all the pixels it covers. Off by default, as in the
            preprocessing that the released networks were trained and evaluated with; LiteRT and ONNX cannot
            express it.
        name: name of the model; by default the encoder's.
        trained_at: side of the images that it was trained on, where that is known.

    Returns:
        `Encoder` from images [B, H, W, C], uint8 or float in [0, 255], to float32 features [B, F]. With
        `size`, H and W are free.

    Raises:
        ValueError: if `encoder` is no network from images to features, or normalises them already, `mean` and `std` do not
            fit its channels, or `size` is none.

    Example:
        >>> model = with_preprocessing(network, mean=0.286, std=0.353)
        >>> features = model(images_uint8)
    """
    if isinstance(encoder, Encoder):
        raise ValueError(
            f"Expected a network of normalised images, but the encoder {encoder.name!r} normalises them itself."
        )
    check_network(encoder)
    shape = encoder.input_shape
    height, width, channels = shape[1:] if size is None else (None, None, shape[-1])
    means, stds = per_channel(mean, channels, "mean"), per_channel(std, channels, "std")
    if not all(value > 0 for value in stds):
        raise ValueError(f"std must be positive, found {list(stds)}.")
    resize = None if size is None else checks.sides("size", size)
    spec = EncoderSpec(
        height, width, channels, encoder.output_shape[-1], resize, antialias, means, stds, encoder.name,
        find_stages(encoder), None if trained_at is None else int(trained_at), crop=resize is not None,
    )  # fmt: skip
    return preprocessed(encoder, spec, name)


def preprocessed(encoder: keras.Model, spec: EncoderSpec, name: str | None = None) -> Encoder:
    """`with_preprocessing` of a network, as a spec of the whole has it."""
    images = keras.Input(spec.shape, dtype="float32", name=beside(spec.network, "image"))
    features = encoder(preprocess(images, spec))
    features = keras.layers.Identity(dtype="float32", name=beside(spec.network, "float32"))(features)
    return Encoder(images, features, spec, name or encoder.name)
