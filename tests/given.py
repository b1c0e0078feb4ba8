"""The forms in which people give images: every public entry point takes each of them, or refuses it in a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import data

BATCH = 8


def photos(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [count, 10, 10, 3], each of a colour of its own, and labels of three classes."""
    colour = np.random.default_rng(0).uniform(0, 255, (count, 1, 1, 3))
    noise = np.random.default_rng(1).normal(0, 25, (count, 10, 10, 3))
    return np.clip(colour + noise, 0, 255).astype("uint8"), np.arange(count) % 3


class Pairs(keras.utils.PyDataset):
    """Batches of BATCH images and labels, `form` of both."""

    def __init__(
        self, images: np.ndarray, labels: np.ndarray, form: Callable[[Any, Any], Any] = lambda x, y: (x, y)
    ) -> None:
        super().__init__()
        self.images, self.labels, self.form = images, labels, form

    def __len__(self) -> int:
        return len(self.images) // BATCH

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.form(self.images[rows], self.labels[rows])


def dataset(*columns: np.ndarray) -> tf.data.Dataset:
    """Finite, in batches of BATCH; pairs of two columns."""
    tensors = columns if len(columns) > 1 else columns[0]
    return tf.data.Dataset.from_tensor_slices(tensors).batch(BATCH, drop_remainder=True)


def _generator(images: np.ndarray, labels: np.ndarray) -> Any:
    for start in range(0, len(images) - BATCH + 1, BATCH):
        yield images[start : start + BATCH], labels[start : start + BATCH]


def _list(images: Any, labels: Any) -> list[Any]:
    return [images, labels]


def _dict(images: Any, labels: Any) -> dict[str, Any]:
    return {"image": images, "label": labels}


def _memory_map(images: np.ndarray, folder: Path) -> np.ndarray:
    np.save(folder / "images.npy", images)
    return np.load(folder / "images.npy", mmap_mode="r")


def _hdf5(images: np.ndarray, folder: Path) -> h5py.Dataset:
    return h5py.File(folder / "images.h5", "w").create_dataset("images", data=images)


def _with(images: np.ndarray, value: float) -> np.ndarray:
    images = images.astype("float32")
    images[0, 0, 0, 0] = value
    return images


class Loader:
    """Batches as a loader of another library gives them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images) // BATCH

    def __iter__(self) -> Any:
        return _generator(self.images, self.labels)


# (images uint8 [N, H, W, C], labels int [N], an empty folder) -> what an entry point is given.
FORMS: dict[str, Callable[[np.ndarray, np.ndarray, Path], Any]] = {
    "array": lambda x, y, _: x,
    "tensor": lambda x, y, _: tf.constant(x),
    "list of arrays": lambda x, y, _: list(x),
    "nested lists": lambda x, y, _: x[:2].tolist(),
    "dict": lambda x, y, _: {"image": x, "label": y},
    "dict of another name": lambda x, y, _: {"picture": x},
    "handle": lambda x, y, _: data.from_arrays(x, y, batch_size=BATCH),
    "dataset": lambda x, y, _: dataset(x),
    "dataset of pairs": lambda x, y, _: dataset(x, y),
    "dataset of dicts": lambda x, y, _: dataset(x, y).map(lambda a, b: {"image": a, "label": b}),
    "dataset without end": lambda x, y, _: dataset(x, y).repeat(),
    "dataset of single images": lambda x, y, _: tf.data.Dataset.from_tensor_slices(x),
    "dataset of unknown batches": lambda x, y, _: tf.data.Dataset.from_tensor_slices(x).batch(BATCH),
    "dataset of unknown shape": lambda x, y, _: tf.data.Dataset.from_generator(
        lambda: (pair[0] for pair in _generator(x, y)), output_types=tf.uint8
    ),
    "dataset of floats": lambda x, y, _: dataset(x.astype("float32"), y),
    "dataset of floats in [0, 1]": lambda x, y, _: dataset(x.astype("float32") / 255, y),
    "dataset of one-hot labels": lambda x, y, _: dataset(x, np.eye(int(y.max()) + 1)[y]),
    "dataset without images": lambda x, y, _: dataset(x, y).take(0),
    "PyDataset": lambda x, y, _: Pairs(x, y),
    "PyDataset of floats": lambda x, y, _: Pairs(x.astype("float32"), y),
    "PyDataset of floats in [0, 1]": lambda x, y, _: Pairs(x.astype("float32") / 255, y),
    "PyDataset of lists": lambda x, y, _: Pairs(x, y, _list),
    "PyDataset of dicts": lambda x, y, _: Pairs(x, y, _dict),
    "generator": lambda x, y, _: _generator(x, y),
    "generator of lists": lambda x, y, _: (_list(*batch) for batch in _generator(x, y)),
    "generator of dicts": lambda x, y, _: (_dict(*batch) for batch in _generator(x, y)),
    "loader of another library": lambda x, y, _: Loader(x, y),
    "HDF5": lambda x, y, folder: _hdf5(x, folder),
    "memory map": lambda x, y, folder: _memory_map(x, folder),
    "one image": lambda x, y, _: x[0],
    "a batch of one": lambda x, y, _: x[:1],
    "no images": lambda x, y, _: x[:0],
    "None": lambda x, y, _: None,
    "text": lambda x, y, _: "photos",
    "NaN": lambda x, y, _: _with(x, np.nan),
    "infinity": lambda x, y, _: _with(x, np.inf),
    "floats in [0, 255]": lambda x, y, _: x.astype("float32"),
    "floats in [0, 1]": lambda x, y, _: x.astype("float32") / 255,
    "floats in [-1, 1]": lambda x, y, _: x.astype("float32") / 127.5 - 1,
    "float64": lambda x, y, _: x.astype("float64"),
    "int64": lambda x, y, _: x.astype("int64"),
    "uint16": lambda x, y, _: x.astype("uint16") * 257,
    "booleans": lambda x, y, _: x > 127,
    "complex": lambda x, y, _: x.astype("complex64"),
    "objects": lambda x, y, _: np.array([*x, None], dtype=object)[:-1],
    "channels first": lambda x, y, _: np.moveaxis(x, -1, 1),
    "one channel more": lambda x, y, _: np.concatenate([x, x[..., :1]], -1),
    "without channels": lambda x, y, _: x[..., 0],
    "ragged": lambda x, y, _: tf.ragged.constant([row[: 4 + i % 3].tolist() for i, row in enumerate(x[:4])]),
}

# labels int [N] -> labels as people have them.
LABELS: dict[str, Callable[[np.ndarray], Any]] = {
    "int64": lambda y: y,
    "int32": lambda y: y.astype("int32"),
    "uint8": lambda y: y.astype("uint8"),
    "list": lambda y: y.tolist(),
    "column": lambda y: y[:, None],
    "one-hot": lambda y: np.eye(int(y.max()) + 1, dtype="float32")[y],
    "floats": lambda y: y.astype("float32"),
    "fractions": lambda y: y + 0.5,
    "NaN": lambda y: np.where(y == 0, np.nan, y),
    "negative": lambda y: y - 1,
    "sparse": lambda y: y * 10**6,
    "text": lambda y: np.array([f"class {n}" for n in y]),
    "booleans": lambda y: y > 0,
    "too few": lambda y: y[:-1],
    "one class": lambda y: np.zeros_like(y),
    "None": lambda y: None,
}
