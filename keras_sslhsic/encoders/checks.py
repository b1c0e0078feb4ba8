"""The one check of the images that are given to an encoder."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


def check_images(images: Any, shape: Sequence[int | None]) -> None:
    """Checks a batch of images, uint8 or float in [0, 255].

    Values are looked at where they are known: not within a graph, and not those of a spec.

    Args:
        images: array, tensor or tf.TensorSpec [B, H, W, C].
        shape: (height, width, channels) that they must have; None in a place is free.

    Raises:
        ValueError: for something else than an array, another shape, an empty batch, or values that are no real numbers,
            NaN or Inf.

    Warns:
        UserWarning: where floats seem to lie in [0, 1] or [-1, 1].
    """
    try:
        dtype, found = tf.as_dtype(images.dtype), tf.TensorShape(images.shape)
    except AttributeError:
        raise ValueError(
            f"Expected an array of images [B, H, W, C], found a {type(images).__name__}: np.stack(images)."
        ) from None
    if not (dtype.is_floating or dtype.is_integer):
        raise ValueError(f"Expected images of uint8, or of floats in [0, 255], found {dtype.name}.")
    if not found.is_compatible_with([None, *shape]):
        sides = (name if side is None else str(side) for name, side in zip("HWC", shape, strict=True))
        raise ValueError(
            f"Expected images [B, {', '.join(sides)}], found shape {found.as_list()}.{_hint(tuple(found), shape)}"
        )
    if found.rank is not None and 0 in found.as_list():
        raise ValueError(f"The batch of images is empty: shape {found.as_list()}.")
    if not dtype.is_floating or isinstance(images, tf.TensorSpec) or not tf.executing_eagerly():
        return
    low, high = float(np.min(images)), float(np.max(images))
    if not np.isfinite([low, high]).all():  # NaN and Inf reach the extremes
        raise ValueError("The images hold NaN or Inf.")
    if low >= -1 and 0 < high <= 1:
        warnings.warn(
            f"The images lie in [{low:.3g}, {high:.3g}], but the encoder expects [0, 255]: multiply by 255.",
            stacklevel=3,
        )


def labelled_batch(batch: Any) -> tuple[Any, Any]:
    """Splits a batch, or its spec, into images and labels (None without).

    Raises:
        ValueError: if a dict has no "image".
    """
    if isinstance(batch, dict):
        if "image" not in batch:
            raise ValueError(f"A batch must hold 'image', found the keys {sorted(batch)}.")
        return batch["image"], batch.get("label")
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def _hint(found: tuple[int | None, ...], shape: Sequence[int | None]) -> str:
    if len(found) == 3 and found[-1] == shape[-1]:
        return " For a single image add a batch axis: image[None]."
    if len(found) == 4 and found[-1] == 1 and shape[-1] == 3:
        return " For grayscale images repeat the channel: np.repeat(images, 3, axis=-1)."
    if len(found) == 4 and found[-1] == 4 and shape[-1] == 3:
        return " Drop the alpha channel: images[..., :3]."
    if len(found) == 4 and None not in shape[:2] and found[1:3] != tuple(shape[:2]):
        return " Resize the images, or build the encoder for this size."
    return ""
