"""Training crops of the linear and fine-tuning protocols, on pixels in [0, 255]; test crops are in `data.central`."""

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
