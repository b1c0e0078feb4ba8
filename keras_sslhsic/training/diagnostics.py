"""What to watch while training: how far apart the outputs are, and in how many directions."""

import tensorflow as tf

from keras_sslhsic.hsic import replicas
from keras_sslhsic.losses import unit_norm


def feature_spread(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Standard deviation and effective rank of the directions of the outputs of the global batch.

    With C the covariance of z / |z|, z [n, Q], over the batches of all replicas:

        std  = sqrt(tr C)                 sqrt(Q) times the root mean square deviation of a dimension
        rank = (tr C)^2 / tr(C^2)         participation ratio, between 1 and Q

    The standard deviation is 1 for centred directions and falls to 0 as they collapse into one point. The
    rank says in how many directions they differ, however little: it stays where it is while they collapse, and is 0
    only where they are equal to the last digit.

    Args:
        z: outputs, float [n, Q].

    Returns:
        (std, rank), float32 scalars, equal on all replicas.
    """
    z = unit_norm(tf.stop_gradient(tf.cast(z, tf.float32)))
    # Several steps in one execution under a strategy lose the static batch size.
    count = tf.cast(tf.shape(z)[0] * replicas.num_replicas(), tf.float32)
    centred = z - replicas.all_sum(tf.reduce_sum(z, 0)) / count
    covariance = replicas.all_sum(tf.matmul(centred, centred, transpose_a=True)) / count
    trace = tf.linalg.trace(covariance)
    rank = tf.math.divide_no_nan(trace**2, tf.reduce_sum(covariance**2))
    return tf.sqrt(trace), rank
