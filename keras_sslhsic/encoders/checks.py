"""The one check of the images that are given to an encoder."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.data.images import Images, unpack
from keras_sslhsic.words import warn

_OF_CLASSES = (keras.activations.softmax, keras.activations.sigmoid)
_NO_ARRAYS = (tf.RaggedTensor, tf.RaggedTensorSpec, tf.SparseTensor, tf.SparseTensorSpec)


def check_images(images: Any, shape: Sequence[int | None]) -> None:
    """Checks a batch of images: real numbers in [0, 255].

    Values are looked at where they are known: not within a graph, and not those of a spec. One image in [0, 1] may be a
    dark one, of which there is a warning; several are taken for images of another range.

    Args:
        images: array, tensor or tf.TensorSpec [B, H, W, C].
        shape: (height, width, channels) that they must have; None in a place is free.

    Raises:
        ValueError: for something else than an array, another shape, an empty batch; or values that are no real numbers,
            NaN or Inf, below 0, above 255 (images of 16 bits), or of several images in [0, 1].

    Warns:
        UserWarning: where one image lies in [0, 1].
    """
    try:
        dtype, found = tf.as_dtype(images.dtype), tf.TensorShape(images.shape)
    except (AttributeError, TypeError):
        dtype = None
    if dtype is None or isinstance(images, _NO_ARRAYS):
        advice = ""
        if isinstance(images, list | tuple):
            advice = ": np.stack(images)"
        elif isinstance(images, Mapping | Images):
            advice = ": give it to keras_sslhsic.evaluation.extract_features"
        elif isinstance(images, Iterable) and not isinstance(images, (str, *_NO_ARRAYS)):
            advice = ": give a generator of its batches, NumPy arrays in [0, 255]"
        raise ValueError(
            f"Expected an array of images [B, H, W, C], found a {type(images).__name__}{advice}."
        )
    if not (dtype.is_floating or dtype.is_integer):
        found_dtype = getattr(images.dtype, "name", images.dtype)  # TensorFlow takes objects for strings
        raise ValueError(f"Expected images of uint8, or of floats in [0, 255], found {found_dtype}.")
    if not found.is_compatible_with([None, *shape]):
        shown = found if found.rank is None else found.as_list()
        sides = (name if side is None else str(side) for name, side in zip("HWC", shape, strict=True))
        raise ValueError(
            f"Expected images [B, {', '.join(sides)}], found shape {shown}.{_hint(tuple(found), shape)}"
        )
    if found.rank is not None and 0 in found.as_list():
        raise ValueError(f"The batch of images is empty: shape {found.as_list()}.")
    if dtype != tf.uint8 and not isinstance(images, tf.TensorSpec) and tf.executing_eagerly():
        _check_range(images)


def _check_range(images: Any) -> None:
    low, high = float(np.min(images)), float(np.max(images))
    if not np.isfinite([low, high]).all():  # NaN and Inf reach the extremes
        raise ValueError("The images hold NaN or Inf.")
    found = f"The images lie in [{low:.3g}, {high:.3g}], but the encoder expects [0, 255]"
    if not (low >= 0 and high <= 255):
        advice = "undo what normalised them"
        if low >= -1 and high <= 1:
            advice = "give 127.5 * (images + 1)"
        elif low >= 0 and tf.as_dtype(images.dtype).is_integer:
            advice = "divide those of 16 bits by 257"
        raise ValueError(f"{found}: {advice}.")
    if 0 < high <= 1:
        if images.shape[0] > 1:
            raise ValueError(f"{found}: multiply by 255.")
        warn(f"{found}: multiply by 255, unless it is that dark.")


def check_dataset(dataset: tf.data.Dataset, shape: Sequence[int | None], endless: bool = False) -> None:
    """Checks the shapes of a dataset's images.

    Raises:
        ValueError: as `check_images`; for a dataset without batches, or without end, unless it may be `endless`.
    """
    if not endless and dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise ValueError("The dataset is infinite: take a finite part of it, or build it without repeating.")
    if dataset.cardinality() == 0:
        raise ValueError("Expected batches of images, found none: the dataset is empty.")
    check_images(unpack(dataset.element_spec)[0], shape)


def check_given(x: Any, shape: Sequence[int | None], endless: bool = False) -> None:
    """Checks what `predict` is given: arrays as `check_images`; a dataset as `check_dataset`, and where its images are no
    uint8, and of a keras.utils.PyDataset, the first batch. A generator cannot be looked at.

    Raises:
        ValueError: as both.
    """
    if isinstance(x, tf.data.Dataset):
        check_dataset(x, shape, endless)
        for batch in x.take(1) if unpack(x.element_spec)[0].dtype != tf.uint8 else ():
            check_images(unpack(batch)[0], shape)
    elif isinstance(x, keras.utils.PyDataset):
        check_images(unpack(x[0])[0], shape)
    elif not isinstance(x, Iterator):
        check_images(x, shape)


def check_network(encoder: Any) -> None:
    """Raises a ValueError for what is no network from images [B, H, W, C] to features [B, F]."""
    advice = 'make one with keras_sslhsic.build_encoder("r50_1x")'
    if not isinstance(encoder, keras.Model):
        raise ValueError(f"encoder must be a keras.Model, found {encoder!r:.80}: {advice}.")
    if hasattr(encoder, "serving_encoder"):
        raise ValueError(
            f"The {type(encoder).__name__} trains an encoder: give the encoder alone, model.encoder."
        )
    if (output := compat.output_of(encoder)) is None:
        raise ValueError(
            f"encoder must be a functional or sequential keras.Model that begins with keras.Input((H, W, C)), found the "
            f"{type(encoder).__name__} {encoder.name!r}: call it on such an input, or {advice}."
        )
    reads, pooling = encoder.input_shape, ""
    gives = keras.tree.map_structure(lambda tensor: list(tensor.shape), output)
    one = isinstance(reads, tuple) and len(reads) == 4 and keras.utils.is_keras_tensor(output)
    if not one or len(gives) != 2 or None in (reads[3], gives[1]):
        if one and len(gives) == 4:
            pooling = ": end it with keras.layers.GlobalAveragePooling2D()"
        raise ValueError(
            f"encoder must map one batch of images [B, H, W, C] to features [B, F], found {list(reads)} and {gives}{pooling}."
        )
    if not tf.as_dtype(dtype := encoder.inputs[0].dtype).is_floating:
        raise ValueError(
            f"encoder must read floats, which views and normalised images are, found {dtype}: begin it with "
            f"keras.Input({tuple(reads[1:])}), which takes uint8 too."
        )


def warn_of_top(encoder: keras.Model) -> None:
    """Warns of a network to train whose last layer gives probabilities of classes, not features."""
    last = compat.layer_before(compat.output_of(encoder))
    if isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) in _OF_CLASSES:
        warn(
            f"The encoder ends in {last.name!r}, probabilities of {encoder.output_shape[-1]} classes, "
            "for features: leave a classifier's top away, as keras.applications does with include_top=False, pooling='avg'; in "
            "the place of what `evaluate finetune --save-to` wrote, give the encoder that it was made of."
        )


def _hint(found: tuple[int | None, ...], shape: Sequence[int | None]) -> str:
    if len(found) == 3 and found[-1] == shape[-1]:
        return " For a single image add a batch axis: image[None]."
    if len(found) == 4 and found[-1] == 1 and shape[-1] == 3:
        return " For grayscale images repeat the channel: np.repeat(images, 3, axis=-1)."
    if len(found) == 4 and found[-1] == 4 and shape[-1] == 3:
        return " Drop the alpha channel: images[..., :3]."
    if len(found) == 4 and shape[-1] is not None and found[1] == shape[-1] != found[-1]:
        return " Channels come last: np.moveaxis(images, 1, -1)."
    if len(found) == 4 and None not in shape[:2] and found[1:3] != tuple(shape[:2]):
        return " Resize the images, or build the encoder for this size."
    return ""
