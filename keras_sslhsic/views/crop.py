"""Random resized crops as two batched matrix products, a form of crop that XLA compiles everywhere."""

import math

import tensorflow as tf

from keras_sslhsic.views import ops
from keras_sslhsic.views.draws import ALL, Share, uniform_of_share

BOXES = ("redrawn", "clamped")
_ATTEMPTS = 10


def check_box(box: str) -> None:
    """Raises ValueError unless `box` names what becomes of a box that is larger than the image."""
    if box not in BOXES:
        raise ValueError(f"box must be one of {BOXES}, found {box!r}.")


def sample_crop_boxes(
    shape: tuple[int, int, int],
    seed: tf.Tensor,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
    box: str = "redrawn",
    share: Share = ALL,
) -> tf.Tensor:
    """Draws one box an image, its area uniform and its aspect ratio (width / height) log-uniform.

    Large boxes do not always fit in the image. What becomes of those decides how large crops are: on 375 x
    500 pixels with the ranges below, a "redrawn" box covers 43 % of the image on average, and a "clamped" one
    52 %, with a quarter of them as high or as wide as the image.

    Args:
        shape: (B, H, W) of the images.
        seed: int [2].
        area: range of the box's share of the image's area, within (0, 1].
        aspect: range of width / height.
        box: "redrawn" draws a box that does not fit again (ten are drawn at once, and the first that fits is
            taken); if none fits, the largest central box of an allowed aspect ratio is taken. So does
            torchvision. "clamped" cuts each side to that of the image, as the released code of BYOL and
            SSL-HSIC does.
        share: (i, n): the images are part i of n of the batch that the seed is of.

    Returns:
        int32 [B, 4]: y, x, height, width in whole pixels, inside the image, at least 1 x 1.

    Raises:
        ValueError: if `box` is neither.
    """
    check_box(box)
    batch, height, width = shape
    draws = uniform_of_share(batch, [1 if box == "clamped" else _ATTEMPTS, 4], seed, share)
    areas = height * width * (area[0] + (area[1] - area[0]) * draws[..., 0])
    ratios = tf.exp(math.log(aspect[0]) + math.log(aspect[1] / aspect[0]) * draws[..., 1])
    # At least one pixel: a share of a one-pixel-high image rounds to nothing.
    heights = tf.maximum(tf.round(tf.sqrt(areas / ratios)), 1.0)
    widths = tf.maximum(tf.round(tf.sqrt(areas * ratios)), 1.0)
    if box == "clamped":
        heights, widths = tf.minimum(heights, float(height)), tf.minimum(widths, float(width))
    fits = tf.logical_and(heights <= height, widths <= width)
    first = tf.one_hot(tf.argmax(fits, axis=1), fits.shape[1])
    found = tf.reduce_any(fits, axis=1)

    def choose(values: tf.Tensor, fallback: tf.Tensor | float) -> tf.Tensor:
        return tf.where(found, tf.reduce_sum(first * values, axis=1), fallback)

    def place(free: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
        # floor(u (n + 1)) is uniform on 0 ... n, and float32 may round u (n + 1) up to n + 1.
        return choose(tf.minimum(tf.floor(draw * (free + 1.0)), free), tf.floor(free[:, 0] / 2.0))

    ratio = min(max(width / height, aspect[0]), aspect[1])
    crop_height = choose(heights, float(max(round(min(height, width / ratio)), 1)))
    crop_width = choose(widths, float(max(round(min(width, height * ratio)), 1)))
    y = place((height - crop_height)[:, None], draws[..., 2])
    x = place((width - crop_width)[:, None], draws[..., 3])
    return tf.cast(tf.stack([y, x, crop_height, crop_width], axis=-1), tf.int32)


def resize_crops(
    images: tf.Tensor,
    boxes: tf.Tensor,
    size: int,
    method: str = "bicubic",
    antialias: bool = False,
    axis: int = -1,
) -> tf.Tensor:
    """Cuts each image to its box and resizes it to size x size, as `tf.image.resize` of the cut array does.

    With interpolation weights W_y [B, S, H] and W_x [B, S, W], the result is W_y image W_x^T for each
    channel. Pixels outside of the box have weight 0 and the others are divided by their sum, so nothing
    bleeds in.

    Args:
        images: float [B, H, W, C].
        boxes: int [B, 4]: y, x, height, width, inside the image.
        size: S, side of the result in pixels.
        method: "bicubic" (Keys' kernel, a = -1/2) or "bilinear".
        antialias: widens the kernel by the downscaling factor. BYOL does not.
        axis: of the channels, -1 or 1.

    Returns:
        float [B, S, S, C] (axis 1: [B, C, S, S]). Bicubic interpolation may overshoot the range of the
        images.

    Raises:
        ValueError: for another method.
    """
    if method not in _KERNELS:
        raise ValueError(f"method must be one of {sorted(_KERNELS)}, found {method!r}.")
    if axis == -1:
        images = ops.to_channels_first(images)
        return ops.to_channels_last(resize_crops(images, boxes, size, method, antialias, axis=1))
    channels, height, width = images.shape[1:]
    y, x, box_height, box_width = tf.unstack(tf.cast(boxes, tf.float32), axis=-1)
    rows = _interpolation_weights(y, box_height, height, size, method, antialias)
    columns = _interpolation_weights(x, box_width, width, size, method, antialias)
    images = tf.matmul(tf.reshape(images, [-1, channels * height, width]), columns, transpose_b=True)
    return tf.matmul(rows[:, None], tf.reshape(images, [-1, channels, height, size]))


def _interpolation_weights(
    start: tf.Tensor, length: tf.Tensor, source: int, size: int, method: str, antialias: bool
) -> tf.Tensor:
    """Weights [B, size, source] of each source pixel in each target pixel; start and length are [B]."""
    start, length = start[:, None, None], length[:, None, None]
    scale = length / size
    center = (tf.range(size, dtype=tf.float32)[:, None] + 0.5) * scale - 0.5
    if method == "bicubic" and not antialias:
        # tf.image.resize looks this kernel up in a table of 1024 steps a pixel.
        center = tf.round(center * 1024.0) / 1024.0
    position = tf.range(source, dtype=tf.float32) - start
    distance = tf.abs(position - center)
    if antialias:
        distance /= tf.maximum(scale, 1.0)
    weights = tf.where(tf.logical_and(position >= 0.0, position < length), _KERNELS[method](distance), 0.0)
    return weights / tf.reduce_sum(weights, axis=-1, keepdims=True)


def _triangle(distance: tf.Tensor) -> tf.Tensor:
    return tf.maximum(1.0 - distance, 0.0)


def _keys_cubic(distance: tf.Tensor) -> tf.Tensor:
    """Keys (1981), "Cubic convolution interpolation for digital image processing", with a = -1/2."""
    near = (1.5 * distance - 2.5) * distance * distance + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return tf.where(distance < 1.0, near, tf.where(distance < 2.0, far, 0.0))


_KERNELS = {"bicubic": _keys_cubic, "bilinear": _triangle}
