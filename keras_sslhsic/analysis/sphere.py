"""How outputs lie on the sphere: views of an image near each other, and all of them spread (Wang and Isola 2020)."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.analysis.matrices import kernel_matrix, numbers_of, rows_of
from keras_sslhsic.hsic import kernels
from keras_sslhsic.hsic.checks import check_views
from keras_sslhsic.hsic.kernels import Gaussian
from keras_sslhsic.hsic.uniform import uniform_mean


def unit(z: Any) -> np.ndarray:
    """Vectors [..., Q] divided by their norms, float64; zero stays zero."""
    z = np.asarray(z, np.float64)
    norm = np.linalg.norm(z, axis=-1, keepdims=True)
    return z / np.where(norm == 0, 1.0, norm)


def alignment(z: Any, power: float = 2.0) -> float:
    """The mean of |z - z'|^power over the pairs of different views of an image, of z [B, M, Q] / |z|.

    Training logs it, with the power 2, as `alignment`.

    Raises:
        ValueError: for another shape, fewer than 2 views, or what is not finite.
    """
    z = numbers_of(z)
    check_views(tf.constant(z))
    z = unit(z)
    distances = np.linalg.norm(z[:, :, None] - z[:, None], axis=-1)
    first, second = np.triu_indices(z.shape[1], 1)
    return float(np.mean(distances[:, first, second] ** power))


def uniformity(z: Any, t: float = 2.0) -> float:
    """log E exp(-t |z - z'|^2) over pairs of different rows of z [n, Q] / |z|; the lower, the nearer to uniform.

    Raises:
        ValueError: for another shape, or fewer than 2 rows.
    """
    z = unit(rows_of(z, 2))
    k = kernel_matrix(z, Gaussian((0.5 / t) ** 0.5))
    return float(np.log(np.mean(k[np.triu_indices(len(z), 1)])))


def mmd_to_uniform(z: Any, kernel: Any = "imq") -> float:
    """The squared MMD between z [n, Q] / |z| and the uniform distribution on the sphere, biased: mean K - E k(u, u').

    Training logs it as `mmd_to_uniform`. See `hsic.uniform.uniform_mean`.

    Raises:
        ValueError: for another shape.
    """
    z = unit(rows_of(z))
    constant = uniform_mean(kernels.get(kernel), z.shape[1], tf.float64)
    return float(kernel_matrix(z, kernel).mean() - constant.numpy())
