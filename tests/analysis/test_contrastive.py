"""InfoNCE of infinitely many samples: against an enumeration, and what theorem B.1 says of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_sslhsic import analysis, hsic


def outputs(images, views, size, seed):
    z = np.random.default_rng(seed).standard_normal([images * views, size])
    return z / np.linalg.norm(z, axis=-1, keepdims=True), np.repeat(np.arange(images), views)


def test_it_is_what_an_enumeration_gives():
    z, images = outputs(4, 3, 5, 0)
    k = z @ z.T / 0.2
    positive = np.mean([k[i, j] for i in range(12) for j in range(12) if images[i] == images[j]])
    loss = np.mean([np.log(np.mean([np.exp(k[i, j]) for j in range(12)])) for i in range(12)]) - positive
    found = analysis.info_nce(k, images)
    assert found.loss == pytest.approx(loss, rel=1e-12)
    assert found.hsic_zy == pytest.approx(positive - k.mean(), rel=1e-12)
    assert found.hsic_zz == pytest.approx(hsic.hsic(k, k, ddof=0).numpy(), rel=1e-9)
    # N HSIC(Z, Y) of Delta l = 1, by the general estimator.
    labels = analysis.label_matrix(images)
    assert found.hsic_zy == pytest.approx(4 * hsic.hsic(k, labels, ddof=0).numpy(), rel=1e-9)
    assert np.allclose(found.variances, k.var(1))


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(2, 6), st.integers(0, 2**31), st.floats(0.05, 5.0))
def test_the_bound_of_the_paper_holds_and_the_gap_is_not_negative(images, views, size, seed, temperature):
    z, image = outputs(images, views, size, seed)
    cosine = analysis.info_nce(z @ z.T / temperature, image)
    assert cosine.gap >= -1e-9
    assert cosine.lower_bound(analysis.bound_gamma(1 / temperature)) <= cosine.loss + 1e-9
    assert cosine.hsic_zz <= cosine.variances.mean() + 1e-9  # by Cauchy and Schwarz
    for kernel in ("imq", "gaussian"):
        of_kernel = analysis.info_nce(analysis.kernel_matrix(z, kernel), image)
        assert of_kernel.lower_bound(1 / 3) <= of_kernel.loss + 1e-9
        # hsic_zz <= 1: the loss of SSL-HSIC, with the square root, is above.
        assert of_kernel.hsic_zz <= 1


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 8), st.integers(3, 6), st.integers(0, 2**31))
def test_the_error_of_the_taylor_form_is_of_third_order(images, size, seed):
    """|log E exp(d) - E d^2 / 2| of centred |d| <= 2 / t is at most a constant times its cube."""
    z, image = outputs(images, 2, size, seed)
    for temperature in (20.0, 200.0, 2000.0):
        found = analysis.info_nce(z @ z.T / temperature, image)
        rounding = 1e-12
        assert abs(found.loss - found.taylor) <= (2 / temperature) ** 3 + rounding


def test_gamma_is_that_of_the_paper():
    assert analysis.bound_gamma(10.0) == pytest.approx(0.0475, abs=1e-12)  # of the temperature 0.1
    assert analysis.bound_gamma(1.0) == analysis.bound_gamma(0.3) == 0.25
    for largest in (1.5, 3.0, 40.0):
        gamma = analysis.bound_gamma(largest)
        assert (1 + np.sqrt(1 - 4 * gamma)) / (2 * gamma) == pytest.approx(2 * largest, rel=1e-9)


def test_what_it_cannot_take_is_refused():
    with pytest.raises(ValueError, match="equally many views"):
        analysis.info_nce(np.eye(3), [0, 0, 1])
    with pytest.raises(ValueError, match="image of each of 3 rows"):
        analysis.info_nce(np.eye(3), [0, 0])
