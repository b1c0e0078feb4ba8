"""What `fit` of a trainer accepts as a batch, and the checks that come before training."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_sslhsic.data import from_arrays
from keras_sslhsic.encoders.base import check_images
from keras_sslhsic.views import ViewPolicy

_REPEAT = "repeat the channel of the images, np.repeat(images, 3, axis=-1)"


def unpack(data: Any) -> tuple[Any, Any]:
    """Splits a batch, or the `element_spec` of one, into images and labels.

    Args:
        data: {"image"} or {"view1", "view2", ...}, optionally with "label"; or images; or (images, labels).

    Returns:
        (images [B, H, W, C] or a tuple of crops [B, S, S, C], labels int [B] or None).

    Raises:
        ValueError: if a dict holds no images.
    """
    if isinstance(data, (tuple, list)):
        labels = data[1] if len(data) > 1 else None
        images, own_labels = unpack(data[0])
        return images, own_labels if labels is None else labels
    if not isinstance(data, dict):
        return data, None
    if "image" in data:
        return data["image"], data.get("label")
    crops = tuple(data[key] for key in sorted(k for k in data if k.startswith("view")))
    if not crops:
        raise ValueError(
            f"A batch must hold 'image', or crops 'view1', 'view2', ...; it holds {sorted(data)}. Rename the key of the images."
        )
    return crops, data.get("label")


class TrainingData(NamedTuple):
    """What `fit` trains on.

    Attributes:
        dataset: of batches, from the asked epoch on.
        steps_per_epoch: None where it is not known, or the dataset ends by itself.
        num_images: None where it is not known.
        element_spec: of a batch; None where it is not known.
        exact: whether the batches are those of that epoch; else they are those of the dataset's own beginning.
    """

    dataset: Any
    steps_per_epoch: int | None
    num_images: int | None
    element_spec: Any
    exact: bool


def training_data(
    x: Any, y: Any, batch_size: int, seed: int, epoch: int, strategy: tf.distribute.Strategy
) -> TrainingData:
    """What `fit(x, y)` trains on from `epoch` on."""
    dataset = as_dataset(x, y, batch_size, seed, epoch)
    spec = getattr(dataset, "element_spec", None)
    steps, images = (getattr(dataset, name, None) for name in ("steps_per_epoch", "num_examples"))
    return TrainingData(share(finite(dataset)), steps, images, spec, exact=dataset is not x)


def unit_range(images: Any) -> tf.Tensor:
    """Images that are not crops, uint8 or float in [0, 255], as the views take them: uint8, or float in [0, 1]."""
    images = tf.convert_to_tensor(images)
    return images if images.dtype == tf.uint8 else tf.cast(images, tf.float32) / 255.0


def as_dataset(x: Any, y: Any, batch_size: int, seed: int, epoch: int) -> Any:
    """What `fit` trains on from `epoch` on: a dataset as it is; an array, or a dict of arrays, as an endless dataset."""
    check_form(x)
    if isinstance(x, dict) and isinstance(x.get("image"), (np.ndarray, tf.Tensor)):
        x, y = x["image"], x.get("label", y)
    if isinstance(x, (np.ndarray, tf.Tensor)):
        if np.ndim(y) == 2 and np.shape(y)[1] == 1:  # as Keras's own data sets have them
            y = np.reshape(y, [-1])
        return from_arrays(x, y, batch_size=batch_size, seed=seed, start=(epoch, 0))
    return x


def check_form(x: Any) -> None:
    """Raises a ValueError for what Keras would take for something else than images, or fail on without a reason."""
    images = x.get("image", x) if isinstance(x, dict) else x
    if images is None or isinstance(images, list) or (isinstance(images, dict) and not images):
        found = "a list: np.stack(images)" if isinstance(images, list) else images
        raise ValueError(
            f"Images must be one uint8 array [N, H, W, C], a dict with one, or a dataset, got {found}."
        )


def share(dataset: Any) -> Any:
    """Has a strategy of several workers give each of them its own part of every global batch.

    TensorFlow would divide the files instead where it finds some, and then batches are not those of one machine. A
    data set whose options name a way of sharding keeps it.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return dataset
    policy = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    if dataset.options().experimental_distribute.auto_shard_policy == policy.AUTO:
        options.experimental_distribute.auto_shard_policy = policy.DATA
    return dataset.with_options(options)


