"""From encoded images to batches: decoding on threads, and crops made on the host."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.data import decode
from keras_sslhsic.data.cache import Cache

if TYPE_CHECKING:
    from keras_sslhsic.views import ViewPolicy

Hold = Callable[[int], None]  # `memory.Lease.hold`


@dataclasses.dataclass(frozen=True)
class Decoding:
    """What an encoded image becomes.

    Attributes:
        image_size: side S of the central square that is sent to the device; None keeps the size of the file,
            which then must be the same for all.
        channels: 1, 3 or 4.
        host_crops: a view policy. Its random crops are then made here, and sent as "view1", "view2", ...,
            instead of "image"; everything after the crop is left to the device.
        max_pixels: larger images count as broken.
        stored: height and width of all files, where they are known.
    """

    image_size: int | None = 256
    channels: int = 3
    host_crops: "ViewPolicy | None" = None
    max_pixels: int = decode.MAX_PIXELS
    stored: tuple[int | None, int | None] = (None, None)

    def __post_init__(self) -> None:
        checks.integer("image_size", self.image_size, 1, optional=True)
        checks.integer("max_pixels", self.max_pixels, 1)
        decode.check_channels(self.channels)

    def image(self, content: bytes | BinaryIO, hold: Hold) -> np.ndarray:
        """What may be cached: the square, or the whole image if it will be cropped. `hold` is that of `decode.decode`."""
        if self.host_crops is not None:
            # Twice the size of a crop is about what the images of ImageNet have.
            return decode.decode(content, self.channels, 2 * self.host_crops.size, self.max_pixels, hold)
        pixels = decode.decode(content, self.channels, self.image_size, self.max_pixels, hold)
        return pixels if self.image_size is None else decode.square(pixels, self.image_size)

    def arrays(self, image: np.ndarray, seed: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """What is sent to the device: the image, or a crop for each view, drawn from the seed."""
        if self.host_crops is None:
            return (image,)
        policy, rng = self.host_crops, np.random.default_rng(seed)
        height, width, _ = image.shape
        crops = [
            (decode.random_box(height, width, rng, crop.area, crop.aspect, crop.box), size, crop.method)
            for size, crop in policy.crops
        ]
        return tuple(decode.crop(image, *crop) for crop in crops)

    @property
    def shape(self) -> tuple[int | None, int | None, int]:
        """Static shape of an image."""
        side = self.image_size if self.host_crops is None else self.host_crops.size
        return (*(self.stored if side is None else (side, side)), self.channels)

    @property
    def columns(self) -> dict[str, tf.TensorSpec]:
        """Names, and the spec of one example, of the images in a batch."""
        if self.host_crops is None:
            return {"image": tf.TensorSpec(self.shape, tf.uint8)}
        return {
            f"view{1 + i}": tf.TensorSpec([size, size, self.channels], tf.uint8)
            for i, (size, _) in enumerate(self.host_crops.crops)
        }

    def stack(self, images: Sequence[tuple[np.ndarray, ...]]) -> dict[str, np.ndarray]:
        """Batches what `arrays` gave, by its names; uint8 [B, H, W, C]."""
        if not images:
            images = [
                tuple(np.zeros([n or 0 for n in spec.shape], np.uint8) for spec in self.columns.values())
            ]
            return {name: column[:0] for name, column in self.stack(images).items()}
        try:
            stacked = [np.stack(column) for column in zip(*images, strict=True)]
            return dict(zip(self.columns, stacked, strict=True))
        except ValueError:
            shapes = sorted({row[0].shape for row in images})
            raise ValueError(
                f"Expected images of one size in a batch, found for example {shapes[0]} and {shapes[-1]}: pass image_size."
            ) from None

    def of_samples(self) -> "Decoding":
        """How images to look at are decoded: as they are before any crop, in squares of one size."""
        if self.host_crops is None:
            return self
        return dataclasses.replace(self, host_crops=None, image_size=2 * self.host_crops.size)

    def cached(self, cache: Cache | None, key: str, hold: Hold, make: Callable[[], np.ndarray]) -> np.ndarray:
        """The image that a cache holds under a key; makes and keeps it if there is none."""
        if cache is None:
            return make()
        key = f"{key} {self.shape} {self.host_crops is None}"
        shape = self.shape if self.host_crops is None else (None, None, self.channels)
        pixels = cache.get(key, shape, hold)
        if pixels is None:
            pixels = make()
            cache.put(key, pixels)
        return pixels


def crops(policy: Any) -> "ViewPolicy | None":
    """The policy of host crops, given it, its name or its config; None for None."""
    if policy is None:
        return None
    from keras_sslhsic import views  # here, since it imports Keras

    return views.get(policy)


def thread_pool(workers: int | None) -> ThreadPoolExecutor:
    """Threads that decode; by default as many as the machine has cores."""
    checks.integer("workers", workers, 1, optional=True)
    return ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="decode")
