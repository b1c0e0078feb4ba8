"""The twelve data sets of the paper's transfer table: logistic regression on features of each, and fine-tuning."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np

from keras_sslhsic.data.subsets import hold_out
from keras_sslhsic.evaluation.finetune import TRANSFER, FinetuneRecipe, FinetuneResult, finetune, recipes
from keras_sslhsic.evaluation.images import Images, of_folder, of_tfds
from keras_sslhsic.evaluation.logistic import LogisticResult, logistic_regression
from keras_sslhsic.evaluation.splits import paper_short_side
from keras_sslhsic.evaluation.streams import (
    ENCODING_BATCH,
    Labelled,
    describe,
    features_and_labels,
    images_of,
)


@dataclass(frozen=True)
class TransferSet:
    """A classification data set and how it is scored (Kornblith et al. 2019, table 1).

    Attributes:
        title: name in the paper's table.
        classes: number of classes.
        metric: "top1", "mean_per_class" or "map11" (see `metrics.METRICS`).
        tfds: name in TensorFlow Datasets; None if it is not there.
        train: split to fit on, in the notation of TensorFlow Datasets.
        validation: what hyper-parameters are chosen on (the appendix of BYOL, arXiv:2006.07733, table 10): the name of an
            official split; or the number of training images to hold out, the same share of each class; or so many of
            each class, (n,); or "as test", as many of each class as the test split has.
        test: split to report.
        label: name of the labels in TensorFlow Datasets.
        page: where the set is to be had if TensorFlow Datasets lacks it.
    """

    title: str
    classes: int
    metric: str
    tfds: str | None
    validation: str | int | tuple[int]
    train: str = "train"
    test: str = "test"
    label: str = "label"
    page: str | None = None

    def hold_out(
        self, labels: np.ndarray, test_labels: np.ndarray, seed: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the training images to fit on, and of those to choose on.

        Args:
            labels: int [N] of the training split.
            test_labels: int [T] of the test split.
            seed: of the drawing.

        Raises:
            ValueError: if there is an official validation split, or too few images.
        """
        if self.validation == "as test":
            return hold_out(labels, np.bincount(test_labels), seed)
        if isinstance(self.validation, str):
            raise ValueError(f"{self.title} has an official validation split, which the splits must hold.")
        number = self.validation
        return hold_out(labels, number if isinstance(number, int) else np.full(self.classes, number), seed)


SETS: dict[str, TransferSet] = {
    "food101": TransferSet("Food-101", 101, "top1", "food101", 7575, test="validation"),
    "cifar10": TransferSet("CIFAR-10", 10, "top1", "cifar10", 5000),
    "cifar100": TransferSet("CIFAR-100", 100, "top1", "cifar100", 5067),
    "birdsnap": TransferSet("Birdsnap", 500, "top1", None, "as test", page="https://thomasberg.org/"),
    "sun397": TransferSet("SUN397", 397, "top1", "sun397/standard-part1-120k", (10,)),
    "cars": TransferSet("Stanford Cars", 196, "top1", "cars196", 1650),
    "aircraft": TransferSet(
        "FGVC Aircraft",
        100,
        "mean_per_class",
        None,
        "validation",
        page="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/",
    ),
    "voc2007": TransferSet("VOC2007", 20, "map11", "voc/2007", "validation", label="labels_no_difficult"),
    "dtd": TransferSet("DTD", 47, "top1", "dtd", "validation"),
    "pets": TransferSet("Oxford-IIIT Pets", 37, "mean_per_class", "oxford_iiit_pet", (20,)),
    "caltech101": TransferSet("Caltech-101", 102, "mean_per_class", "caltech101", (5,)),
    "flowers": TransferSet("Oxford 102 Flowers", 102, "mean_per_class", "oxford_flowers102", "validation"),
}


@dataclass(frozen=True, kw_only=True)
class TransferResult(LogisticResult):
    """Result of `transfer`; `dataset` is a key of `SETS`."""

    protocol: ClassVar[str] = "transfer"

    dataset: str


@dataclass(frozen=True, kw_only=True)
class TransferFinetuneResult(FinetuneResult):
    """Result of `transfer_finetune`; `dataset` is a key of `SETS`."""

    protocol: ClassVar[str] = "transfer_finetune"

    dataset: str


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
    splits: Mapping[str, Labelled] | None = None,
    *,
    data_dir: str | Path | None = None,
    size: int = 224,
    short_side: int | None = None,
    encoding_batch: int = ENCODING_BATCH,
    verbose: bool = False,
    seed: int = 0,
    **options: Any,
) -> TransferResult:
    """Logistic regression on the frozen encoder's features of one of the twelve data sets.

    Args:
        encoder: keras.Model from images [B, H, W, C] in [0, 255] to features.
        name: key of `SETS`.
        splits: arrays, `Images`, or finite datasets of batches (images, labels) for "train", "test" and perhaps
            "validation". None loads them with `load`.
        data_dir: for `load`.
        size: for `load`.
        short_side: for `load`; None: `size`.
        encoding_batch: images that the encoder sees at once.
        verbose: whether to show progress bars.
        seed: of the hold-out, where the set has no official validation split, and of the interval's resampling.
        **options: `l2_grid` and `max_iter` of `logistic_regression`.

    Returns:
        TransferResult with the metric of the data set.

    Raises:
        ValueError: for an unknown name; as `logistic_regression`.
        FileNotFoundError: if the files must be fetched by hand, saying where they go.
    """
    dataset = get(name)
    where: dict[str, Any] = {"size": size, "short_side": short_side, "data_dir": data_dir}
    splits = splits or load(name, **where, channels=encoder.input_shape[-1])
    found = {
        split: features_and_labels(encoder, part, split, verbose, encoding_batch)
        for split, part in splits.items()
    }
    if "validation" not in found:
        features, labels = found["train"]
        fit, rows = dataset.hold_out(labels, found["test"][1], seed)
        found["train"], found["validation"] = ((features[r], labels[r]) for r in (fit, rows))
    result = logistic_regression(
        found["train"], found["test"], found["validation"], metric=dataset.metric, seed=seed, **options
    )
    result = replace(result, recipe={**result.recipe, **describe(splits["test"])})
    return TransferResult(**vars(result), dataset=name)


