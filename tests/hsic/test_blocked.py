import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.hsic.blocked import kernel_sums
from keras_sslhsic.hsic.kernels import Gaussian, InverseMultiquadric, squared_distances


def direct(rows, columns, row_labels, column_labels, weights, kernel, shift):
    """The same sums from the whole matrix, differentiated automatically."""
    a = kernel.value(squared_distances(rows, columns)) - shift
    same = tf.cast(row_labels[:, None] == column_labels, a.dtype)
    return tf.matmul(a, weights), tf.reduce_sum(a * a, axis=1), tf.reduce_sum(a * same, axis=1)


@pytest.mark.parametrize("kernel", [Gaussian(0.8), InverseMultiquadric(1.2)])
@pytest.mark.parametrize("block_rows", [1, 7, None])
@pytest.mark.parametrize("compiled", [False, True])
def test_blocks_change_neither_value_nor_gradient(kernel, block_rows, compiled):
    rng = np.random.default_rng(0)
    rows, columns = tf.constant(rng.normal(size=(10, 4))), tf.constant(rng.normal(size=(13, 4)))
    labels, column_labels = tf.constant(rng.integers(0, 3, 10)), tf.constant(rng.integers(0, 3, 13))
    weights, shift = tf.constant(rng.normal(size=(13, 2))), tf.constant(0.4, tf.float64)
    upstream = [tf.constant(rng.normal(size=shape)) for shape in ((10, 2), (10,), (10,))]

    def outputs_and_gradient(function, *extra):
        with tf.GradientTape() as tape:
            tape.watch([rows, columns])
            outputs = function(rows, columns, labels, column_labels, weights, kernel, shift, *extra)
        return [*outputs, *tape.gradient(outputs, [rows, columns], output_gradients=upstream)]

    expected = outputs_and_gradient(direct)
    blocked = tf.function(lambda: outputs_and_gradient(kernel_sums, block_rows), jit_compile=compiled)
    for value, reference in zip(blocked(), expected, strict=True):
        np.testing.assert_allclose(value, reference, rtol=1e-9, atol=1e-10)


def test_an_unknown_number_of_rows():
    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def sums(z):
        labels = tf.zeros(tf.shape(z)[:1], tf.int32)
        with tf.GradientTape() as tape:
            tape.watch(z)
            weighted, _, _ = kernel_sums(
                z, z, labels, labels, tf.ones([tf.shape(z)[0], 1]), Gaussian(), tf.constant(0.0), block_rows=4
            )
        return weighted, tape.gradient(weighted, z)

    z = tf.random.stateless_normal([9, 3], seed=[1, 2])
    weighted, gradient = sums(z)
    expected = tf.reduce_sum(Gaussian().value(squared_distances(z, z)), axis=1, keepdims=True)
    np.testing.assert_allclose(weighted, expected, rtol=1e-5)
    assert gradient.shape == z.shape
