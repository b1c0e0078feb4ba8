"""The data set that a config names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from keras_sslhsic.data import bundled
from keras_sslhsic.data.arrays import from_arrays
from keras_sslhsic.data.broken import LOG
from keras_sslhsic.data.folder import from_folder
from keras_sslhsic.data.images import Images
from keras_sslhsic.data.subsets import stratified_split
from keras_sslhsic.data.tfds import from_tfds
from keras_sslhsic.registries import Registry

Arrays = tuple[np.ndarray, np.ndarray]

SOURCES: Registry[Callable[..., Images]] = Registry("data source")


def bundled_splits(holdout: float = 0.0) -> tuple[Arrays, Arrays]:
    """The bundled images as they are trained and evaluated on: (x_train, y_train), (x_test, y_test).

    To choose hyper-parameters, `holdout` is the share of the training images that takes the place of the test images.

    Raises:
        ValueError: if `holdout` is neither 0 nor a share of which every class keeps an image.
    """
    (x, y), test = bundled.load()
    if not holdout:
        return (x, y), test
    fit, held_out = stratified_split(y, holdout)
    return (x[fit], y[fit]), (x[held_out], y[held_out])


@SOURCES.register("bundled")
def _bundled(holdout: float = 0.0, **order: Any) -> Images:
    """The bundled images.

    Args:
        holdout: share that is kept from training, and evaluated on in the place of the test images.
        **order: see `keras_sslhsic.data.Order`.
    """
    return from_arrays(*bundled_splits(holdout)[0], class_names=bundled.CLASS_NAMES, **order)


SOURCES.add("folder", from_folder)
SOURCES.add("tfds", from_tfds)


def source(config: ConfigDict, error_log: str | Path = LOG) -> Images:
    """The images of a config, in batches of `config.batch_size` ordered by `config.seed`.

    `config.data.source` is one of `SOURCES`: "bundled", "folder" or "tfds"; the other fields of `config.data` are arguments
    of `from_folder` or `from_tfds` (`host_crops=True` makes the crops of `config.views` from whole images, on the host), or
    of `bundled_splits`. The broken files of a folder are named in `error_log`.

    Raises:
        ValueError: for an unknown source, or fewer images than a batch.
    """
    arguments = dict(config.data.items())
    name = arguments.pop("source")
    if name == "folder":
        arguments["error_log"] = error_log
    if isinstance(on_host := arguments.get("host_crops"), bool):
        arguments["host_crops"] = config.views if on_host else None
    return SOURCES[name](**arguments, batch_size=config.batch_size, seed=config.seed)
