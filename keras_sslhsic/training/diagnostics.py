"""What to watch while training: how far apart the outputs are, in how many directions, and how the views of an image agree."""

import statistics

import tensorflow as tf

from keras_sslhsic.hsic import replicas
from keras_sslhsic.losses import unit_norm

# Two-sided, at the paper's alpha = 0.025 (appendix B.3).
_CRITICAL = statistics.NormalDist().inv_cdf(1.0 - 0.025 / 2)


def of_outputs(z: tf.Tensor) -> dict[str, tf.Tensor]:
    """What the directions z / |z| of the outputs of the global batch are like.

    With m the mean and C the covariance of the directions of the first view of each of the B images:

        feature_std     sqrt(tr C)                sqrt(Q) times the root mean square deviation of a dimension
        effective_rank  (tr C)^2 / tr(C^2)        participation ratio, between 1 and Q
        off_centre      share of the dimensions with |m_j| > 2.24 sqrt(C_jj / (B - 1)): a Z-test of mean 0 at 0.025
        alignment       mean of |z - z'|^2 over the pairs of views of an image (Wang and Isola 2020), if there are several

    The standard deviation is 1 for centred directions and falls to 0 as they collapse into one point. The
    rank says in how many directions they differ, however little: it stays where it is while they collapse, and is 0
    only where they are equal to the last digit.

    Args:
        z: outputs, float [B, M, Q].

    Returns:
        Float32 scalars by name, equal on all replicas.
    """
    z = unit_norm(tf.stop_gradient(tf.cast(z, tf.float32)))
    views, first = z.shape[1], z[:, 0]
    # Several steps in one execution under a strategy lose the static batch size.
    count = tf.cast(tf.shape(z)[0] * replicas.num_replicas(), tf.float32)
    mean = replicas.all_sum(tf.reduce_sum(first, 0)) / count
    centred = first - mean
    covariance = replicas.all_sum(tf.matmul(centred, centred, transpose_a=True)) / count
    trace = tf.linalg.trace(covariance)
    errors = tf.sqrt(tf.maximum(tf.linalg.diag_part(covariance), 0.0) / tf.maximum(count - 1.0, 1.0))
    found = {
        "feature_std": tf.sqrt(trace),
        "effective_rank": tf.math.divide_no_nan(trace**2, tf.reduce_sum(covariance**2)),
        "off_centre": tf.reduce_mean(tf.cast(tf.abs(mean) > _CRITICAL * errors, tf.float32)),
    }
    if views > 1:
        deviations = z - tf.reduce_mean(z, axis=1, keepdims=True)
        found["alignment"] = (
            2.0 / (views - 1) * replicas.mean_of_sums(tf.reduce_sum(deviations**2), tf.shape(z)[0])
        )
    return found
