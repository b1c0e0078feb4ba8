"""Whether features have mean zero: the one-sample Z-test of the paper's appendix B.3."""

from typing import NamedTuple

import numpy as np
from scipy import stats

from keras_sslhsic.analysis.matrices import rows_of


class ZTest(NamedTuple):
    """A Z-test of every dimension.

    Attributes:
        z: mean over its standard error, float64 [Q]; 0 where the mean is 0 without a deviation.
        p_values: two-sided, of each dimension alone, [Q].
        p_value: of the hypothesis that all means are 0: the least of them times Q, at most 1 (Bonferroni).
    """

    z: np.ndarray
    p_values: np.ndarray
    p_value: float

    def rejected(self, alpha: float = 0.025) -> float:
        """The share of dimensions whose mean differs from 0 at this level; alpha itself is expected of centred features."""
        return float(np.mean(self.p_values < alpha))


def z_test(x: np.ndarray) -> ZTest:
    """Tests H0: the mean of x is 0, against H1: it is not, dimension by dimension.

        z_j = sqrt(n) mean(x_j) / s_j,   s_j the standard deviation of the n rows

    The paper tests outputs of BYOL, divided by their norms, of 4096 images at alpha = 0.025. Rows must be independent: of
    one view each.

    Args:
        x: features [n, Q], float; n at least 2.

    Raises:
        ValueError: for another shape, or what is not finite.
    """
    x = rows_of(x, 2)
    mean, error = x.mean(0), stats.sem(x, axis=0)
    with np.errstate(divide="ignore"):
        z = np.where(mean == 0, 0.0, mean / np.where(mean == 0, 1.0, error))
    p_values = 2.0 * stats.norm.sf(np.abs(z))
    return ZTest(z, p_values, float(min(1.0, p_values.min() * x.shape[1])))
