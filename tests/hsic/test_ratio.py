"""The ratio that decides over collapse: its bound, its value near collapse, and that it decides."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_sslhsic import hsic
from keras_sslhsic.hsic.kernels import Gaussian, InverseMultiquadric
from keras_sslhsic.hsic.ratio import dependence_ratio, largest_ratio


def ratio_of(z, kernel="imq"):
    _, zy, zz = hsic.ssl_hsic(z, kernel, 1.0)
    return dependence_ratio(zy, zz)


def unit(z):
    return z / np.linalg.norm(z, axis=-1, keepdims=True)


def optimised(images, views, dim, kernel):
    """The ratio after ascent over free vectors [B, M, Q]."""
    z = tf.Variable(tf.random.stateless_normal([images, views, dim], [0, 1], dtype=tf.float64))
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build([z])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            _, zy, zz = hsic.ssl_hsic(tf.math.l2_normalize(z, axis=-1), kernel, 1.0)
            ratio = zy / tf.sqrt(zz)
        optimizer.apply([-tape.gradient(ratio, z)], [z])
        return ratio

    return float([step() for _ in range(300)][-1])


@pytest.mark.parametrize(
    ("images", "views"), [(4, 2), (8, 2), (8, 4), pytest.param(128, 2, marks=pytest.mark.slow)]
)
def test_optimised_representations_reach_the_bound(images, views):
    found = optimised(images, views, 2 * images, "imq")
    assert 0.999 * largest_ratio(images, views) < found < largest_ratio(images, views) * (1 + 1e-9)


def test_in_few_dimensions_the_linear_kernel_has_their_number():
    assert optimised(16, 2, 8, "linear") == pytest.approx(np.sqrt(8) * (1 - 1 / 32), rel=1e-4)


def test_the_bound_is_that_of_equal_views_and_a_simplex():
    z = tf.repeat(tf.eye(12, dtype=tf.float64)[:, None], 3, axis=1)
    for kernel in ("imq", "linear", Gaussian(0.4)):
        np.testing.assert_allclose(ratio_of(z, kernel), largest_ratio(12, 3), rtol=1e-9)


@settings(max_examples=30, deadline=None)
@given(
    images=st.integers(2, 12),
    views=st.integers(2, 4),
    spread=st.floats(0.01, 10.0),
    noise=st.floats(0.0, 3.0),
    scale=st.floats(0.2, 3.0),
    seed=st.integers(0, 99),
)
def test_nothing_is_above_the_bound(images, views, spread, noise, scale, seed):
    rng = np.random.default_rng(seed)
    z = spread * rng.normal(size=(images, 1, 5)) + noise * rng.normal(size=(images, views, 5)) + 1.0
    z = unit(z)
    for kernel in (InverseMultiquadric(scale), Gaussian(scale)):
        ratio, n = ratio_of(z, kernel), images * views
        assert ratio <= largest_ratio(images, views) * (1 + 1e-6)
        # At the agreement r that the views have, if they agree at all: see docs/method.md.
        flat = z.reshape(n, -1)
        k = kernel.value(((flat[:, None] - flat) ** 2).sum(-1)).numpy()
        r = hsic.hsic_zy(z, kernel).numpy() / (1 - k.mean())
        between, within = 1 + (views - 1) * r, 1 - r
        evenly = between**2 / (images - 1) + (views - 1) * within**2 / images
        assert r <= 0 or ratio <= r * (n - 1) / images / np.sqrt(evenly) + 1e-6


def near_collapse(spread, images=32, views=3):
    rng = np.random.default_rng(0)
    shape = np.array([3.0, 2.0, 1.0, 1.0, 0.5, 0.2])
    x = rng.normal(size=(images, 1, 6)) * shape + 0.7 * rng.normal(size=(images, views, 6))
    return unit(np.concatenate([np.ones((images, views, 1)), spread * x], axis=-1))


def test_near_collapse_it_is_the_agreement_of_views_times_the_root_of_the_rank():
    z = near_collapse(1e-4)
    images, views, _ = z.shape
    centred = z - z.mean(axis=(0, 1))
    rows = centred.reshape(images * views, -1)
    covariance = rows.T @ rows / len(rows)
    rank = np.trace(covariance) ** 2 / np.sum(covariance**2)
    squares = np.sum(centred**2)
    agreement = (np.sum(centred.sum(axis=1) ** 2) - squares) / (views - 1) / squares
    expected = agreement * np.sqrt(rank) * (1 - 1 / len(rows))
    # The kernel's curvature is left out: squared distances are below 1e-6 here.
    np.testing.assert_allclose(ratio_of(z), expected, rtol=1e-4)


def test_gamma_above_the_ratio_makes_collapse_attract_and_below_it_repel():
    z, closer = near_collapse(0.02), near_collapse(0.01)
    ratio = float(ratio_of(z))
    for factor, attracts in ((0.9, False), (1.1, True)):
        loss, nearer = (float(hsic.ssl_hsic(x, "imq", factor * ratio)[0]) for x in (z, closer))
        assert (nearer < loss) == attracts
        assert (loss > 0) == attracts


def test_without_variance_it_is_zero_and_it_has_no_gradient():
    zy, zz = tf.Variable([0.5, 0.5, 0.5]), tf.Variable([0.0, -1e-3, 0.25])
    with tf.GradientTape() as tape:
        ratio = dependence_ratio(zy, zz)
    np.testing.assert_array_equal(ratio, [0.0, 0.0, 1.0])
    assert tape.gradient(ratio, [zy, zz]) == [None, None]
