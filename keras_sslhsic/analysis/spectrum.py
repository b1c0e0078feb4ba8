"""In how many directions features lie: their singular values, and RankMe (Garrido et al. 2023)."""

from typing import Any

import numpy as np

from keras_sslhsic.analysis.matrices import rows_of


def singular_values(x: Any, centred: bool = False) -> np.ndarray:
    """The singular values of features x [n, F], the largest first: float64 [min(n, F)].

    Args:
        x: features.
        centred: whether the mean is subtracted before, as in PCA; the squares over n are then its variances.
    """
    x = rows_of(x)
    return np.linalg.svd(x - x.mean(0) if centred else x, compute_uv=False)


def rankme(x: Any, epsilon: float = 1e-7) -> float:
    """The effective rank of features [n, F]: exp of the entropy of their singular values.

        exp(-sum_i p_i log p_i),   p_i = sigma_i / sum_j sigma_j + epsilon

    About 1 if all lie on a line, min(n, F) if they fill all directions alike. The authors compute it of 25,600 rows, not
    centred; fewer rows give less. Training logs another measure, `effective_rank`, the participation ratio of the centred ones:
    (sum s_i^2)^2 / sum s_i^4.

    Returns:
        The rank; 0 if all features are 0.
    """
    values = singular_values(x)
    if not values.any():
        return 0.0
    p = values / values.sum() + epsilon
    return float(np.exp(-np.sum(p * np.log(p))))
