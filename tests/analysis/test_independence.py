"""The HSIC test and the MMD test: their statistics, their p-values against an enumeration, their level and their power."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel

from keras_sslhsic import analysis
from keras_sslhsic.analysis.independence import _null_moments
from keras_sslhsic.hsic.kernels import Gaussian


def samples(n, size=3, seed=0, shift=0.0):
    return np.random.default_rng(seed).standard_normal([n, size]) + shift


def statistic(k, l):  # noqa: E741
    h = np.eye(len(k)) - 1 / len(k)
    return np.trace(k @ h @ l @ h) / len(k)


def test_the_permutation_test_agrees_with_all_permutations():
    k = rbf_kernel(samples(6), gamma=0.5)
    l = analysis.label_matrix([0, 0, 1, 1, 2, 2])  # noqa: E741
    all_of_them = [
        statistic(k, l[np.ix_(order, order)]) for order in map(list, itertools.permutations(range(6)))
    ]
    exact = np.mean(np.array(all_of_them) >= statistic(k, l) - 1e-12)
    found = analysis.hsic_test(k, l, permutations=4000)
    assert found.statistic == pytest.approx(statistic(k, l), rel=1e-12)
    assert abs(found.p_value - exact) < 5 * np.sqrt(exact * (1 - exact) / 4000) + 1 / 4001
    # The mean of the gamma distribution is that of all permutations, but for the factor (n - 1) / n.
    mean, _ = _null_moments(k, l)
    assert np.mean(all_of_them) == pytest.approx(mean * 5 / 6, rel=1e-12)


@pytest.mark.parametrize("dependent", [False, True])
def test_the_variance_of_the_gamma_distribution_is_that_of_permutations(dependent):
    x = samples(100)
    k = rbf_kernel(x, gamma=0.3)
    l = rbf_kernel(x[:, :1] if dependent else samples(100, seed=1), gamma=0.3)  # noqa: E741
    centred = k - k.mean(0) - k.mean(1)[:, None] + k.mean()
    generator = np.random.default_rng(2)
    orders = [generator.permutation(100) for _ in range(400)]
    drawn = np.array([np.sum(centred * l[np.ix_(order, order)]) / 100 for order in orders])
    # A variance of 400 draws has a standard error of some 7 %, and the tail is heavier than a normal one's.
    assert _null_moments(k, l)[1] == pytest.approx(drawn.var(ddof=1), rel=0.35)


@pytest.mark.parametrize("method", ["permutation", "gamma"])
def test_independence_is_rejected_as_often_as_the_level_says(method):
    p_values = []
    for seed in range(150):
        k = rbf_kernel(samples(60, seed=2 * seed), gamma=0.3)
        l = rbf_kernel(samples(60, seed=2 * seed + 1), gamma=0.3)  # noqa: E741
        p_values.append(analysis.hsic_test(k, l, method, permutations=99).p_value)
    rejected = np.count_nonzero(np.array(p_values) <= 0.1)
    assert stats.binom.cdf(rejected, 150, 0.1) > 1e-5 and stats.binom.sf(rejected - 1, 150, 0.1) > 1e-5


def test_a_dependence_without_correlation_is_found_by_both_methods():
    x = samples(150, 1)
    y = x**2 + 0.1 * samples(150, 1, seed=1)
    k, l = rbf_kernel(x, gamma=1.0), rbf_kernel(y, gamma=1.0)  # noqa: E741
    assert analysis.hsic_test(k, l, permutations=199).p_value == 1 / 200
    assert analysis.hsic_test(k, l, "gamma").p_value < 1e-6


@settings(max_examples=20, deadline=None)
@given(st.integers(6, 20), st.integers(0, 2**31), st.floats(0.1, 10.0))
def test_the_statistic_is_symmetric_and_follows_a_permutation_of_both(n, seed, factor):
    k, l = rbf_kernel(samples(n, seed=seed)), rbf_kernel(samples(n, seed=seed + 1))  # noqa: E741
    order = np.random.default_rng(seed).permutation(n)
    there = analysis.hsic_test(k, l, "gamma")
    for other in (
        analysis.hsic_test(l, k, "gamma"),
        analysis.hsic_test(k[np.ix_(order, order)], l[np.ix_(order, order)], "gamma"),
    ):
        assert other == pytest.approx(there, rel=1e-8)
    scaled = analysis.hsic_test(factor * k + 1.0, l, "gamma")
    assert scaled.statistic == pytest.approx(factor * there.statistic, rel=1e-8)
    assert scaled.p_value == pytest.approx(there.p_value, rel=1e-6)
    assert there.statistic >= 0


def test_mmd_of_a_linear_kernel_is_the_distance_of_the_means_and_of_a_gaussian_that_of_scikit_learn():
    x, y = samples(12), samples(9, seed=1, shift=0.5)
    x, y = [z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y)]
    assert analysis.mmd2(x, y, "linear", unbiased=False) == pytest.approx(
        np.sum((x.mean(0) - y.mean(0)) ** 2), abs=1e-14
    )
    k, l, m = rbf_kernel(x, gamma=0.5), rbf_kernel(y, gamma=0.5), rbf_kernel(x, y, gamma=0.5)  # noqa: E741
    different = [matrix[~np.eye(len(matrix), dtype=bool)].mean() for matrix in (k, l)]
    assert analysis.mmd2(x, y, Gaussian()) == pytest.approx(sum(different) - 2 * m.mean(), abs=1e-13)
    assert analysis.mmd2(x, x, Gaussian(), unbiased=False) == pytest.approx(0, abs=1e-14)
    assert analysis.mmd2(x, y) == pytest.approx(analysis.mmd2(y, x), abs=1e-14)


def test_the_mmd_test_agrees_with_all_exchanges_and_finds_a_shift():
    x, y = samples(4, seed=3), samples(4, seed=4, shift=0.7)
    pooled = np.concatenate([x, y])
    splits = [list(chosen) for chosen in itertools.combinations(range(8), 4)]
    values = [
        analysis.mmd2(pooled[chosen], np.delete(pooled, chosen, 0), Gaussian(), unbiased=False)
        for chosen in splits
    ]
    exact = np.mean(np.array(values) >= values[0] - 1e-12)
    found = analysis.mmd_test(x, y, Gaussian(), permutations=4000)
    assert found.statistic == pytest.approx(values[0], abs=1e-14)
    assert abs(found.p_value - exact) < 5 * np.sqrt(exact * (1 - exact) / 4000) + 1 / 4001
    assert analysis.mmd_test(samples(80), samples(80, seed=1, shift=1.0), permutations=199).p_value == 1 / 200


@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, 1e6 / 7])
@pytest.mark.parametrize("kernel", ["linear", "imq"])
def test_a_constant_is_independent_of_everything_and_equal_samples_are_of_one_distribution(constant, kernel):
    """In ties, rounding decides nothing, whatever the magnitudes."""
    constants = np.full([40, 5], constant)
    matrices = [analysis.kernel_matrix(constants, kernel), np.full([40, 40], constant)]
    for seed in range(4):
        k = analysis.kernel_matrix(samples(40, 5, seed), kernel)
        for l in matrices:  # noqa: E741
            for pair in ((k, l), (l, k)):
                assert analysis.hsic_test(*pair, permutations=99, seed=seed).p_value == 1
                assert analysis.hsic_test(*pair, "gamma").p_value == 1
        assert analysis.mmd_test(constants, constants[:15], kernel, permutations=99, seed=seed).p_value == 1
    if constant:
        # As if all labels and features were larger: it is the ties that are widened, not what they are of.
        k = constant * analysis.label_matrix(np.arange(40) % 2)
        assert analysis.hsic_test(k, k, permutations=99).p_value == 1 / 100


def test_kernel_matrices_are_those_of_scikit_learn():
    x, y = samples(5), samples(7, seed=1)
    assert np.allclose(
        analysis.kernel_matrix(x, Gaussian(0.7), y), rbf_kernel(x, y, gamma=0.5 / 0.49), atol=1e-13
    )
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert np.allclose(analysis.kernel_matrix(unit, "linear"), linear_kernel(unit), atol=1e-14)
    assert analysis.median_scale(np.eye(4)) == pytest.approx(1.0)  # all squared distances are 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: analysis.hsic_test(np.eye(5), np.eye(5)), "at least 6 rows"),
        (lambda: analysis.hsic_test(np.eye(6), np.eye(7)), "Expected two matrices"),
        (lambda: analysis.hsic_test(np.eye(6), np.eye(6), "exact"), "permutation"),
        (
            lambda: analysis.hsic_test(-np.eye(6), np.eye(6), "gamma"),
            'found -1: take the method "permutation"',
        ),
        (lambda: analysis.hsic_test(np.ones([6, 5]), np.eye(6)), r"kernel matrix \[n, n\]"),
        (lambda: analysis.mmd2(np.ones([1, 2]), np.ones([3, 2])), "at least 2 rows"),
        (lambda: analysis.kernel_matrix(np.ones(3)), r"features \[n, F\]"),
        (
            lambda: analysis.hsic_test(np.eye(6), np.eye(6), permutations=0),
            "permutations must be at least 1, found 0",
        ),
        (
            lambda: analysis.mmd_test(np.eye(3), np.eye(3), permutations=0),
            "permutations must be at least 1, found 0",
        ),
        (lambda: analysis.mmd_test(np.eye(3), np.eye(2)), "features of one size, found 3 and 2"),
        (lambda: analysis.mmd2(np.eye(3), np.eye(2)), "features of one size, found 3 and 2"),
        (lambda: analysis.kernel_matrix([[np.nan]]), "found NaN or infinity"),
        (lambda: analysis.cka(np.full([6, 6], np.inf), np.eye(6)), "found NaN or infinity"),
        (lambda: analysis.median_scale(np.ones([4, 2])), "give a scale yourself"),
    ],
)
def test_what_cannot_be_tested_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
