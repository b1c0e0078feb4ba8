"""When collapse attracts: hsic_zy beside sqrt(hsic_zz), and how large their ratio can be.

Near collapse a smooth kernel is k(0) - a s, so both terms of -hsic_zy + gamma sqrt(hsic_zz) are in proportion to the
squared spread of the representations. Whatever draws these together then lowers the loss where hsic_zy / sqrt(hsic_zz) <
gamma, and raises it where the ratio is larger; see docs/method.md.
"""

from __future__ import annotations

import math

import tensorflow as tf


def dependence_ratio(zy: tf.Tensor, zz: tf.Tensor) -> tf.Tensor:
    """Returns zy / sqrt(zz) without a gradient; 0 where zz <= 0.

    Args:
        zy: `hsic_zy`, which is 0 for independence (with its constant subtracted).
        zz: `hsic_zz`.
    """
    zy, zz = tf.stop_gradient(zy), tf.stop_gradient(zz)
    return tf.math.divide_no_nan(zy, tf.sqrt(tf.maximum(zz, 0.0)))


def largest_ratio(images: int, views: int, ddof: int = 1) -> float:
    """The largest ratio of the biased estimators that a batch can have, for any kernel with k(z, z) = 1.

        max hsic_zy / sqrt(hsic_zz) = sqrt(B - 1) (1 - ddof / (B M))

    It is reached where the views of an image are equal and all pairs of images equally similar. With a larger gamma
    the loss is positive but for collapse, which then is its minimum.

    Args:
        images: number B of images in the batch.
        views: number M of views of each.
        ddof: as in `hsic_zz`.
    """
    return math.sqrt(images - 1) * (1 - ddof / (images * views))
