"""Batched image operations in which every image has its own parameter.

Images are float [B, H, W, C] with values in [0, 1]; parameters are float [B], one an image (a scalar serves
all). Every function is a fixed program of static shapes, with no loop over images, so that XLA compiles it
for CPU, GPU and TPU. `axis` says where the channels are: -1, or 1 for images [B, C, H, W], in which a
channel is contiguous.
"""

from collections.abc import Sequence

import tensorflow as tf

_LUMA = (0.2989, 0.5870, 0.1140)  # ITU-R BT.601
_TINY = 1e-12


def adjust_brightness(images: tf.Tensor, delta: tf.Tensor) -> tf.Tensor:
    """Adds `delta` to all channels and clips: clip(x + delta, 0, 1).

    Args:
        images: float [B, H, W, C] in [0, 1].
        delta: float [B] or scalar, in [-1, 1].

    Returns:
        float of the shape of the images, in [0, 1].
    """
    return tf.clip_by_value(images + per_image(delta), 0.0, 1.0)


def adjust_contrast(images: tf.Tensor, factor: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """Scales the distance to the mean m of each image's channel and clips: clip(m + factor (x - m), 0, 1).

    Args:
        images: float [B, H, W, C] in [0, 1].
        factor: float [B] or scalar, at least 0; 1 leaves the image as it is.
        axis: of the channels, -1 or 1.

    Returns:
        float of the shape of the images, in [0, 1].
    """
    mean = tf.reduce_mean(images, axis=[2, 3] if axis == 1 else [1, 2], keepdims=True)
    return tf.clip_by_value(mean + per_image(factor) * (images - mean), 0.0, 1.0)


def adjust_saturation(images: tf.Tensor, factor: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """Multiplies the saturation of HSV by `factor` and clips it to [0, 1].

    Args:
        images: float [B, H, W, 3] in [0, 1].
        factor: float [B] or scalar, at least 0; 1 leaves the image as it is.
        axis: of the channels, -1 or 1.

    Returns:
        float of the shape of the images, in [0, 1].
    """
    return adjust_hue_and_saturation(images, 0.0, factor, axis)


def adjust_hue(images: tf.Tensor, delta: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """Adds `delta` turns to the hue of HSV, modulo 1.

    Args:
        images: float [B, H, W, 3] in [0, 1].
        delta: float [B] or scalar, in turns (1 is the whole colour circle).
        axis: of the channels, -1 or 1.

    Returns:
        float of the shape of the images, in [0, 1].
    """
    return adjust_hue_and_saturation(images, delta, 1.0, axis)


def adjust_hue_and_saturation(
    images: tf.Tensor, delta: tf.Tensor, factor: tf.Tensor, axis: int = -1
) -> tf.Tensor:
    """`adjust_hue` and `adjust_saturation` in one pass; the two commute, so no order is meant.

    With v = max(r, g, b), c = v - min(r, g, b), the hue h in sixths of a turn and k = (h + n) mod 6, HSV
    gives back v - c max(0, min(1, k, 4 - k)) for n = 5 (red), 3 (green), 1 (blue). The value v stays, and a
    saturation c / v that is multiplied and clipped is a chroma of min(factor c, v), so saturation itself
    need not be computed.

    Args:
        images: float [B, H, W, 3] in [0, 1].
        delta: float [B] or scalar, in turns.
        factor: float [B] or scalar, at least 0.
        axis: of the channels, -1 or 1.

    Returns:
        float of the shape of the images, in [0, 1].
    """
    red, green, blue = tf.unstack(images, axis=axis)
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)
    sixth = 1.0 / tf.maximum(chroma, _TINY)
    hue = tf.where(
        tf.equal(value, red),
        (green - blue) * sixth,
        tf.where(tf.equal(value, green), 2.0 + (blue - red) * sixth, 4.0 + (red - green) * sixth),
    )
    hue += 6.0 * tf.reshape(delta, [-1, 1, 1])
    chroma = tf.minimum(chroma * tf.reshape(factor, [-1, 1, 1]), value)

    def channel(offset: float) -> tf.Tensor:
        sector = hue + offset
        sector -= 6.0 * tf.floor(sector / 6.0)  # tf.math.floormod takes several times as long
        return value - chroma * tf.clip_by_value(tf.minimum(sector, 4.0 - sector), 0.0, 1.0)

    return tf.stack([channel(5.0), channel(3.0), channel(1.0)], axis=axis)


def to_grayscale(images: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """Luma 0.2989 r + 0.5870 g + 0.1140 b, repeated in the three channels.

    Args:
        images: float [B, H, W, 3] in [0, 1].
        axis: of the channels, -1 or 1.

    Returns:
        float of the shape of the images, in [0, 1].
    """
    red, green, blue = tf.unstack(images, axis=axis)
    luma = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return tf.stack([luma] * 3, axis=axis)


def gaussian_blur(images: tf.Tensor, sigma: tf.Tensor, kernel_size: float, axis: int = -1) -> tf.Tensor:
    """Separable Gaussian blur of 2 int(kernel_size / 2) + 1 taps, zero outside of the image.

    The taps are exp(-x^2 / (2 sigma^2)), divided by their sum. Each pass is a product of an image with its
    own banded Toeplitz matrix: matrix units do that well, and a convolution with one filter an image badly.

    Args:
        images: float [B, H, W, C].
        sigma: float [B] or scalar, standard deviation in pixels, above 0.
        kernel_size: in pixels; need not be whole (BYOL takes a tenth of the image's side).
        axis: of the channels, -1 or 1.

    Returns:
        float of the shape of the images.
    """
    if axis == -1:
        return to_channels_last(gaussian_blur(to_channels_first(images), sigma, kernel_size, axis=1))
    radius = int(kernel_size / 2)
    channels, height, width = images.shape[1:]
    sigma = tf.broadcast_to(sigma, tf.shape(images)[:1])
    columns = _gaussian_band(width, sigma, radius)
    rows = columns if height == width else _gaussian_band(height, sigma, radius)
    images = tf.matmul(tf.reshape(images, [-1, channels * height, width]), columns)
    return tf.matmul(rows[:, None], tf.reshape(images, [-1, channels, height, width]))


def _gaussian_band(side: int, sigma: tf.Tensor, radius: int) -> tf.Tensor:
    """Symmetric [B, side, side]: exp(-(i-j)^2 / (2 sigma^2)) / sum where |i-j| <= radius, and 0 elsewhere."""
    precision = 0.5 / tf.square(sigma)[:, None]
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
        float of the shape of the images, in [0, 1].
    """
    return tf.where(images < per_image(threshold), images, 1.0 - images)


def flip_left_right(images: tf.Tensor, mask: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """Mirrors the images whose mask is true.

    Args:
        images: [B, H, W, C] of any dtype.
        mask: bool [B] or scalar.
        axis: of the channels, -1 or 1.

    Returns:
        The same shape and dtype.
    """
    return tf.where(per_image(mask), tf.reverse(images, axis=[3 if axis == 1 else 2]), images)


def flip_up_down(images: tf.Tensor, mask: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """Turns the images upside down whose mask is true; as `flip_left_right`."""
    return tf.where(per_image(mask), tf.reverse(images, axis=[2 if axis == 1 else 1]), images)


def rotate(images: tf.Tensor, angle: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """Turns each image about its centre, bilinearly; what comes from beyond the border is the nearest pixel's.

    Args:
        images: float [B, H, W, C]; H and W static.
        angle: float [B] or scalar, in radians, counter-clockwise.
        axis: of the channels, -1 or 1.

    Returns:
        float of the shape of the images.
    """
    if axis != 1:
        return to_channels_last(rotate(to_channels_first(images), angle, axis=1))
    height, width = images.shape[2:]
    angle = tf.broadcast_to(angle, tf.shape(images)[:1])[:, None, None]
    middle = [(side - 1) / 2 for side in (height, width)]
    y = (tf.range(height, dtype=tf.float32) - middle[0])[:, None]
    x = tf.range(width, dtype=tf.float32) - middle[1]
    rows = tf.clip_by_value(tf.sin(angle) * x + tf.cos(angle) * y + middle[0], 0.0, height - 1.0)
    columns = tf.clip_by_value(tf.cos(angle) * x - tf.sin(angle) * y + middle[1], 0.0, width - 1.0)
    top, left = (tf.cast(place, tf.int32) for place in (rows, columns))
    down, right = (place - tf.floor(place) for place in (rows, columns))
    flat = tf.reshape(images, [-1, images.shape[1], height * width])

    def pixels(row: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
        places = tf.minimum(row, height - 1) * width + tf.minimum(column, width - 1)
        found = tf.gather(flat, tf.reshape(places, [-1, height * width]), axis=2, batch_dims=1)
        return tf.reshape(found, tf.shape(images))

    down, right = down[:, None], right[:, None]
    above = (1.0 - right) * pixels(top, left) + right * pixels(top, left + 1)
    below = (1.0 - right) * pixels(top + 1, left) + right * pixels(top + 1, left + 1)
    return tf.ensure_shape((1.0 - down) * above + down * below, images.shape)


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


def per_image(parameter: tf.Tensor) -> tf.Tensor:
    """[B] or [] to [B, 1, 1, 1] or [1, 1, 1, 1], to broadcast against images."""
    return tf.reshape(parameter, [-1, 1, 1, 1])


def to_channels_first(images: tf.Tensor) -> tf.Tensor:
    """[B, H, W, C] to [B, C, H, W]."""
    return tf.transpose(images, [0, 3, 1, 2])


def to_channels_last(images: tf.Tensor) -> tf.Tensor:
    """[B, C, H, W] to [B, H, W, C]."""
    return tf.transpose(images, [0, 2, 3, 1])
