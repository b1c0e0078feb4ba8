"""Kernel matrices of features and of labels, float64."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.hsic import kernels


def numbers_of(x: Any) -> np.ndarray:
    """Finite numbers as float64.

    Raises:
        ValueError: for complex numbers, or what is not finite.
    """
    x = np.asarray(x)
    if np.iscomplexobj(x):
        raise ValueError(f"Expected real numbers, found {x.dtype}.")
    x = x.astype(np.float64)
    if not np.isfinite(x).all():
        raise ValueError("Expected finite numbers, found NaN or infinity: find out where they come from.")
    return x


def rows_of(x: Any, least: int = 1) -> np.ndarray:
    """Features as float64 [n, F].

    Raises:
        ValueError: for another shape, fewer rows than `least`, or what is not finite.
    """
    x = numbers_of(x)
    if x.ndim != 2 or len(x) < least or not x.shape[1]:
        raise ValueError(f"Expected features [n, F] of at least {least} rows, found the shape {x.shape}.")
    return x


def matrix_of(k: Any) -> np.ndarray:
    """A kernel matrix as float64 [n, n].

    Raises:
        ValueError: for another shape, what is not finite, or a matrix that is not symmetric to two digits.
    """
    k = numbers_of(k)
    if k.ndim != 2 or k.shape[0] != k.shape[1]:
        raise ValueError(f"Expected a kernel matrix [n, n], found the shape {k.shape}.")
    if np.abs(k - k.T).max(initial=0) > 0.01 * np.abs(k).max(initial=0):
        raise ValueError(
            f"Expected a kernel matrix, found {k.shape[0]} x {k.shape[0]} numbers that are not symmetric: "
            "of features [n, F] kernel_matrix makes one."
        )
    return k


def matrices_of(k: Any, l: Any, least: int) -> tuple[np.ndarray, np.ndarray]:  # noqa: E741
    """Two kernel matrices of the same rows as float64 [n, n].

    Raises:
        ValueError: as `matrix_of`, for two sizes, or fewer rows than `least`.
    """
    k, l = matrix_of(k), matrix_of(l)  # noqa: E741
    if k.shape != l.shape or len(k) < least:
        raise ValueError(
            f"Expected two matrices [n, n] of at least {least} rows, found {k.shape} and {l.shape}."
        )
    return k, l


def pair_of(x: Any, y: Any, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Features of two samples as float64 [n, F] and [m, F].

    Raises:
        ValueError: as `rows_of`, or for features of two sizes.
    """
    x, y = rows_of(x, least), rows_of(y, least)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"Expected features of one size, found {x.shape[1]} and {y.shape[1]}.")
    return x, y


def kernel_matrix(x: Any, kernel: Any = "imq", y: Any = None) -> np.ndarray:
    """The kernel of every row of x with every row of y.

    Args:
        x: features [n, F].
        kernel: a name or a `hsic.kernels.Kernel`. Features that are not of unit norm want a scale: see `median_scale`. That of
            "linear" is the inner product, of features of any norm.
        y: features [m, F]; None: x.

    Returns:
        float64 [n, m].

    Raises:
        ValueError: for another shape, what is not finite, or features of two sizes.
    """
    x, y = pair_of(x, x if y is None else y)
    kernel = kernels.get(kernel)
    if isinstance(kernel, kernels.Linear):  # of small distances, 1 - s / 2 would be rounded to 1
        factor = float(kernel.scale) ** -2
        return factor * (x @ y.T) + (1.0 - factor)
    s = kernels.squared_distances(tf.constant(x), tf.constant(y))
    return kernel.value(s).numpy()


def label_matrix(labels: Any) -> np.ndarray:
    """1 where two rows have one label, 0 elsewhere: float64 [n, n] of labels [n].

    Raises:
        ValueError: for another shape, or labels that are not finite.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"Expected labels [n], found the shape {labels.shape}.")
    if labels.dtype.kind == "f":
        numbers_of(labels)
    return (labels[:, None] == labels).astype(np.float64)


def median_scale(x: Any, most: int = 1000) -> float:
    """The scale sqrt(s / 2), s the median squared distance between rows that differ.

    It is where `hsic.kernels.scale_entropy` has its maximum, for the Gaussian and the inverse multiquadric, if all distances
    are s.

    Args:
        x: features [n, F].
        most: rows that are looked at, evenly spread.

    Raises:
        ValueError: if more than half of the pairs are equal.
    """
    x = rows_of(x, 2)
    x = x[np.linspace(0, len(x) - 1, min(most, len(x))).astype(int)]
    s = kernels.squared_distances(tf.constant(x), tf.constant(x)).numpy()
    median = float(np.median(s[np.triu_indices(len(x), 1)]))
    if median == 0:
        raise ValueError(
            "Expected features that differ, found more than half of the pairs equal: give a scale yourself."
        )
    return float(np.sqrt(median / 2))
