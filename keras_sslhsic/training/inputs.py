"""The checks of images that come before training, evaluation and features."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from keras_sslhsic.data.arrays import check_crops, check_labels
from keras_sslhsic.data.images import Images, unpack
from keras_sslhsic.encoders import check_images
from keras_sslhsic.training.streams import STREAMS, check_array, first_batch, flat
from keras_sslhsic.views import ViewPolicy
from keras_sslhsic.views import policy as views

Sides: TypeAlias = tuple[int | None, int | None, int | None]  # height, width, channels; None is free
_REPEAT = "repeat the channel of the images, np.repeat(images, 3, axis=-1)"
ANY: Sides = (None, None, None)


def check(
    x: Any, num_replicas: int, wanted: Sides, policy: ViewPolicy, training: bool = True, chunks: int = 1
) -> None:
    """Raises a ValueError for batches that training would fail on, or would silently mistreat, by their spec.

    Args:
        x: what `streams.given` returns.
        num_replicas: replicas that share a batch.
        wanted: (height, width, channels) that the encoder reads; None in a place is free.
        policy: of the views that are made of images; crops keep their size.
        training: whether batches have to be of one size that all replicas share; else they only have to be measurable.
        chunks: parts of each replica's share.
    """
    if isinstance(x, tf.distribute.DistributedDataset):
        return
    images, labels = unpack(x.element_spec)
    crops = isinstance(images, tuple)
    if isinstance(labels, tf.TensorSpec) and (labels.shape.rank or 0) > 2:
        raise ValueError(
            f"Expected labels [B] beside the images, found {labels.shape}: crops that are ready-made have names, "
            "{'view1': one, 'view2': other}."
        )
    if not crops and views.are_none(policy):
        raise ValueError(
            "The model has views=None, for crops that are ready-made, {'view1': one, 'view2': other}, and was given images, "
            "all views of which would be the same: make it with views, such as views='byol'."
        )
    for image in flat(images):
        if isinstance(image, tf.TensorSpec) and image.shape.rank != 4:
            raise ValueError(
                f"Images must be batches [B, H, W, C], found the shape {image.shape}. One-channel images need their last axis: "
                "images[..., None]; a dataset must be batched before."
            )
        check_images(image, ANY)
        if image.shape[1] == wanted[-1] != image.shape[-1]:
            raise ValueError(
                f"Expected images [B, H, W, C], found {image.shape}, channels first: give np.moveaxis(images, 1, -1)."
            )
        if not crops and None in image.shape[1:3]:
            raise ValueError(
                f"Expected images of a size that is known before, found {image.shape}: give from_folder or from_tfds an "
                "image_size, or set the shape in a map of the dataset."
            )
        for side in dict(policy.crops):
            size = image.shape[1:3] if crops else (side, side)
            _check_views((*size, image.shape[-1]), wanted, len(policy.mean))
        if training:
            _check_batch(image.shape[0], num_replicas)
            _check_parts(image.shape[0], num_replicas, chunks)


def check_growing(x: Any, wanted: Sides, policy: ViewPolicy, sizes: Sequence[int], epochs: int) -> None:
    """Raises a ValueError for views that cannot grow over the sizes of a `callbacks.ViewSizes`.

    Args:
        x: what `streams.given` returns.
        wanted: (height, width, channels) that the encoder reads; None in a place is free.
        policy: of the views.
        sizes: from small to large.
        epochs: of the training.
    """
    if not isinstance(x, tf.distribute.DistributedDataset) and isinstance(unpack(x.element_spec)[0], tuple):
        reason = "the images come as crops that are ready-made. Leave out host_crops, or the sizes"
    elif policy.local.count:
        reason = f"they have two sizes, {policy.size} and {policy.local.size} pixels. Leave out the sizes"
    elif None not in wanted[:2]:
        reason = f"the encoder reads {wanted[0]} x {wanted[1]} alone. Build it with input_shape=(None, None, {wanted[2]})"
    elif sizes[-1] != policy.size:
        reason = f"the last has to be the size of the views, {policy.size}. Give that"
    elif len(sizes) > epochs:
        reason = f"each wants an epoch, and there are {epochs}. Give fewer sizes"
    else:
        return
    raise ValueError(f"Views cannot grow over the sizes {', '.join(map(str, sizes))}: {reason}.")


def of_size_given(x: Any, policy: ViewPolicy) -> ViewPolicy:
    """The policy with the size of crops that are given ready-made, if they are squares: what the encoder is trained at."""
    images = None if isinstance(x, tf.distribute.DistributedDataset) else unpack(x.element_spec)[0]
    if not isinstance(images, tuple) or images[0].shape[1] != images[0].shape[2]:
        return policy
    return dataclasses.replace(policy, size=images[0].shape[1] or policy.size)


def aliasing(images: tf.TensorSpec, policy: ViewPolicy) -> str | None:
    """What to warn of where views are so much smaller than images that shrinking skips pixels; else None."""
    height, width = images.shape[1:3]
    # A bicubic kernel is four pixels wide.
    if policy.crop.antialias or min(height, width) * policy.crop.area[1] ** 0.5 <= 2 * policy.size:
        return None
    return (
        f"Images of {height} x {width} pixels are shrunk to views of {policy.size} without antialiasing, which skips pixels: "
        f"read them at about {round(policy.size * 8 / 7)} pixels (image_size), or set crop.antialias=True in the views."
    )


def _check_batch(batch: int | None, num_replicas: int) -> None:
    if batch is None:
        raise ValueError(
            "The batch size is not known before training, but a loss of views is that of a whole batch, and shapes are "
            "static: make batches with dataset.batch(size, drop_remainder=True), or dataset.rebatch(size, "
            "drop_remainder=True).repeat() with steps_per_epoch in fit."
        )
    if batch < 2:
        raise ValueError(
            f"A batch of {batch} image: HSIC tells the images of a batch from each other, so it needs at least 2. Use a "
            "larger batch_size."
        )
    if batch % num_replicas:
        raise ValueError(
            f"The global batch of {batch} images cannot be shared by {num_replicas} replicas: make it a multiple of "
            f"{num_replicas}, for example {batch - batch % num_replicas or num_replicas}."
        )


def _check_parts(batch: int, num_replicas: int, chunks: int) -> None:
    share = batch // num_replicas
    if share % chunks or (chunks > 1 and share // chunks < 2):
        raise ValueError(
            f"The {share} images{' of a replica' if num_replicas > 1 else ''} cannot be trained on in chunks={chunks}, which "
            "have to be equal and of at least 2 images: choose a divisor, or another batch_size."
        )


def look(x: Any, wanted: Sides = ANY, least: int = 1, num_classes: int | None = None) -> None:
    """Raises a ValueError for what labels that are known show, and the first batch, where it has to be read.

    Args:
        x: what `streams.given` returns.
        wanted: (height, width, channels) of images.
        least: images that a batch needs.
        num_classes: that labels are of; None: labels are not used.
    """
    if isinstance(x, tf.distribute.DistributedDataset):
        return
    batch = first_batch(x, num_classes is not None)
    images, classes = unpack(x.element_spec if batch is None else batch)
    for image in flat(images) if batch is not None else ():
        if isinstance(images, tuple):
            check_crops(np.asarray(image))
        else:
            check_images(image, wanted)
    found = min(x.num_examples, x.batch_size) if isinstance(x, Images) else flat(images)[0].shape[0]
    if found < least:
        raise ValueError(f"Expected at least {least} images in a batch, found {found}.")
    known = x.labels if isinstance(x, Images) else None
    if batch is not None and num_classes is not None and classes is not None:
        known = check_labels(classes, found)
    if num_classes is not None and known is not None and known.max() >= num_classes:
        raise ValueError(
            f"Labels must be below num_classes, {num_classes}, found {known.max()}: number the classes from 0, build the model "
            "with more of them, or train without labels."
        )


def check_call(images: Any, wanted: Sides) -> None:
    """Raises a ValueError for images that a trained model would fail on, or would give wrong features of.

    Args:
        images: array or tensor, uint8 or float in [0, 255]; or a dict with one; or the spec of such a batch.
        wanted: (height, width, channels) that the encoder reads; None in a place is free.
    """
    if isinstance(images, dict) and images:
        images, _ = unpack(images)
    if isinstance(images, tuple):
        raise ValueError(
            "Features are those of images, and crops are views to train on: give {'image': images}."
        )
    if isinstance(images, STREAMS):
        raise ValueError(
            f"A model is called on one batch of images, found a {type(images).__name__}: use predict."
        )
    if not isinstance(images, tf.TensorSpec):
        check_array(images)
    check_images(images, wanted)


def _fits(given: Sides, wanted: Sides) -> bool:
    return all(None in pair or pair[0] == pair[1] for pair in zip(given, wanted, strict=True))


def _check_views(given: Sides, wanted: Sides, normalised: int) -> None:
    height, width, channels = given
    if _fits(given, wanted):
        if channels not in (None, normalised):
            raise ValueError(
                f"The images have {channels} channels, and the mean and std of the views {normalised}: "
                f"{_read_with(normalised)}, or give the views a mean and std of {channels} numbers."
            )
        return
    advice = f"build it with input_shape=({height}, {width}, {channels})"
    if channels != wanted[-1] == normalised:
        advice += f" and give it views whose mean and std have as many numbers as the images have channels ({channels})"
    if channels == wanted[-1]:
        advice += f", or give views of its size, for example views.byol({wanted[0]})"
    else:
        advice += f", or {_read_with(wanted[-1])}"
    if (channels, wanted[-1]) == (1, 3):
        advice += f", or {_REPEAT}"
    shapes = (" x ".join("any" if n is None else str(n) for n in shape) for shape in (wanted, given))
    raise ValueError("The encoder reads images of {}, and the views are {}: {}.".format(*shapes, advice))


def _read_with(channels: int | None) -> str:
    return f"read the images with channels={channels} (channels: {channels} in the data of a config)"
