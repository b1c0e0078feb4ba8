"""Labelled images, in arrays or datasets, as the protocols take them: all features, or batches."""

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_sslhsic.data import from_arrays
from keras_sslhsic.evaluation.checks import check_labels
from keras_sslhsic.evaluation.features import (
    Encoder,
    extract_features,
    extract_labelled_features,
    labelled_batch,
)

# (images uint8 [N, H, W, C], labels int [N]); or a finite dataset of batches (images, labels) or
# {"image", "label"}.
Labelled: TypeAlias = tuple[np.ndarray, np.ndarray] | tf.data.Dataset


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
    encoder: Encoder, data: Labelled, name: str, verbose: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Features float32 [N, F] of all images, and their labels.

    Args:
        encoder: as in `extract_features`.
        data: arrays or a dataset.
        name: of the data, for messages.
        verbose: whether to show a progress bar.
    """
    if isinstance(data, tf.data.Dataset):
        return extract_labelled_features(encoder, data, verbose=verbose)
    images, labels = arrays(data, name)
    return extract_features(encoder, images, verbose=verbose), labels


def count_classes(**splits: Any) -> int | None:
    """The number of classes that datasets of `from_folder` and `from_tfds` know by name; None if none does.

    Raises:
        ValueError: if two of them name other classes. Labels number the names, so they would mean others too.
    """
    named = {
        split: classes for split, data in splits.items() if (classes := getattr(data, "class_names", None))
    }
    for split, classes in named.items():
        first, expected = next(iter(named.items()))
        if classes != expected:
            raise ValueError(
                f"The classes of {first} and {split} are not the same: "
                f"{', '.join(sorted(set(expected) ^ set(classes)))} in one of them alone. Labels number the classes of a "
                "split: give both the same folders, with an image in each."
            )
    return len(next(iter(named.values()))) if named else None


def stream(data: Labelled, batch_size: int, seed: int) -> tuple[tf.data.Dataset, int]:
    """An endless dataset of training batches, and the number of them in an epoch.

    Arrays are shuffled anew in every epoch and cut into batches of `batch_size`, or of all there are if there
    are fewer; what does not fill a batch is left out. A dataset brings its own batches and order.

    Returns:
        A dataset of (images, labels), and the steps of an epoch.

    Raises:
        ValueError: if labels are missing or do not fit, or the number of batches is not known.
    """
    if not isinstance(data, tf.data.Dataset):
        images, labels = arrays(data, "train")
        batches = from_arrays(images, labels, batch_size=min(batch_size, len(labels)), seed=seed)
        return batches.map(labelled_batch), batches.steps_per_epoch
    if labelled_batch(data.element_spec)[1] is None:
        raise ValueError(f"Labels are missing from the training batches {data.element_spec}.")
    steps = int(data.cardinality())
    if steps < 1:
        raise ValueError(
            "The number of training batches must be finite and known, to set the schedule; tell it with "
            "dataset.apply(tf.data.experimental.assert_cardinality(batches))."
        )
    # `map` hands the members of a tuple over one by one.
    return data.map(lambda *batch: labelled_batch(batch[0] if len(batch) == 1 else batch)).repeat(), steps
