"""The central square of an image that features are of: in evaluations, `extract` and exports."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.data import decode


def central_square(pixels: np.ndarray, size: int, short_side: int | None = None) -> np.ndarray:
    """The test crop of an image of any size.

    Bicubic interpolation sees 4 x 4 pixels, and would skip most of a photograph's: where its short side is at least twice as
    long as asked for, whole blocks of pixels are averaged first.

    Args:
        pixels: uint8 [H, W, C].
        size: side of the crop.
        short_side: see `resize_then_crop`; by default `size`.

    Returns:
        float32 [size, size, C] in [0, 255].
    """
    short_side = short_side or size
    short, long = sorted(pixels.shape[:2])
    if long > 16 * short:
        # A strip is enlarged, and most of it cut away: 1 x 100,000 pixels would take 60 GB.
        with tf.device("CPU"):
            return traced_square(tf.cast(pixels[np.newaxis], tf.float32), size, short_side)[0].numpy()
    pixels = decode.averaged(pixels, (short // short_side,) * 2)
    with tf.device("CPU"):
        return resize_then_crop(pixels, size, short_side).numpy()


def resize_then_crop(images: tf.Tensor, size: int = 224, short_side: int = 256) -> tf.Tensor:
    """The paper's test crop: the short side resized to 256 (bicubic), then the central 224 x 224.

    Args:
        images: uint8 or float [..., H, W, C] in [0, 255], one image or a batch.
        size: side of the crop.
        short_side: length of the short side before the crop, at least `size`.

    Returns:
        float32 [..., size, size, C] in [0, 255].
    """
    if short_side < size:
        raise ValueError(f"short_side must be at least size, found {short_side} and {size}.")
    sides = images.shape[-3:-1]
    if None in sides:
        sides = tf.shape(images)[-3:-1]
        target = _scaled(sides, tf.reduce_min(sides), short_side)
    else:  # of a file, where every operation takes as long as a small image
        target = _scaled(np.array(sides), min(sides), short_side)
    top, left = (target[0] - size + 1) // 2, (target[1] - size + 1) // 2
    resized = tf.image.resize(images, target, "bicubic")[..., top : top + size, left : left + size, :]
    return tf.clip_by_value(resized, 0.0, 255.0)


def traced_square(images: tf.Tensor, size: int, short_side: int | None = None) -> tf.Tensor:
    """`central_square` of a batch, in operations that TensorFlow, LiteRT and ONNX have: two products with matrices.

    Args:
        images: float32 [B, H, W, C] in [0, 255], of any H and W.
        size: side of the square.
        short_side: as there.

    Returns:
        float32 [B, size, size, C] in [0, 255]; of images of that size themselves.
    """
    short_side = short_side or size
    shape = tf.shape(images)  # int32 throughout: LiteRT divides no others
    batch, sides, channels = shape[0], shape[1:3], images.shape[-1]
    block = tf.maximum(tf.reduce_min(sides) // short_side, 1)
    targets = _scaled(sides // block, tf.reduce_min(sides // block), short_side)
    (top, bottom, rows), (left, right, columns) = (
        _weights(sides[i], sides[i] // block, targets[i], size) for i in range(2)
    )
    images = images[:, top:bottom, left:right]
    height, width = bottom - top, right - left
    images = tf.matmul(rows, tf.reshape(images, tf.stack([batch, height, width * channels])))
    images = tf.matmul(columns, tf.reshape(images, tf.stack([batch * size, width, channels])))
    return tf.clip_by_value(tf.reshape(images, tf.stack([batch, size, size, channels])), 0.0, 255.0)


def _scaled(sides: Any, short: Any, short_side: int) -> Any:
    """The sides of an image in whole pixels once the short one of them is `short_side`; halves are rounded up."""
    return sides // short * short_side + (2 * short_side * (sides % short) + short) // (2 * short)


def _weights(
    length: tf.Tensor, averaged: tf.Tensor, target: tf.Tensor, size: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """How pixels along one side of an image make those of the square.

    Args:
        length: of the side; int32, as the next two.
        averaged: what it is once blocks are averaged.
        target: what that is resized to.
        size: pixels in the middle of it that are kept.

    Returns:
        (start, end, weights float32 [size, end - start]) of the pixels that have weight: of a narrow image few have.
    """
    scale = _float(averaged) / _float(target)
    first = (target - size + 1) // 2
    centres = (tf.range(size, dtype=tf.float32) + (_float(first) + 0.5)) * scale - 0.5
    low = tf.maximum(tf.cast(tf.floor(centres[0]), tf.int32) - 1, 0)
    high = tf.minimum(tf.cast(tf.floor(centres[-1]), tf.int32) + 3, averaged)
    whole, rest = length // averaged, length % averaged
    start, end = low * whole + low * rest // averaged, high * whole - (-high * rest) // averaged
    means = tf.range(_float(high - low))
    cubic = _keys(tf.abs(centres[:, tf.newaxis] - _float(low) - means))
    cubic /= tf.reduce_sum(cubic, axis=1, keepdims=True)
    # The share of a pixel in the mean of a block.
    block = _float(length) / _float(averaged)
    begins = means[:, tf.newaxis] * block + _float(low * rest % averaged) / _float(averaged)
    pixels = tf.range(_float(end - start))
    overlap = tf.minimum(begins + block, pixels + 1) - tf.maximum(begins, pixels)
    return start, end, tf.matmul(cubic, tf.maximum(overlap, 0.0) / block)


def _float(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x, tf.float32)


def _keys(x: tf.Tensor) -> tf.Tensor:
    """Keys' cubic kernel with a = -1/2, as TensorFlow's "bicubic", of distances x >= 0."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return tf.where(x < 1, near, tf.where(x < 2, far, tf.zeros_like(x)))
