"""The data set that a config names, as training and evaluation use it."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from keras_sslhsic.data import bundled
from keras_sslhsic.data.arrays import from_arrays
from keras_sslhsic.data.folder import from_folder
from keras_sslhsic.data.subsets import stratified_split
from keras_sslhsic.data.tfds import from_tfds

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


def source(config: ConfigDict, error_log: str | Path = "broken_images.log") -> Source:
    """The data set of a config, in batches of `config.batch_size` ordered by `config.seed`.

    `config.data.source` is "bundled", "folder" or "tfds"; the other fields of `config.data` are arguments of
    `from_folder` or `from_tfds` (`host_crops=True` makes the crops of `config.views` from whole images, on the host), or
    `holdout` for the bundled images: the share of the training images that is kept from
    training and evaluated on in the place of the test images, for choosing hyper-parameters.

    Args:
        config: of an experiment.
        error_log: where the broken files of a folder are named.

    Raises:
        ValueError: for an unknown source, or fewer images than a batch.
    """
    arguments = dict(config.data.items())
    name = arguments.pop("source")
    order = {"batch_size": config.batch_size, "seed": config.seed}
    if name == "bundled":
        return _bundled(order, **arguments)
    if arguments.get("host_crops") is True:
        arguments["host_crops"] = config.views
    makers: dict[str, Callable[..., tf.data.Dataset]] = {
        "folder": functools.partial(from_folder, error_log=error_log),
        "tfds": from_tfds,
    }
    if name not in makers:
        raise ValueError(f"Unknown data source {name!r}; expected one of bundled, {', '.join(makers)}.")

    def batches(epoch: int) -> tf.data.Dataset:
        return makers[name](**arguments, **order, start=(epoch, 0))

    def sample(n):
        batch = next(iter(batches(0)))
        return batch["image" if "image" in batch else "view1"][:n].numpy()

    return Source(batches, batches(0).steps_per_epoch, sample)


def _bundled(order, holdout=0.0):
    train, test = bundled.load()
    if holdout:
        fit, held_out = stratified_split(train[1], holdout)
        train, test = tuple(a[fit] for a in train), tuple(a[held_out] for a in train)

    def batches(epoch):
        return from_arrays(*train, **order, start=(epoch, 0))

    return Source(
        batches, batches(0).steps_per_epoch, lambda n: train[0][:n], (train, test), bundled.CLASS_NAMES
    )
