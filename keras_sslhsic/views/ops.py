"""Batched image operations in which every image has its own parameter.

Images are float [B, H, W, C] with values in [0, 1]; parameters are float [B], one an image (a scalar serves all). Every
function is a fixed program of static shapes, with no loop over images, so XLA compiles it for CPU, GPU and TPU.
"""

from collections.abc import Sequence

import tensorflow as tf

_LUMA = (0.2989, 0.5870, 0.1140)  # ITU-R BT.601


def adjust_brightness(images: tf.Tensor, delta: tf.Tensor) -> tf.Tensor:
    """Adds `delta` to all channels and clips: clip(x + delta, 0, 1).

    Args:
        images: float [B, H, W, C] in [0, 1].
        delta: float [B] or scalar, in [-1, 1].

    Returns:
        float [B, H, W, C] in [0, 1].
    """
    return tf.clip_by_value(images + _per_image(delta), 0.0, 1.0)


def adjust_contrast(images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Scales the distance to each image's per-channel mean m and clips: clip(m + factor (x - m), 0, 1).

    Args:
        images: float [B, H, W, C] in [0, 1].
        factor: float [B] or scalar, at least 0; 1 leaves the image as it is.

    Returns:
        float [B, H, W, C] in [0, 1].
    """
    mean = tf.reduce_mean(images, axis=[1, 2], keepdims=True)
    return tf.clip_by_value(mean + _per_image(factor) * (images - mean), 0.0, 1.0)


def adjust_saturation(images: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Multiplies the saturation of HSV by `factor` and clips it to [0, 1].

    Hue and value stay, so HSV need not be built. With v = max(r, g, b), c = v - min(r, g, b) and s = c / v, each channel
    keeps its share of the distance to v: x' = v - (v - x) min(factor, v / c).

    Args:
        images: float [B, H, W, 3] in [0, 1].
        factor: float [B] or scalar, at least 0; 1 leaves the image as it is.

    Returns:
        float [B, H, W, 3] in [0, 1].
    """
    value = tf.reduce_max(images, axis=-1, keepdims=True)
    chroma = value - tf.reduce_min(images, axis=-1, keepdims=True)
    scale = tf.minimum(_per_image(factor), value / tf.maximum(chroma, _TINY))
    return value - (value - images) * scale


_TINY = 1e-12


def adjust_hue(images: tf.Tensor, delta: tf.Tensor) -> tf.Tensor:
    """Adds `delta` turns to the hue of HSV, modulo 1.

    Args:
        images: float [B, H, W, 3] in [0, 1].
        delta: float [B] or scalar, in turns (1 is the whole colour circle).

    Returns:
        float [B, H, W, 3] in [0, 1].
    """
    return adjust_hue_and_saturation(images, delta, 1.0)


def adjust_hue_and_saturation(images: tf.Tensor, delta: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """`adjust_hue` and `adjust_saturation` in one pass; the two commute, so no order is meant.

    Args:
        images: float [B, H, W, 3] in [0, 1].
        delta: float [B] or scalar, in turns.
        factor: float [B] or scalar, at least 0.

    Returns:
        float [B, H, W, 3] in [0, 1].
    """
    red, green, blue = tf.unstack(images, axis=-1)
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)
    divisor = tf.maximum(chroma, _TINY)
    # Hue in sixths of a turn, in [-1, 5].
    hue = tf.where(
        value == red,
        (green - blue) / divisor,
        tf.where(value == green, 2.0 + (blue - red) / divisor, 4.0 + (red - green) / divisor),
    )
    hue += 6.0 * _per_image(delta)[..., 0]
    chroma = tf.minimum(chroma * _per_image(factor)[..., 0], value)

    def channel(offset):
        sector = tf.math.floormod(hue + offset, 6.0)
        return value - chroma * tf.clip_by_value(tf.minimum(sector, 4.0 - sector), 0.0, 1.0)

    return tf.stack([channel(5.0), channel(3.0), channel(1.0)], axis=-1)


def to_grayscale(images: tf.Tensor) -> tf.Tensor:
    """Luma 0.2989 r + 0.5870 g + 0.1140 b, repeated in the three channels.

    Args:
        images: float [B, H, W, 3] in [0, 1].

    Returns:
        float [B, H, W, 3] in [0, 1].
    """
    return tf.repeat(tf.reduce_sum(images * tf.constant(_LUMA, images.dtype), axis=-1, keepdims=True), 3, axis=-1)


def gaussian_blur(images: tf.Tensor, sigma: tf.Tensor, kernel_size: float) -> tf.Tensor:
    """Separable Gaussian blur of 2 int(kernel_size / 2) + 1 taps, zero outside of the image.

    The taps are exp(-x^2 / (2 sigma^2)), divided by their sum. Each image's two passes are products with a banded
    Toeplitz matrix, which keeps matrix units busy where a convolution with one filter an image would not.

    Args:
        images: float [B, H, W, C].
        sigma: float [B] or scalar, standard deviation in pixels, above 0.
        kernel_size: pixels; need not be whole (BYOL takes a tenth of the image's side).

    Returns:
        float [B, H, W, C].
    """
    radius = int(kernel_size / 2)
    height, width, channels = images.shape[1:]
    sigma = tf.broadcast_to(sigma, tf.shape(images)[:1])
    columns = _gaussian_band(width, sigma, radius)
    rows = _gaussian_band(height, sigma, radius)
    images = tf.matmul(rows, tf.reshape(images, [-1, height, width * channels]))
    images = tf.reshape(images, [-1, height, width, channels])
    return tf.einsum("bxw,bywc->byxc", columns, images)


def _gaussian_band(side: int, sigma: tf.Tensor, radius: int) -> tf.Tensor:
    """Matrices [B, side, side] with exp(-(i-j)^2 / (2 sigma^2)) / sum for |i-j| <= radius, and 0 elsewhere."""
    precision = 0.5 / tf.reshape(tf.square(sigma), [-1, 1])
    taps = tf.range(-radius, radius + 1, dtype=tf.float32)
    total = tf.reduce_sum(tf.exp(-tf.square(taps) * precision), axis=-1)[:, None, None]
    index = tf.range(side, dtype=tf.float32)
    offset = index[:, None] - index[None, :]
    weights = tf.exp(-tf.square(offset) * precision[..., None]) / total
    return tf.where(tf.abs(offset) <= radius, weights, 0.0)


def solarize(images: tf.Tensor, threshold: tf.Tensor) -> tf.Tensor:
    """Inverts what is at or above the threshold: x if x < threshold, else 1 - x.

    Args:
        images: float [B, H, W, C] in [0, 1].
        threshold: float [B] or scalar.

    Returns:
        float [B, H, W, C] in [0, 1].
    """
    return tf.where(images < _per_image(threshold), images, 1.0 - images)


def flip_left_right(images: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Mirrors the images whose mask is true.

    Args:
        images: [B, H, W, C] of any dtype.
        mask: bool [B] or scalar.

    Returns:
        [B, H, W, C] of the same dtype.
    """
    return tf.where(_per_image(mask), tf.reverse(images, axis=[2]), images)


def normalize(images: tf.Tensor, mean: Sequence[float], std: Sequence[float]) -> tf.Tensor:
    """(x - mean) / std, channel by channel.

    Args:
        images: float [B, H, W, C].
        mean: C floats.
        std: C floats, above 0.

    Returns:
        float [B, H, W, C].
    """
    return (images - tf.constant(mean, images.dtype)) / tf.constant(std, images.dtype)


def _per_image(parameter: tf.Tensor) -> tf.Tensor:
    """[B] or [] to [B, 1, 1, 1] or [1, 1, 1, 1], to broadcast against images."""
    return tf.reshape(parameter, [-1, 1, 1, 1])
