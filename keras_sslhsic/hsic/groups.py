"""Groups of rows that share an integer label, of equal size or not, and the HSIC of such groups."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from keras_sslhsic import checks


class Groups(NamedTuple):
    """Groups of n rows.

    Attributes:
        index: int32 [n], the number of each row's group, from 0.
        sizes: float32 [n], the size of each group, 0 past the last one.
    """

    index: tf.Tensor
    sizes: tf.Tensor


def group(labels: tf.Tensor) -> Groups:
    """Groups rows by integer labels [n]. It sorts, so that it compiles under XLA, which `tf.unique` does not."""
    order = tf.argsort(labels, stable=True)
    ordered = tf.gather(labels, order)
    begins = tf.cast(ordered[1:] != ordered[:-1], tf.int32)
    ordered_index = tf.cumsum(tf.concat([[0], begins], axis=0))
    index = tf.gather(ordered_index, tf.argsort(order))
    sizes = tf.math.unsorted_segment_sum(tf.ones_like(index, tf.float32), index, tf.size(labels))
    return Groups(index, sizes)


def combine(
    count: tf.Tensor,
    pairs: tf.Tensor,
    squared_mean: tf.Tensor,
    mean_square: tf.Tensor,
    unbiased: bool,
    dataset_size: int | None,
) -> tf.Tensor:
    """`hsic_zy` of `count` groups.

    Args:
        count: number of groups.
        pairs: mean over groups of the mean kernel over pairs of different rows.
        squared_mean: squared norm of the mean of the groups' mean embeddings.
        mean_square: mean of the squared norms of the groups' mean embeddings.
        unbiased: whether to leave pairs in one group out of the second term, too.
        dataset_size: number of groups that these were drawn from; None for infinitely many.
    """
    if not unbiased:
        return pairs - squared_mean
    between = (count * squared_mean - mean_square) / (count - 1.0)
    return finite_population(dataset_size) * (pairs - between)


def mean_pairs(sums: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    """Mean over groups of two rows or more of sums / (size (size - 1))."""
    many = tf.cast(sizes > 1.5, sizes.dtype)
    means = many * tf.math.divide_no_nan(sums, sizes * (sizes - 1.0))
    return tf.math.divide_no_nan(tf.reduce_sum(means), tf.reduce_sum(many))


def finite_population(dataset_size: int | None) -> float:
    """The factor 1 - 1/N of the unbiased estimator for a data set of N images, 1 for an infinite one."""
    checks.integer("dataset_size", dataset_size, 2, optional=True)
    return 1.0 if dataset_size is None else 1.0 - 1.0 / dataset_size
