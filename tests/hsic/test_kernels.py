import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_sslhsic.hsic import kernels
from keras_sslhsic.hsic.kernels import Gaussian, InverseMultiquadric, Kernel, Linear

FAMILY = [Linear, Gaussian, InverseMultiquadric]


class Laplace(Kernel):
    """A kernel written with its value alone, as a user would."""

    def value(self, s):
        return tf.exp(-tf.sqrt(s + 1e-12) / self.scale_as(s.dtype))


@pytest.mark.parametrize(
    ("kernel", "formula"),
    [
        (Linear(2.0), lambda s: 1 - s / 8),
        (Gaussian(0.7), lambda s: np.exp(-s / (2 * 0.49))),
        (InverseMultiquadric(0.7), lambda s: 0.7 / np.sqrt(0.49 + s)),
    ],
)
def test_values_are_those_of_the_formula(kernel, formula):
    s = np.linspace(0, 4, 9)
    np.testing.assert_allclose(kernel.value(tf.constant(s)), formula(s), rtol=1e-12)


def test_linear_kernel_is_the_inner_product_of_unit_vectors():
    z = np.random.default_rng(0).normal(size=(6, 5))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(Linear().value(kernels.squared_distances(z, z)), z @ z.T, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(s=st.floats(1e-3, 50.0), scale=st.floats(0.1, 5.0), kind=st.sampled_from([*FAMILY, Laplace]))
def test_derivative_is_that_of_the_value(s, scale, kind):
    kernel, h = kind(scale), 1e-6 * max(1.0, s)
    s = tf.constant([s], tf.float64)
    numeric = (kernel.value(s + h) - kernel.value(s - h)) / (2 * h)
    np.testing.assert_allclose(kernel.derivative(s), numeric, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", [*FAMILY, Laplace])
def test_config_round_trip_and_with_scale(kind):
    kernel = kernels.get(kernels.serialize(kind(0.3)))
    assert type(kernel) is kind and kernel.scale == pytest.approx(0.3)
    variable = tf.Variable(0.8)
    assert kernel.with_scale(variable).scale is variable
    assert kernels.serialize(kernel.with_scale(variable))["config"]["scale"] == pytest.approx(0.8)


def test_get_accepts_names_and_objects():
    kernel = Gaussian(0.2)
    assert kernels.get(kernel) is kernel
    assert [type(kernels.get(name)) for name in ("linear", "gaussian", "imq")] == FAMILY
    with pytest.raises(ValueError, match="'rbf'"):
        kernels.get("rbf")


@pytest.mark.parametrize("kind", FAMILY)
@pytest.mark.parametrize("scale", [0, -1.5])
def test_scale_must_be_positive(kind, scale):
    with pytest.raises(ValueError, match=str(scale)):
        kind(scale)


def test_kernel_without_spectral_distribution_says_so():
    with pytest.raises(ValueError, match="Laplace"):
        Laplace().frequencies(3)


@pytest.mark.parametrize("kind", [Gaussian, InverseMultiquadric])
def test_entropy_of_one_distance_is_largest_at_the_closed_form(kind):
    s = tf.constant([2.0], tf.float64)

    def objective(c):
        return 0.5 * np.log(np.square(kind(c).derivative(s).numpy()[0]))

    best = np.sqrt(2.0 / 2.0)
    assert objective(best) > objective(best * 1.02)
    assert objective(best) > objective(best / 1.02)


def test_scale_entropy_gradient_vanishes_at_the_closed_form():
    # 512 corners of a simplex: all pairs but 1 in 512 have s = 2, so the maximum is at c = 1 but for that share.
    c = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        value = kernels.scale_entropy(InverseMultiquadric(c), tf.eye(512))
    assert abs(tape.gradient(value, c)) < 2 / 512 + 1e-4
    optimum = tf.Variable(0.5)
    for _ in range(60):
        with tf.GradientTape() as tape:
            value = kernels.scale_entropy(InverseMultiquadric(optimum), tf.eye(64))
        optimum.assign_add(0.3 * tape.gradient(value, optimum))
    # (1 - 1/n) (1/c - 3 c / (c^2 + 2)) - (1/n) 2/c = 0, with the share 1/n of pairs of a row with itself.
    share = 1 / 64
    expected = np.sqrt(2 * (1 - 3 * share) / 2)
    assert optimum.numpy() == pytest.approx(expected, abs=2e-2)


def test_scale_entropy_uses_evenly_spaced_rows_of_a_large_batch():
    z = tf.random.stateless_normal([64, 4, 8], seed=[1, 2])
    rows = tf.reshape(z, [-1, 8])
    some = kernels.scale_entropy(InverseMultiquadric(), z, max_rows=64)
    assert some == kernels.scale_entropy(InverseMultiquadric(), rows[::4])
    assert abs(some - kernels.scale_entropy(InverseMultiquadric(), z)) < 0.2


def test_scale_entropy_is_finite_on_collapsed_rows_and_has_no_gradient_in_z():
    z = tf.Variable(tf.ones([8, 4]))
    c = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        value = kernels.scale_entropy(InverseMultiquadric(c), z)
    gradients = tape.gradient(value, [z, c])
    assert np.isfinite(value) and gradients[0] is None and np.isfinite(gradients[1])
