"""Batches from arrays in memory, or mapped into it."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.data.order import Order
from keras_sslhsic.data.python_map import map_python


def check_images(x: np.ndarray) -> None:
    """Raises ValueError, saying how to convert, unless `x` is uint8 [N, H, W, C] in [0, 255], N > 0."""
    if not x.size:
        raise ValueError(f"there are no images: the array has the shape {list(x.shape)}")
    if x.dtype != np.uint8:
        raise ValueError(f"images must be uint8 in [0, 255], found {x.dtype}{_conversion(x)}")
    if x.ndim != 4:
        hint = ""
        if x.ndim == 3:
            one = " (or give one image as x[np.newaxis])" if x.shape[-1] in (3, 4) else ""
            hint = f": add the channel axis with x[..., np.newaxis]{one}"
        raise ValueError(f"images must have shape [N, H, W, C], found {list(x.shape)}{hint}")
    if x.shape[-1] > 4 and x.shape[1] <= 4:
        raise ValueError(
            f"images must have shape [N, H, W, C], found {list(x.shape)}, with the channels first: pass np.moveaxis(x, 1, -1)"
        )


def _conversion(x: np.ndarray) -> str:
    """What range images of another type have, and what makes them uint8."""
    if x.dtype.kind not in "iuf":
        return ""
    low, high = x.min(), x.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        return " with NaN or infinite values: find out where they come from"
    if low >= 0 and high <= 1:
        return " in [0, 1]: convert them with np.round(x * 255).astype(np.uint8)"
    scale = "" if low >= 0 and high <= 255 else "scale them to [0, 255] and "
    return f" in [{low:g}, {high:g}]: {scale}convert them with np.round(x).astype(np.uint8)"


def check_labels(y: np.ndarray, num_examples: int) -> None:
    """Raises ValueError unless `y` holds one integer, not negative, for each example."""
    if y.shape != (num_examples,):
        hint = ": pass np.argmax(y, axis=-1)" if y.ndim == 2 and y.shape[1] > 1 else ""
        raise ValueError(
            f"labels must have shape [{num_examples}], one for each image, found {list(y.shape)}{hint}"
        )
    if y.dtype.kind not in "iu":
        names = y.dtype.kind in "USO"
        convert = "np.unique(y, return_inverse=True)[1]" if names else "y.astype(np.int64)"
        raise ValueError(f"labels must be integers, found {y.dtype}: convert them with {convert}")
    if y.size and y.min() < 0:
        raise ValueError(f"labels must not be negative, found {y.min()}")


def from_arrays(x: Any, y: Any = None, *, batch_size: int, **order: Any) -> tf.data.Dataset:
    """Batches of images from arrays; `np.load(path, mmap_mode="r")` serves for more than fits into memory.

        (x, y), _ = keras_sslhsic.data.bundled.load()
        dataset = from_arrays(x, y, batch_size=128, seed=0)
        model.fit(dataset, epochs=10, steps_per_epoch=dataset.steps_per_epoch)

    The stream is infinite unless `epochs` is given, each epoch in an order of its own; started at `(epoch,
    step)` it yields what an uninterrupted run would have seen.

    Args:
        x: images, uint8 [N, H, W, C] in [0, 255].
        y: labels, integers [N], or None.
        batch_size: examples in a batch (of this host).
        **order: `seed=0`, `shuffle=True`, `drop_remainder=True`, `start=(0, 0)`, `epochs=None`, `shard=(0,
            1)`: see `keras_sslhsic.data.Order`.

    Returns:
        A dataset of `{"image": uint8 [B, H, W, C]}`, with `"label": int64 [B]` if `y` is given. Its attribute
        `steps_per_epoch` counts the batches of an epoch, and `num_examples` the images.

    Raises:
        ValueError: the images are not uint8 [N, H, W, C], the labels are not integers [N], or there are fewer
            images than one batch.
    """
    x = np.asanyarray(x)
    check_images(x)
    columns = {"image": x}
    if y is not None:
        y = np.asarray(y)
        check_labels(y, len(x))
        columns["label"] = y.astype(np.int64)
    plan = Order(len(x), batch_size, **order)

    def gather(_: np.ndarray, indices: np.ndarray) -> list[np.ndarray]:
        return [column[indices] for column in columns.values()]

    # By a Python function, since TensorFlow would copy the whole array, and its graphs end at 2 GiB.
    batches = plan.batches()
    size = batches.element_spec[1].shape[0]
    specs = {name: tf.TensorSpec([size, *column.shape[1:]], column.dtype) for name, column in columns.items()}
    dataset = map_python(batches, gather, specs)
    dataset.steps_per_epoch = plan.steps_per_epoch
    dataset.num_examples = plan.num_examples
    return dataset
