"""Sums and concatenations over the replicas of a `tf.distribute` strategy; the identity outside of one.

Inside a replica, the gradient of `all_sum` and `all_gather` is that of the *sum of all replicas' losses*. A
loss that is the same global value on each of R replicas is therefore divided by R before its gradient is
taken, since the optimizer sums the replicas' gradients.
"""

from __future__ import annotations

import tensorflow as tf


def num_replicas() -> int:
    """Returns the number of replicas of the current replica context (1 outside of a strategy)."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else context.num_replicas_in_sync


def all_sum(x: tf.Tensor) -> tf.Tensor:
    """The sum over the replicas of a tensor, of one shape and dtype on all of them; equal on all."""
    if num_replicas() == 1:
        return x
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, x)


def all_gather(x: tf.Tensor) -> tf.Tensor:
    """The tensors [n, ...] of R replicas, of one shape and dtype, as [R n, ...] in their order; equal on all."""
    if num_replicas() == 1:
        return x
    return tf.distribute.get_replica_context().all_gather(x, axis=0)


def mean_of_sums(x: tf.Tensor, count: tf.Tensor | int) -> tf.Tensor:
    """Divides the sum over the replicas of their sums `x` by that of their counts, which are equal."""
    return all_sum(x) / tf.cast(num_replicas() * count, x.dtype)


def own_rows(x: tf.Tensor) -> tf.Tensor:
    """Returns this replica's part [n] of a vector [R n] that `all_gather` would make."""
    if num_replicas() == 1:
        return x
    return tf.reshape(x, [num_replicas(), -1])[tf.distribute.get_replica_context().replica_id_in_sync_group]
