"""Images with a map each to predict, of classes or of depth; both are changed by one drawn transform."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from keras_sslhsic.data import decode
from keras_sslhsic.evaluation.images import Split

VOID = 255  # of a map of classes: a pixel that does not count
UNKNOWN = 0.0  # of a map of depth
_BORDER = 127  # of an image, beyond its edge


Own = TypeVar("Own", bound="MapSplit")


class Transform(NamedTuple):
    """What is done to an image and to its map.

    Attributes:
        scale: factor on the size.
        y: place of the crop among those that there are, from 0 (top) to 1 (bottom).
        x: likewise, from left to right.
        flip: whether both are mirrored.
    """

    scale: float = 1.0
    y: float = 0.5
    x: float = 0.5
    flip: bool = False

    def apply(
        self, values: np.ndarray, size: tuple[float, float], crop: tuple[int, int], border: float
    ) -> np.ndarray:
        """Scales, cuts and mirrors an image (bilinear) or a map (the nearest pixel).

        Args:
            values: image uint8 [H, W, C], or map uint8 or float32 [H, W].
            size: (height, width) of the whole image before `scale`, which `values` may be stored in another resolution of.
            crop: (height, width) of the result.
            border: what lies beyond the edges.

        Returns:
            [*crop, C] or [*crop].
        """
        import cv2

        is_image = values.ndim == 3
        whole = [self.scale * side for side in size]
        if is_image:
            height, width = (int(side / wanted) for side, wanted in zip(values.shape, whole, strict=False))
            values = decode.averaged(values, (height, width))
        rows = []
        for axis, place in ((1, self.x), (0, self.y)):
            step = values.shape[axis] / whole[axis]
            first = round(place * (whole[axis] - crop[axis]))
            rows.append((step, (first + 0.5) * step - 0.5))
        (dx, x), (dy, y) = rows
        if self.flip:
            dx, x = -dx, x + (crop[1] - 1) * dx
        matrix = np.array([[dx, 0, x], [0, dy, y]])
        how = (cv2.INTER_LINEAR if is_image else cv2.INTER_NEAREST) | cv2.WARP_INVERSE_MAP
        found = cv2.warpAffine(
            values,
            matrix,
            crop[::-1],
            flags=how,
            borderMode=cv2.BORDER_CONSTANT,
            borderValue=(border,) * (values.shape[2] if is_image else 1),
        )
        return found.reshape(*crop, *values.shape[2:])


def draw(rng: np.random.Generator, scales: tuple[float, float] | None) -> Transform:
    """Draws a scale, a crop and whether to mirror; without scales the central crop of the size as it is, mirrored or not."""
    if scales is None:
        return Transform(flip=bool(rng.random() < 0.5))
    scale, y, x, flip = rng.uniform(*scales), rng.random(), rng.random(), rng.random()
    return Transform(scale, y, x, bool(flip < 0.5))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapSplit(Split):
    """Images with a map each, and how both are cropped. `labels` are zeros: there is one target a pixel, and none an image.

    Attributes:
        target: number -> the map as it is stored: uint8 [H, W], a class or `VOID`; or float32 [H, W], metres, or `UNKNOWN`.
        num_classes: of the maps; None: they are of depth.
    """

    target: Callable[[int], np.ndarray]
    num_classes: int | None = None

    @property
    def kind(self) -> str:
        """What the maps are of: "classes" or "depth"."""
        return "depth" if self.num_classes is None else "classes"

    @property
    def void(self) -> float:
        """What a map has where nothing is known."""
        return UNKNOWN if self.num_classes is None else VOID

    def part(self: Own, rows: np.ndarray) -> Own:
        """The images of these numbers, int [n]."""
        return dataclasses.replace(super().part(rows), target=lambda i: self.target(int(rows[i])))

    def __add__(self: Own, other: Own) -> Own:
        """These images, and after them the others."""

        def target(number: int) -> np.ndarray:
            return self.target(number) if number < len(self) else other.target(number - len(self))

        return dataclasses.replace(super().__add__(other), target=target)

    def recipe(self) -> dict[str, Any]:
        """What a record says of the images."""
        resized = {} if self.short_side is None else {"short_side": self.short_side, "resize": "bilinear"}
        held_out = {} if self.held_out is None else {"folder_held_out": self.held_out}
        return {"crop_size": list(self.shape[:2]), **resized, **held_out}

    def batches(self, batch_size: int) -> tf.data.Dataset:
        """All images in their order, central crops; those that are broken are left out.

        Returns:
            (images uint8 [B, *shape], maps [B, height, width]).
        """

        def example(_: int, number: int) -> tuple[np.ndarray, np.ndarray] | None:
            pixels = self.read(number)
            return None if pixels is None else self.changed(pixels, self.target(number), Transform())

        return self._in_order(batch_size, example, self._map_specs())

    def training_batches(
        self, batch_size: int, seed: int, scales: tuple[float, float] | None = None, step: int = 0
    ) -> tf.data.Dataset:
        """Batches without end, each epoch in an order of its own, each image changed as `draw` says.

        Args:
            batch_size: at most the number of images.
            seed: of the order and the transforms.
            scales: range of the random scale, of a random crop then; None: central crops.
            step: the first one.
        """

        def example(epoch: int, number: int) -> tuple[np.ndarray, np.ndarray]:
            transform = draw(np.random.default_rng((seed, epoch, number)), scales)
            pixels, row = self._readable(number)
            return self.changed(pixels, self.target(row), transform)

        return self._shuffled(batch_size, seed, example, self._map_specs(), step)

    def changed(
        self, pixels: np.ndarray, target: np.ndarray, transform: Transform
    ) -> tuple[np.ndarray, np.ndarray]:
        """An image and its map by one transform, of the size `shape`."""
        height, width = pixels.shape[:2]
        factor = 1.0 if self.short_side is None else self.short_side / min(height, width)
        size, crop = (factor * height, factor * width), (self.shape[0], self.shape[1])
        return transform.apply(pixels, size, crop, _BORDER), transform.apply(target, size, crop, self.void)

    def _map_specs(self) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        kind = np.float32 if self.num_classes is None else np.uint8
        return tf.TensorSpec(self.shape, np.uint8), tf.TensorSpec(self.shape[:2], kind)