def transfer_finetune(
    encoder: keras.Model,
    name: str,
    splits: Mapping[str, Labelled] | None = None,
    *,
    data_dir: str | Path | None = None,
    size: int = 224,
    short_side: int | None = None,
    verbose: bool = False,
    seed: int = 0,
    **options: Any,
) -> TransferFinetuneResult:
    """Fine-tunes a copy of the encoder on one of the twelve data sets, by default as the paper does.

    Each recipe of `finetune.TRANSFER` (7 learning rates, 8 weight decays, 20,000 steps) is trained on the training
    split; the best on the validation split is trained again on both and measured on the test split. One recipe alone is
    trained on both.

    Args:
        encoder: keras.Model from images [B, H, W, C] in [0, 255] to features.
        name: key of `SETS`.
        splits: arrays or `Images` for "train", "test" and perhaps "validation"; or, all three, datasets of batches.
            None loads them with `load`.
        data_dir: for `load`.
        size: for `load`.
        short_side: for `load`; None: 256 / 224 of the size.
        verbose: whether to show progress bars.
        seed: of the hold-out, where the set has no official validation split, of the order and the crops.
        **options: `recipe`, `num_classes` and `in_place` of `finetune`.

    Returns:
        TransferFinetuneResult with the metric of the data set.

    Raises:
        ValueError: for an unknown name; as `finetune`.
        FileNotFoundError: if the files must be fetched by hand, saying where they go.
    """
    dataset = get(name)
    short_side = paper_short_side(size) if short_side is None else short_side
    where: dict[str, Any] = {"size": size, "short_side": short_side, "data_dir": data_dir}
    splits = splits or load(name, **where, channels=encoder.input_shape[-1])
    parts: dict[str, Any] = {split: images_of(part, split) for split, part in splits.items()}
    options = {"recipe": recipes(**TRANSFER), **options}
    several = not isinstance(options["recipe"], FinetuneRecipe) and len(options["recipe"]) > 1
    if several and "validation" not in parts and isinstance(train := parts["train"], Images):
        fit, rows = dataset.hold_out(train.labels, parts["test"].labels, seed)
        parts.update(train=train.part(fit), validation=train.part(rows))
    result = finetune(encoder, **parts, metric=dataset.metric, seed=seed, verbose=verbose, **options)
    return TransferFinetuneResult(**vars(result), dataset=name)


def load(
    name: str,
    *,
    size: int = 224,
    short_side: int | None = None,
    data_dir: str | Path | None = None,
    channels: int = 3,
) -> dict[str, Images]:
    """The splits of a transfer set.

    Downloads with TensorFlow Datasets. A set that it lacks is read from data_dir/NAME/SPLIT/CLASS/IMAGE. An
    image of VOC2007 has the classes of its objects that are not marked difficult.

    Args:
        name: key of `SETS`.
        size: side of crops.
        short_side: what the short side of a test image is resized to before its central crop; None: `size`.
        data_dir: folder of TensorFlow Datasets (None: its default), or the one that holds NAME.
        channels: 1, 3 or 4.

    Returns:
        `Images` by split; without "validation" if the set has no official one.

    Raises:
        ValueError: for an unknown name.
        FileNotFoundError: if the files must be fetched by hand, saying where they go.
    """
    dataset = get(name)
    names = {"train": dataset.train, "test": dataset.test}
    if dataset.validation == "validation":
        names["validation"] = dataset.validation
    crops: dict[str, Any] = {
        "size": size,
        "short_side": size if short_side is None else short_side,
        "channels": channels,
    }
    if dataset.tfds is None:
        folders = {split: Path(data_dir or ".") / name / split for split in names}
        for folder in folders.values():
            if not folder.is_dir():
                raise FileNotFoundError(
                    f"TensorFlow Datasets lacks {dataset.title}, and there is no folder {folder}. Get the set from "
                    f"{dataset.page}, sort it into {folder.parent}/SPLIT/CLASS/IMAGE.jpg for the splits "
                    f"{' and '.join(names)}, and give data_dir={str(folder.parent.parent)!r}."
                )
        return {split: of_folder(folder, **crops) for split, folder in folders.items()}

    import tensorflow_datasets as tfds  # Takes seconds to import, and only this function needs it.

    tfds.builder(dataset.tfds, data_dir=data_dir).download_and_prepare()
    return {
        split: of_tfds(dataset.tfds, part, data_dir=data_dir, label_key=dataset.label, **crops)
        for split, part in names.items()
    }
