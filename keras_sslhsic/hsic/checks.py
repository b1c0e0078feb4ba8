"""Checks of shapes, with errors that state what was found."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_sslhsic.hsic import replicas


def floats(x: Any, *ranks: int) -> tf.Tensor:
    """A tensor of x.

    Raises:
        ValueError: unless x holds numbers in floating point, in an array of one of these ranks.
    """
    x = tf.convert_to_tensor(x)
    if not x.dtype.is_floating:
        raise ValueError(f"Expected floating-point numbers, found {x.dtype.name}: cast them to float32.")
    if x.shape.rank is not None and (x.shape.rank not in ranks or 0 in x.shape):
        expected = " or ".join(map(str, ranks))
        raise ValueError(
            f"Expected numbers in an array of {expected} dimensions, found the shape {tuple(x.shape)}."
        )
    return x


def check_views(z: tf.Tensor, unbiased: bool = False) -> None:
    """Raises a ValueError unless z is [B, M, Q] with M >= 2, and B >= 2 for an unbiased estimator."""
    shape = tuple(z.shape)
    if len(shape) != 3 or 0 in shape:
        raise ValueError(f"Expected [images B, views M, dimensions], found the shape {shape}.")
    if shape[1] is None or shape[1] < 2:
        raise ValueError(f"At least M = 2 views of each image are needed, found M = {shape[1]} in {shape}.")
    if unbiased and shape[0] == 1 and replicas.num_replicas() == 1:
        raise ValueError(f"The unbiased estimator needs at least B = 2 images, found {shape}.")


def check_labels(z: tf.Tensor, labels: tf.Tensor) -> None:
    """Raises a ValueError unless z is [n, Q] and labels [n]."""
    if z.shape.rank != 2 or labels.shape.rank != 1 or not z.shape[:1].is_compatible_with(labels.shape):
        raise ValueError(f"Expected z [n, Q] and labels [n], found {z.shape} and {labels.shape}.")


def check_samples(n: int | None, unbiased: bool) -> None:
    """Raises a ValueError if n samples a replica are too few for an estimator of HSIC."""
    least = 4 if unbiased else 2
    if n is not None and n * replicas.num_replicas() < least:
        raise ValueError(f"At least n = {least} samples are needed, found n = {n}.")
