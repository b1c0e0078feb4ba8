"""Uniform numbers that are bit for bit the same eager, in a graph and under XLA."""

from typing import Any, TypeAlias

import tensorflow as tf

# (i, n): images that are the i-th of n equal parts of a batch.
Share: TypeAlias = tuple[int | tf.Tensor, int]
ALL: Share = (0, 1)


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


def uniform_of_share(batch: Any, shape: list[int], seed: tf.Tensor, share: Share) -> tf.Tensor:
    """The rows of `uniform` that belong to a share, which are the same however many shares there are.

    Args:
        batch: images of the share, an int or an int tensor.
        shape: of what is drawn for an image.
        seed: int [2], of the whole batch.
        share: the part.

    Returns:
        float32 [batch, *shape].
    """
    index, count = share
    if count == 1:
        return uniform([batch, *shape], seed)
    return tf.reshape(uniform([count * batch, *shape], seed), [count, batch, *shape])[index]
