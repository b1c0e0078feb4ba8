"""Groups of rows that share an integer label, of equal size or not."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


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
    return Groups(index, tf.math.unsorted_segment_sum(tf.ones_like(index, tf.float32), index, tf.size(labels)))
