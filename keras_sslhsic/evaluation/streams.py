"""Labelled images, in arrays or datasets, as the protocols take them: all features, or batches, or parts."""

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.data.subsets import hold_out
from keras_sslhsic.encoders.checks import labelled_batch
from keras_sslhsic.evaluation.checks import check_classes, check_labels
from keras_sslhsic.evaluation.crops import random_crop_and_flip
from keras_sslhsic.evaluation.extraction import (
    AnyEncoder,
    extract_features,
    extract_labelled_features,
)
from keras_sslhsic.evaluation.images import Images, of_arrays

# (images uint8 [N, H, W, C], labels int [N]); images that are read one by one; or a finite dataset of batches (images,
# labels) or {"image", "label"}.
Labelled: TypeAlias = tuple[np.ndarray, np.ndarray] | Images | tf.data.Dataset

ENCODING_BATCH = 256  # images that an encoder sees at once


def arrays(data: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of `data`, which must be a pair of arrays.

    Raises:
        ValueError: if it is not, or the labels do not fit the images.
    """
    if not (isinstance(data, tuple | list) and len(data) == 2):
        raise ValueError(f"{name} must be (images, labels) here, found {type(data).__name__}.")
    images = np.asanyarray(data[0])
    return images, check_labels(data[1], len(images), f"{name} labels")


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
    if isinstance(data, Images):
        data = data.batches(batch_size)
    if isinstance(data, tf.data.Dataset):
        return extract_labelled_features(encoder, data, verbose=verbose)
    images, labels = arrays(data, name)
    return extract_features(encoder, images, batch_size=batch_size, verbose=verbose), labels


def count_classes(given: int | None = None, **splits: Any) -> int | None:
    """The number of classes that folders and data sets of TFDS know by name; else the given one.

    Args:
        given: the number that was asked for, or None.
        **splits: the data by name.

    Raises:
        ValueError: if two of them name other classes. Labels number the names, so they would mean others too. Or if
            another number of classes is given than there are.
    """
    checks.integer("num_classes", given, 2, optional=True)
    named = {
        split: classes for split, data in splits.items() if (classes := getattr(data, "class_names", None))
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
        if given and isinstance(data, Images) and data.labels.ndim == 1 and data.labels.max() >= given:
            raise ValueError(
                f"num_classes is {given}, but the {split} labels go up to {data.labels.max()}: give at least "
                f"{data.labels.max() + 1}."
            )
    return len(expected) if named else given


def images_of(data: Labelled, name: str) -> Images | tf.data.Dataset:
    """Arrays as `Images`; others as they are."""
    return data if isinstance(data, Images | tf.data.Dataset) else of_arrays(*arrays(data, name))


def describe(data: Labelled) -> dict[str, Any]:
    """What a record says of test images."""
    if isinstance(data, tf.data.Dataset):
        return {"image_size": labelled_batch(data.element_spec)[0].shape[1]}
    return data.recipe() if isinstance(data, Images) else {"image_size": np.shape(data[0])[1]}


def stream(
    data: Images | tf.data.Dataset, batch_size: int, seed: int, crop_area: tuple[float, float] | None
) -> tuple[tf.data.Dataset, int, int]:
    """An endless dataset of training batches, of what size they are, and the number of them in an epoch.

    Images come in a new order in every epoch, in batches of `batch_size`, or of all there are if there are fewer;
    what does not fill a batch is left out. A dataset brings its own batches and order.

    Args:
        data: `Images`, which are cropped as they are read; or a dataset of batches of one size, which are cropped
            on the device.
        batch_size: images a step.
        seed: of the order and the crops.
        crop_area: range of a random crop's share of an image's area; None: neither crops nor mirroring.

    Returns:
        A dataset of (images, labels), the batch size and the steps of an epoch.

    Raises:
        ValueError: if labels are missing or do not fit, or the number of batches is not known.
    """
    if isinstance(data, Images):
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

    def augment(step, batch):
        step_seed = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
        return random_crop_and_flip(batch[0], spec.shape[1], step_seed, area), batch[1]

    batches = batches.enumerate().map(augment, num_parallel_calls=tf.data.AUTOTUNE)
    return batches.prefetch(2), size, steps


def hold_out_of(
    train: Images | tf.data.Dataset, validation: Labelled | int | None, seed: int, several: bool
) -> tuple[Any, Any, Any]:
    """What candidates are trained on, what they are compared on, and what the best, or the only one, is trained on.

    Args:
        train: training images.
        validation: images to hold out of them, the same share of each class; None: 10,000, but at most a fifth.
            Or a set of its own.
        seed: of the drawing.
        several: whether there are several candidates; for one alone nothing is held out.

    Raises:
        ValueError: if there are too few images, or a dataset comes without a validation set of its own.
    """
    if not (validation is None or isinstance(validation, int)):
        held_out = images_of(validation, "validation")
        if isinstance(train, Images) and isinstance(held_out, Images):
            if train.labels.ndim == 1:
                check_classes(train.labels, held_out.labels, ("train", "validation"))
            return train, held_out, train + held_out
        if isinstance(train, tf.data.Dataset) and isinstance(held_out, tf.data.Dataset):
            return train, held_out, _mixed(train, held_out)
        raise ValueError(
            "Training and validation images must both be arrays, or both be datasets of batches."
        )
    if not several:
        return None, None, train
    if not isinstance(train, Images):
        raise ValueError("A dataset of training batches needs a validation set of its own to choose on.")
    number = min(10_000, len(train) // 5) if validation is None else validation
    try:
        fit, rows = hold_out(train.labels, number, seed)
    except ValueError as error:
        raise ValueError(f"{error} One learning rate and one length need none.") from error
    return train.part(fit), train.part(rows), train


def _mixed(train, validation):
    """The batches of both datasets, in a random order, another in every epoch."""
    sizes = [int(part.cardinality()) for part in (train, validation)]
    mixed = tf.data.Dataset.sample_from_datasets(
        [train, validation],
        [size / sum(sizes) for size in sizes],
        seed=0,
        rerandomize_each_iteration=True,
    )
    return mixed.apply(tf.data.experimental.assert_cardinality(sum(sizes)))
