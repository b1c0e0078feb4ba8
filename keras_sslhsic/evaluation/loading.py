"""Images by the name of a data set or a folder, as a protocol needs them."""

import dataclasses
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.data import bundled, decode
from keras_sslhsic.data.broken import LOG, BrokenFiles
from keras_sslhsic.data.folder import class_labels, list_images
from keras_sslhsic.data.subsets import stratified_split
from keras_sslhsic.data.tfds import check_features, prepared_builder, shared, split_info
from keras_sslhsic.encoders.spec import LARGEST_SIDE
from keras_sslhsic.evaluation.images import Labelled, Split
from keras_sslhsic.evaluation.settings import Setting, natural, portion, share, text
from keras_sslhsic.words import counted


def paper_short_side(size: int) -> int:
    """What the short side of a test image is resized to before its central size x size: 256 for 224."""
    return round(size * 256 / 224)


def load(
    source: str,
    *,
    training: bool,
    channels: int = 3,
    data_dir: str | Path | None = None,
    train_split: str = "train",
    test_split: str = "test",
    validation_split: str | None = None,
    max_broken: float = 0.01,
    image_size: int = 224,
    short_side: int | None = None,
    test_share: float = 0.2,
    error_log: str | Path = LOG,
) -> dict[str, Labelled]:
    """Labelled images by their name.

    Args:
        source: "bundled"; a folder with the sub-folders train and test, with a folder a class in each; a folder with a
            folder a class, of which `test_share` is held out; or a data set of TensorFlow Datasets.
        training: whether networks are trained on the images. There may be validation images then, which are held out of the
            training images otherwise, and test images have the paper's crop.
        channels: 1, 3 or 4.
        data_dir: where TFDS keeps its files.
        train_split: of a TFDS set.
        test_split: of a TFDS set.
        validation_split: of a TFDS set; None for none.
        max_broken: share of broken files that a folder may have.
        image_size: side of test images and training crops.
        short_side: what a test image's short side is resized to before its central crop. None: 256 / 224 of the size for
            `training`, as the paper has it; the size itself for features, as the paper has it for transfer.
        test_share: of every class of a folder without train and test, at least one image each; always the same images.
        error_log: file in which the broken files of a folder are named.

    Returns:
        {"train", "test"} and perhaps "validation".

    Raises:
        ValueError: if a folder lacks a sub-folder, or splits of a TFDS set have images in common.
        FileNotFoundError: if there is no such data set.
    """
    checks.integer("image_size", image_size, 1)
    checks.integer("short_side", short_side, image_size, optional=True)
    if source == "bundled":
        return dict(zip(("train", "test"), bundled.load(), strict=True))
    if short_side is None:
        short_side = paper_short_side(image_size) if training else image_size
    crops: dict[str, Any] = {"size": image_size, "short_side": short_side, "channels": channels}
    folder = Path(source)
    if not folder.is_dir():
        splits = {"train": train_split, "test": test_split}
        splits |= {"validation": validation_split} if validation_split else {}
        builder = prepared_builder(source, data_dir)
        for (one, first), (other, second) in itertools.combinations(splits.items(), 2):
            if number := shared(builder, first, second):
                raise ValueError(
                    f"The {one} split {first} and the {other} split {second} of {source} have {counted(number, 'image')} in "
                    "common: give splits apart, such as train[:90%] and train[90%:]."
                )
        return {name: of_tfds(source, split, data_dir=data_dir, **crops) for name, split in splits.items()}
    crops |= {"max_broken": max_broken, "error_log": error_log}
    missing = [name for name in ("train", "test") if not (folder / name).is_dir()]
    if len(missing) == 2:
        whole = of_folder(folder, **crops)
        whole = dataclasses.replace(whole, held_out=test_share)
        rows = stratified_split(whole.labels, test_share)
        return dict(zip(("train", "test"), map(whole.part, rows), strict=True))
    if missing:
        raise ValueError(
            f"{folder} needs the sub-folders train and test with a folder a class in each; missing: {missing[0]}. A folder "
            "with neither, and a folder a class in it, is split."
        )
    names = ["train", "test", *(["validation"] if training and (folder / "validation").is_dir() else [])]
    return {name: of_folder(folder / name, **crops) for name in names}


@dataclasses.dataclass(frozen=True)
class Needs:
    """The data that a protocol needs.

    Attributes:
        load: (name of the data, channels=, **settings) -> the images of "train", "test" and perhaps "validation".
        settings: what can be set of it.
    """

    load: Callable[..., Mapping[str, Any]]
    settings: Mapping[str, Setting]


IMAGE_SETTINGS = {
    "data_dir": Setting(text, "where TensorFlow Datasets keeps its files", parse=str),
    "image_size": Setting(
        partial(checks.integer, least=1, most=LARGEST_SIDE),
        "side of the crops of folders and TFDS",
        "that the encoder was trained at, 224 if it is not known",
    ),
    "short_side": Setting(
        natural,
        "what the short side of test images is resized to before the central crop",
        "256/224 of the image size where networks are trained on images, else the image size",
    ),
}
_SETTINGS = IMAGE_SETTINGS | {
    "train_split": Setting(text, "of a TensorFlow data set", "train", str),
    "test_split": Setting(text, "of a TensorFlow data set", "test", str),
    "test_share": Setting(
        share, "share of a folder without train and test that is held out to test on", "0.2"
    ),
    "max_broken": Setting(portion, "share of broken files that a folder may have", "0.01"),
}
_VALIDATION = Setting(
    text,
    "of a TensorFlow data set, such as train[90%:] beside the train split train[:90%]",
    "some training images are held out",
    str,
)
FOR_FEATURES = Needs(partial(load, training=False), _SETTINGS)
FOR_TRAINING = Needs(partial(load, training=True), _SETTINGS | {"validation_split": _VALIDATION})


