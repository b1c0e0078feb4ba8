"""The twelve data sets of the paper's transfer table, and logistic regression on each."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from keras_sslhsic.data import from_folder
from keras_sslhsic.evaluation.crops import resize_then_crop
from keras_sslhsic.evaluation.features import extract_labelled_features
from keras_sslhsic.evaluation.logistic import LogisticResult, logistic_regression


@dataclass(frozen=True)
class TransferSet:
    """A classification data set and how it is scored (Kornblith et al. 2019, table 1).

    Attributes:
        title: name in the paper's table.
        classes: number of classes.
        metric: "top1", "mean_per_class" or "map11" (see `logistic.METRICS`).
        tfds: name in TensorFlow Datasets; None if it is not there.
        train: split to fit on, in the notation of TensorFlow Datasets.
        validation: split to choose hyper-parameters on; None: 20 % of each class of the training split are
            held out.
        test: split to report.
        page: where the set is to be had if TensorFlow Datasets lacks it.
    """

    title: str
    classes: int
    metric: str
    tfds: str | None
    train: str
    validation: str | None
    test: str
    page: str | None = None


SETS: dict[str, TransferSet] = {
    "food101": TransferSet("Food-101", 101, "top1", "food101", "train", None, "validation"),
    "cifar10": TransferSet("CIFAR-10", 10, "top1", "cifar10", "train", None, "test"),
    "cifar100": TransferSet("CIFAR-100", 100, "top1", "cifar100", "train", None, "test"),
    "birdsnap": TransferSet(
        "Birdsnap",
        500,
        "top1",
        None,
        "train",
        "validation",
        "test",
        "https://thomasberg.org/",
    ),
    "sun397": TransferSet("SUN397", 397, "top1", "sun397/tfds", "train", "validation", "test"),
    "cars": TransferSet("Stanford Cars", 196, "top1", "cars196", "train", None, "test"),
    "aircraft": TransferSet(
        "FGVC Aircraft",
        100,
        "mean_per_class",
        None,
        "train",
        "validation",
        "test",
        "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
    ),
    "voc2007": TransferSet("VOC2007", 20, "map11", "voc/2007", "train", "validation", "test"),
    "dtd": TransferSet("DTD", 47, "top1", "dtd", "train", "validation", "test"),
    "pets": TransferSet("Oxford-IIIT Pets", 37, "mean_per_class", "oxford_iiit_pet", "train", None, "test"),
    "caltech101": TransferSet("Caltech-101", 102, "mean_per_class", "caltech101", "train", None, "test"),
    "flowers": TransferSet(
        "Oxford 102 Flowers", 102, "mean_per_class", "oxford_flowers102", "train", "validation", "test"
    ),
}


def get(name: str) -> TransferSet:
    """The data set of this name.

    Raises:
        ValueError: if there is none, naming all.
    """
    if name not in SETS:
        raise ValueError(f"Unknown transfer set {name!r}; there are {', '.join(SETS)}.")
    return SETS[name]


def transfer(
    encoder: keras.Model,
    name: str,
    splits: Mapping[str, tf.data.Dataset] | None = None,
    *,
    data_dir: str | os.PathLike | None = None,
    size: int = 224,
    batch_size: int = 64,
    verbose: bool = False,
    **options,
) -> LogisticResult:
    """Logistic regression on the frozen encoder's features of one of the twelve data sets.

    Args:
        encoder: keras.Model from images [B, H, W, 3] in [0, 255] to features.
        name: key of `SETS`.
        splits: finite datasets of batches (images, labels) for "train", "test" and perhaps "validation". None
            loads them with `load`.
        data_dir: for `load`.
        size: for `load`.
        batch_size: for `load`.
        verbose: whether to show progress bars.
        **options: `l2_grid`, `max_iter` and `seed` of `logistic_regression`.

    Returns:
        LogisticResult with the metric of the data set.

    Raises:
        ValueError: for an unknown name; as `logistic_regression`.
        FileNotFoundError: if the files must be fetched by hand, saying where they go.
    """
    dataset = get(name)
    splits = splits or load(name, size=size, batch_size=batch_size, data_dir=data_dir)
    features = {
        split: extract_labelled_features(encoder, part, verbose=verbose) for split, part in splits.items()
    }
    validation = features.get("validation", 0.2)
    return logistic_regression(
        features["train"], features["test"], validation, metric=dataset.metric, dataset=name, **options
    )


def load(
    name: str, *, size: int = 224, batch_size: int = 64, data_dir: str | os.PathLike | None = None
) -> dict[str, tf.data.Dataset]:
    """The splits of a transfer set, every image at the paper's test crop.

    Downloads with TensorFlow Datasets. A set that it lacks is read from data_dir/NAME/SPLIT/CLASS/IMAGE. An
    image of VOC2007 has the classes of its objects that are not marked difficult.

    Args:
        name: key of `SETS`.
        size: side of the images; the short side is resized to 256 / 224 of it before the crop.
        batch_size: images a batch.
        data_dir: folder of TensorFlow Datasets (None: its default), or the one that holds NAME.

    Returns:
        Batches (float32 [B, size, size, 3] in [0, 255], labels int [B], or bool [B, C] for VOC2007) by split;
        without "validation" if the set has none.

    Raises:
        ValueError: for an unknown name.
        FileNotFoundError: if the files must be fetched by hand, saying where they go.
    """
    dataset = get(name)
    short_side = round(size * 256 / 224)
    names = {"train": dataset.train, "validation": dataset.validation, "test": dataset.test}
    names = {split: part for split, part in names.items() if part is not None}
    if dataset.tfds is None:
        return {
            split: _from_files(dataset, name, data_dir, split, size, short_side, batch_size)
            for split in names
        }

    import tensorflow_datasets as tfds  # Takes seconds to import, and only this function needs it.

    def example(row):
        labels = row["label"] if "label" in row else row["labels_no_difficult"]
        if dataset.metric == "map11":
            labels = tf.reduce_any(tf.one_hot(labels, dataset.classes, True, False, dtype=tf.bool), axis=0)
        return resize_then_crop(row["image"], size, short_side), labels

    loaded = tfds.load(dataset.tfds, split=names, data_dir=data_dir)
    return {
        split: part.map(example, num_parallel_calls=tf.data.AUTOTUNE).batch(batch_size).prefetch(2)
        for split, part in loaded.items()
    }


def _from_files(dataset, name, data_dir, split, size, short_side, batch_size):
    folder = Path(data_dir or ".") / name / split
    if not folder.is_dir():
        raise FileNotFoundError(
            f"TensorFlow Datasets lacks {dataset.title}, and there is no folder {folder}. Get the set from "
            f"{dataset.page}, sort it into {folder.parent}/SPLIT/CLASS/IMAGE.jpg for the splits train, "
            f"validation and test, and give data_dir={str(folder.parent.parent)!r}."
        )
    # The central square resized to `short_side` and cut to its centre is the same crop.
    batches = from_folder(
        folder, batch_size=batch_size, image_size=short_side, shuffle=False, drop_remainder=False, epochs=1
    )
    return batches.map(lambda batch: (resize_then_crop(batch["image"], size, short_side), batch["label"]))
