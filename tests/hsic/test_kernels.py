import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

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
@pytest.mark.parametrize("scale", [0, -1.5, math.inf, math.nan])
@pytest.mark.parametrize("number", [lambda scale: scale, np.float16, np.float32, np.float64, np.array])
def test_scale_must_be_positive_and_finite(kind, scale, number):
    assert kind(number(1.5)).scale_as(tf.float32) == 1.5
    scale = number(scale)
    with pytest.raises(ValueError, match=f"must be positive and finite, found {scale}"):
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


@settings(max_examples=50, deadline=None)
@given(images=st.integers(1, 3000), views=st.integers(1, 8), max_rows=st.integers(8, 1024))
def test_every_view_enters_equally_and_every_image_about_so(images, views, max_rows):
    numbers = np.stack(np.mgrid[:images, :views], axis=-1).astype(np.float32)
    rows = kernels.evenly_spread_rows(tf.constant(numbers), max_rows).numpy().astype(int)
    assert len(rows) <= max_rows and len(rows) == views * min(images, max_rows // views)
    assert len(np.unique(rows, axis=0)) == len(rows)
    assert np.all(np.bincount(rows[:, 1], minlength=views) == len(rows) // views)
    assert np.ptp(np.bincount(rows[:, 0], minlength=images)) <= 1
    assert np.ptp(np.diff(np.append(rows[:, 0], images))) <= 1
    if views * images <= max_rows:
        np.testing.assert_array_equal(rows, numbers.reshape(-1, 2))


@pytest.mark.parametrize("images", [64, 1024, 3000])
def test_rows_are_the_same_where_the_batch_is_not_known_in_advance(images):
    z = tf.random.stateless_normal([images, 4, 8], seed=[1, 2])
    dynamic = tf.function(
        lambda z: kernels.evenly_spread_rows(z, 1024), input_signature=[tf.TensorSpec([None, 4, 8])]
    )
    np.testing.assert_array_equal(dynamic(z), kernels.evenly_spread_rows(z, 1024))


def learnt_scale(kind, z):
    """Where the gradient of the entropy of float64 rows vanishes."""

    def slope(c):
        scale = tf.Variable(c, dtype=tf.float64)
        with tf.GradientTape() as tape:
            value = kernels.scale_entropy(kind(scale), z)
        return float(tape.gradient(value, scale))

    return optimize.brentq(slope, 0.4, 2.0, rtol=1e-6)


@pytest.mark.parametrize("images", [64, 1024, 4000])
@pytest.mark.parametrize(
    ("kind", "factor"), [(InverseMultiquadric, lambda a: (1 - 3 * a) / 2), (Gaussian, lambda a: (1 - a) / 2)]
)
def test_the_scale_is_that_of_all_views(kind, factor, images):
    """View p of every image is the corner e_p: a quarter of all pairs are at 0, the others at s = 2.

    With the share a of pairs at 0 the entropy is largest at c^2 = s (1 - 3 a) / 2 for the inverse multiquadric, at
    sigma^2 = s (1 - a) / 2 for the Gaussian; rows of one view alone would be at 0 all of them, and draw the scale there.
    """
    z = tf.tile(tf.eye(4, dtype=tf.float64)[None], [images, 1, 1])
    assert learnt_scale(kind, z) == pytest.approx(np.sqrt(2 * factor(1 / 4)), rel=1e-5)


def test_the_scale_of_a_sample_is_about_that_of_all_rows():
    """Two views near each other, two far: the sample has all pairs of views in their shares."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(300, 1, 16))
    z = np.concatenate(
        [centre + 0.1 * rng.normal(size=(300, 2, 16)), 0.3 * rng.normal(size=(300, 2, 16)) + 1], 1
    )
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    s = ((z.reshape(-1, 1, 16) - z.reshape(1, -1, 16)) ** 2).sum(-1)

    def slope(c):
        """d/dc of the mean over all pairs of log c - 3/2 log(c^2 + s)."""
        return np.mean(1 / c - 3 * c / (c**2 + s))

    expected = optimize.brentq(slope, 0.4, 2.0, rtol=1e-6)
    # The mean of m = 1024 rows' pairs instead of 1200 rows': relative deviations are of the order of 1/sqrt(m).
    assert learnt_scale(InverseMultiquadric, z) == pytest.approx(expected, rel=1 / np.sqrt(1024))
    one_view = learnt_scale(InverseMultiquadric, z[:, :1])
    assert abs(one_view / expected - 1) > 3 / np.sqrt(1024)


def test_only_the_linear_kernel_has_no_best_scale():
    assert [kind.learnable_scale for kind in (*FAMILY, Laplace)] == [False, True, True, True]


def test_scale_entropy_is_finite_on_collapsed_rows_and_has_no_gradient_in_z():
    z = tf.Variable(tf.ones([8, 4]))
    c = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        value = kernels.scale_entropy(InverseMultiquadric(c), z)
    gradients = tape.gradient(value, [z, c])
    assert np.isfinite(value) and gradients[0] is None and np.isfinite(gradients[1])
