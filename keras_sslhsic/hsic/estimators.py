"""Estimators of HSIC(Z, Y), of representations with image identities, and of HSIC(Z, Z), from random features.

Under a `tf.distribute` strategy all of them are global: each replica holds its own images, and only a vector of D and
a matrix of D x D are summed over the replicas, whatever the batch size.
"""

from __future__ import annotations

import tensorflow as tf

from keras_sslhsic.hsic import replicas


def sqrt_or_zero(x: tf.Tensor) -> tf.Tensor:
    """Square root of max(x, 0), with gradient 0 where x <= 0 (that of `tf.sqrt` is infinite there)."""
    positive = x > 0
    return tf.where(positive, tf.sqrt(tf.where(positive, x, tf.ones_like(x))), tf.zeros_like(x))


def check_views(z: tf.Tensor) -> tuple[int, int, int]:
    """Returns B, M, Q of representations z [B, M, Q], or raises a ValueError."""
    if z.shape.rank != 3:
        raise ValueError(f"Expected representations [images B, views M, dimensions Q], but found {tuple(z.shape)}.")
    if z.shape[1] is not None and z.shape[1] < 2:
        raise ValueError(f"At least M = 2 views of each image are needed, but found M = {z.shape[1]} in {tuple(z.shape)}.")
    return tuple(z.shape)


def centre(features: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns features [n, D] minus their global mean, and the mean [D].

    The mean that is subtracted is under stop-gradient: it drops out of every gradient of what follows.
    """
    count = tf.cast(tf.shape(features)[0] * replicas.num_replicas(), features.dtype)
    mean = replicas.all_sum(tf.reduce_sum(features, axis=0)) / count
    return features - tf.stop_gradient(mean), mean


def hsic_zy_features(r: tf.Tensor, *, constant: bool = True) -> tf.Tensor:
    batch, views, _ = check_views(r)
    batch = batch * replicas.num_replicas()
    centred, mean = centre(tf.reshape(r, [-1, r.shape[-1]]))
    sums = tf.reduce_sum(tf.reshape(centred, tf.shape(r)), axis=1)
    within = replicas.all_sum(tf.reduce_sum(tf.square(sums))) / (batch * views * (views - 1))
    norm = tf.reduce_sum(tf.square(mean))
    return within + (norm - float(constant)) / (views - 1)


def hsic_zz_features(r: tf.Tensor, r2: tf.Tensor, *, minus_one: bool = True) -> tf.Tensor:
    dim = r.shape[-1]
    centred, _ = centre(tf.reshape(r, [-1, dim]))
    centred2, _ = centre(tf.reshape(r2, [-1, dim]))
    n = centred.shape[0] * replicas.num_replicas()
    cross = replicas.all_sum(tf.matmul(centred, centred2, transpose_a=True))
    return tf.reduce_sum(tf.square(cross)) / (n - float(minus_one)) ** 2
