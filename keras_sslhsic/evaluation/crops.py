"""Crops of the linear and fine-tuning protocols, on batches of pixels in [0, 255]."""

import tensorflow as tf

from keras_sslhsic.views.crop import resize_crops, sample_crop_boxes
from keras_sslhsic.views.draws import uniform
from keras_sslhsic.views.ops import flip_left_right


def random_crop_and_flip(
    images: tf.Tensor, size: int, seed: tf.Tensor, area: tuple[float, float] = (0.08, 1.0)
) -> tf.Tensor:
    """Each image's random resized crop (bicubic), mirrored with probability 1/2: training of a classifier.

    Args:
        images: uint8 or float [B, H, W, C] in [0, 255].
        size: side of the result in pixels.
        seed: int32 [2].
        area: range of the crop's share of the image's area.

    Returns:
        float32 [B, size, size, C] in [0, 255].
    """
    box_seed, flip_seed = tf.unstack(tf.random.split(seed, 2, alg="philox"))
    batch = tf.shape(images)[0]
    boxes = sample_crop_boxes((batch, *images.shape[1:3]), box_seed, area)
    crops = resize_crops(tf.cast(images, tf.float32), boxes, size)
    return flip_left_right(tf.clip_by_value(crops, 0.0, 255.0), uniform([batch], flip_seed) < 0.5)


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
    shape = tf.shape(images)[-3:-1]
    scale = short_side / tf.reduce_min(shape)
    target = tf.cast(tf.round(scale * tf.cast(shape, tf.float64)), tf.int32)
    images = tf.clip_by_value(tf.image.resize(images, target, "bicubic"), 0.0, 255.0)
    top, left = tf.unstack((target - size + 1) // 2)
    return images[..., top : top + size, left : left + size, :]
