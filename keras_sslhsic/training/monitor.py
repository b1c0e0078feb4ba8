"""The metrics of the trainer, as they stand in the progress bar and the logs."""

from collections.abc import Collection, Mapping
from typing import Any

import keras
import tensorflow as tf

_PLACES = 64


class Monitor(keras.metrics.Metric):
    """Means over an epoch of whatever a step reports; of some names, the latest value.

    Names are known when the first step is traced, and variables must be there before: each new name takes a place in two
    vectors of sums and counts.
    """

    def __init__(self) -> None:
        super().__init__(name="monitor", dtype="float32")
        self.sums = self.add_variable((_PLACES,), "zeros", "float32", name="sums")
        self.counts = self.add_variable((_PLACES,), "zeros", "float32", name="counts")
        self.names: list[str] = []

    def update_state(
        self, terms: Mapping[str, tf.Tensor], latest: Collection[str] = (), weight: Any = 1.0
    ) -> None:
        """Takes in the values of one step.

        Args:
            terms: scalars by name.
            latest: names whose mean is of this step alone.
            weight: of the step in the means.

        Raises:
            ValueError: if there are more names than places.
        """
        self.names += [name for name in terms if name not in self.names]
        if len(self.names) > _PLACES:
            raise ValueError(f"At most {_PLACES} metrics can be logged, found {', '.join(self.names)}.")
        found = [tf.cast(terms.get(name, 0.0), tf.float32) for name in self.names]
        keeps, counts = [
            [float(said(name)) for name in self.names]
            for said in (lambda name: name not in terms or name not in latest, lambda name: name in terms)
        ]
        padded = [tf.pad(tf.stack(values), [[0, _PLACES - len(found)]]) for values in (found, keeps, counts)]
        values, keeps, counts = padded
        weight = tf.cast(weight, tf.float32)
        self.sums.assign(keeps * self.sums + weight * values)
        self.counts.assign(keeps * self.counts + weight * counts)

    def result(self) -> dict[str, tf.Tensor]:
        """The results so far of every name there is, 0 for those that no step has reported since the reset."""
        means = tf.math.divide_no_nan(tf.convert_to_tensor(self.sums), tf.convert_to_tensor(self.counts))
        return {name: means[place] for place, name in enumerate(self.names)}

    def reported(self) -> dict[str, tf.Tensor]:
        """The results of what the steps have reported since the reset; eager."""
        counts = self.counts.numpy()
        return {
            name: mean for (name, mean), count in zip(self.result().items(), counts, strict=False) if count
        }

    def save_own_variables(self, store: Mapping) -> None:
        """Nothing: an epoch's means are no part of a model."""

    def load_own_variables(self, store: Mapping) -> None:
        """Nothing, likewise."""
