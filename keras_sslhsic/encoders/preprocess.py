"""Preprocessing inside the model: from the pixels people have to what a network reads."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic.encoders.spec import EncoderSpec


def preprocess(images: keras.KerasTensor, spec: EncoderSpec) -> keras.KerasTensor:
    """Normalises and resizes symbolic images [B, H, W, C] in [0, 255], with Keras's own layers."""
    means, stds = np.array(spec.mean), np.array(spec.std)
    # Normalised first: resizing rounds integer images to integers. float32 throughout: a half-precision
    # policy must not round the pixels.
    x = keras.layers.Rescaling(
        (1 / (255 * stds)).tolist(),
        (-means / stds).tolist(),
        dtype="float32",
        name=beside(spec.network, "normalize"),
    )(images)
    if spec.resize is None:
        return x
    # Not keras.layers.Resizing: its default training=True reaches the layers after it (Keras 3.15), and
    # BatchNormalization would normalise by the batch.
    return _resized(x, spec.resize, spec)


def beside(network: str | None, name: str) -> str:
    """A name for a layer in front of or behind a network: Keras wants another one than the network's."""
    return name if name != network else f"{name}_of_pixels"


def resizer(spec: EncoderSpec) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns what makes images of any size fit into one batch: from [H, W, C] to float32 of `spec.shape_seen`.

    The encoder makes of them what it makes of the images themselves: it resizes them to the size that they have. Images
    for an encoder of any size stay as they are; those for one of a fixed size are stretched to it (bilinear).
    """
    height, width, _ = spec.shape_seen

    def fit(image: tf.Tensor) -> tf.Tensor:
        image = tf.cast(image, tf.float32)
        if (height, width) == (None, None):
            return image
        free = tf.shape(image)
        # The weights of an interpolation sum to 1, so that it may come before normalising or after.
        if spec.resize is None:
            return tf.image.resize(image, (height or free[0], width or free[1]))
        return _resized(image, spec.resize, spec)

    return fit


def _resized(images: Any, sides: tuple[int, int], spec: EncoderSpec) -> Any:
    return keras.ops.image.resize(
        images, sides, interpolation="bilinear", antialias=spec.antialias, crop_to_aspect_ratio=spec.crop
    )


def per_channel(value: Sequence[float] | float, channels: int, what: str) -> tuple[float, ...]:
    """One number for each channel.

    Raises:
        ValueError: if there are neither as many nor one.
    """
    array = np.asarray(value, np.float64)
    if array.ndim > 1 or array.size not in (1, channels):
        raise ValueError(
            f"{what} must have 1 or {channels} values for {channels} channels, found {array.tolist()}."
        )
    return tuple(np.broadcast_to(array, (channels,)).tolist())
