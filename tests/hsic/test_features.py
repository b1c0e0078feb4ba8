import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.hsic import features
from keras_sslhsic.hsic.kernels import Gaussian, InverseMultiquadric, squared_distances


@pytest.fixture(scope="module")
def z():
    z = tf.random.stateless_normal([12, 5], seed=[1, 2], alg="philox")
    return tf.math.l2_normalize(z, axis=-1)


def rounding(z, w, b):
    """What float32 makes of a cosine of z'w + b at most: 5 products and a phase are added in any order."""
    return 7 * 2**-24 * np.max(np.abs(z) @ np.abs(w).T + b)


def test_features_are_those_of_the_formula(z):
    w, b = features.draw(Gaussian(0.6), 5, 7, seed=[3, 4])
    exact = [np.asarray(x, np.float64) for x in (z, w, b)]
    expected, atol = np.sqrt(2 / 7) * np.cos(exact[0] @ exact[1].T + exact[2]), rounding(*exact)
    np.testing.assert_allclose(features.random_fourier_features(z, w, b), expected, atol=atol)
    batched = features.random_fourier_features(tf.reshape(z, [2, 3, 2, 5]), w, b)
    np.testing.assert_allclose(tf.reshape(batched, [12, 7]), expected, atol=atol)


@pytest.mark.parametrize("low_variance", [False, True])
@pytest.mark.parametrize("kernel", [Gaussian(0.7), InverseMultiquadric(0.7)])
def test_inner_products_are_unbiased_estimates_of_the_kernel(z, kernel, low_variance):
    @tf.function
    def estimate(seed):
        r = features.random_fourier_features(z, *features.draw(kernel, 5, 64, seed, low_variance))
        return tf.matmul(r, r, transpose_b=True)

    estimates = np.stack([estimate(tf.constant([9, i])) for i in range(300)])
    error = estimates.std(axis=0) / np.sqrt(len(estimates)) + 1e-5
    deviation = (estimates.mean(axis=0) - kernel.value(squared_distances(z, z))) / error
    # 144 correlated entries: their mean square is near 1, and none is far out.
    assert np.mean(deviation**2) < 2.5 and np.max(np.abs(deviation)) < 5


def test_low_variance_features_vary_less(z):
    kernel = InverseMultiquadric(1.0)
    exact = kernel.value(squared_distances(z, z))

    @tf.function
    def error(seed, low_variance):
        r = features.random_fourier_features(z, *features.draw(kernel, 5, 64, seed, low_variance))
        return tf.reduce_mean(tf.square(tf.matmul(r, r, transpose_b=True) - exact))

    plain, low = [np.mean([error(tf.constant([5, i]), flag) for i in range(60)]) for flag in (False, True)]
    assert low < 0.75 * plain


def test_low_variance_features_have_unit_norm_exactly(z):
    w, b = features.draw(InverseMultiquadric(), 5, 16, [1, 2], low_variance=True)
    r = features.random_fourier_features(z, w, b)
    # A pair gives cos^2 + sin^2 = 1, but for the rounding of its two angles and of a sum of 16.
    np.testing.assert_allclose(tf.reduce_sum(r * r, axis=1), 1.0, atol=2 * rounding(z, w, b) + 16 * 2**-24)


def test_phases_are_uniform_and_draws_differ_with_the_seed():
    w, b = features.draw(Gaussian(), 3, 2000, seed=[1, 2])
    assert w.shape == [2000, 3] and b.shape == [2000]
    assert np.min(b) >= 0 and np.max(b) <= 2 * np.pi and abs(np.mean(b) - np.pi) < 0.15
    assert not np.allclose(w, features.draw(Gaussian(), 3, 2000, seed=[1, 3])[0])


def test_errors(z):
    with pytest.raises(ValueError, match="found 0"):
        features.draw(Gaussian(), 5, 0, seed=[1, 2])
    with pytest.raises(ValueError, match="even with low_variance, found 7"):
        features.draw(Gaussian(), 5, 7, seed=[1, 2], low_variance=True)
    with pytest.raises(ValueError, match=r"seed int \[2\], found the shape \(3,\)"):
        features.draw(Gaussian(), 5, 8, seed=[1, 2, 3])
    w, b = features.draw(Gaussian(), 4, 8, seed=[1, 2])
    with pytest.raises(ValueError, match=r"\(12, 5\), \(8, 4\) and \(8,\)"):
        features.random_fourier_features(z, w, b)
