"""What protocols make of labelled images: features, batches to train on, and held-out parts to choose on."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.data.images import unpack
from keras_sslhsic.data.python_map import recorded
from keras_sslhsic.data.subsets import hold_out
from keras_sslhsic.encoders.checks import check_given
from keras_sslhsic.evaluation.checks import check_classes, check_labels
from keras_sslhsic.evaluation.crops import random_crop_and_flip
from keras_sslhsic.evaluation.extraction import (
    AnyEncoder,
    as_encoder,
    extract_features,
    extract_labelled_features,
    shape_read,
)
from keras_sslhsic.evaluation.images import ENCODING_BATCH, Labelled, Split, arrays, count_classes, images_of
from keras_sslhsic.evaluation.settings import flags
from keras_sslhsic.evaluation.sweep import Choice, choose


def features_and_labels(
    encoder: AnyEncoder, data: Labelled, name: str, verbose: bool = False, batch_size: int = ENCODING_BATCH
) -> tuple[np.ndarray, np.ndarray]:
    """Features float32 [N, F] of all images, and their labels.

    Args:
        encoder: as in `extract_features`.
        data: arrays, images or a dataset.
        name: of the data, for messages.
        verbose: whether to show a progress bar.
        batch_size: images that the encoder sees at once; a dataset brings its own batches.
    """
    if isinstance(data, Split):
        data = data.batches(batch_size)
    if isinstance(data, tf.data.Dataset):
        return extract_labelled_features(encoder, data, verbose=verbose)
    images, labels = arrays(data, name)
    return extract_features(encoder, images, batch_size=batch_size, verbose=verbose), labels


def stream(
    data: Split | tf.data.Dataset,
    batch_size: int,
    seed: int,
    crop_area: tuple[float, float] | None,
    replicas: int = 1,
) -> tuple[tf.data.Dataset, int, int]:
    """An endless dataset of training batches, of what size they are, and the number of them in an epoch.

    Images come in a new order in every epoch, in batches of `batch_size`, or of all there are if there are fewer;
    what does not fill a batch is left out. A dataset brings its own batches and order.

    Args:
        data: `Split`, which are cropped as they are read; or a dataset of batches of one size, which are cropped
            on the device.
        batch_size: images a step.
        seed: of the order and the crops.
        crop_area: range of a random crop's share of an image's area; None: neither crops nor mirroring.
        replicas: that share a batch, of equally many images each; of images the batch is cut to that.

    Returns:
        A dataset of (images, labels), the batch size and the steps of an epoch.

    Raises:
        ValueError: if the number of batches is not known, or a batch cannot be shared by the replicas.
    """
    if isinstance(data, Split):
        batch_size = min(batch_size, len(data))
        batch_size -= batch_size % replicas
        _check_shared(batch_size, replicas)
        return data.training_batches(batch_size, seed, crop_area), batch_size, len(data) // batch_size
    spec, _ = unpack(data.element_spec)
    steps = int(data.cardinality())
    if steps < 1:
        raise ValueError(
            "The number of training batches must be finite and known, to set the schedule; tell it with "
            "dataset.apply(tf.data.experimental.assert_cardinality(batches))."
        )
    # `map` hands the members of a tuple over one by one.
    batches = data.map(lambda *batch: unpack(batch[0] if len(batch) == 1 else batch)).repeat()
    _check_shared(spec.shape[0] if replicas > 1 else 1, replicas)
    size = spec.shape[0] or len(next(iter(batches))[1])

    if crop_area is None:
        return batches.prefetch(2), size, steps
    area = crop_area

    def augment(step: tf.Tensor, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        step_seed = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
        return random_crop_and_flip(batch[0], spec.shape[1], step_seed, area), batch[1]

    batches = batches.enumerate().map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(2), size, steps


def _check_shared(batch_size: int | None, replicas: int) -> None:
    if not batch_size or batch_size % replicas:
        raise ValueError(
            f"A batch of {batch_size or 'an unknown number of'} training images cannot be shared by {replicas} replicas: make "
            f"it a multiple of {replicas}, of a dataset by batch(size, drop_remainder=True)."
        )


def problem(
    encoder: AnyEncoder,
    train: Labelled,
    test: Labelled,
    validation: Labelled | int | None,
    num_classes: int | None,
    several: bool = False,
) -> tuple[Any, Any, Any, Any, int]:
    """The encoder, the images of training, validation and test, and the number of classes, checked.

    Where nothing names or counts the classes, they are those of the training labels, numbered anew in their order: labels
    may be far apart. With `several`, an image may have several of them.

    Raises:
        ValueError: for no encoder (see `as_encoder`) or images that it cannot be given; if labels are unusable, the splits
            name other classes, or the number of classes is not known.
    """
    encoder = as_encoder(encoder)
    shape = shape_read(encoder)
    splits: dict[str, Any] = {
        "train": images_of(train, "train", shape, several),
        "test": images_of(test, "test", shape, several),
    }
    if validation is None or isinstance(validation, Integral):
        checks.integer("validation", validation, 1, optional=True)
    else:
        splits["validation"] = images_of(validation, "validation", shape, several)
        validation = None
    images = splits["train"]
    for name, data in splits.items():
        _check_labels_of(data, name, several)
    num_classes = count_classes(splits, num_classes)
    if num_classes is not None and not several:
        splits = {name: _within(data, name, num_classes) for name, data in splits.items()}
    if not isinstance(images, Split):
        check_given(images, shape)
    elif several:
        num_classes = images.labels.shape[1]
    else:
        for name, data in splits.items():
            check_classes(images.labels, data.labels if isinstance(data, Split) else [], ("train", name))
        if num_classes is None:
            classes = np.unique(images.labels)
            num_classes = len(classes)
            splits = {name: _numbered(data, classes) for name, data in splits.items()}
    if num_classes is None:
        raise ValueError(
            "A dataset of training batches does not say how many classes there are: give num_classes."
        )
    return encoder, splits["train"], splits.get("validation", validation), splits["test"], num_classes


def _check_labels_of(data: Split | tf.data.Dataset, name: str, several: bool) -> None:
    labels = data.labels if isinstance(data, Split) else unpack(data.element_spec)[1]
    if labels is None:
        raise ValueError(f"The labels are missing from the {name} batches.")
    kind = tf.as_dtype(labels.dtype)
    rank = tf.TensorShape(labels.shape).rank
    if rank not in (None, 1 + several) or not (kind.is_bool if several else kind.is_integer):
        expected = "bool [N, K], for metric 'map11'" if several else "integers [N], one an image"
        raise ValueError(
            f"The {name} labels must be {expected}, found {kind.name} of rank {rank}: one-hot labels are numbered by "
            "argmax(labels, -1)."
        )
    if several and isinstance(data, Split) and name != "train" and not labels.any(axis=0).all():
        raise ValueError(
            f"Every class must be in some {name} image, for metric 'map11': class {np.argmin(labels.any(axis=0))} is in none."
        )
    if not several and isinstance(data, Split):
        check_labels(labels, len(data), f"{name} labels")  # TFDS has -1 where there is none


def _within(data: Any, name: str, num_classes: int) -> Any:
    """The same images, of whose batches each is checked to have labels below the number of classes."""
    if isinstance(data, Split):
        return data

    @recorded
    def check(labels: np.ndarray) -> np.ndarray:
        if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
            raise ValueError(
                f"num_classes is {num_classes}, but a batch of {name} has labels from {labels.min()} to {labels.max()}: they "
                f"are to be from 0 to {num_classes - 1}."
            )
        return labels

    def checked(*batch: Any) -> tuple[Any, tf.Tensor]:
        images, labels = unpack(batch[0] if len(batch) == 1 else batch)
        found = tf.numpy_function(check, [labels], labels.dtype, stateful=False)
        return images, tf.ensure_shape(found, labels.shape)

    return data.map(checked)


def _numbered(data: Any, classes: np.ndarray) -> Any:
    """The same images, each label its place among the classes; -1 for one that is not among them."""
    if classes[-1] == len(classes) - 1:
        return data
    if isinstance(data, Split):
        return dataclasses.replace(data, labels=np.searchsorted(classes, data.labels))

    def numbered(*batch: Any) -> tuple[Any, tf.Tensor]:
        images, labels = unpack(batch[0] if len(batch) == 1 else batch)
        labels = tf.cast(labels, tf.int64)
        places = tf.minimum(tf.searchsorted(classes, labels, out_type=tf.int64), len(classes) - 1)
        return images, tf.where(tf.gather(classes, places) == labels, places, -1)

    return data.map(numbered)


def select(
    candidates: Sequence[Any],
    train: Split | tf.data.Dataset,
    validation: Split | tf.data.Dataset | int | None,
    seed: int,
    score: Callable[[Any, Any], tuple[Sequence[float] | np.ndarray, int]],
    settings: Mapping[str, Sequence[float]],
) -> tuple[Any, Choice | None, Any, int]:
    """The best of several candidates by what they reach on held-out images; one alone is taken as it is.

    Args:
        candidates: at least one.
        train: training images.
        validation: how many to hold out of them, the same share of each class; None: 10,000, but at most a fifth. Or images
            of their own, as `problem` gives them.
        seed: of the hold-out.
        score: (images to train on, images held out) -> a score a candidate, and the number of images held out.
        settings: name -> a value a candidate, as `sweep.choose` takes them.

    Returns:
        The best, the choice (None of one alone), the images to train it on, and the number that was held out.
    """
    several = len(candidates) > 1
    if not (validation is None or isinstance(validation, Integral)):
        fit, held = train, validation
        train = _both(train, held)
    elif several and not isinstance(train, Split):
        raise ValueError("A dataset of training batches needs a validation set of its own to choose on.")
    elif several and train.labels.ndim > 1:
        raise ValueError(
            f"{len(candidates)} candidates are chosen from on held-out images, a share of each class, which images of several "
            "classes are not in: give validation images of their own, or one candidate."
        )
    elif several:
        number = min(10_000, len(train) // 5) if validation is None else int(validation)
        try:
            rows, held_out = hold_out(train.labels, number, seed)
        except ValueError as error:
            varied = [f"{name}s" for name, values in settings.items() if len(set(values)) > 1]
            values = f", with one value alone of {flags(varied)}" if varied else ""
            raise ValueError(f"{error} Or give one of the {len(candidates)} candidates{values}.") from error
        fit, held = train.part(rows), train.part(held_out)
    if not several:
        return candidates[0], None, train, 0
    scores, number = score(fit, held)
    chosen = choose(scores, **settings)
    return candidates[chosen.index], chosen, train, number


def _both(train: Any, held: Any) -> Any:
    if isinstance(train, Split) and isinstance(held, Split):
        return train + held
    if isinstance(train, tf.data.Dataset) and isinstance(held, tf.data.Dataset):
        return _mixed(train, held)
    raise ValueError("Training and validation images must both be arrays, or both be datasets of batches.")


def _mixed(train: tf.data.Dataset, validation: tf.data.Dataset) -> tf.data.Dataset:
    """The batches of both datasets, in a random order, another in every epoch."""
    sizes = [int(part.cardinality()) for part in (train, validation)]
    mixed = tf.data.Dataset.sample_from_datasets(
        [train, validation],
        [size / sum(sizes) for size in sizes],
        seed=0,
        rerandomize_each_iteration=True,
    )
    return mixed.apply(tf.data.experimental.assert_cardinality(sum(sizes)))
