"""One replica of several, traced without the others: what a strategy would run on each device.

A real TPU or GPU strategy needs its devices. The step asks `tf.distribute` for its replica context, so a stand-in
for that context, with the collective operation that a TPU strategy emits, gives the replica's program.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops.gen_xla_ops import xla_replica_id

from lowering import PureStep

COLLECTIVE = "CrossReplicaSum"


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


@contextlib.contextmanager
def one_of(replicas: int) -> Iterator[None]:
    """Inside, a step is traced as one of so many replicas."""
    with mock.patch.object(tf.distribute, "get_replica_context", lambda: _Context(replicas)):
        yield


def communication(step: PureStep) -> tuple[int, int]:
    """(number of tensors summed over the replicas in one step, their bytes on each replica)."""
    summed = [op.inputs[0] for op in step.graph.get_operations() if op.type == COLLECTIVE]
    return len(summed), sum(x.shape.num_elements() * x.dtype.size for x in summed)
