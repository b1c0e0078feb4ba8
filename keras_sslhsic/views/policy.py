"""What is done to an image to make its views, as plain data, and the program that does it.

The recipe, in order: random resized crop, flip, colour jitter, grayscale, blur, solarize, normalisation. Every image of
every view draws its own parameters.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from keras_sslhsic.views import crop as crops
from keras_sslhsic.views import ops
from keras_sslhsic.views.draws import uniform

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True)
class Crop:
    """Random resized crop: ranges of the area's share and of width / height; see `resize_crops` for the others."""

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    method: str = "bicubic"
    antialias: bool = False


@dataclasses.dataclass(frozen=True)
class ColorJitter:
    """Four operations in a random order, each drawn uniformly from its range, clipped after each.

    brightness adds up to +-brightness; contrast and saturation multiply by 1 +- the value; hue turns by +-hue turns.
    """

    probability: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1


@dataclasses.dataclass(frozen=True)
class Blur:
    """Gaussian blur: a probability for each view, the range of sigma in pixels, the kernel's share of the view's side."""

    probability: tuple[float, ...] = (1.0, 0.1)
    sigma: tuple[float, float] = (0.1, 2.0)
    kernel: float = 0.1


@dataclasses.dataclass(frozen=True)
class Solarize:
    """Solarization: a probability for each view, and the threshold from which values are inverted."""

    probability: tuple[float, ...] = (0.0, 0.2)
    threshold: float = 0.5


@dataclasses.dataclass(frozen=True)
class ViewPolicy:
    """How views are made; the defaults are BYOL's (Grill et al. 2020, appendix B), which the SSL-HSIC paper uses.

    There are as many views as probabilities of blur and of solarization.

    Attributes:
        size: side of a view in pixels.
        crop: `Crop`.
        flip: probability of a left-right flip.
        jitter: `ColorJitter`.
        grayscale: probability of turning to grayscale.
        blur: `Blur`.
        solarize: `Solarize`.
        mean: what is subtracted at the end, one number a channel.
        std: what is divided by, one number a channel.
    """

    size: int = 224
    crop: Crop = Crop()
    flip: float = 0.5
    jitter: ColorJitter = ColorJitter()
    grayscale: float = 0.2
    blur: Blur = Blur()
    solarize: Solarize = Solarize()
    mean: tuple[float, ...] = _IMAGENET_MEAN
    std: tuple[float, ...] = _IMAGENET_STD

    def __post_init__(self):
        if len(self.blur.probability) != len(self.solarize.probability):
            raise ValueError(
                "blur.probability and solarize.probability hold one number a view and must be equally long, found "
                f"{self.blur.probability} and {self.solarize.probability}."
            )
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean and std hold one number a channel and must be equally long, found {self.mean} and {self.std}."
            )

    @property
    def num_views(self) -> int:
        """Number of views of an image."""
        return len(self.blur.probability)

    def to_dict(self) -> dict[str, Any]:
        """Nested dict of numbers, strings and tuples, which `from_dict` and `ml_collections.ConfigDict` take."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "ViewPolicy":
        """The inverse of `to_dict`; a field left out keeps its default, and lists count as tuples."""
        return _from_dict(cls, config)


_PARTS = {"crop": Crop, "jitter": ColorJitter, "blur": Blur, "solarize": Solarize}


def _from_dict(cls: type, config: Mapping[str, Any]) -> Any:
    unknown = set(config) - {field.name for field in dataclasses.fields(cls)}
    if unknown:
        known = [field.name for field in dataclasses.fields(cls)]
        raise ValueError(f"{cls.__name__} has the fields {known}, found {sorted(unknown)}.")
    values = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            value = _from_dict(_PARTS[name], value)
        values[name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def byol(size: int = 224) -> ViewPolicy:
    """BYOL's two views of RGB images: view 1 is always blurred, view 2 is blurred (0.1) and solarized (0.2) at times."""
    return ViewPolicy(size=size)


def simclr(size: int = 224) -> ViewPolicy:
    """SimCLR's two views of RGB images (Chen et al. 2020, appendix A): the stronger jitter, blur in half of the images.

    Brightness is additive here, as in BYOL.
    """
    return ViewPolicy(
        size=size,
        jitter=ColorJitter(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2),
        blur=Blur(probability=(0.5, 0.5)),
        solarize=Solarize(probability=(0.0, 0.0)),
    )


