"""What every protocol asks of its features and labels, checked before anything is computed."""

import numpy as np
from numpy.typing import ArrayLike

from keras_sslhsic.data import arrays


class CollapsedError(ValueError):
    """Features that are the same for all images, which no protocol can measure."""


def check_features(features: np.ndarray | None, name: str = "features") -> np.ndarray:
    """Returns `features` as float32 [N, F].

    Raises:
        ValueError: if they are not a non-empty matrix, hold NaN or infinity.
        CollapsedError: if they are the same for all images.
    """
    if callable(features):
        raise ValueError(
            f"{name} must be numbers [N, F], found the {type(features).__name__}: give "
            "keras_sslhsic.evaluation.extract_features(encoder, images)."
        )
    if isinstance(features, tuple):
        raise ValueError(
            f"{name} must be numbers [N, F], found a tuple: give features and labels one by one."
        )
    features = np.asarray(features, np.float32)
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"{name} must be a non-empty matrix [N, F], found shape {features.shape}.")
    finite = np.isfinite(features).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{name} hold NaN or infinity in {np.sum(~finite)} of {len(features)} rows, "
            f"first in row {np.argmin(finite)}. Check the encoder's weights and the range of its images."
        )
    if len(features) > 1 and np.all(features == features[0]):
        raise CollapsedError(
            f"{name} have zero variance: all {len(features)} rows are the same, so no classifier can tell "
            "them apart. The encoder has collapsed, or its images are all the same."
        )
    return features


def check_labels(labels: np.ndarray | None, num_examples: int, name: str = "labels") -> np.ndarray:
    """Returns `labels` as int64 [N].

    Raises:
        ValueError: if they are missing, not whole numbers from 0 upwards, or not one an example.
    """
    if labels is None:
        raise ValueError(
            f"{name} are missing: this evaluation needs one class for each of {num_examples} images."
        )
    labels = np.asarray(labels)
    if labels.shape == (num_examples, 1):  # as Keras's own data sets have them
        labels = labels[:, 0]
    try:
        arrays.check_labels(labels, num_examples)
    except ValueError as error:
        raise ValueError(f"{name} cannot be used. {error}") from None
    return labels.astype(np.int64)


def check_several(labels: np.ndarray | None, num_examples: int, name: str = "labels") -> np.ndarray:
    """Returns `labels` as bool [N, K].

    Raises:
        ValueError: if they are missing, or something else.
    """
    if labels is None:
        raise ValueError(
            f"{name} are missing: this evaluation needs the classes of each of {num_examples} images."
        )
    labels = np.asarray(labels)
    if labels.ndim != 2 or len(labels) != num_examples or labels.dtype != bool:
        raise ValueError(
            f"{name} must be bool [{num_examples}, K], for metric 'map11', found {labels.dtype} {list(labels.shape)}."
        )
    return labels


def check_split(
    train_features: np.ndarray,
    train_labels: np.ndarray | None,
    test_features: np.ndarray | None,
    test_labels: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Checks both halves of a classification problem and that they fit together.

    Returns:
        The four arrays: features float32 [N, F], labels int64 [N], each its place among the classes of the training labels.

    Raises:
        ValueError: as `check_features` and `check_labels`; also if the feature dimensions differ, there is
            only one class to learn, or the test split has a class that the training split lacks.
    """
    train_features = check_features(train_features, "train_features")
    test_features = check_features(test_features, "test_features")
    train_labels = check_labels(train_labels, len(train_features), "train_labels")
    test_labels = check_labels(test_labels, len(test_features), "test_labels")
    if train_features.shape[1] != test_features.shape[1]:
        raise ValueError(
            "train_features and test_features must have the same dimension, "
            f"found {train_features.shape[1]} and {test_features.shape[1]}."
        )
    check_classes(train_labels, test_labels)
    train_labels, test_labels = index_classes(train_labels, test_labels)
    return train_features, train_labels, test_features, test_labels


def index_classes(*labels: np.ndarray) -> list[np.ndarray]:
    """Labels as their places among the classes of the first ones: what they size is as small as there are classes."""
    classes = np.unique(labels[0])
    return [np.searchsorted(classes, each) for each in labels]


def check_classes(
    train_labels: ArrayLike, test_labels: ArrayLike, names: tuple[str, str] = ("train", "test")
) -> None:
    """Checks that there are two classes to learn, and that every class to be scored can be learnt.

    Raises:
        ValueError: if the training labels are all one class, or lack a class of the others.
    """
    known = np.unique(train_labels)
    if len(known) < 2:
        raise ValueError(f"The {names[0]} labels hold one class only ({known[0]}); at least two are needed.")
    unknown = np.setdiff1d(test_labels, known)
    if len(unknown):
        raise ValueError(
            f"The {names[1]} labels hold classes that the {names[0]} labels lack: {unknown[:10].tolist()}"
            f"{' ...' if len(unknown) > 10 else ''}."
        )
