"""Images from arrays in memory, or mapped into it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
import tensorflow as tf

from keras_sslhsic.data.images import Images, Read, digest, part, spread, unpack
from keras_sslhsic.data.order import Order

_DIGESTED = 2**28  # bytes


def check_images(x: Any) -> None:
    """Raises ValueError, saying how to convert, unless `x` holds numbers in [0, 255], [N, H, W, C], N > 0."""
    if 0 in x.shape:
        raise ValueError(f"Expected images [N, H, W, C], found none: the array has shape {list(x.shape)}.")
    if x.dtype != np.uint8 and (conversion := _conversion(np.asarray(x))):
        raise ValueError(f"Images must be uint8, or numbers in [0, 255], found {x.dtype}{conversion}.")
    if x.ndim != 4:
        hint = ""
        if x.ndim == 3:
            one = " (or give one image as x[np.newaxis])" if x.shape[-1] in (3, 4) else ""
            hint = f": add the channel axis with x[..., np.newaxis]{one}"
        raise ValueError(f"Images must have the shape [N, H, W, C], found {list(x.shape)}{hint}.")
    if x.shape[-1] > 4 and x.shape[1] <= 4:
        raise ValueError(
            f"Images must have the shape [N, H, W, C], found {list(x.shape)}, channels first: pass np.moveaxis(x, 1, -1)."
        )


def _conversion(x: np.ndarray) -> str:
    """What range images of another type have, and what makes them uint8; empty for those in [0, 255]."""
    if x.dtype.kind not in "iuf":
        return ": convert them with np.asarray(x, np.uint8)"
    low, high = x.min(), x.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        return " with NaN or infinite values: find out where they come from"
    if low >= 0 and high <= 255 and (high > 1 or high == 0 or len(x) == 1):  # one image may be that dark
        return ""
    if low >= 0 and high <= 1:
        return " in [0, 1]: convert them with np.round(x * 255).astype(np.uint8)"
    return f" in [{low:g}, {high:g}]: scale them to [0, 255]"


def check_crops(crops: Any) -> None:
    """Raises ValueError unless crops are uint8, or lie in [0, 1]; resampling overshoots by less than half of that."""
    if crops.dtype == np.uint8:
        return
    low, high = float(np.min(crops)), float(np.max(crops))
    if not np.isfinite([low, high]).all():
        raise ValueError("The crops hold NaN or infinite values: find out where they come from.")
    if not (low >= -0.5 and high <= 1.5):
        raise ValueError(
            f"Crops that are not uint8 must lie in [0, 1], found values from {low:g} to {high:g}: divide by 255."
        )


def check_labels(y: Any, num_examples: int) -> np.ndarray:
    """Labels as int64 [N], of whole numbers of any type, [N] or in a column [N, 1].

    Raises:
        ValueError: unless they are one whole number, not negative, for each example.
    """
    y = np.asarray(y)
    if y.ndim == 2 and y.shape[1] == 1:  # as Keras's own data sets have them
        y = y[:, 0]
    if y.shape != (num_examples,):
        hint = ": pass np.argmax(y, axis=-1)" if y.ndim == 2 and y.shape[1] > 1 else ""
        raise ValueError(
            f"Labels must have the shape [{num_examples}], one for each image, found {list(y.shape)}{hint}."
        )
    if y.dtype.kind not in "biuf":
        raise ValueError(
            f"Labels must be integers, found {y.dtype}: convert them with np.unique(y, return_inverse=True)[1]."
        )
    if not np.all(np.isfinite(y) & (np.floor(y) == y)):
        raise ValueError(f"Labels must be integers, found {y[np.floor(y) != y][0]}: number classes from 0.")
    if y.min() < 0:
        raise ValueError(f"Labels must not be negative, found {y.min()}: number the classes from 0.")
    return y.astype(np.int64)


class ArrayImages(Images):
    """Images in arrays; `np.load(path, mmap_mode="r")` serves for more than fits into memory.

        (x, y), _ = keras_sslhsic.data.bundled.load()
        model.fit(keras_sslhsic.data.from_arrays(x, y, batch_size=128), epochs=10)

    Args:
        x: images, uint8 [N, H, W, C], or other numbers in [0, 255], which batches hold as float32; or crops {"view1", "view2",
            ...}, uint8, or float in [0, 1], and optionally "label". uint8 of an h5py.Dataset is read batch by batch.
        y: labels, whole numbers [N] or [N, 1], or None.
        batch_size: examples in a batch.
        class_names: of the labels, or None.
        **order: `seed=0`, `shuffle=True`, `drop_remainder=True`: see `keras_sslhsic.data.Order`.

    Raises:
        ValueError: the images are not [N, H, W, C] in their range, the labels are not whole numbers, one for each image, or
            have no name, or there are fewer images than one batch.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int,
        class_names: Sequence[str] | None = None,
        **order: Any,
    ) -> None:
        takes = [field.name for field in dataclasses.fields(Order)][2:]
        if unknown := [name for name in order if name not in takes]:
            raise TypeError(
                f"from_arrays has no argument {unknown[0]}: it has batch_size, class_names, {', '.join(takes)}."
            )
        images, labels = unpack(x)
        y = labels if y is None else y
        crops = isinstance(images, tuple)
        self._arrays: dict[str, Any] = {}
        for number, array in enumerate(images if crops else (images,), 1):
            if not (isinstance(array, h5py.Dataset) and array.dtype == np.uint8):
                array = np.asanyarray(array)
            if crops:
                check_crops(array)
            else:
                check_images(array)
            self._arrays[f"view{number}" if crops else "image"] = array
        sizes = [len(array) for array in self._arrays.values()]
        if len(set(sizes)) > 1:
            raise ValueError(f"Expected as many crops of each view, found {sizes}.")
        columns = {
            name: tf.TensorSpec(array.shape[1:], tf.uint8 if array.dtype == np.uint8 else tf.float32)
            for name, array in self._arrays.items()
        }
        if y is not None:
            y = self.labels = self._arrays["label"] = check_labels(y, sizes[0])
            if class_names is not None and y.max() >= len(class_names):
                raise ValueError(
                    f"The labels go up to {y.max()}, and there are {len(class_names)} class_names: name the classes 0 to "
                    f"{y.max()}, or number those that there are with np.unique(y, return_inverse=True)[1]."
                )
            columns["label"] = tf.TensorSpec([], tf.int64)
        super().__init__(Order(sizes[0], batch_size, **order), columns, class_names)

    def sample(self, n: int) -> np.ndarray:
        name, array = next(iter(self._arrays.items()))
        found = array[spread(self.num_examples, n)]
        if found.dtype == np.uint8:
            return found
        shown = np.clip(found, 0, 255) if name == "image" else 255 * np.clip(found, 0, 1)
        return np.rint(shown).astype(np.uint8)

    def digest(self) -> str:
        """Of labels and pixels; of more than 256 MiB, those of images spread over all."""
        parts: list[Any] = []
        for name, column in self._arrays.items():
            rows = max(1, _DIGESTED // (column.nbytes // len(column)))
            few = column[:] if rows >= len(column) else column[spread(len(column), rows)]
            parts += [f"{name} {column.dtype} {column.shape}", few]
        return digest(*parts)

    def _reading(self, share: tuple[int, int], epochs: int | None) -> tuple[Order, Read]:
        # By a Python function, since TensorFlow would copy the whole array, and its graphs end at 2 GiB.
        def read(_: np.ndarray, examples: np.ndarray) -> dict[str, np.ndarray]:
            rows = examples[part(len(examples), share)]
            return {name: self._rows(name, rows) for name in self._arrays}

        return self.order, read

    def _rows(self, name: str, rows: np.ndarray) -> np.ndarray:
        array = self._arrays[name]
        if isinstance(array, h5py.Dataset):  # it takes increasing numbers alone
            increasing = np.argsort(rows)
            found = np.empty([len(rows), *array.shape[1:]], array.dtype)
            found[increasing] = array[rows[increasing]]
        else:
            found = array[rows]
        return found.astype(self.columns[name].dtype.as_numpy_dtype, copy=False)


from_arrays = ArrayImages
