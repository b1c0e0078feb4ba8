"""Whether two samples have one distribution: the maximum mean discrepancy (Gretton et al. 2012)."""

from typing import Any, NamedTuple

import numpy as np

from keras_sslhsic import checks
from keras_sslhsic.analysis.matrices import kernel_matrix, pair_of


class MMDTest(NamedTuple):
    """The squared MMD, biased, and the probability of one as large if both samples have one distribution."""

    statistic: float
    p_value: float


def mmd2(x: Any, y: Any, kernel: Any = "imq", unbiased: bool = True) -> float:
    """The squared maximum mean discrepancy |E k(x, .) - E k(y, .)|^2 between two samples.

        mean k(x, x') + mean k(y, y') - 2 mean k(x, y)

    Args:
        x: [n, F].
        y: [m, F].
        kernel: as in `kernel_matrix`.
        unbiased: whether the first two means leave out the pairs of a row with itself. It may then be negative; else it is the
            squared distance between the samples' own mean embeddings.

    Raises:
        ValueError: for fewer than 2 rows.
    """
    x, y = pair_of(x, y, 2)
    within = []
    for rows in (x, y):
        k, n = kernel_matrix(rows, kernel), len(rows)
        within.append((k.sum() - k.trace()) / (n * (n - 1)) if unbiased else k.mean())
    return float(sum(within) - 2.0 * kernel_matrix(x, kernel, y).mean())


def mmd_test(x: Any, y: Any, kernel: Any = "imq", permutations: int = 500, seed: int = 0) -> MMDTest:
    """Tests whether x and y have one distribution, by exchanging rows between them; see `mmd2`.

    Args:
        x: [n, F].
        y: [m, F].
        kernel: as in `kernel_matrix`.
        permutations: how many exchanges are drawn; the p-value is never below 1 / (permutations + 1).
        seed: of them.

    Raises:
        ValueError: for fewer than 2 rows, features of two sizes, or no permutation.
    """
    checks.integer("permutations", permutations, 1)
    x, y = pair_of(x, y, 2)
    k = kernel_matrix(np.concatenate([x, y]), kernel)
    signs = np.repeat([1.0 / len(x), -1.0 / len(y)], [len(x), len(y)])
    generator = np.random.default_rng(seed)
    weights = np.stack([signs, *(generator.permutation(signs) for _ in range(permutations))])
    drawn = np.sum(weights @ k * weights, axis=1)
    # Of two sums of n + m terms, one in the other; absolute weights add up to 2.
    rounding = 2 * len(k) * np.finfo(k.dtype).eps * np.abs(k).max() * 2**2
    as_large = np.count_nonzero(drawn[1:] >= drawn[0] - rounding)
    return MMDTest(float(drawn[0]), float((1 + as_large) / (1 + permutations)))
