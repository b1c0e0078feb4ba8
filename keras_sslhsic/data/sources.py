"""The data set that a config names, as training and evaluation use it."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from keras_sslhsic.data import bundled
from keras_sslhsic.data.arrays import from_arrays

Labelled = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Source:
    """Data of an experiment.

    Attributes:
        batches: epoch -> an endless dataset of batches from the beginning of that epoch on.
        steps_per_epoch: batches in an epoch.
        sample: n -> n images, uint8 [n, H, W, C], to look at.
        labelled_arrays: ((x_train, y_train), (x_test, y_test)) where they fit in memory, else None.
        class_names: or None.
    """

    batches: Callable[[int], tf.data.Dataset]
    steps_per_epoch: int
    sample: Callable[[int], np.ndarray]
    labelled_arrays: tuple[Labelled, Labelled] | None = None
    class_names: Sequence[str] | None = None


def source(config: ConfigDict) -> Source:
    """The data set of a config, in batches of `config.batch_size` ordered by `config.seed`.

    Raises:
        ValueError: for an unknown `config.data.source`, or fewer images than a batch.
    """
    makers = {"bundled": _bundled}
    if config.data.source not in makers:
        raise ValueError(f"Unknown data source {config.data.source!r}; expected one of {', '.join(makers)}.")
    return makers[config.data.source](config)


def _bundled(config):
    (x, y), test = bundled.load()

    def batches(epoch):
        return from_arrays(x, y, batch_size=config.batch_size, seed=config.seed, start=(epoch, 0))

    return Source(batches, batches(0).steps_per_epoch, lambda n: x[:n], ((x, y), test), bundled.CLASS_NAMES)
