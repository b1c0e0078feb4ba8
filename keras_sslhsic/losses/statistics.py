"""Statistics of a batch, over all replicas: each is that of the global batch, with its gradient."""

import tensorflow as tf

from keras_sslhsic.hsic import replicas


def centred(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Subtracts the mean over images; returns z - mean, float32 [B, M, Q], and the global number of images, float32 []."""
    z = tf.cast(z, tf.float32)
    count = tf.cast(tf.shape(z)[0] * replicas.num_replicas(), tf.float32)
    return z - replicas.all_sum(tf.reduce_sum(z, axis=0)) / count, count


def scatter(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """The sum over images of products of their dimensions, float32 [Q, Q], of [B, Q] and [B, Q]."""
    return replicas.all_sum(tf.matmul(a, b, transpose_a=True))


def without_diagonal(matrix: tf.Tensor) -> tf.Tensor:
    """The matrix with zeros on its diagonal."""
    return tf.linalg.set_diag(matrix, tf.zeros(tf.shape(matrix)[:1], matrix.dtype))