def small_image(size: int = 32) -> ViewPolicy:
    """Two views of small RGB images (CIFAR, 32 x 32): larger crops, no blur."""
    return ViewPolicy(
        size=size,
        crop=Crop(area=(0.2, 1.0)),
        blur=Blur(probability=(0.0, 0.0)),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.247, 0.2435, 0.2616),
    )


def grayscale(size: int = 28) -> ViewPolicy:
    """Two views of small images of one channel (Fashion-MNIST, 28 x 28), whose mean and standard deviation it has."""
    return ViewPolicy(
        size=size,
        crop=Crop(area=(0.2, 1.0)),
        jitter=ColorJitter(saturation=0.0, hue=0.0),
        grayscale=0.0,
        blur=Blur(probability=(0.5, 0.1), sigma=(0.1, 1.0), kernel=0.2),
        mean=(0.286,),
        std=(0.353,),
    )


def _plain(size: int = 224) -> ViewPolicy:
    """Views are taken as they are and only normalised."""
    return ViewPolicy(
        size=size,
        crop=Crop(area=(1.0, 1.0)),
        flip=0.0,
        jitter=ColorJitter(probability=0.0),
        grayscale=0.0,
        blur=Blur(probability=(0.0, 0.0)),
        solarize=Solarize(probability=(0.0, 0.0)),
    )


_PRESETS = {"byol": byol, "simclr": simclr, "small_image": small_image, "grayscale": grayscale}


def get(identifier: "str | ViewPolicy | Mapping[str, Any] | None") -> ViewPolicy:
    """Finds a policy.

    Args:
        identifier: the name of a preset ("byol", "simclr", "small_image", "grayscale"), a `ViewPolicy`, what its
            `to_dict` returns (an `ml_collections.ConfigDict` too), or None: no augmentation, views are only normalised.

    Returns:
        A `ViewPolicy`.

    Raises:
        ValueError: for anything else.
    """
    if identifier is None:
        return _plain()
    if isinstance(identifier, ViewPolicy):
        return identifier
    if isinstance(identifier, str) and identifier in _PRESETS:
        return _PRESETS[identifier]()
    if hasattr(identifier, "items"):
        return ViewPolicy.from_dict(dict(identifier.items()))
    raise ValueError(f"Views must be one of {sorted(_PRESETS)}, a ViewPolicy, its dict or None, found {identifier!r}.")


