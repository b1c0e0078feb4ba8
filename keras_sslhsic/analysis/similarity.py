"""How much two representations of the same rows resemble each other: alignment of their kernels, centred or not."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.analysis.matrices import matrices_of
from keras_sslhsic.hsic.estimators import hsic


def cka(k: Any, l: Any, unbiased: bool = False) -> float:  # noqa: E741
    """Centred kernel alignment (Cortes et al. 2012; Kornblith et al. 2019): HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)).

    Of linear kernels, `kernel_matrix(x, "linear")`, it is the linear CKA. It is between 0 and 1, if biased, and 1 of kernels
    that differ by a factor and a constant.

    Args:
        k: kernel matrix [n, n].
        l: kernel matrix [n, n] of the same rows, as of another encoder, another layer, or labels.
        unbiased: whether each HSIC is the unbiased one, which does not grow with the dimensions of few rows; at least 4 rows.

    Returns:
        The alignment; 0 if a kernel is constant.

    Raises:
        ValueError: as `hsic.hsic`, and for matrices of two sizes.
    """
    k, l = map(tf.constant, matrices_of(k, l, 2))  # noqa: E741
    kl, kk, ll = (float(hsic(a, b, unbiased=unbiased)) for a, b in ((k, l), (k, k), (l, l)))
    return kl / (np.sqrt(kk) * np.sqrt(ll)) if kk > 0 and ll > 0 else 0.0


def kernel_target_alignment(k: Any, l: Any) -> float:  # noqa: E741
    """The cosine between two kernel matrices (Cristianini et al. 2001): <K, L> / (|K| |L|), not centred.

    Args:
        k: kernel matrix [n, n].
        l: kernel matrix [n, n] of the same rows.

    Returns:
        The cosine; 0 if a matrix is 0.

    Raises:
        ValueError: for other shapes, what is not finite, or not symmetric.
    """
    k, l = matrices_of(k, l, 1)  # noqa: E741
    norms = float(np.linalg.norm(k) * np.linalg.norm(l))
    return float(np.sum(k * l)) / norms if norms > 0 else 0.0
