"""Models that do not say what they read and give.

Functional models of others, and files of the versions that saved no spec. This is the only place where a model is
known by its layers: a network of `build_encoder`, which Keras saves as a plain graph, must not be taken for an encoder
of pixels, and what `with_preprocessing` of those versions wrote tells its normalisation and its network.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_sslhsic import compat
from keras_sslhsic.encoders.spec import EncoderSpec, find_stages

# Operations of Keras: those that normalise, and those that may come before.
_ARITHMETIC = {"Add", "Divide", "Multiply", "Subtract", "TrueDivide"}
_ARRANGING = {"Cast", "Flip", "GetItem", "Stack"}

# What trainers of this process give normalised images: a network of others does not say it.
_given_normalised: weakref.WeakSet[keras.Model] = weakref.WeakSet()


class BareNetworkError(ValueError):
    """A network that reads normalised pixels where an encoder of pixels is expected."""


def spec_of(model: Any) -> EncoderSpec:
    """What a functional or sequential model reads and gives, as far as it can be seen.

    Raises:
        BareNetworkError: as `refuse_bare`.
        ValueError: if it does not map images [B, H, W, C] to features [B, F].
    """
    images, features = shapes = compat.shapes_of(model)
    if [len(shape) if isinstance(shape, tuple) else 0 for shape in shapes] != [4, 2]:
        found = shapes if isinstance(model, keras.Model) else f"{model!r:.80}"
        raise ValueError(f"Expected an encoder from images [B, H, W, C] to features [B, F], found {found}.")
    height, width, channels = images[1:]
    spec = EncoderSpec(height, width, channels, features[-1])
    refuse_bare(model)
    return of_with_preprocessing(model) or spec


def normalises(model: keras.Model) -> bool:
    """Whether a model has a layer that normalises images, or begins with arithmetic on them, such as x / 255."""
    kinds = keras.layers.Rescaling, keras.layers.Normalization
    if any(isinstance(layer, kinds) for layer in compat.every_layer(model)):
        return True
    pixels = {id(tensor) for tensor in getattr(model, "inputs", None) or ()}
    for operation, arguments, outputs in compat.calls(model) or ():
        read = [id(x) for x in keras.tree.flatten(arguments) if keras.utils.is_keras_tensor(x)]
        if read and pixels.issuperset(read):
            if type(operation).__name__ in _ARITHMETIC:
                return True
            if type(operation).__name__ in _ARRANGING:
                pixels.update(map(id, outputs))
    return False


def note_trained(network: keras.Model, mean: Sequence[float], std: Sequence[float]) -> None:
    """Notes, for `refuse_bare`, that a network is trained on images normalised by a mean and a standard deviation."""
    of_pixels = not np.any(mean) and np.allclose(std, 1 / 255)
    if not (of_pixels or normalises(network)):
        _given_normalised.add(network)


def refuse_bare(model: keras.Model) -> None:
    """Raises BareNetworkError for what reads normalised pixels: networks of `build_encoder`, of the converter, and any that a
    trainer of this process was made of."""
    built = any(layer.name == "stem_conv" for layer in model.layers) and not normalises(model)
    if built or model in _given_normalised:
        raise BareNetworkError(
            "The network reads normalised pixels, and has no normalisation inside: wrap it with "
            "encoders.with_preprocessing(encoder, mean, std), or give the model that trains it."
        )


def of_with_preprocessing(model: keras.Model) -> EncoderSpec | None:
    """Reads the chain of normalisation, resizing, network and rounding; None if it is another."""
    if not compat.is_functional(model):
        return None
    operations = model.operations[1:]
    kinds = [type(operation).__name__ for operation in operations]
    chain = ["Rescaling", *(["Resize"] if "Resize" in kinds else []), "Functional", "Identity"]
    if kinds != chain or not np.all(np.asarray(operations[0].scale) > 0):
        return None
    *before, network, _ = operations
    height, width, channels = model.input_shape[1:]
    scale, offset = (np.broadcast_to(v, [channels]) for v in (before[0].scale, before[0].offset))
    std = 1 / (255 * scale)
    resize = before[1] if len(before) > 1 else None
    if resize is not None and (resize.interpolation != "bilinear" or resize.pad_to_aspect_ratio):
        return None
    return EncoderSpec(
        height,
        width,
        channels,
        model.output_shape[-1],
        resize=None if resize is None else tuple(resize.size),
        antialias=resize is not None and resize.antialias,
        crop=resize is not None and resize.crop_to_aspect_ratio,
        mean=tuple(np.round(-offset * std, 6).tolist()),
        std=tuple(np.round(std, 6).tolist()),
        network=network.name,
        stages=find_stages(network),
    )


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class PretrainedEncoder(keras.Model):
    """What files of earlier versions hold where `load_pretrained` had loaded what was saved: a functional model."""
