"""The twelve data sets of the paper's transfer table: logistic regression on features of each, and fine-tuning."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_sslhsic.data.subsets import hold_out
from keras_sslhsic.evaluation.extraction import AnyEncoder
from keras_sslhsic.evaluation.fine_tuning import (
    TRANSFER,
    FinetuneRecipe,
    finetune,
    finetune_arguments,
    recipes,
)
from keras_sslhsic.evaluation.images import ENCODING_BATCH, Labelled, Split, describe, images_of
from keras_sslhsic.evaluation.loading import IMAGE_SETTINGS, Needs, of_folder, of_tfds, paper_short_side
from keras_sslhsic.evaluation.logistic import logistic_regression
from keras_sslhsic.evaluation.protocol import register
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.settings import ENCODING, SEED
from keras_sslhsic.evaluation.streams import features_and_labels
from keras_sslhsic.evaluation.sweep import training_settings
from keras_sslhsic.registries import Registry


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

    @property
    def several(self) -> bool:
        """Whether an image may have several classes, labels bool [N, K]."""
        return self.metric == "map11"

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


SETS: Registry[TransferSet] = Registry("transfer set")
for _name, _set in {
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
}.items():
    SETS.add(_name, _set)


class TransferSplits(dict[str, Labelled]):
    """The images of one of the twelve data sets: "train", "test" and perhaps "validation".

    Args:
        name: a key of `SETS`.
        splits: arrays, `Split`s, or finite datasets of batches (images, labels).

    Raises:
        ValueError: for an unknown name.
    """

    def __init__(self, name: str, splits: Mapping[str, Labelled]):
        super().__init__(splits)
        self.name, self.set = name, SETS[name]


def load(
    name: str,
    *,
    training: bool = False,
    image_size: int = 224,
    short_side: int | None = None,
    data_dir: str | Path | None = None,
    channels: int = 3,
) -> TransferSplits:
    """The splits of a transfer set.

    They are read where TensorFlow Datasets has prepared them, and a set that it lacks from data_dir/NAME/SPLIT/CLASS/IMAGE. An
    image of VOC2007 has the classes of its objects that are not marked difficult.

    Args:
        name: key of `SETS`.
        training: whether networks are trained on the images.
        image_size: side of crops.
        short_side: what the short side of a test image is resized to before its central crop. None: 256 / 224 of the size
            for `training`, else the size.
        data_dir: folder of TensorFlow Datasets (None: its default), or the one that holds NAME.
        channels: 1, 3 or 4.

    Returns:
        A `Split` for each; without "validation" if the set has no official one.

    Raises:
        ValueError: for an unknown name.
        FileNotFoundError: if it is not prepared, saying how; or if the files must be fetched by hand, saying where they go.
    """
    dataset = SETS[name]
    names = {"train": dataset.train, "test": dataset.test}
    if dataset.validation == "validation":
        names["validation"] = dataset.validation
    if short_side is None:
        short_side = paper_short_side(image_size) if training else image_size
    crops: dict[str, Any] = {"size": image_size, "short_side": short_side, "channels": channels}
    if dataset.tfds is None:
        folders = {split: Path(data_dir or ".") / name / split for split in names}
        for folder in folders.values():
            if not folder.is_dir():
                raise FileNotFoundError(
                    f"TensorFlow Datasets lacks {dataset.title}, and there is no folder {folder}. Get the set from "
                    f"{dataset.page}, sort it into {folder.parent}/SPLIT/CLASS/IMAGE.jpg for the splits "
                    f"{' and '.join(names)}, and give data_dir={str(folder.parent.parent)!r}."
                )
        return TransferSplits(name, {split: of_folder(f, **crops) for split, f in folders.items()})

    where: dict[str, Any] = {"data_dir": data_dir, "label_key": dataset.label, **crops}
    return TransferSplits(
        name, {split: of_tfds(dataset.tfds, part, **where) for split, part in names.items()}
    )


@register(
    "transfer",
    ENCODING | SEED,
    on_features=False,
    needs=Needs(partial(load, training=False), IMAGE_SETTINGS),
)
def transfer(
    encoder: AnyEncoder,
    splits: TransferSplits,
    *,
    encoding_batch: int = ENCODING_BATCH,
    verbose: bool = False,
    seed: int = 0,
    **options: Any,
) -> Result:
    """Logistic regression on the frozen encoder's features of one of the twelve data sets.

    Args:
        encoder: keras.Model, or function, from images [B, H, W, C] in [0, 255] to features.
        splits: of the data set; see `load`.
        encoding_batch: images that the encoder sees at once.
        verbose: whether to show progress bars.
        seed: of the hold-out, where the set has no official validation split, and of the interval's resampling.
        **options: `l2_grid` and `max_iter` of `logistic_regression`.

    Returns:
        Result of `logistic_regression` with the metric of the data set, whose name is `dataset`.

    Raises:
        ValueError: for images of another data set; as `logistic_regression`.
    """
    dataset = _set_of(splits)
    parts = {split: images_of(part, split, several=dataset.several) for split, part in splits.items()}
    found = {
        split: features_and_labels(encoder, part, split, verbose, encoding_batch)
        for split, part in parts.items()
    }
    if "validation" not in found:
        features, labels = found["train"]
        fit, rows = dataset.hold_out(labels, found["test"][1], seed)
        found["train"], found["validation"] = ((features[r], labels[r]) for r in (fit, rows))
    result = logistic_regression(
        found["train"], found["test"], found["validation"], metric=dataset.metric, seed=seed, **options
    )
    return _on(splits, result, "transfer")


@register(
    "transfer_finetune",
    training_settings(TRANSFER, "steps", "head_learning_rate", "crops"),
    on_features=False,
    network=True,
    needs=Needs(partial(load, training=True), IMAGE_SETTINGS),
    arguments=partial(finetune_arguments, TRANSFER),
)
def transfer_finetune(
    encoder: keras.Model,
    splits: TransferSplits,
    *,
    verbose: bool = False,
    seed: int = 0,
    **options: Any,
) -> Result:
    """Fine-tunes a copy of the encoder on one of the twelve data sets, by default as the paper does.

    Each recipe of `TRANSFER` (7 learning rates, 8 weight decays, 20,000 steps) is trained on the training
    split; the best on the validation split is trained again on both and measured on the test split. One recipe alone is
    trained on both.

    Args:
        encoder: keras.Model from images [B, H, W, C] in [0, 255] to features.
        splits: of the data set; see `load`. Of datasets of batches all three are needed.
        verbose: whether to show progress bars.
        seed: of the hold-out, where the set has no official validation split, of the order and the crops.
        **options: `recipe`, `num_classes` and `in_place` of `finetune`.

    Returns:
        Result of `finetune` with the metric of the data set, whose name is `dataset`.

    Raises:
        ValueError: for images of another data set; as `finetune`.
    """
    dataset = _set_of(splits)
    parts: dict[str, Any] = {
        split: images_of(part, split, several=dataset.several) for split, part in splits.items()
    }
    options = {"recipe": recipes(**TRANSFER), **options}
    chooses = not isinstance(options["recipe"], FinetuneRecipe) and len(options["recipe"]) > 1
    if chooses and "validation" not in parts and isinstance(train := parts["train"], Split):
        fit, rows = dataset.hold_out(train.labels, parts["test"].labels, seed)
        parts.update(train=train.part(fit), validation=train.part(rows))
    result = finetune(encoder, **parts, metric=dataset.metric, seed=seed, verbose=verbose, **options)
    return _on(splits, result, "transfer_finetune")


def _set_of(splits: Mapping[str, Labelled]) -> TransferSet:
    if not isinstance(splits, TransferSplits):
        raise ValueError(
            f"Transfer is measured on one of {', '.join(SETS)}, found images of another set: load them by `load`, or say by "
            "`TransferSplits` which they are."
        )
    return splits.set


def _on(splits: TransferSplits, result: Result, protocol: str) -> Result:
    recipe = {**result.recipe, **describe(splits["test"])}
    details = {**result.details, "dataset": splits.name}
    return replace(result, protocol=protocol, recipe=recipe, details=details)