def finite(dataset: Any) -> Any:
    """The same batches, float crops looked at before a step trains on them: one NaN would spoil every weight.

    Raises:
        ValueError: if crops that are arrays hold NaN or infinities. A data set raises InvalidArgumentError at the batch.
    """
    message = "The crops hold NaN or infinite values: find out where they come from"
    if isinstance(dataset, dict):
        crops = unpack(dataset)[0]
        if isinstance(crops, tuple) and not all(np.isfinite(crop).all() for crop in crops):
            raise ValueError(f"{message}.")
    if not isinstance(dataset, tf.data.Dataset):
        return dataset

    def is_float(tensor):
        return getattr(tensor, "dtype", tf.uint8).is_floating

    def looked_at(*batch):
        batch = tf.nest.map_structure(
            lambda x: tf.debugging.check_numerics(x, message) if is_float(x) else x, batch
        )
        return batch if len(batch) > 1 else batch[0]

    if not any(map(is_float, tf.nest.flatten(dataset.element_spec))):
        return dataset
    return dataset.map(looked_at, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def check(
    dataset: Any, num_replicas: int, wanted: tuple[int | None, int | None, int], policy: ViewPolicy
) -> None:
    """Raises a ValueError for batches that training would fail on, or would silently mistreat.

    Args:
        dataset: what `fit` trains on; anything that has no `element_spec` is not looked at.
        num_replicas: replicas that share a batch.
        wanted: (height, width, channels) that the encoder reads; None in a place is free.
        policy: of the views that are made of images; crops keep their size.
    """
    spec = getattr(dataset, "element_spec", None)
    if spec is None or isinstance(dataset, tf.distribute.DistributedDataset):
        return
    images, _ = unpack(spec)
    crops = isinstance(images, tuple)
    for image in images if crops else (images,):
        _check_images(image, crops)
        size = image.shape[1:3] if crops else (policy.size, policy.size)
        _check_views((*size, image.shape[-1]), wanted, len(policy.mean))
        batch = image.shape[0]
        if batch is None:
            raise ValueError(
                "The batch size is not known before training, but HSIC is a statistic of the whole batch and its shapes are "
                "static: make batches with dataset.batch(size, drop_remainder=True)."
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
    if crops and images[0].dtype != tf.uint8:
        for image in unpack(next(iter(dataset)))[0]:
            _check_range(image)


def check_given(
    x: Any, wanted: tuple[int | None, int | None, int], least: int = 1, crops: bool = False
) -> None:
    """As `check_call`, of what `predict` and `evaluate` take: of a dataset the shape, and of floats the first batch."""
    check_form(x)
    if isinstance(x, tf.data.Dataset):
        images, _ = unpack(x.element_spec)
        if not isinstance(images, tuple) and images.shape.rank is not None:
            _check_shape(images.shape.as_list(), wanted)
            if images.dtype != tf.uint8:
                for batch in x.take(1):
                    check_images(unpack(batch)[0], wanted)
    elif isinstance(x, (np.ndarray, tf.Tensor, dict)) and not (crops and isinstance(unpack(x)[0], tuple)):
        check_call(x, wanted, least)


def check_call(images: Any, wanted: tuple[int | None, int | None, int], least: int = 1) -> None:
    """Raises a ValueError for images that a trained model would fail on, or would give wrong features of.

    Args:
        images: array or eager tensor, uint8 or float in [0, 255]; or a dict with one.
        wanted: (height, width, channels) that the encoder reads; None in a place is free.
        least: images that are needed.
    """
    check_form(images)
    images, _ = unpack(images)
    if isinstance(images, tuple):
        raise ValueError(
            "Features are those of images, and crops are views to train on: give {'image': images}."
        )
    _check_shape(np.shape(images), wanted)
    if len(images) < least:
        raise ValueError(f"Expected at least {least} image{'s' * (least > 1)}, found {len(images)}.")
    check_images(images, wanted)


def _check_shape(given, wanted):
    given = tuple(given)
    if len(given) != 4 or not _fits(given[1:], wanted):
        sides = (name if side is None else str(side) for name, side in zip("HWC", wanted, strict=True))
        hint = ""
        if len(given) == 3:
            hint = ": for a single image add the batch axis, images[None]"
        elif given[-1:] == (1,) and wanted[-1] == 3:
            hint = f": {_REPEAT}"
        raise ValueError(f"Expected images [B, {', '.join(sides)}], found the shape {list(given)}{hint}.")


def _check_range(images):
    if images.dtype == tf.uint8:
        return
    low, high = float(np.min(images)), float(np.max(images))
    if not np.isfinite([low, high]).all():
        raise ValueError("The crops hold NaN or Inf.")
    if not (low >= -0.5 and high <= 1.5):  # resampling overshoots, by less than this
        raise ValueError(
            f"Crops that are not uint8 must lie in [0, 1], found values from {low:g} to {high:g}: give them as uint8 in "
            "[0, 255], or divide by 255."
        )


def _fits(given, wanted):
    return all(None in pair or pair[0] == pair[1] for pair in zip(given, wanted, strict=True))


def _check_images(image, crops):
    if image.shape.rank != 4:
        raise ValueError(
            f"Images must be batches [B, H, W, C], got shape {image.shape}. One-channel images need their last axis: "
            "images[..., None]; a dataset must be batched before fit."
        )
    if image.dtype != tf.uint8 and not crops:
        raise ValueError(
            f"Images must be uint8 in [0, 255], got {image.dtype.name}. If they are floats in [0, 1], convert them with "
            "(255 * images).round().astype('uint8')."
        )


def _check_views(given, wanted, normalised):
    height, width, channels = given
    if _fits(given, wanted):
        if channels not in (None, normalised):
            raise ValueError(
                f"The images have {channels} channels, and the mean and std of the views {normalised}: "
                f"{_read_with(normalised)}, or give the views a mean and std of {channels} numbers."
            )
        return
    advice = f"build it with input_shape=({height}, {width}, {channels})"
    if channels == wanted[-1]:
        advice += f", or give views of its size, for example views.byol({wanted[0]})"
    else:
        advice += f", or {_read_with(wanted[-1])}"
    if (channels, wanted[-1]) == (1, 3):
        advice += f", or {_REPEAT}"
    shapes = (" x ".join("any" if n is None else str(n) for n in shape) for shape in (wanted, given))
    raise ValueError("The encoder reads images of {}, and the views are {}: {}.".format(*shapes, advice))


def _read_with(channels):
    return f"read the images with channels={channels} (channels: {channels} in the data of a config)"
