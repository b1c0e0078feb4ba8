"""Labelled images: arrays, datasets of batches, or a `Split`, which is read image by image.

What a protocol draws (hold-outs, shares of the labels, the order of an epoch, crops) is drawn by number and seed, so a
folder gives what the same images give as an array.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.data import decode
from keras_sslhsic.data.central import central_square
from keras_sslhsic.data.images import unpack
from keras_sslhsic.data.order import Order
from keras_sslhsic.data.python_map import map_python
from keras_sslhsic.encoders.checks import check_dataset, check_images
from keras_sslhsic.evaluation.checks import check_labels, check_several
from keras_sslhsic.evaluation.extraction import stacked

Own = TypeVar("Own", bound="Split")

_GROUP = 16  # images a call of Python, which by itself takes as long as a small image


@dataclasses.dataclass(frozen=True)
class Split:
    """Labelled images, and how they are cropped.

    Attributes:
        read: number -> the image as it is stored, uint8 [H, W, C]; None if it is broken.
        labels: int64 [N]; or bool [N, K] where an image may have several of K classes.
        shape: height, width and channels of what an encoder is given.
        short_side: the short side of a test image is resized to it (bicubic, after whole blocks of pixels were averaged where
            it is at least twice as long) before the central crop of `shape`, which is a square then; None: images have that
            shape already.
        class_names: of the labels, or None.
        held_out: share of their folder's images that was held out to test on; None: there were images to test on.
    """

    read: Callable[[int], np.ndarray | None]
    labels: np.ndarray
    shape: tuple[int, int, int]
    short_side: int | None = None
    class_names: Sequence[str] | None = None
    held_out: float | None = None

    def __post_init__(self) -> None:
        checks.integer("image_size", self.shape[0], 1)
        checks.integer("short_side", self.short_side, self.shape[0], optional=True)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self: Own, rows: np.ndarray) -> Own:
        """The images of these numbers, int [n]."""
        return dataclasses.replace(self, read=lambda i: self.read(int(rows[i])), labels=self.labels[rows])

    def __add__(self: Own, other: Own) -> Own:
        """These images, and after them the others."""

        def read(number: int) -> np.ndarray | None:
            return self.read(number) if number < len(self) else other.read(number - len(self))

        return dataclasses.replace(self, read=read, labels=np.concatenate([self.labels, other.labels]))

    def recipe(self) -> dict[str, Any]:
        """What a record says of the images."""
        how = {"short_side": self.short_side, "resize": "blocks averaged, bicubic"}
        resized = {} if self.short_side is None else how
        held_out = {} if self.held_out is None else {"folder_held_out": self.held_out}
        return {"image_size": self.shape[0], **resized, **held_out}

    def batches(self, batch_size: int) -> tf.data.Dataset:
        """All images in their order, test crops; those that are broken are left out.

        Returns:
            (images [B, *shape], labels [B] or [B, K]): uint8, or float32 in [0, 255] where they are resized.
        """

        def example(_: int, number: int) -> tuple[np.ndarray, Any] | None:
            pixels = self.read(number)
            return None if pixels is None else (self._test_crop(pixels), self.labels[number])

        return self._in_order(batch_size, example, self._specs(self.short_side))

    def training_batches(
        self, batch_size: int, seed: int, crop_area: tuple[float, float] | None
    ) -> tf.data.Dataset:
        """Batches without end, each epoch in an order of its own, of random resized crops, mirrored by chance.

        The next image takes the place of a broken one.

        Args:
            batch_size: at most the number of images. What does not fill a batch is left out: other images in
                every epoch.
            seed: of the order and the crops.
            crop_area: range of a crop's share of the stored image's area; None: test crops.

        Returns:
            (images [B, *shape], labels [B] or [B, K]); crops are uint8, of the side shape[0].
        """
        size = self.shape[0]

        def example(epoch: int, number: int) -> tuple[np.ndarray, Any]:
            rng = np.random.default_rng((seed, epoch, number))
            pixels, row = self._readable(number)
            if crop_area is None:
                return self._test_crop(pixels), self.labels[row]
            height, width, _ = pixels.shape
            box = decode.random_box(height, width, rng, crop_area)
            crop = decode.crop(pixels, box, size)
            return (crop[:, ::-1] if rng.random() < 0.5 else crop), self.labels[row]

        if crop_area is None:
            return self._shuffled(batch_size, seed, example, self._specs(self.short_side))
        square = dataclasses.replace(self, shape=(size, size, self.shape[2]))
        return self._shuffled(batch_size, seed, example, square._specs(None))

    def _specs(self, short_side: int | None) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        """Of an image and a label."""
        kind = np.uint8 if short_side is None else np.float32
        return tf.TensorSpec(self.shape, kind), tf.TensorSpec(self.labels.shape[1:], self.labels.dtype)

    def _readable(self, number: int) -> tuple[np.ndarray, int]:
        """The image, or the next one that is not broken, and its number."""
        for row in (*range(number, len(self)), *range(number)):
            if (pixels := self.read(row)) is not None:
                return pixels, row
        raise RuntimeError("None of the training images can be read.")

    def _test_crop(self, pixels: np.ndarray) -> np.ndarray:
        return pixels if self.short_side is None else central_square(pixels, self.shape[0], self.short_side)

    def _in_order(self, batch_size: int, example: Callable, specs: tuple) -> tf.data.Dataset:
        """All images once, in batches of what `example` makes of them; see `_examples`."""
        numbers = tf.data.Dataset.range(len(self)).map(lambda number: (tf.constant(0, tf.int64), number))
        return _examples(numbers, example, specs).batch(batch_size).prefetch(2)

    def _shuffled(
        self, batch_size: int, seed: int, example: Callable, specs: tuple, step: int = 0
    ) -> tf.data.Dataset:
        """Batches without end from a step on, each epoch in an order of its own; see `_examples`."""
        numbers = Order(len(self), batch_size, seed=seed).batches(step=step)
        numbers = numbers.map(lambda epoch, rows: (tf.repeat(epoch, batch_size), rows)).unbatch()
        return _examples(numbers, example, specs).batch(batch_size, drop_remainder=True).prefetch(2)


def _examples(numbers: tf.data.Dataset, example: Callable, specs: tuple) -> tf.data.Dataset:
    """The dataset of (image, target) that `example` makes of (epoch, number); None of them is left out.

    Args:
        numbers: int64 pairs.
        example: what is called with them.
        specs: tf.TensorSpec of the image and of the target, a label or a map.
    """

    columns = {
        name: tf.TensorSpec([None, *spec.shape], spec.dtype)
        for name, spec in zip(("image", "target"), specs, strict=True)
    }

    def group(epochs: np.ndarray, rows: np.ndarray) -> dict[str, np.ndarray]:
        found = [example(int(e), int(n)) for e, n in zip(epochs, rows, strict=True)]
        found = [pair for pair in found if pair is not None]
        for image, _ in found:
            if image.shape != tuple(specs[0].shape):
                raise ValueError(
                    f"An image has the shape {image.shape}, where {tuple(specs[0].shape)} is expected."
                )
        return {
            name: np.array([pair[i] for pair in found], spec.dtype.as_numpy_dtype).reshape(
                -1, *spec.shape[1:]
            )
            for i, (name, spec) in enumerate(columns.items())
        }

    groups = map_python(numbers.batch(_GROUP), group, columns, tf.data.AUTOTUNE)
    return groups.map(lambda found: (found["image"], found["target"])).unbatch()


def of_arrays(images: np.ndarray, labels: np.ndarray, class_names: Sequence[str] | None = None) -> Split:
    """Images [N, H, W, C] in [0, 255] of the size that the encoder takes, and labels int64 [N] or bool [N, K].

    Images that are no uint8 are rounded.
    """
    read = images.__getitem__
    if images.dtype != np.uint8:
        read = lambda number: np.rint(images[number]).astype(np.uint8)  # noqa: E731
    return Split(read, labels, images.shape[1:], None, class_names)


# (images uint8 [N, H, W, C], labels int [N]), or a dict of them; images that are read one by one; or a finite dataset of
# batches (images, labels) or {"image", "label"}.
Labelled: TypeAlias = tuple[np.ndarray, np.ndarray] | Mapping[str, np.ndarray] | Split | tf.data.Dataset
ANY_SHAPE = (None, None, None)

ENCODING_BATCH = 256  # images that an encoder sees at once


def arrays(
    data: Any, name: str, shape: Sequence[int | None] = ANY_SHAPE, several: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of `data`, which must be a pair of arrays, or a dict of them; with `several` labels bool [N, K].

    Raises:
        ValueError: if it is not, the images cannot be given to an encoder of this shape, or labels do not fit them.
    """
    if not (isinstance(data, dict) or (isinstance(data, tuple | list) and len(data) == 2)):
        raise ValueError(
            f"{name} must be (images, labels), a Split, or a finite tf.data.Dataset of labelled batches, found a "
            f"{type(data).__name__}."
        )
    images, labels = unpack(data)
    images = stacked(images)
    check_images(images, shape)
    images = np.asanyarray(images)
    check = check_several if several else check_labels
    return images, check(labels, len(images), f"{name} labels")


