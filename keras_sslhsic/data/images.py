"""The handle on a data set to train on, and what a batch of it is."""

import abc
import copy
import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.data.order import Order
from keras_sslhsic.data.python_map import map_python
from keras_sslhsic.words import counted, warn

# From (epoch, examples) to the columns of a batch.
Read = Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]]


class Images(abc.ABC):
    """Images to train on: batches from any step on, and what is known of them before the first is read.

        images = keras_sslhsic.data.from_folder("photos", batch_size=256)
        model.fit(images, epochs=100)

    What is costly is done once for each handle, however often batches are asked for: a folder is listed, a data set opened,
    and there is one cache and one pool of threads. All of it ends with the last reference to the handle, or to a stream
    of its batches.

    A batch is a dict of columns: "image", or the crops "view1", "view2", ...; and "label" where there are labels. A further
    column is the spec of one example in `columns`, and the array of that name in what the source reads.

    Attributes:
        batch_size: examples in a batch, of all workers together.
        steps_per_epoch: batches in an epoch.
        num_examples: images in an epoch.
        class_names: of the labels, or None.
        labels: of all images, int64 [N], where they are known before any is read; else None.
        element_spec: what a batch holds, as `tf.data.Dataset.element_spec`.
    """

    labels: np.ndarray | None = None

    def __init__(
        self, order: Order, columns: Mapping[str, tf.TensorSpec], class_names: Sequence[str] | None = None
    ) -> None:
        self.order, self.columns = order, columns
        self.class_names = None if class_names is None else list(class_names)
        self.batch_size, self.steps_per_epoch = order.batch_size, order.steps_per_epoch
        self.num_examples = order.num_examples
        self.element_spec = self._specs(1)

    def batches(
        self, epoch: int = 0, step: int = 0, *, epochs: int | None = None, share: tuple[int, int] = (0, 1)
    ) -> tf.data.Dataset:
        """Batches from a step on: what an uninterrupted run would see from there, without reading what came before.

        Args:
            epoch: of the first batch.
            step: of the first batch, within the epoch or beyond it.
            epochs: ends before this epoch, counted from 0; None never ends.
            share: (i, n): the part of each batch that worker i of n reads, one n-th. The parts of all workers, one after the
                other, are the batches of a single machine.

        Returns:
            A dataset of `element_spec`, in batches of batch_size / n.

        Raises:
            ValueError: an argument is of another type or out of range, or n does not divide `batch_size`.
        """
        index, count = share
        checks.integer("the index of share", index, 0)
        checks.integer("the count of share", count, index + 1)
        if self.batch_size % count:
            raise ValueError(
                f"A batch of {self.batch_size} images cannot be shared by {count} workers: make it a multiple of {count}."
            )
        order, read = self._reading(share, epochs)
        return map_python(order.batches(epoch, step, epochs), read, self._specs(count))

    def ordered(self, **changes: Any) -> "Images":
        """The same images in another `Order`: `shuffle=False, drop_remainder=False` is each of them once, as they come."""
        twin = copy.copy(self)
        twin.order = dataclasses.replace(self.order, **changes)
        twin.steps_per_epoch, twin.element_spec = twin.order.steps_per_epoch, twin._specs(1)
        return twin

    @abc.abstractmethod
    def sample(self, n: int) -> np.ndarray:
        """Some images to look at, uint8 [n, H, W, C], or all if there are fewer; no others are decoded."""

    def digest(self) -> str | None:
        """What tells these images from others, however they are ordered and decoded; None where nothing does."""
        return None

    @abc.abstractmethod
    def _reading(self, share: tuple[int, int], epochs: int | None) -> tuple[Order, Read]:
        """The order in which `batches` goes on, and what reads a share of a batch of it."""

    def _specs(self, count: int) -> dict[str, tf.TensorSpec]:
        size = self.batch_size // count if self.order.drop_remainder else None
        return {name: tf.TensorSpec([size, *spec.shape], spec.dtype) for name, spec in self.columns.items()}


def warn_of_left_out(data: Any, found: int) -> None:
    """Warns if a data set, of which each image should have a row, gave fewer: those that are broken have none."""
    if isinstance(data, Images) and found < data.num_examples:
        warn(
            f"There are {counted(found, 'row')} of {counted(data.num_examples, 'image')}: broken ones have none, so that row i "
            "is not image i. `broken.reasons` of the data set names them."
        )


def unpack(data: Any) -> tuple[Any, Any]:
    """Splits a batch, or the `element_spec` of one, into images and labels.

    Args:
        data: {"image"} or {"view1", "view2", ...}, optionally with "label"; or images; or (images, labels).

    Returns:
        (images [B, H, W, C] or a tuple of crops [B, S, S, C], labels int [B] or None).

    Raises:
        ValueError: if a dict holds no images, or there is something beside images and labels.
    """
    if isinstance(data, (tuple, list)):
        if any(part is not None for part in data[2:]) or not data:
            raise ValueError(
                f"A batch must be images, or (images, labels), found {len(data)} parts: leave out the weights of samples."
            )
        labels = data[1] if len(data) > 1 else None
        images, own_labels = unpack(data[0])
        return images, own_labels if labels is None else labels
    if not isinstance(data, dict):
        return data, None
    if "image" in data:
        return data["image"], data.get("label")
    crops = tuple(data[key] for key in sorted(k for k in data if k.startswith("view")))
    if not crops:
        raise ValueError(
            f"A batch must hold 'image', or crops 'view1', 'view2', ...; it holds {sorted(data)}. Rename the key of the images."
        )
    return crops, data.get("label")


def digest(*parts: str | np.ndarray) -> str:
    """16 hexadecimal digits of text and arrays."""
    found = hashlib.sha256()
    for item in parts:
        content = (
            item.encode("utf-8", "surrogateescape")
            if isinstance(item, str)
            else np.ascontiguousarray(item).tobytes()
        )
        found.update(b"%d " % len(content) + content)
    return found.hexdigest()[:16]


def part(size: int, share: tuple[int, int]) -> slice:
    """The rows of a batch of `size` that belong to a share: one after the other, they are all rows."""
    index, count = share
    return slice(index * size // count, (index + 1) * size // count)


def spread(size: int, n: int) -> list[int]:
    """At most n of the numbers below `size`, spread over them."""
    return np.linspace(0, size - 1, min(n, size)).round().astype(int).tolist()
