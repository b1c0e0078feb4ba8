"""Similarities, spectra, tests of the mean, and how outputs lie on the sphere, against SciPy, scikit-learn and NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA

from keras_sslhsic import analysis
from keras_sslhsic.losses import SSLHSICLoss
from keras_sslhsic.training.diagnostics import of_outputs


def samples(n, size=5, seed=0):
    return np.random.default_rng(seed).standard_normal([n, size])


def rotation(size, seed=0):
    return np.linalg.qr(samples(size, size, seed))[0]


shapes = given(st.integers(5, 15), st.integers(2, 8), st.integers(0, 2**31))


@settings(max_examples=25, deadline=None)
@shapes
def test_linear_cka_is_that_of_the_features_and_invariant(n, size, seed):
    x, y = samples(n, size, seed), samples(n, size + 1, seed + 1)
    k, l = (analysis.kernel_matrix(z, "linear") for z in (x, y))  # noqa: E741
    cx, cy = x - x.mean(0), y - y.mean(0)
    expected = np.sum((cy.T @ cx) ** 2) / (np.linalg.norm(cx.T @ cx) * np.linalg.norm(cy.T @ cy))
    found = analysis.cka(k, l)
    assert found == pytest.approx(expected, rel=1e-9)
    assert 0 <= found <= 1 + 1e-12
    assert analysis.cka(l, k) == pytest.approx(found, rel=1e-12)
    moved = 3.0 * x @ rotation(size, seed) + 2.0
    assert analysis.cka(analysis.kernel_matrix(moved, "linear"), l) == pytest.approx(found, rel=1e-8)
    assert analysis.cka(k, k) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("unbiased", [False, True])
def test_linear_cka_does_not_depend_on_the_scale(unbiased):
    x, y = samples(20, 5, 0), samples(20, 7, 1)
    y[:, :3] += x[:, :3]
    l = analysis.kernel_matrix(y, "linear")  # noqa: E741
    found = [
        analysis.cka(analysis.kernel_matrix(c * x, "linear"), l, unbiased) for c in (1.0, 1e-6, 1e-30, 1e20)
    ]
    np.testing.assert_allclose(found, found[0], rtol=1e-9)


def test_unbiased_cka_does_not_grow_with_the_dimensions_and_a_constant_kernel_has_none():
    values = [
        [
            analysis.cka(
                *(analysis.kernel_matrix(samples(10, 500, 2 * seed + i), "linear") for i in (0, 1)),
                unbiased=unbiased,
            )
            for seed in range(20)
        ]
        for unbiased in (False, True)
    ]
    assert min(values[0]) > 0.8  # of independent features
    assert abs(np.mean(values[1])) < 5 * stats.sem(values[1])
    assert analysis.cka(np.ones([5, 5]), np.eye(5)) == 0.0


@settings(max_examples=25, deadline=None)
@shapes
def test_kernel_target_alignment_is_a_cosine(n, size, seed):
    k, l = (analysis.kernel_matrix(samples(n, size, seed + i), "imq") for i in (0, 1))  # noqa: E741
    expected = 1 - np.arccos(np.clip(k.ravel() @ l.ravel() / np.linalg.norm(k) / np.linalg.norm(l), -1, 1))
    assert 1 - np.arccos(min(analysis.kernel_target_alignment(k, l), 1.0)) == pytest.approx(
        expected, abs=1e-6
    )
    assert analysis.kernel_target_alignment(5.0 * k, l) == pytest.approx(
        analysis.kernel_target_alignment(l, k)
    )
    labels = np.arange(n) % 2
    ideal = analysis.label_matrix(labels)
    assert analysis.kernel_target_alignment(ideal, ideal) == pytest.approx(1.0)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 10), st.integers(2, 4), st.integers(2, 8), st.integers(0, 2**31))
def test_alignment_uniformity_and_mmd_to_uniform(images, views, size, seed):
    z = np.random.default_rng(seed).standard_normal([images, views, size])
    unit = z / np.linalg.norm(z, axis=-1, keepdims=True)
    flat = unit.reshape(-1, size)
    assert analysis.alignment(z) == pytest.approx(np.mean([pdist(one, "sqeuclidean").mean() for one in unit]))
    assert analysis.alignment(z, 1.0) == pytest.approx(np.mean([pdist(one).mean() for one in unit]))
    assert analysis.alignment(z) == pytest.approx(
        of_outputs(z.astype("float32"))["alignment"].numpy(), rel=1e-4
    )
    expected = np.log(np.mean(np.exp(-2 * pdist(flat, "sqeuclidean"))))
    assert analysis.uniformity(z.reshape(-1, size)) == pytest.approx(expected, abs=1e-9)
    # Of all the exponents the squared distance 4 has the least.
    assert -8 - 1e-9 <= analysis.uniformity(z.reshape(-1, size)) <= 1e-9
    turned = z @ rotation(size, seed)
    assert analysis.mmd_to_uniform(turned.reshape(-1, size)) == pytest.approx(
        analysis.mmd_to_uniform(z.reshape(-1, size)), abs=1e-9
    )
    logged = SSLHSICLoss(num_features=None).terms_of_unit_vectors(unit, tf.constant([0, 0]))["mmd_to_uniform"]
    assert analysis.mmd_to_uniform(flat) == pytest.approx(logged.numpy(), abs=1e-6)


def test_many_uniform_vectors_are_near_uniform_and_one_point_is_not():
    z = samples(2000, 6)
    bias = 1.0 / 2000  # of k(z, z) = 1 on the diagonal, at most
    assert 0 < analysis.mmd_to_uniform(z) < 3 * bias
    assert analysis.mmd_to_uniform(np.ones([5, 6])) > 0.2
    assert analysis.alignment(np.zeros([3, 2, 4])) == 0.0


@settings(max_examples=25, deadline=None)
@shapes
def test_the_spectrum_is_that_of_pca_and_rankme_is_invariant_and_bounded(n, size, seed):
    x = samples(n, size, seed)
    pca = PCA().fit(x)
    assert np.allclose(analysis.singular_values(x, centred=True), pca.singular_values_, atol=1e-10)
    rank = analysis.rankme(x)
    assert 1 <= rank <= min(n, size) + 1e-4
    assert analysis.rankme(7.0 * x @ rotation(size, seed)) == pytest.approx(rank, rel=1e-9)
    values = np.sqrt(np.linalg.eigvalsh(x @ x.T)[::-1][: min(n, size)].clip(0))
    p = values / values.sum()
    assert rank == pytest.approx(np.exp(stats.entropy(p)), rel=1e-4)


def test_rankme_of_orthogonal_and_of_equal_rows():
    assert analysis.rankme(np.eye(6)) == pytest.approx(6, rel=1e-5)
    assert analysis.rankme(np.ones([6, 4])) == pytest.approx(1, abs=1e-4)
    assert analysis.rankme(np.zeros([6, 4])) == 0.0


def test_the_z_test_is_that_of_scipy_and_centred_features_pass():
    x = samples(50, 4) + np.array([0.0, 0.0, 0.0, 2.0])
    found = analysis.z_test(x)
    assert np.allclose(found.z, stats.ttest_1samp(x, 0).statistic, rtol=1e-12)
    assert np.allclose(found.p_values, 2 * stats.norm.sf(abs(found.z)), rtol=1e-12)
    assert found.rejected() == 0.25 and found.p_value == pytest.approx(4 * found.p_values.min())
    assert analysis.z_test(-x).p_value == found.p_value
    wide = analysis.z_test(samples(200, 2000, seed=1))
    # The number of rejections is binomial.
    assert stats.binom.cdf(wide.rejected() * 2000, 2000, 0.025) > 1e-5
    assert stats.binom.sf(wide.rejected() * 2000 - 1, 2000, 0.026) > 1e-5
    assert analysis.z_test(np.zeros([3, 2])).p_value == 1.0
    assert analysis.z_test(np.ones([3, 2])).p_value == 0.0
    with pytest.raises(ValueError, match="at least 2 rows"):
        analysis.z_test(np.ones([1, 3]))
    with pytest.raises(ValueError, match="M = 2 views"):
        analysis.alignment(np.ones([3, 1, 4]))


@pytest.mark.parametrize(
    "measure",
    [
        lambda x: analysis.kernel_matrix(x, "linear"),
        analysis.median_scale,
        analysis.singular_values,
        analysis.rankme,
        analysis.z_test,
        analysis.uniformity,
        analysis.mmd_to_uniform,
        lambda x: analysis.mmd2(x, x),
        lambda x: analysis.alignment(x[:, None].repeat(2, 1)),
    ],
)
@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda x: np.where(x > 1, np.nan, x), "finite numbers"),
        (lambda x: x + 0j, "real numbers, found complex128"),
        (lambda x: x[:0], "found the shape"),
        (lambda x: x[:, :0], "found the shape"),
    ],
)
def test_what_are_no_features_is_an_error(measure, spoil, message):
    x = samples(20, 3, seed=0)
    measure(x)
    with pytest.raises(ValueError, match=message):
        measure(spoil(x))


@pytest.mark.parametrize("measure", [analysis.cka, analysis.kernel_target_alignment, analysis.hsic_test])
@pytest.mark.parametrize("rows", [0, 1, 8])
def test_matrices_of_other_rows_are_an_error(measure, rows):
    k = analysis.kernel_matrix(samples(20, 3, seed=0), "linear")
    measure(k, k)
    with pytest.raises(ValueError, match=rf"found \({rows}, {rows}\) and \(20, 20\)"):
        measure(k[:rows, :rows], k)


@pytest.mark.parametrize("measure", [analysis.cka, analysis.kernel_target_alignment, analysis.hsic_test])
def test_features_as_many_as_rows_are_no_kernel_matrix(measure):
    x = samples(20, 20, seed=0)
    k = analysis.kernel_matrix(x, "linear")
    measure(k.astype(np.float16), k)  # rounded as half precision rounds
    with pytest.raises(ValueError, match="20 x 20 numbers that are not symmetric"):
        measure(x, k)


def test_a_matrix_of_zeros_is_aligned_with_none():
    assert analysis.kernel_target_alignment(np.zeros([3, 3]), np.eye(3)) == 0.0


@pytest.mark.parametrize("labels", [3, "abc", np.zeros([2, 2]), [0.0, np.nan]])
def test_what_are_no_labels_is_an_error(labels):
    with pytest.raises(ValueError, match=r"labels \[n\]|finite"):
        analysis.label_matrix(labels)