def known_labels(data: Labelled, name: str) -> np.ndarray | None:
    """The labels of arrays or a `Split`, int64 [N]; None of a dataset, which has to be read for them."""
    if isinstance(data, tf.data.Dataset):
        return None
    if isinstance(data, Split):
        return check_labels(data.labels, len(data), f"{name} labels")
    return arrays(data, name)[1]


def images_of(
    data: Labelled, name: str, shape: Sequence[int | None] = ANY_SHAPE, several: bool = False
) -> Split | tf.data.Dataset:
    """Arrays as `Split`, those that are no uint8 rounded; others as they are. With `several` an image may have several classes.

    Raises:
        ValueError: if an encoder of images of this shape cannot be given them, or a dataset has no labels, one a number.
    """
    if isinstance(data, Split):
        check_images(tf.TensorSpec([None, *data.shape], tf.uint8), shape)
        return data
    if isinstance(data, tf.data.Dataset):
        check_dataset(data, shape)
        return data
    images, labels = arrays(data, name, shape, several)
    return of_arrays(images, labels)


def count_classes(splits: Mapping[str, Any], given: int | None = None) -> int | None:
    """The number of classes that folders and data sets of TFDS know by name; else the given one.

    Args:
        splits: the data by name.
        given: the number that was asked for, or None.

    Raises:
        ValueError: if two of them name other classes. Labels number the names, so they would mean others too. Or if
            another number of classes is given than there are.
    """
    checks.integer("num_classes", given, 2, optional=True)
    named = {
        split: data.class_names
        for split, data in splits.items()
        if isinstance(data, Split) and data.class_names
    }
    first, expected = next(iter(named.items()), ("", ()))
    for split, classes in named.items():
        if classes != expected:
            raise ValueError(
                f"The classes of {first} and {split} are not the same: "
                f"{', '.join(sorted(set(expected) ^ set(classes)))} in one of them alone. Labels number the classes of a "
                "split: give both the same folders, with an image in each."
            )
    if named and given not in (None, len(expected)):
        raise ValueError(
            f"num_classes is {given}, but {first} has {len(expected)} classes, "
            f"{', '.join(map(str, expected[:10]))}{' ...' if len(expected) > 10 else ''}: leave it out."
        )
    for split, data in splits.items():
        if given and isinstance(data, Split) and data.labels.ndim == 1 and data.labels.max() >= given:
            raise ValueError(
                f"num_classes is {given}, but the {split} labels go up to {data.labels.max()}: give at least "
                f"{data.labels.max() + 1}."
            )
    return len(expected) if named else given


def describe(data: Labelled) -> dict[str, Any]:
    """What a record says of test images."""
    return data.recipe() if isinstance(data, Split) else {"image_size": shape_of(data)[0]}


def shape_of(data: Labelled) -> tuple[int | None, ...]:
    """Height, width and channels of images; None in a place is not known."""
    if isinstance(data, Split):
        return data.shape
    images, _ = unpack(data.element_spec if isinstance(data, tf.data.Dataset) else data)
    return tuple(np.shape(images) if isinstance(images, list) else images.shape)[1:]
