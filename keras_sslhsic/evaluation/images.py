"""Labelled images that are read one by one, by their number: from an array, files, or records of TFDS.

What a protocol draws (hold-outs, shares of the labels, the order of an epoch, crops) is drawn by number and seed, so a
folder gives what the same images give as an array.
"""

import dataclasses
import functools
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from etils import epath

from keras_sslhsic import checks
from keras_sslhsic.data import decode
from keras_sslhsic.data.broken import BrokenFiles
from keras_sslhsic.data.folder import class_labels, list_images
from keras_sslhsic.data.order import Order
from keras_sslhsic.data.tfds import SPLITS, prepared_builder
from keras_sslhsic.evaluation.crops import resize_then_crop

_GROUP = 16  # images a call of Python, which by itself takes as long as a small image


@dataclasses.dataclass(frozen=True)
class Images:
    """Labelled images, and how they are cropped.

    Attributes:
        read: number -> the image as it is stored, uint8 [H, W, C]; None if it is broken.
        labels: int64 [N]; or bool [N, K] where an image may have several of K classes.
        shape: height, width and channels of what an encoder is given.
        short_side: the short side of a test image is resized to it (bicubic) before the central crop of `shape`, which
            is a square then; None: images have that shape already.
        class_names: of the labels, or None.
    """

    read: Callable[[int], np.ndarray | None]
    labels: np.ndarray
    shape: tuple[int, int, int]
    short_side: int | None = None
    class_names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        checks.integer("image_size", self.shape[0], 1)
        checks.integer("short_side", self.short_side, self.shape[0], optional=True)

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, rows: np.ndarray) -> "Images":
        """The images of these numbers, int [n]."""
        return dataclasses.replace(self, read=lambda i: self.read(int(rows[i])), labels=self.labels[rows])

    def __add__(self, other: "Images") -> "Images":
        """These images, and after them the others."""

        def read(number):
            return self.read(number) if number < len(self) else other.read(number - len(self))

        return dataclasses.replace(self, read=read, labels=np.concatenate([self.labels, other.labels]))

    def recipe(self) -> dict[str, Any]:
        """What a record says of the images."""
        resized = {} if self.short_side is None else {"short_side": self.short_side, "resize": "bicubic"}
        return {"image_size": self.shape[0], **resized}

    def batches(self, batch_size: int) -> tf.data.Dataset:
        """All images in their order, test crops; those that are broken are left out.

        Returns:
            (images [B, *shape], labels [B] or [B, K]): uint8, or float32 in [0, 255] where they are resized.
        """

        def example(_, number):
            pixels = self.read(number)
            return None if pixels is None else (self._test_crop(pixels), number)

        numbers = tf.data.Dataset.range(len(self)).map(lambda number: (tf.constant(0, tf.int64), number))
        return self._examples(numbers, example, self.shape, self.short_side).batch(batch_size).prefetch(2)

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

        def example(epoch, number):
            rng = np.random.default_rng((seed, epoch, number))
            for row in (*range(number, len(self)), *range(number)):
                if (pixels := self.read(row)) is not None:
                    break
            else:
                raise RuntimeError("None of the training images can be read.")
            if crop_area is None:
                return self._test_crop(pixels), row
            height, width, _ = pixels.shape
            box = decode.random_box(height, width, rng, crop_area)
            crop = decode.crop(pixels, box, size)
            return (crop[:, ::-1] if rng.random() < 0.5 else crop), row

        numbers = Order(len(self), batch_size, seed=seed).batches()
        numbers = numbers.map(lambda epoch, rows: (tf.repeat(epoch, batch_size), rows)).unbatch()
        shape = self.shape if crop_area is None else (size, size, self.shape[2])
        short_side = self.short_side if crop_area is None else None
        examples = self._examples(numbers, example, shape, short_side)
        return examples.batch(batch_size, drop_remainder=True).prefetch(2)

    def _test_crop(self, pixels):
        if self.short_side is None:
            return pixels
        with tf.device("CPU"):
            return resize_then_crop(pixels, self.shape[0], self.short_side).numpy()

    def _examples(self, numbers, example, shape, short_side):
        """The dataset of (image, label) that `example` makes of (epoch, number) as (image, number of the label)."""
        kind = np.uint8 if short_side is None else np.float32

        def group(epochs, rows):
            found = [example(int(e), int(n)) for e, n in zip(epochs, rows, strict=True)]
            images, chosen = [[pair[i] for pair in found if pair is not None] for i in (0, 1)]
            for image in images:
                if image.shape != tuple(shape):
                    raise ValueError(
                        f"An image has the shape {image.shape}, where {tuple(shape)} is expected."
                    )
            return np.array(images, kind).reshape(-1, *shape), self.labels[np.array(chosen, int)]

        def call(epochs, rows):
            images, labels = tf.numpy_function(
                group, [epochs, rows], [kind, tf.as_dtype(self.labels.dtype)], stateful=False
            )
            images.set_shape([None, *shape])
            labels.set_shape([None, *self.labels.shape[1:]])
            return images, labels

        return numbers.batch(_GROUP).map(call, num_parallel_calls=tf.data.AUTOTUNE).unbatch()


