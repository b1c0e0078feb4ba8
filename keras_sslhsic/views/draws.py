"""Uniform numbers that are bit for bit the same eager, in a graph and under XLA."""

from typing import Any

import tensorflow as tf


def uniform(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    """Draws from the uniform distribution on [0, 1), in steps of 2^-24.

    Floats of `tf.random.stateless_uniform` differ between eager execution and XLA even with alg="philox",
    since the two turn the random bits into floats in different ways; the bits themselves agree.

    Args:
        shape: of the result, a sequence of ints or an int tensor.
        seed: int [2].

    Returns:
        float32 of the given shape.
    """
    bits = tf.random.stateless_uniform(shape, seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox")
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) * 2.0**-24
