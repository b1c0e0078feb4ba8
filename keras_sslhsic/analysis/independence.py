"""Whether two things are independent: the HSIC test (Gretton et al. 2007, "A kernel statistical test of independence")."""

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from keras_sslhsic import checks
from keras_sslhsic.analysis.matrices import matrices_of


class IndependenceTest(NamedTuple):
    """The statistic n HSIC_b = Tr(K H L H) / n, and the probability of one as large if the two are independent."""

    statistic: float
    p_value: float


def hsic_test(
    k: Any,
    l: Any,  # noqa: E741
    method: str = "permutation",
    permutations: int = 500,
    seed: int = 0,
) -> IndependenceTest:
    """Tests whether what K and L are kernels of is independent: features and labels, or features of two encoders.

    "permutation" draws the statistic's distribution under independence by permuting the rows of L; its p-value is never
    below 1 / (permutations + 1), and exact. "gamma" fits a gamma distribution to the mean and the variance that theory has for
    it: an approximation, for hundreds of rows at least, which also tells apart p-values that are tiny. A constant is
    independent of everything: its p-value is 1.

    Args:
        k: kernel matrix [n, n], n at least 6; see `kernel_matrix`.
        l: kernel matrix [n, n], such as `label_matrix(labels)`.
        method: which of the two.
        permutations: how many are drawn.
        seed: of them.

    Raises:
        ValueError: for other shapes, what is not symmetric, fewer rows, another method, or no permutation; with "gamma" for a
            matrix that is of no positive definite kernel, where the theory tells.
    """
    checks.integer("permutations", permutations, 1)
    k, l = matrices_of(k, l, 6)  # noqa: E741
    n = len(k)
    if method not in ("permutation", "gamma"):
        raise ValueError(f'Expected the method "permutation" or "gamma", found {method!r}.')
    centred = _centre(k)
    statistic = float(np.sum(centred * l)) / n
    if method == "gamma":
        if any(np.abs(_centre(matrix)).max() <= _rounding(matrix) for matrix in (k, l)):
            return IndependenceTest(statistic, 1.0)
        mean, variance = _null_moments(k, l)
        if mean <= 0:
            raise ValueError(
                f"The gamma distribution is of positive definite kernels, which have a positive mean, found {mean:.3g}: take "
                'the method "permutation".'
            )
        return IndependenceTest(
            statistic, float(stats.gamma.sf(statistic, mean**2 / variance, scale=variance / mean))
        )
    generator = np.random.default_rng(seed)
    drawn = [
        np.sum(centred * l[np.ix_(order, order)]) / n
        for order in map(generator.permutation, [n] * permutations)
    ]
    rounding = _rounding(k) * np.abs(l).sum() / n
    as_large = np.count_nonzero(np.array(drawn) >= statistic - rounding)
    return IndependenceTest(statistic, float((1 + as_large) / (1 + permutations)))


def _null_moments(k: np.ndarray, l: np.ndarray) -> tuple[float, float]:  # noqa: E741
    """Mean and variance of the statistic under independence (their equations 7 and 9)."""
    n = len(k)
    different = ~np.eye(n, dtype=bool)
    means = [matrix.diagonal().mean() - matrix[different].mean() for matrix in (k, l)]
    # Of each by itself: their code takes the squares of the products, which a dependence makes larger.
    squares = [np.mean(_centre(matrix)[different] ** 2) for matrix in (k, l)]
    factor = 2.0 * (n - 4) * (n - 5) / (n * (n - 1.0) * (n - 2) * (n - 3))
    # Theirs are of HSIC_b, those of n HSIC_b are n and n^2 times as large.
    return float(means[0] * means[1]), float(factor * n**2 * squares[0] * squares[1])


def _centre(k: np.ndarray) -> np.ndarray:
    return k - k.mean(0) - k.mean(1)[:, None] + k.mean()


def _rounding(k: np.ndarray) -> float:
    """Of an entry of `_centre`: of four numbers, means of n numbers each."""
    return float(4 * len(k) * np.finfo(k.dtype).eps * np.abs(k).max())