def of_arrays(images: np.ndarray, labels: np.ndarray, class_names: Sequence[str] | None = None) -> Images:
    """Images uint8 [N, H, W, C] of the size that the encoder takes, and labels int64 [N] or bool [N, K]."""
    return Images(images.__getitem__, labels, images.shape[1:], None, class_names)


def of_folder(
    path: str | Path, *, size: int, short_side: int, channels: int = 3, max_broken: float = 0.01
) -> Images:
    """The images of a folder that has a sub-folder a class.

    Args:
        path: the folder.
        size: side of crops.
        short_side: see `Images`.
        channels: 1, 3 or 4.
        max_broken: share of the files that may be broken; `broken_images.log` names them.

    Raises:
        FileNotFoundError: if there is no such folder, or no image in it.
        ValueError: if it has no two sub-folders with images. While images are read, `TooManyBrokenFiles`.
    """
    decode.check_channels(channels)
    files = list_images(path)
    classes = class_labels(path, files)
    if classes is None:
        raise ValueError(f"{path} has no two sub-folders of images to take classes from.")
    broken = BrokenFiles(len(files), "skip", max_broken, "broken_images.log")

    def read(number):
        try:
            return decode.decode(Path(files[number]).read_bytes(), channels)
        except (OSError, decode.DecodeError) as error:
            broken.report(files[number], error)
            return None

    return Images(read, classes[0], (size, size, channels), short_side, classes[1])


def of_tfds(
    name: str,
    split: str,
    *,
    size: int,
    short_side: int,
    channels: int = 3,
    data_dir: str | Path | None = None,
    label_key: str = "label",
) -> Images:
    """The images of a split of TensorFlow Datasets that has been prepared.

    Its files are read once at the beginning, for the labels and the places of the records.

    Args:
        name: of the data set.
        split: any TFDS split, or those of `data.tfds.SPLITS`.
        size: side of crops.
        short_side: see `Images`.
        channels: 1, 3 or 4.
        data_dir: where the data set was prepared.
        label_key: name of the feature: a class, or a sequence of classes for images that may have several.

    Raises:
        FileNotFoundError: if the data set is not prepared; says how to.
        ValueError: if it has no such feature or split. Images that cannot be decoded raise an error that names them.
    """
    decode.check_channels(channels)
    builder = prepared_builder(name, data_dir)
    features = builder.info.features
    missing = {"image", label_key} - set(features)
    if missing:
        raise ValueError(
            f"{name} has no feature {' or '.join(map(repr, sorted(missing)))}, it has {sorted(features)}."
        )
    info = builder.info.splits[SPLITS.get(builder.name, {}).get(split, split)]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(functools.partial(_scan, label_key=label_key), info.file_instructions)
        places, classes = zip(*(row for rows in found for row in rows), strict=True)
    feature = features[label_key]
    several = hasattr(feature, "feature")  # a sequence
    if several:
        labels = np.zeros([len(classes), feature.feature.num_classes], bool)
        for row, own in zip(labels, classes, strict=True):
            row[own] = True
    else:
        labels = np.array([own[0] for own in classes], np.int64)

    def read(number):
        file, start, length = places[number]
        with epath.Path(file).open("rb") as stream:
            stream.seek(start)
            example = tf.train.Example.FromString(stream.read(length))
        try:
            return decode.decode(example.features.feature["image"].bytes_list.value[0], channels)
        except decode.DecodeError as error:
            raise decode.DecodeError(f"{name}, {split}, example {number}: {error}") from error

    names = getattr(feature.feature if several else feature, "names", None)
    return Images(read, labels, (size, size, channels), short_side, names)


def _scan(instruction, label_key):
    """(file, start, length) and the classes of each record of a part of a TFRecord file.

    A record is its length (8 bytes), a checksum (4), its bytes, a checksum (4).
    """
    rows, file = [], str(instruction.filename)
    size = epath.Path(file).stat().length
    with epath.Path(file).open("rb") as stream:
        for number in range(instruction.skip + instruction.take):
            head = stream.read(12)
            start = stream.tell()
            length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else size
            if start + length + 4 > size:
                raise ValueError(
                    f"{file} is damaged or cut short at record {number}: prepare the data set again."
                )
            if number >= instruction.skip:
                example = tf.train.Example.FromString(stream.read(length))
                own = list(example.features.feature[label_key].int64_list.value)
                rows.append(((file, start, length), own))
            stream.seek(start + length + 4)
    return rows
