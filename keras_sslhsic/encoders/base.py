"""The keras.Model that `load_pretrained` returns, and the checks of the images given to it."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.encoders import with_preprocessing


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class PretrainedEncoder(keras.Model):
    """An encoder of images that looks at what it is given before it computes.

    Eager calls, and `predict` of arrays, raise ValueError for images of another shape, an empty batch, NaN or Inf, and
    warn when float images seem to lie in [0, 1]. Inside a graph, where values are not known, and of the batches of a
    dataset, nothing is checked.

    Attributes:
        entry: `zoo.registry.Entry` of what `load_pretrained` loaded; None where nothing is known of it.
        measured: `encoder_hash` of the weights that the metrics of the entry belong to.
    """

    entry: Any = None
    measured: str | None = None

    def __call__(self, images, *args, **kwargs):
        """Computes the features, float32 [B, F], of images [B, H, W, C], uint8 or float in [0, 255]."""
        if not keras.utils.is_keras_tensor(images) and tf.executing_eagerly():
            check_images(images, self.input_shape[1:])
        return super().__call__(images, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """As `keras.Model.predict`."""
        if isinstance(x, (np.ndarray, tf.Tensor)):
            check_images(x, self.input_shape[1:])
        return super().predict(x, *args, **kwargs)


def encoder_of(model: keras.Model) -> keras.Model:
    """Returns a model that reads pixels: the model itself, or the encoder in a trained SSLHSIC.

    Raises:
        ValueError: if it does not map images [B, H, W, C] to features [B, F].
    """
    if hasattr(model, "evaluation_encoder"):  # the training model
        return with_preprocessing(model.evaluation_encoder, model.policy.mean, model.policy.std)
    shapes = getattr(model, "input_shape", None), getattr(model, "output_shape", None)
    if [len(shape) if isinstance(shape, tuple) else 0 for shape in shapes] != [4, 2]:
        raise ValueError(f"Expected an encoder from images [B, H, W, C] to features [B, F], found {shapes}.")
    return model


def is_bare(model: keras.Model) -> bool:
    """Whether a model is a network of `build_encoder`, or of the converter, without the preprocessing of pixels."""
    return any(layer.name == "stem_conv" for layer in model.layers) and not any(
        isinstance(layer, (keras.layers.Rescaling, keras.layers.Normalization)) for layer in model.layers
    )


def sides_seen(model: keras.Model) -> tuple[int | None, int | None, int]:
    """Returns (height, width, channels) of the images that the network itself sees, after any resizing."""
    resize = _resize_before(model)
    height, width = model.input_shape[1:3] if resize is None else resize.size
    return height, width, model.input_shape[-1]


def resizer(model: keras.Model) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns what makes images of any size fit into one batch: from [H, W, C] to float32 of `sides_seen`.

    The model makes of them what it makes of the images themselves: it resizes them to the size that they have. Images
    for a model of any size stay as they are; those for one of a fixed size are resized (bilinear).
    """
    resize = _resize_before(model)
    height, width = model.input_shape[1:3]

    def fit(image):
        image = tf.cast(image, tf.float32)[tf.newaxis]
        if resize is not None:
            image = resize(image)
        elif (height, width) != (None, None):
            free = tf.shape(image)[1:3]
            image = tf.image.resize(image, (height or free[0], width or free[1]))
        return image[0]

    return fit


def _resize_before(model: keras.Model) -> Any:
    """The operation by which a model resizes images of any size before anything but normalising them, or None."""
    if not compat.is_functional(model) or model.input_shape[1:3] != (None, None):
        return None
    if not tf.as_dtype(model.inputs[0].dtype).is_floating:  # whole numbers are rounded after it
        return None
    operation = compat.only_reader(compat.layer_before(model.inputs[0]))
    # The weights of an interpolation sum to 1, so that it may come before or after.
    if type(operation) is keras.layers.Rescaling:
        operation = compat.only_reader(operation)
    # By its kind: the name is "resize_1" for the second network of a process. Padding is no interpolation.
    if type(operation).__name__ != "Resize" or operation.pad_to_aspect_ratio:
        return None
    return operation


def check_images(images: Any, shape: tuple[int | None, ...]) -> None:
    """Checks a batch of images, uint8 or float in [0, 255].

    Args:
        images: array or eager tensor [B, H, W, C].
        shape: (height, width, channels) that they must have; None in a place is free.

    Raises:
        ValueError: for something else than an array, another shape, an empty batch, or values that are no real numbers, NaN
            or Inf.
    """
    if not hasattr(images, "dtype"):
        raise ValueError(
            f"Expected an array of images [B, H, W, C], found a {type(images).__name__}: np.stack(images)."
        )
    dtype = tf.as_dtype(images.dtype)
    if not (dtype.is_floating or dtype.is_integer):
        raise ValueError(f"Expected images of uint8, or of floats in [0, 255], found {dtype.name}.")
    found = np.shape(images)
    fits = len(found) == 4 and all(want in (None, side) for want, side in zip(shape, found[1:], strict=True))
    if not fits:
        sides = (name if side is None else str(side) for name, side in zip("HWC", shape, strict=True))
        raise ValueError(
            f"Expected images [B, {', '.join(sides)}], found shape {list(found)}.{_hint(found, shape)}"
        )
    if 0 in found:
        raise ValueError(f"The batch of images is empty: shape {list(found)}.")
    if not dtype.is_floating:
        return
    low, high = float(np.min(images)), float(np.max(images))
    if not np.isfinite([low, high]).all():  # NaN and Inf reach the extremes
        raise ValueError("The images hold NaN or Inf.")
    if low >= -1 and 0 < high <= 1:
        warnings.warn(
            f"The images lie in [{low:.3g}, {high:.3g}], but the encoder expects [0, 255]: multiply by 255.",
            stacklevel=3,
        )


def _hint(found: tuple[int, ...], shape: tuple[int | None, ...]) -> str:
    if len(found) == 3 and found[-1] == shape[-1]:
        return " For a single image add a batch axis: image[None]."
    if len(found) == 4 and found[-1] == 1 and shape[-1] == 3:
        return " For grayscale images repeat the channel: np.repeat(images, 3, axis=-1)."
    if len(found) == 4 and found[-1] == 4 and shape[-1] == 3:
        return " Drop the alpha channel: images[..., :3]."
    return ""
