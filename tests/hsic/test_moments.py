import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.hsic import features, moments
from keras_sslhsic.hsic.kernels import InverseMultiquadric
from keras_sslhsic.hsic.moments import cosine_moments, feature_moments, moments_zy, moments_zz


def draws(dim, sizes):
    return [features.draw(InverseMultiquadric(0.7), dim, size, [1, size]) for size in sizes]


def objective(result):
    return 3 * tf.sqrt(moments_zz(result, 1)) - moments_zy(result, False, None, True)


def from_features(z, first, second):
    return feature_moments(
        features.random_fourier_features(z, *first), features.random_fourier_features(z, *second)
    )


@pytest.mark.parametrize("rows", [4, 2048])
@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("compiled", [False, True])
def test_fused_moments_and_gradient_are_those_of_the_features(monkeypatch, rows, views, compiled):
    monkeypatch.setattr(moments, "_ROWS", rows)
    z = tf.math.l2_normalize(tf.random.stateless_normal([7, views, 5], seed=[1, 2]), axis=-1)
    first, second = draws(5, (16, 24))

    def run(function):
        with tf.GradientTape() as tape:
            tape.watch(z)
            result = function(z, first, second)
            loss = objective(result)
        return [*result, loss, tape.gradient(loss, z)]

    fused = tf.function(lambda: run(cosine_moments), jit_compile=compiled)()
    for value, expected in zip(fused, run(from_features), strict=True):
        np.testing.assert_allclose(value, expected, rtol=2e-4, atol=2e-6)


def test_gradient_against_finite_differences():
    z = tf.constant(np.random.default_rng(0).normal(size=(4, 3, 5)))
    first, second = draws(5, (8, 6))
    function = tf.function(lambda z: objective(cosine_moments(z, first, second)))
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = function(z)
    gradient = tape.gradient(value, z)
    for i in range(3):
        direction = tf.random.stateless_normal(z.shape, [i, 1], dtype=tf.float64)
        numeric = (function(z + 1e-5 * direction) - function(z - 1e-5 * direction)) / 2e-5
        assert tf.reduce_sum(gradient * direction).numpy() == pytest.approx(numeric.numpy(), rel=1e-6)


def test_an_unknown_batch_size():
    first, second = draws(5, (8, 6))
    z = tf.random.stateless_normal([6, 2, 5], seed=[1, 2])
    function = tf.function(
        lambda z: cosine_moments(z, first, second), input_signature=[tf.TensorSpec([None, 2, 5])]
    )
    np.testing.assert_allclose(
        function(z).cross, cosine_moments(z, first, second).cross, rtol=1e-5, atol=1e-6
    )
