"""What protocols make of labelled images: features, batches to train on, and held-out parts to choose on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.data.subsets import hold_out
from keras_sslhsic.encoders.checks import labelled_batch
from keras_sslhsic.evaluation.checks import check_classes
from keras_sslhsic.evaluation.crops import random_crop_and_flip
from keras_sslhsic.evaluation.extraction import (
    AnyEncoder,
    extract_features,
    extract_labelled_features,
)
from keras_sslhsic.evaluation.images import ENCODING_BATCH, Labelled, Split, arrays, count_classes, images_of
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
    data: Split | tf.data.Dataset, batch_size: int, seed: int, crop_area: tuple[float, float] | None
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

    Returns:
        A dataset of (images, labels), the batch size and the steps of an epoch.

    Raises:
        ValueError: if labels are missing or do not fit, or the number of batches is not known.
    """
    if isinstance(data, Split):
        batch_size = min(batch_size, len(data))
        return data.training_batches(batch_size, seed, crop_area), batch_size, len(data) // batch_size
    spec, label_spec = labelled_batch(data.element_spec)
    if label_spec is None:
        raise ValueError(f"Labels are missing from the training batches {data.element_spec}.")
    steps = int(data.cardinality())
    if steps < 1:
        raise ValueError(
            "The number of training batches must be finite and known, to set the schedule; tell it with "
            "dataset.apply(tf.data.experimental.assert_cardinality(batches))."
        )
    # `map` hands the members of a tuple over one by one.
    batches = data.map(lambda *batch: labelled_batch(batch[0] if len(batch) == 1 else batch)).repeat()
    size = spec.shape[0] or len(next(iter(batches))[1])

    if crop_area is None:
        return batches.prefetch(2), size, steps
    area = crop_area

    def augment(step: tf.Tensor, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        step_seed = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
        return random_crop_and_flip(batch[0], spec.shape[1], step_seed, area), batch[1]

    batches = batches.enumerate().map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(2), size, steps


def problem(
    train: Labelled, test: Labelled, validation: Labelled | int | None, num_classes: int | None
) -> tuple[Any, Any, int]:
    """Training images, test images and the number of classes, checked.

    Raises:
        ValueError: if labels are unusable, the splits name other classes, or the number of classes is not known.
    """
    images, test = images_of(train, "train"), images_of(test, "test")
    num_classes = count_classes({"train": images, "validation": validation, "test": test}, num_classes)
    if isinstance(images, Split):
        if images.labels.ndim == 2:  # an image may have several classes
            return images, test, images.labels.shape[1]
        check_classes(images.labels, test.labels if isinstance(test, Split) else [])
        num_classes = num_classes or int(images.labels.max()) + 1
    if num_classes is None:
        raise ValueError(
            "A dataset of training batches does not say how many classes there are: give num_classes."
        )
    return images, test, num_classes


def select(
    candidates: Sequence[Any],
    train: Split | tf.data.Dataset,
    validation: Labelled | int | None,
    seed: int,
    score: Callable[[Any, Any], tuple[Sequence[float] | np.ndarray, int]],
    settings: Mapping[str, Sequence[float]],
) -> tuple[Any, Choice | None, Any, int]:
    """The best of several candidates by what they reach on held-out images; one alone is taken as it is.

    Args:
        candidates: at least one.
        train: training images.
        validation: how many to hold out of them, the same share of each class; None: 10,000, but at most a fifth. Or a set of
            its own.
        seed: of the hold-out.
        score: (images to train on, images held out) -> a score a candidate, and the number of images held out.
        settings: name -> a value a candidate, as `sweep.choose` takes them.

    Returns:
        The best, the choice (None of one alone), the images to train it on, and the number that was held out.
    """
    several = len(candidates) > 1
    if not (validation is None or isinstance(validation, int)):
        fit, held = train, images_of(validation, "validation")
        train = _both(train, held)
    elif several and not isinstance(train, Split):
        raise ValueError("A dataset of training batches needs a validation set of its own to choose on.")
    elif several:
        number = min(10_000, len(train) // 5) if validation is None else validation
        try:
            rows, held_out = hold_out(train.labels, number, seed)
        except ValueError as error:
            raise ValueError(f"{error} One learning rate and one length need none.") from error
        fit, held = train.part(rows), train.part(held_out)
    if not several:
        return candidates[0], None, train, 0
    scores, number = score(fit, held)
    chosen = choose(scores, **settings)
    return candidates[chosen.index], chosen, train, number


def _both(train: Any, held: Any) -> Any:
    if isinstance(train, Split) and isinstance(held, Split):
        if train.labels.ndim == 1:
            check_classes(train.labels, held.labels, ("train", "validation"))
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
