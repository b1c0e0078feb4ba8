"""What `fit` trains on, and the checks that come before training."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.data import from_arrays
from keras_sslhsic.data.images import Images, unpack
from keras_sslhsic.encoders import check_images
from keras_sslhsic.views import ViewPolicy

Sides: TypeAlias = tuple[int | None, int | None, int | None]  # height, width, channels; None is free
_REPEAT = "repeat the channel of the images, np.repeat(images, 3, axis=-1)"


class TrainingData(NamedTuple):
    """What `fit` trains on.

    Attributes:
        dataset: for `keras.Model.fit`.
        steps_per_epoch: batches in an epoch; None: as many as there are.
        images: the handle that it comes from, if it is one.
        element_spec: what a batch of all workers holds, None where it is not known.
        exact: whether a fit that goes on from a later epoch sees what an uninterrupted one would have seen.
    """

    dataset: Any
    steps_per_epoch: int | None
    images: Images | None
    element_spec: Any
    exact: bool


def training_data(
    x: Any, y: Any, batch_size: int, seed: int, epoch: int, strategy: tf.distribute.Strategy
) -> TrainingData:
    """What is trained on from an epoch on.

    Args:
        x: `data.Images`; images, uint8 [N, H, W, C], or a dict with them as "image"; a `tf.data.Dataset`, or anything else
            that Keras takes, as it is.
        y: labels of arrays, int [N], or None.
        batch_size: of arrays, over all workers.
        seed: of the order of arrays.
        epoch: the first one.
        strategy: of the model. Of several workers each reads its own part of every batch.

    Raises:
        ValueError: for something else than images, labels beside a handle, or crops with NaN or infinities.
    """
    check_form(x)
    if isinstance(x, dict) and isinstance(x.get("image"), (np.ndarray, tf.Tensor)):
        x, y = x["image"], x.get("label", y)
    if isinstance(x, (np.ndarray, tf.Tensor)):
        if np.ndim(y) == 2 and np.shape(y)[1] == 1:  # as Keras's own data sets have them
            y = np.reshape(y, [-1])
        x, y = from_arrays(x, y, batch_size=batch_size, seed=seed), None
    if not isinstance(x, Images):
        # Arrays of crops come in the same order in every epoch.
        return TrainingData(
            _shared(_finite(x)), None, None, getattr(x, "element_spec", None), isinstance(x, dict)
        )
    if y is not None:
        raise ValueError("Expected labels among the images, found y beside them: give them to the handle.")
    return TrainingData(_batches(x, epoch, strategy), x.steps_per_epoch, x, x.element_spec, True)


def _batches(images: Images, epoch: int, strategy: tf.distribute.Strategy) -> Any:
    """The batches of a handle; of several workers each decodes its own share alone."""
    if not compat.has_workers(strategy):
        return images.batches(epoch)

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = images.batches(epoch, share=(context.input_pipeline_id, context.num_input_pipelines))
        if (replicas := context.num_replicas_in_sync) > context.num_input_pipelines:
            # Every replica takes a batch of its own from the worker's.
            batches = batches.rebatch(images.batch_size // replicas, drop_remainder=True)
        return batches

    return strategy.distribute_datasets_from_function(of_worker)


def unit_range(images: Any) -> tf.Tensor:
    """Images that are not crops, uint8 or float in [0, 255], as the views take them: uint8, or float in [0, 1]."""
    images = tf.convert_to_tensor(images)
    return images if images.dtype == tf.uint8 else tf.cast(images, tf.float32) / 255.0


def check_form(x: Any) -> None:
    """Raises a ValueError for what Keras would take for something else than images, or fail on without a reason."""
    images = x.get("image", x) if isinstance(x, dict) else x
    if images is None or isinstance(images, list) or (isinstance(images, dict) and not images):
        found = "a list: np.stack(images)" if isinstance(images, list) else images
        raise ValueError(
            f"Images must be one uint8 array [N, H, W, C], a dict with one, or a dataset, found {found}."
        )


def _shared(dataset: Any) -> Any:
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


def _finite(dataset: Any) -> Any:
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

    def is_float(tensor: Any) -> bool:
        return getattr(tensor, "dtype", tf.uint8).is_floating

    def looked_at(*batch: Any) -> Any:
        batch = tf.nest.map_structure(
            lambda x: tf.debugging.check_numerics(x, message) if is_float(x) else x, batch
        )
        return batch if len(batch) > 1 else batch[0]

    if not any(map(is_float, tf.nest.flatten(dataset.element_spec))):
        return dataset
    return dataset.map(looked_at, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def check(data: Any, num_replicas: int, wanted: Sides, policy: ViewPolicy) -> None:
    """Raises a ValueError for batches that training would fail on, or would silently mistreat.

    Args:
        data: `data.Images`, `TrainingData` or a dataset; what has no `element_spec` is not looked at.
        num_replicas: replicas that share a batch.
        wanted: (height, width, channels) that the encoder reads; None in a place is free.
        policy: of the views that are made of images; crops keep their size.
    """
    dataset = getattr(data, "dataset", data)
    spec = getattr(data, "element_spec", None)
    if spec is None or (dataset is data and isinstance(data, tf.distribute.DistributedDataset)):
        return
    images, _ = unpack(spec)
    crops = isinstance(images, tuple)
    for image in images if crops else (images,):
        _check_images(image, crops)
        if not crops and None in image.shape[1:3]:
            raise ValueError(
                f"Expected images of a size that is known before training, found {image.shape}: give from_folder or "
                "from_tfds an image_size, or set the shape in a map of the dataset."
            )
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


def check_given(x: Any, wanted: Sides, least: int = 1, crops: bool = False) -> None:
    """Checks what `predict` or `evaluate` is given: arrays as `check_call` does; of a dataset the shape, and where its images
    are floats the first batch. With `crops`, those that are made already are let through.
    """
    check_form(x)
    if isinstance(x, tf.data.Dataset):
        images, _ = unpack(x.element_spec)
        if not isinstance(images, tuple):
            check_images(images, wanted)
            if images.dtype != tf.uint8:
                for batch in x.take(1):
                    check_images(unpack(batch)[0], wanted)
    elif isinstance(x, (np.ndarray, tf.Tensor, dict)) and not (crops and isinstance(unpack(x)[0], tuple)):
        check_call(x, wanted, least)


def check_call(images: Any, wanted: Sides, least: int = 1) -> None:
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
    check_images(images, wanted)
    if len(images) < least:
        raise ValueError(f"Expected at least {least} image{'s' * (least > 1)}, found {len(images)}.")


def _check_range(images: Any) -> None:
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


def _fits(given: Sides, wanted: Sides) -> bool:
    return all(None in pair or pair[0] == pair[1] for pair in zip(given, wanted, strict=True))


def _check_images(image: tf.TensorSpec, crops: bool) -> None:
    if image.shape.rank != 4:
        raise ValueError(
            f"Images must be batches [B, H, W, C], found the shape {image.shape}. One-channel images need their last axis: "
            "images[..., None]; a dataset must be batched before fit."
        )
    if image.dtype != tf.uint8 and not crops:
        raise ValueError(
            f"Images must be uint8 in [0, 255], found {image.dtype.name}. If they are floats in [0, 1], convert them with "
            "(255 * images).round().astype('uint8')."
        )


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