def make_views(images: tf.Tensor, policy: ViewPolicy, seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Makes the views of a batch of images.

    Args:
        images: [B, H, W, C], uint8 or float in [0, 1]; H, W and C static.
        policy: what to do.
        seed: int [2]; the same seed gives the same views.

    Returns:
        One float32 [B, size, size, C] a view, normalised by the policy's mean and standard deviation.

    Raises:
        ValueError: where the channels do not suit the policy.

    Example:
        >>> images = tf.zeros([8, 64, 64, 3], tf.uint8)
        >>> view1, view2 = make_views(images, byol(32), seed=[0, 1])
    """
    images = _to_unit_range(images)
    batch, height, width = tf.shape(images)[0], images.shape[1], images.shape[2]
    views = []
    for index in range(policy.num_views):
        view_seed = tf.random.fold_in(seed, 2 * index, alg="philox")
        boxes = crops.sample_crop_boxes((batch, height, width), view_seed, policy.crop.area, policy.crop.aspect)
        view = crops.resize_crops(images, boxes, policy.size, policy.crop.method, policy.crop.antialias)
        views.append(tf.clip_by_value(view, 0.0, 1.0))  # bicubic interpolation overshoots
    return finish_views(views, policy, seed)


def finish_views(views: Sequence[tf.Tensor], policy: ViewPolicy, seed: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Does all that follows the crop, for crops that were made elsewhere (from the original JPEG, say).

    Args:
        views: one [B, H, W, C] a view, uint8 or float in [0, 1]; H, W and C static.
        policy: what to do.
        seed: int [2].

    Returns:
        One float32 [B, H, W, C] a view, normalised.

    Raises:
        ValueError: where the channels or the number of views do not suit the policy.
    """
    if len(views) != policy.num_views:
        raise ValueError(f"The policy describes {policy.num_views} views, found {len(views)}.")
    finished = []
    for index, view in enumerate(views):
        view_seed = tf.random.fold_in(seed, 2 * index + 1, alg="philox")
        view = _augment(_to_unit_range(view), policy, index, view_seed)
        finished.append(ops.normalize(view, *_statistics(policy, view)))
    return tuple(finished)


def prepare(images: tf.Tensor, policy: ViewPolicy) -> tf.Tensor:
    """Scales and normalises as `make_views` does, and nothing else: what an encoder gets at evaluation.

    Args:
        images: [B, H, W, C], uint8 or float in [0, 1].
        policy: whose mean and standard deviation are used.

    Returns:
        float32 [B, H, W, C].
    """
    images = _to_unit_range(images)
    return ops.normalize(images, *_statistics(policy, images))


def _to_unit_range(images: tf.Tensor) -> tf.Tensor:
    images = tf.convert_to_tensor(images)
    return tf.cast(images, tf.float32) / 255.0 if images.dtype == tf.uint8 else tf.cast(images, tf.float32)


def _statistics(policy: ViewPolicy, images: tf.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if images.shape[-1] != len(policy.mean):
        raise ValueError(
            f"The images have {images.shape[-1]} channels and the policy's mean and std {len(policy.mean)}: "
            "give the policy a mean and std of one number a channel."
        )
    return policy.mean, policy.std


def _augment(images: tf.Tensor, policy: ViewPolicy, view: int, seed: tf.Tensor) -> tf.Tensor:
    """Everything between crop and normalisation for one view: float [B, H, W, C] in [0, 1] to the same."""
    channels = images.shape[-1]
    jitter, blur, solarize = policy.jitter, policy.blur, policy.solarize
    color = {"jitter.saturation": jitter.saturation, "jitter.hue": jitter.hue, "grayscale": policy.grayscale}
    if channels not in (1, 3) and any(color.values()):
        raise ValueError(
            f"Saturation, hue and grayscale need 3 channels, and the images have {channels}: set to 0 in the policy "
            f"{', '.join(name for name, value in color.items() if value)}."
        )
    draws = tf.unstack(uniform([tf.shape(images)[0], 14], seed), axis=-1)
    flip, jittered, gray, blurred, sigma, solarized = draws[:6]

    if policy.flip:
        images = ops.flip_left_right(images, flip < policy.flip)
    if jitter.probability:
        changed = _jitter(images, jitter, draws[6:])
        images = tf.where((jittered < jitter.probability)[:, None, None, None], changed, images)
    if channels == 3 and policy.grayscale:
        images = tf.where((gray < policy.grayscale)[:, None, None, None], ops.to_grayscale(images), images)
    if blur.probability[view]:
        changed = ops.gaussian_blur(images, _between(*blur.sigma, sigma), blur.kernel * images.shape[2])
        images = tf.where((blurred < blur.probability[view])[:, None, None, None], changed, images)
    if solarize.probability[view]:
        changed = ops.solarize(images, solarize.threshold)
        images = tf.where((solarized < solarize.probability[view])[:, None, None, None], changed, images)
    return images


def _jitter(images: tf.Tensor, jitter: ColorJitter, draws: Sequence[tf.Tensor]) -> tf.Tensor:
    """Brightness, contrast, saturation and hue in an order drawn for each image, without a slot for every operation.

    The order is that of four uniform draws. Saturation and hue commute exactly, so all that matters is on which side of
    brightness and of contrast each falls: before, between or after. Two slots for brightness or contrast and three for
    saturation with hue are then the same as four slots with a choice of four operations.
    """
    brightness, contrast, saturation, hue = draws[:4]
    first, last = tf.minimum(brightness, contrast), tf.maximum(brightness, contrast)
    brightness_value = _between(-jitter.brightness, jitter.brightness, draws[4])
    contrast_value = _between(1 - jitter.contrast, 1 + jitter.contrast, draws[5])
    saturation_value = _between(1 - jitter.saturation, 1 + jitter.saturation, draws[6])
    hue_value = _between(-jitter.hue, jitter.hue, draws[7])

    def in_gap(draw, gap):
        return tf.equal(tf.cast(draw > first, tf.int32) + tf.cast(draw > last, tf.int32), gap)

    for gap in range(3):
        if images.shape[-1] == 3 and (jitter.saturation or jitter.hue):
            images = ops.adjust_hue_and_saturation(
                images,
                tf.where(in_gap(hue, gap), hue_value, 0.0),
                tf.where(in_gap(saturation, gap), saturation_value, 1.0),
            )
        if gap < 2:
            brightness_next = (brightness < contrast) == (gap == 0)
            images = tf.where(
                brightness_next[:, None, None, None],
                ops.adjust_brightness(images, brightness_value),
                ops.adjust_contrast(images, contrast_value),
            )
    return images


def _between(low: float, high: float, draw: tf.Tensor) -> tf.Tensor:
    return low + (high - low) * draw
