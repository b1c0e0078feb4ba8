"""The order of examples: a pure function of the seed and the step, so that any step can be reached at once.

Epoch e visits the N examples in a permutation drawn from (seed, e) alone, so a stream that starts at (epoch, step) draws one
permutation, reads nothing of the past, and yields the same batches as a run that was never interrupted.
"""

import dataclasses

import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.words import counted


@dataclasses.dataclass(frozen=True)
class Order:
    """Which examples make up which batch.

    Attributes:
        num_examples: N.
        batch_size: examples in a batch.
        seed: draws the permutations.
        shuffle: False visits 0, 1, ..., N - 1 in every epoch.
        drop_remainder: True drops what does not fill a batch (with `shuffle`, other examples in every epoch); False ends
            the epoch with a smaller batch.

    Raises:
        ValueError: an attribute is of another type or out of range, or there are fewer examples than one batch.
    """

    num_examples: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_remainder: bool = True

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, 0, most=2**32 - 1)
        checks.integer("batch_size", self.batch_size, 1)
        checks.flag("shuffle", self.shuffle)
        checks.flag("drop_remainder", self.drop_remainder)
        if self.num_examples < 1:
            raise ValueError("The data set has no examples.")
        if self.steps_per_epoch < 1:
            found = counted(self.num_examples, "example")
            raise ValueError(
                f"The data set has {found}, fewer than one batch of {self.batch_size}: lower batch_size."
            )

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        full = self.num_examples // self.batch_size
        return full if self.drop_remainder else -(-self.num_examples // self.batch_size)

    def permutation(self, epoch: tf.Tensor) -> tf.Tensor:
        """The order of an epoch; int64 scalar -> int32 [N]."""
        if not self.shuffle:
            return tf.range(self.num_examples)
        # Sorted random keys: tf.random.experimental.index_shuffle, which needs no memory, is far from uniform
        # (over successive seeds it gives at most 256 different permutations).
        keys = tf.random.stateless_uniform(
            [self.num_examples], [self.seed, epoch], minval=None, maxval=None, dtype=tf.int64, alg="philox"
        )
        return tf.argsort(keys, stable=True)

    def batches(self, epoch: int = 0, step: int = 0, epochs: int | None = None) -> tf.data.Dataset:
        """The stream from a step on: the epoch, int64, and the examples of a batch, int32 [batch_size].

        Args:
            epoch: of the first batch.
            step: of the first batch; it may exceed the steps of an epoch.
            epochs: ends before this epoch, counted from 0; None never ends.

        Raises:
            ValueError: a number is no integer or out of range.
        """
        checks.integer("epoch", epoch, 0)
        checks.integer("step", step, 0)
        checks.integer("epochs", epochs, 1, optional=True)
        steps, size = self.steps_per_epoch, self.batch_size
        first_epoch, first_step = epoch + step // steps, step % steps

        def epoch_batches(epoch: tf.Tensor) -> tf.data.Dataset:
            examples = self.permutation(epoch)
            first = tf.where(epoch == first_epoch, tf.constant(first_step, tf.int64), 0)
            return tf.data.Dataset.range(first, steps).map(lambda step: (epoch, batch(examples, step)))

        def batch(examples: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
            indices = examples[step * size : (step + 1) * size]
            return tf.ensure_shape(indices, [size]) if self.drop_remainder else indices

        last = tf.int64.max if epochs is None else epochs
        dataset = tf.data.Dataset.range(first_epoch, last).flat_map(epoch_batches)
        left = tf.data.INFINITE_CARDINALITY if epochs is None else max((epochs - epoch) * steps - step, 0)
        return dataset.apply(tf.data.experimental.assert_cardinality(left))
