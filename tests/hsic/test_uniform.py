"""The mean of a kernel over the sphere, and the identity that makes a mean of the kernel an MMD."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate, special

from keras_sslhsic import hsic
from keras_sslhsic.hsic.kernels import Gaussian, InverseMultiquadric, Linear
from keras_sslhsic.hsic.uniform import uniform_mean
from keras_sslhsic.losses import SSLHSICLoss

KERNELS = {"imq": InverseMultiquadric(0.4), "gaussian": Gaussian(0.7), "linear": Linear()}


def unit(shape, seed=0):
    z = np.random.default_rng(seed).standard_normal(shape) + 0.3
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


@pytest.mark.parametrize("name", KERNELS)
def test_the_quadrature_agrees_with_scipy_in_every_dimension(name):
    kernel = KERNELS[name]
    for dim in (3, 8, 64, 256, 1024):
        exponent = 0.5 * (dim - 3)

        def integrand(t, power=exponent):
            return (1 - t * t) ** power * kernel.value(tf.constant(2 - 2 * t, tf.float64)).numpy()

        total, _ = integrate.quad(integrand, -1, 1, points=[0.0], epsabs=1e-13, limit=200)
        expected = total / special.beta(0.5, exponent + 1)
        assert uniform_mean(kernel, dim, tf.float64).numpy() == pytest.approx(expected, abs=1e-9)
    assert uniform_mean(kernel, 1, tf.float64).numpy() == pytest.approx(
        kernel.value(tf.constant([0.0, 4.0], tf.float64)).numpy().mean(), abs=1e-12
    )


def test_the_gaussian_kernel_has_a_closed_form():
    """E exp(-(1 - t) / sigma^2) = exp(-1 / sigma^2) 0F1(dim / 2, 1 / (4 sigma^4))."""
    for dim, sigma in ((2, 0.5), (5, 0.8), (128, 1.0)):
        expected = np.exp(-1 / sigma**2) * special.hyp0f1(dim / 2, 0.25 / sigma**4)
        assert uniform_mean(Gaussian(sigma), dim, tf.float64).numpy() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", KERNELS)
def test_hsic_is_similarity_of_views_less_an_mmd_to_uniform(name):
    """-hsic_zy = -E k(two views of an image) + MMD^2(outputs, uniform) + E k of the uniform distribution."""
    kernel, z = KERNELS[name], unit([24, 3, 6])
    flat = z.reshape(-1, 6)
    squared = ((flat[:, None] - flat) ** 2).sum(-1)
    matrix = kernel.value(tf.constant(squared)).numpy()
    blocks = matrix.reshape(24, 3, 24, 3)[np.arange(24), :, np.arange(24)]
    same_image = (blocks.sum() - 24 * 3) / (24 * 3 * 2)
    # MMD^2 as it is defined, of the outputs and of points that represent the uniform distribution.
    constant = uniform_mean(kernel, 6, tf.float64).numpy()
    to_uniform = np.full(len(flat), constant)  # E_u k(z, u), of every z the same
    mmd = matrix.mean() - 2 * to_uniform.mean() + constant
    zy = hsic.hsic_zy(tf.constant(z), kernel).numpy()
    assert -zy == pytest.approx(-same_image + mmd + constant, abs=1e-12)

    loss = SSLHSICLoss(kernel, num_features=None)
    terms = loss.terms_of_unit_vectors(z, tf.constant([0, 0]))
    assert terms["mmd_to_uniform"].numpy() == pytest.approx(mmd, abs=1e-6)
    identity = -same_image + terms["mmd_to_uniform"].numpy() + constant
    assert -terms["hsic_zy"].numpy() == pytest.approx(identity, abs=1e-6)


def test_the_mean_over_the_sphere_is_that_of_random_vectors():
    kernel, dim, count = KERNELS["imq"], 6, 4000
    u = np.random.default_rng(2).standard_normal([2, count, dim])
    u /= np.linalg.norm(u, axis=-1, keepdims=True)
    values = kernel.value(tf.constant(((u[0] - u[1]) ** 2).sum(-1))).numpy()
    standard_error = values.std() / np.sqrt(count)
    assert abs(values.mean() - uniform_mean(kernel, dim, tf.float64)) < 5 * standard_error


def test_features_estimate_the_mmd_of_the_exact_kernel():
    z = unit([32, 2, 8])
    exact = SSLHSICLoss(num_features=None).terms_of_unit_vectors(z, tf.constant([0, 0]))["mmd_to_uniform"]
    sampled = SSLHSICLoss(num_features=512)
    found = [
        sampled.terms_of_unit_vectors(z, tf.constant([seed, 1]))["mmd_to_uniform"].numpy()
        for seed in range(30)
    ]
    assert abs(np.mean(found) - exact.numpy()) < 5 * np.std(found, ddof=1) / np.sqrt(len(found))
    linear = [SSLHSICLoss("linear", num_features=n) for n in (None, 512)]
    one, other = (
        loss.terms_of_unit_vectors(z, tf.constant([0, 0]))["mmd_to_uniform"].numpy() for loss in linear
    )
    squared_mean = np.sum(z.reshape(-1, 8).mean(0) ** 2)
    assert one == pytest.approx(squared_mean, abs=1e-6) and other == pytest.approx(squared_mean, abs=1e-6)
