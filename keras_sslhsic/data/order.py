"""The order of examples: a pure function of the seed and the step, so that any step can be reached at once.

Epoch e visits the N examples in a permutation drawn from (seed, e) alone, so a stream that starts at (epoch,
step) draws one permutation, reads nothing of the past, and yields the same batches as a run that was never
interrupted.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from keras_sslhsic import checks


@dataclasses.dataclass(frozen=True)
class Order:
    """Which examples make up which batch.

    Host i of n takes every n-th position of the epoch's permutation, starting at i: the hosts' examples are
    disjoint and together cover everything, and step s of all hosts together is step s of a single host with n
    times the batch.

    Attributes:
        num_examples: N, over all hosts.
        batch_size: examples in a batch of this host.
        seed: draws the permutations.
        shuffle: False visits 0, 1, ..., N - 1 in every epoch.
        drop_remainder: True drops what does not fill a batch (with `shuffle`, other examples in every epoch),
            so that all hosts make equally many steps; False ends the epoch with a smaller batch.
        start: `(epoch, step)` of the first batch. `step` may exceed the steps of an epoch.
        epochs: ends before this epoch, counted from 0; None never ends.
        shard: `(index, count)` of this host.

    Raises:
        ValueError: an attribute is of another type or out of range, or there are fewer examples than one batch of every host.
    """

    num_examples: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_remainder: bool = True
    start: tuple[int, int] = (0, 0)
    epochs: int | None = None
    shard: tuple[int, int] = (0, 1)

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, 0)
        checks.integer("batch_size", self.batch_size, 1)
        checks.integer("epochs", self.epochs, 1, optional=True)
        checks.flag("shuffle", self.shuffle)
        checks.flag("drop_remainder", self.drop_remainder)
        _check_pair("start", self.start, ("epoch", "step"))
        _check_pair("shard", self.shard, ("index", "count"))
        index, count = self.shard
        if index >= count:
            raise ValueError(f"shard must be (index, count) with index < count, found {self.shard}.")
        if self.steps_per_epoch < 1:
            hosts = f" on each of {count} hosts" if count > 1 else ""
            raise ValueError(
                f"the data set has {self.num_examples} examples, fewer than one batch of "
                f"{self.batch_size}{hosts}: use a smaller batch_size"
            )

    @property
    def examples_per_epoch(self) -> int:
        """Positions of an epoch that belong to this host."""
        index, count = self.shard
        return (self.num_examples - index + count - 1) // count

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch of this host."""
        if self.drop_remainder:
            return self.num_examples // self.shard[1] // self.batch_size
        return -(-self.examples_per_epoch // self.batch_size)

    @property
    def cardinality(self) -> int:
        """Batches from `start` on; `tf.data.INFINITE_CARDINALITY` without end."""
        if self.epochs is None:
            return tf.data.INFINITE_CARDINALITY
        return max((self.epochs - self.start[0]) * self.steps_per_epoch - self.start[1], 0)

    def permutation(self, epoch: tf.Tensor) -> tf.Tensor:
        """The order of an epoch over all hosts; int64 scalar -> int32 [N]."""
        if not self.shuffle:
            return tf.range(self.num_examples)
        # Sorted random keys: tf.random.experimental.index_shuffle, which needs no memory, is far from uniform
        # (over successive seeds it gives at most 256 different permutations).
        keys = tf.random.stateless_uniform(
            [self.num_examples], [self.seed, epoch], minval=None, maxval=None, dtype=tf.int64, alg="philox"
        )
        return tf.argsort(keys, stable=True)

    def batches(self) -> tf.data.Dataset:
        """The stream from `start` on: the epoch, int64, and the examples of a batch, int32 [batch_size]."""
        index, count = self.shard
        steps, size = self.steps_per_epoch, self.batch_size
        first_epoch, first_step = self.start[0] + self.start[1] // steps, self.start[1] % steps

        def epoch_batches(epoch: tf.Tensor) -> tf.data.Dataset:
            mine = self.permutation(epoch)[index::count]
            first = tf.where(epoch == first_epoch, tf.constant(first_step, tf.int64), 0)
            return tf.data.Dataset.range(first, steps).map(lambda step: (epoch, batch(mine, step)))

        def batch(mine: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
            indices = mine[step * size : (step + 1) * size]
            return tf.ensure_shape(indices, [size]) if self.drop_remainder else indices

        last = tf.int64.max if self.epochs is None else self.epochs
        dataset = tf.data.Dataset.range(first_epoch, last).flat_map(epoch_batches)
        return dataset.apply(tf.data.experimental.assert_cardinality(self.cardinality))


def _check_pair(name: str, value: Any, members: tuple[str, str]) -> None:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"{name} must be ({members[0]}, {members[1]}), found {value!r}.")
    for member, number in zip(members, value, strict=True):
        checks.integer(f"the {member} of {name}", number, 0)
