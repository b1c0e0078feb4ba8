"""What `SSLHSIC.fit` accepts as a batch, and the checks that come before training."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.data import from_arrays


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


def as_dataset(x: Any, y: Any, batch_size: int, seed: int, epoch: int) -> Any:
    """What `fit` trains on from `epoch` on: a dataset as it is; an array, or a dict of arrays, as an endless dataset."""
    if isinstance(x, dict) and isinstance(x.get("image"), np.ndarray):
        x, y = x["image"], x.get("label", y)
    if isinstance(x, list):
        raise ValueError(
            "Images must be one uint8 array [N, H, W, C], a dict with one, or a dataset, got a list: np.stack(images)."
        )
    if isinstance(x, np.ndarray):
        return from_arrays(x, y, batch_size=batch_size, seed=seed, start=(epoch, 0))
    return x


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


def check(
    dataset: Any, num_replicas: int, wanted: tuple[int | None, int | None, int], view_size: int
) -> None:
    """Raises a ValueError for batches that training would fail on, or would silently mistreat.

    Args:
        dataset: what `fit` trains on; anything that has no `element_spec` is not looked at.
        num_replicas: replicas that share a batch.
        wanted: (height, width, channels) that the encoder reads; None in a place is free.
        view_size: side of the views that are made of images; crops are taken as they are.
    """
    spec = getattr(dataset, "element_spec", None)
    if spec is None or isinstance(dataset, tf.distribute.DistributedDataset):
        return
    images, _ = unpack(spec)
    crops = isinstance(images, tuple)
    for image in images if crops else (images,):
        _check_images(image, crops)
        _check_views(image.shape[1:] if crops else (view_size, view_size, image.shape[-1]), wanted)
        batch = image.shape[0]
        if batch is None:
            raise ValueError(
                "The batch size is not known before training, but HSIC is a statistic of the whole batch and its shapes are "
                "static: make batches with dataset.batch(size, drop_remainder=True)."
            )
        if batch % num_replicas:
            raise ValueError(
                f"The global batch of {batch} images cannot be shared by {num_replicas} replicas: make it a multiple of "
                f"{num_replicas}, for example {batch - batch % num_replicas or num_replicas}."
            )


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


def _check_views(given, wanted):
    if all(None in pair or pair[0] == pair[1] for pair in zip(given, wanted, strict=True)):
        return
    height, width, channels = given
    advice = f"build it with input_shape=({height}, {width}, {channels})"
    if (channels, wanted[-1]) == (1, 3):
        advice += ", or repeat the channel of the images: np.repeat(images, 3, axis=-1)"
    elif channels == wanted[-1]:
        advice += f", or give views of its size, for example views.byol({wanted[0]})"
    shapes = (" x ".join("any" if n is None else str(n) for n in shape) for shape in (wanted, given))
    raise ValueError("The encoder reads images of {}, and the views are {}: {}.".format(*shapes, advice))