def of_folder(
    path: str | Path,
    *,
    size: int,
    short_side: int,
    channels: int = 3,
    max_broken: float = 0.01,
    error_log: str | Path = LOG,
) -> Split:
    """The images of a folder that has a sub-folder a class.

    Args:
        path: the folder.
        size: side of crops.
        short_side: see `Split`.
        channels: 1, 3 or 4.
        max_broken: share of the files that may be broken.
        error_log: file that names them.

    Raises:
        FileNotFoundError: if there is no such folder, or no image in it.
        ValueError: if it has no two sub-folders with images. While a protocol reads images, `TooManyBrokenFiles`.
    """
    files = list_images(path)
    classes = class_labels(path, files)
    if classes is None:
        raise ValueError(
            f"{path} has no two sub-folders of images to take classes from: give a folder with a folder a class in it, or "
            "with train and test that have those."
        )
    return Split(
        reader(files, channels, max_broken, error_log),
        classes[0],
        (size, size, channels),
        short_side,
        classes[1],
    )


def reader(
    files: Sequence[str | Path], channels: int, max_broken: float, error_log: str | Path = LOG
) -> Callable[[int], np.ndarray | None]:
    """What reads the image of a number, None if it is broken; the log names those."""
    decode.check_channels(channels)
    broken = BrokenFiles(len(files), "skip", max_broken, error_log)

    def read(number: int) -> np.ndarray | None:
        try:
            return decode.decode(Path(files[number]).read_bytes(), channels)
        except (OSError, decode.DecodeError) as error:
            broken.report(str(files[number]), error)
            return None

    return read


def of_tfds(
    name: str,
    split: str,
    *,
    size: int,
    short_side: int,
    channels: int = 3,
    data_dir: str | Path | None = None,
    label_key: str = "label",
) -> Split:
    """The images of a split of TensorFlow Datasets that has been prepared.

    Its files are read once at the beginning, for the labels and the places of the records.

    Args:
        name: of the data set.
        split: any TFDS split, or those of `data.tfds.SPLITS`.
        size: side of crops.
        short_side: see `Split`.
        channels: 1, 3 or 4.
        data_dir: where the data set was prepared.
        label_key: name of the feature: a class, or a sequence of classes for images that may have several.

    Raises:
        FileNotFoundError: if the data set is not prepared; says how to.
        ValueError: if it has no such feature or split, or labels that are no integers. Images that cannot be decoded raise an
            error that names them.
    """
    decode.check_channels(channels)
    builder = prepared_builder(name, data_dir)
    features = builder.info.features
    check_features(name, features, "image", [label_key], several=True)
    places, classes = scan(builder, split, label_key)
    feature = features[label_key]
    several = hasattr(feature, "feature")  # a sequence
    if several:
        labels = np.zeros([len(classes), feature.feature.num_classes], bool)
        for row, own in zip(labels, classes, strict=True):
            row[own] = True
    else:
        labels = np.array([own[0] for own in classes], np.int64)

    def read(number: int) -> np.ndarray:
        example = tf.train.Example.FromString(record(places[number]))
        try:
            return decode.decode(example.features.feature["image"].bytes_list.value[0], channels)
        except decode.DecodeError as error:
            raise decode.DecodeError(f"{name}, {split}, example {number}: {error}") from error

    names = getattr(feature.feature if several else feature, "names", None)
    return Split(read, labels, (size, size, channels), short_side, names)


def scan(builder: Any, split: str, label_key: str | None = None) -> tuple[Any, ...]:
    """The places of all records of a split, (file, start, length), and the classes of each, none without a key."""
    info = split_info(builder, split)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(partial(_scan, label_key=label_key), info.file_instructions)
        return tuple(zip(*(row for rows in found for row in rows), strict=True))


def record(place: tuple[str, int, int]) -> bytes:
    """The bytes of a record."""
    from etils import epath  # comes with TensorFlow Datasets

    file, start, length = place
    with epath.Path(file).open("rb") as stream:
        stream.seek(start)
        return stream.read(length)


def _scan(instruction: Any, label_key: str | None) -> list[tuple[tuple[str, int, int], list[int]]]:
    """(file, start, length) and the classes of each record of a part of a TFRecord file.

    A record is its length (8 bytes), a checksum (4), its bytes, a checksum (4).
    """
    from etils import epath

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
                own: list[int] = []
                if label_key is not None:
                    example = tf.train.Example.FromString(stream.read(length))
                    own = list(example.features.feature[label_key].int64_list.value)
                rows.append(((file, start, length), own))
            stream.seek(start + length + 4)
    return rows
