"""The mean of a kernel over the uniform distribution on the sphere, which makes a mean of the kernel an MMD."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from scipy.linalg import eigh_tridiagonal

from keras_sslhsic import checks
from keras_sslhsic.hsic import kernels

_NODES = 128


def uniform_mean(kernel: Any, dim: int, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """E k(z, u) for any unit vector z and u uniform on the sphere in R^dim, which is E k(u, u') too.

    The inner product t = z'u has a density in proportion to (1 - t^2)^((dim - 3) / 2), over which Gauss's quadrature
    integrates f(2 - 2t). So, for P any distribution on the sphere and U the uniform one, with kernels of the distance,

        MMD^2(P, U) = E k(z, z') - 2 E k(z, u) + E k(u, u') = E k(z, z') - uniform_mean

    Args:
        kernel: a name or a `kernels.Kernel`, of any scale; one that is small beside the distances on a circle needs more than
            the 128 nodes.
        dim: number Q of dimensions.
        dtype: of the result.

    Returns:
        Scalar.
    """
    checks.integer("dim", dim, 1)
    nodes, weights = _quadrature(dim)
    values = kernels.get(kernel).value(tf.constant(2.0 - 2.0 * nodes, dtype))
    return tf.reduce_sum(tf.constant(weights, dtype) * values)


def _quadrature(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights from the recurrence of Gegenbauer's polynomials (Golub and Welsch 1969)."""
    k, half = np.arange(2.0, _NODES), 0.5 * dim
    # The first is 1 / dim, also on the circle, where the formula is 0 / 0.
    squares = [1.0 / dim, *(k * (k + dim - 3) / (4 * (k + half - 1) * (k + half - 2)))]
    nodes, vectors = eigh_tridiagonal(np.zeros(_NODES), np.sqrt(squares))
    return nodes, vectors[0] ** 2
