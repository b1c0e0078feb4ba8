"""Images from arrays in memory, or mapped into it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.data.images import Images, Read, digest, part, spread
from keras_sslhsic.data.order import Order

_DIGESTED = 2**28  # bytes


def check_images(x: np.ndarray) -> None:
    """Raises ValueError, saying how to convert, unless `x` is uint8 [N, H, W, C] in [0, 255], N > 0."""
    if not x.size:
        raise ValueError(
            f"Expected images [N, H, W, C], found none: the array has the shape {list(x.shape)}."
        )
    if x.dtype != np.uint8:
        raise ValueError(f"Images must be uint8 in [0, 255], found {x.dtype}{_conversion(x)}.")
    if x.ndim != 4:
        hint = ""
        if x.ndim == 3:
            one = " (or give one image as x[np.newaxis])" if x.shape[-1] in (3, 4) else ""
            hint = f": add the channel axis with x[..., np.newaxis]{one}"
        raise ValueError(f"Images must have the shape [N, H, W, C], found {list(x.shape)}{hint}.")
    if x.shape[-1] > 4 and x.shape[1] <= 4:
        raise ValueError(
            f"Images must have the shape [N, H, W, C], found {list(x.shape)}, channels first: pass np.moveaxis(x, 1, -1)."
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
            f"Labels must have the shape [{num_examples}], one for each image, found {list(y.shape)}{hint}."
        )
    if y.dtype.kind not in "iu":
        names = y.dtype.kind in "USO"
        convert = "np.unique(y, return_inverse=True)[1]" if names else "y.astype(np.int64)"
        raise ValueError(f"Labels must be integers, found {y.dtype}: convert them with {convert}.")
    if y.size and y.min() < 0:
        raise ValueError(f"Labels must not be negative, found {y.min()}: number the classes from 0.")


class ArrayImages(Images):
    """Images in arrays; `np.load(path, mmap_mode="r")` serves for more than fits into memory.

        (x, y), _ = keras_sslhsic.data.bundled.load()
        model.fit(keras_sslhsic.data.from_arrays(x, y, batch_size=128), epochs=10)

    Args:
        x: images, uint8 [N, H, W, C] in [0, 255].
        y: labels, integers [N], or None.
        batch_size: examples in a batch.
        class_names: of the labels, or None.
        **order: `seed=0`, `shuffle=True`, `drop_remainder=True`: see `keras_sslhsic.data.Order`.

    Raises:
        ValueError: the images are not uint8 [N, H, W, C], the labels are not integers [N] or have no name, or there are fewer
            images than one batch.
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int,
        class_names: Sequence[str] | None = None,
        **order: Any,
    ) -> None:
        x = np.asanyarray(x)
        check_images(x)
        self._arrays = {"image": x}
        if y is not None:
            y = np.asarray(y)
            check_labels(y, len(x))
            if class_names is not None and y.max() >= len(class_names):
                raise ValueError(
                    f"The labels go up to {y.max()}, and there are {len(class_names)} class_names: name the classes 0 to "
                    f"{y.max()}, or number those that there are with np.unique(y, return_inverse=True)[1]."
                )
            self._arrays["label"] = y.astype(np.int64)
        columns = {
            name: tf.TensorSpec(column.shape[1:], column.dtype) for name, column in self._arrays.items()
        }
        super().__init__(Order(len(x), batch_size, **order), columns, class_names)

    def sample(self, n: int) -> np.ndarray:
        return self._arrays["image"][spread(self.num_examples, n)]

    def digest(self) -> str:
        """Of labels and pixels; of more than 256 MiB, those of images spread over all."""
        parts: list[Any] = []
        for name, column in self._arrays.items():
            rows = max(1, _DIGESTED // (column.nbytes // len(column)))
            few = column if rows >= len(column) else column[spread(len(column), rows)]
            parts += [f"{name} {column.dtype} {column.shape}", few]
        return digest(*parts)

    def _reading(
        self, epoch: int, step: int, epochs: int | None, share: tuple[int, int]
    ) -> tuple[tf.data.Dataset, Read]:
        # By a Python function, since TensorFlow would copy the whole array, and its graphs end at 2 GiB.
        def read(_: np.ndarray, examples: np.ndarray) -> dict[str, np.ndarray]:
            rows = examples[part(len(examples), share)]
            return {name: column[rows] for name, column in self._arrays.items()}

        return self.order.batches(epoch, step, epochs), read


from_arrays = ArrayImages
