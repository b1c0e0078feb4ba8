"""One replica of several, traced without the others: what a strategy would run on each device.

A real TPU or GPU strategy needs its devices. The step asks `tf.distribute` for its replica context, so a stand-in
for that context, with the collective operation that a TPU strategy emits, gives the replica's program.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_replica_id


class _Context:
    def __init__(self, replicas: int):
        self.num_replicas_in_sync = replicas

    @property
    def replica_id_in_sync_group(self):
        return xla_replica_id()

    def all_reduce(self, op, value, options=None):
        group = [list(range(self.num_replicas_in_sync))]
        if op != tf.distribute.ReduceOp.SUM:
            raise NotImplementedError(f"The step sums over replicas; found {op}.")
        return tf.nest.map_structure(
            lambda x: tf.raw_ops.CrossReplicaSum(input=x, group_assignment=group), value
        )

    def all_gather(self, value, axis):
        """Every replica's part in its own place of a tensor of zeros, and the sum of these."""
        if axis != 0:
            raise NotImplementedError(f"The step gathers along the first axis; found {axis}.")
        place = tf.one_hot(xla_replica_id(), self.num_replicas_in_sync, dtype=value.dtype)
        parts = tf.reshape(place, [-1] + [1] * value.shape.rank) * value
        gathered = self.all_reduce(tf.distribute.ReduceOp.SUM, parts)
        return tf.reshape(gathered, [-1, *value.shape[1:]])


@contextlib.contextmanager
def one_of(replicas: int) -> Iterator[None]:
    """Inside, a step is traced as one of so many replicas."""
    with mock.patch.object(tf.distribute, "get_replica_context", lambda: _Context(replicas)):
        yield


def sums(graph: tf.Graph) -> list[tuple[str, int]]:
    """What a traced step sums over its replicas: (name, bytes on each replica) of every tensor."""
    return [
        (op.name, op.inputs[0].shape.num_elements() * op.inputs[0].dtype.size)
        for op in graph.get_operations()
        if op.type == "CrossReplicaSum"
    ]
