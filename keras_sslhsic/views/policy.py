"""What is done to an image to make its views, as plain data, and the presets of published recipes.

The recipe, in order: random resized crop, flips, rotation, colour jitter, grayscale, blur, solarize, operations of one's own,
normalisation.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.views import crop as crops
from keras_sslhsic.views import ops, own
from keras_sslhsic.views.augment import augment, sample_parameters
from keras_sslhsic.views.draws import ALL, Share

_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)


class _Plain:
    """Keeps arrays, lists and numbers of NumPy as tuples and Python's numbers, of which files and comparisons are made."""

    def __post_init__(self) -> None:
        for name, value in list(vars(self).items()):
            object.__setattr__(self, name, _plain_value(value))


def _plain_value(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    return tuple(map(_plain_value, value)) if isinstance(value, list | tuple) else value


@dataclasses.dataclass(frozen=True)
class Crop(_Plain):
    """Random resized crop: ranges of the share of the area and of width / height, and how to resize.

    `box` says what becomes of a box that is larger than the image, as in `sample_crop_boxes`: it is "redrawn",
    or its sides are "clamped", which makes larger crops. Configs and models that were saved before there was
    the choice do not have it, and go on with "redrawn", which they were trained with.
    """

    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    method: str = "bicubic"
    antialias: bool = False
    box: str = "redrawn"

    def __post_init__(self) -> None:
        super().__post_init__()
        crops.check_box(self.box)


@dataclasses.dataclass(frozen=True)
class ColorJitter(_Plain):
    """Four operations in a random order, each drawn uniformly from its range, clipped after each.

    Brightness adds up to +-brightness; contrast and saturation multiply by 1 +- the value; hue adds up to
    +-hue turns.
    """

    probability: float = 0.8
    brightness: float = 0.4
    contrast: float = 0.4
    saturation: float = 0.2
    hue: float = 0.1


@dataclasses.dataclass(frozen=True)
class Blur(_Plain):
    """Gaussian blur: each view's probability, sigma's range in pixels, the kernel's share of the side."""

    probability: tuple[float, ...] = (1.0, 0.1)
    sigma: tuple[float, float] = (0.1, 2.0)
    kernel: float = 0.1


@dataclasses.dataclass(frozen=True)
class Solarize(_Plain):
    """Solarization: a probability for each view, and the threshold from which values are inverted."""

    probability: tuple[float, ...] = (0.0, 0.2)
    threshold: float = 0.5


@dataclasses.dataclass(frozen=True)
class Local(_Plain):
    """Small views of small parts of the image (multi-crop; Caron et al. 2020, section 3.3): how many of the views
    they are, the last ones; their side in pixels; their crop's share of the area.
    """

    count: int = 0
    size: int = 96
    area: tuple[float, float] = (0.05, 0.14)


@dataclasses.dataclass(frozen=True)
class ViewPolicy(_Plain):
    """How views are made. The defaults are BYOL's (Grill et al. 2020, appendix B), as in the SSL-HSIC paper;
    the crop is that of their released code, whose boxes are clamped.

    There are as many views as there are probabilities of blur, and of solarization. A probability of 0
    leaves the operation out of the program.

    Attributes:
        size: side of a view in pixels, but of local ones.
        crop: `Crop`.
        flip: probability of a left-right flip.
        jitter: `ColorJitter`.
        grayscale: probability of turning to grayscale.
        blur: `Blur`.
        solarize: `Solarize`.
        mean: what is subtracted at the end, one number a channel.
        std: what is divided by, one number a channel.
        local: `Local`; there are none by default.
        flip_vertical: probability of an up-down flip.
        rotation: degrees that an image is turned by at most, to either side; 180 for any angle.
        own: more operations, each a Keras layer without weights, or a function of images [B, H, W, C] in [0, 1] and a seed
            int [2]; functions, and classes that are not Keras's own, are registered by
            `keras.saving.register_keras_serializable`. Kept as text: the JSON of the layer, the name of the function.
    """

    size: int = 224
    crop: Crop = Crop(box="clamped")
    flip: float = 0.5
    jitter: ColorJitter = ColorJitter()
    grayscale: float = 0.2
    blur: Blur = Blur()
    solarize: Solarize = Solarize()
    mean: tuple[float, ...] = _IMAGENET_MEAN
    std: tuple[float, ...] = _IMAGENET_STD
    local: Local = Local()
    flip_vertical: float = 0.0
    rotation: float = 0.0
    own: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.blur.probability) != len(self.solarize.probability):
            raise ValueError(
                "blur.probability and solarize.probability hold one number a view and must be equally long, "
                f"found {self.blur.probability} and {self.solarize.probability}."
            )
        if len(self.mean) != len(self.std):
            raise ValueError(
                "mean and std hold one number a channel and must be equally long, "
                f"found {self.mean} and {self.std}."
            )
        if not 0 <= self.local.count < self.num_views:
            raise ValueError(
                f"local.count says how many of the {self.num_views} views are small, and one has to be large, found "
                f"{self.local.count}: blur.probability and solarize.probability hold a number for each view of either kind."
            )
        self._check_numbers()
        object.__setattr__(self, "own", own.named(self.own))

    def _check_numbers(self) -> None:
        """Raises ValueError for numbers out of their range: a flip of 50 for 50 % would flip every image."""
        chances = [("flip", self.flip), ("flip_vertical", self.flip_vertical), ("grayscale", self.grayscale)]
        chances.append(("jitter.probability", self.jitter.probability))
        chances += [("blur.probability", chance) for chance in self.blur.probability]
        chances += [("solarize.probability", chance) for chance in self.solarize.probability]
        for name, chance in chances:
            checks.number(name, chance, most=1.0)
        for name in ("brightness", "contrast", "saturation", "hue"):
            checks.number(f"jitter.{name}", getattr(self.jitter, name))
        checks.number("rotation", self.rotation)
        checks.integer("size", self.size, 1)
        checks.integer("local.size", self.local.size, 1)
        for deviation in self.std:
            checks.number("std", deviation, above=True)
        ranges = [("crop.area", self.crop.area, 1.0), ("crop.aspect", self.crop.aspect, None)]
        ranges += [("blur.sigma", self.blur.sigma, None), ("local.area", self.local.area, 1.0)]
        for name, ends, most in ranges:
            if isinstance(ends, tuple) and len(ends) == 2:  # of others a config says more
                checks.number(name, ends[0], above=True)
                checks.number(name, ends[1], ends[0], most=most)

    @property
    def num_views(self) -> int:
        """Number of views of an image."""
        return len(self.blur.probability)

    @property
    def num_global(self) -> int:
        """Number of those that are not local, the first ones."""
        return self.num_views - self.local.count

    @property
    def crops(self) -> list[tuple[int, Crop]]:
        """The side and the crop of each view."""
        small = dataclasses.replace(self.crop, area=self.local.area)
        return [(self.size, self.crop)] * self.num_global + [(self.local.size, small)] * self.local.count

    def to_dict(self) -> dict[str, Any]:
        """Nested dict of numbers, strings and tuples; `from_dict` and `ml_collections.ConfigDict` take it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> "ViewPolicy":
        """The inverse of `to_dict`; a field left out keeps its default, and lists count as tuples."""
        return _from_dict(cls, config)


_PARTS = {"crop": Crop, "jitter": ColorJitter, "blur": Blur, "solarize": Solarize, "local": Local}


def _from_dict(cls: type, config: Mapping[str, Any]) -> Any:
    known = [field.name for field in dataclasses.fields(cls)]
    if not hasattr(config, "items"):  # a ConfigDict is no Mapping
        raise ValueError(f"{cls.__name__} is made of a mapping with the fields {known}, found {config!r}.")
    unknown = sorted(set(config) - set(known))
    if unknown:
        raise ValueError(f"{cls.__name__} has the fields {known}, found {unknown}.")
    values = {}
    for name, value in config.items():
        if name in _PARTS:
            value = _from_dict(_PARTS[name], value)
        values[name] = value
    return cls(**values)


def byol(size: int = 224) -> ViewPolicy:
    """BYOL's two views of RGB images; view 1 is always blurred, view 2 rarely, and at times solarized."""
    return ViewPolicy(size=size)


def simclr(size: int = 224) -> ViewPolicy:
    """SimCLR's two views of RGB images (Chen et al. 2020, appendix A): strong jitter, half of them blurred.

    Brightness is additive here, as in BYOL. SimCLR's code redraws boxes that do not fit.
    """
    return ViewPolicy(
        size=size,
        crop=Crop(),
        jitter=ColorJitter(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2),
        blur=Blur(probability=(0.5, 0.5)),
        solarize=Solarize(probability=(0.0, 0.0)),
    )


def multi_crop(size: int = 224, local_size: int = 96, num_local: int = 6) -> ViewPolicy:
    """SwAV's views of RGB images (Caron et al. 2020, section 3.3 and appendix A): two, and small ones beside them.

    Colours and blur are those of SimCLR.
    """
    count = 2 + num_local
    return dataclasses.replace(
        simclr(size),
        crop=Crop(area=(0.14, 1.0)),
        blur=Blur(probability=(0.5,) * count),
        solarize=Solarize(probability=(0.0,) * count),
        local=Local(num_local, local_size),
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
    """Two views of small one-channel images, with mean and standard deviation of Fashion-MNIST (28 x 28)."""
    return ViewPolicy(
        size=size,
        crop=Crop(area=(0.2, 1.0)),
        jitter=ColorJitter(saturation=0.0, hue=0.0),
        grayscale=0.0,
        blur=Blur(probability=(0.5, 0.1), sigma=(0.1, 1.0), kernel=0.2),
        mean=(0.286,),
        std=(0.353,),
    )


def multispectral(size: int = 64, channels: int = 4) -> ViewPolicy:
    """Two views of images of any channels, seen from above: turned by any angle, and no operation of colours."""
    return ViewPolicy(
        size=size,
        crop=Crop(area=(0.2, 1.0)),
        jitter=ColorJitter(saturation=0.0, hue=0.0),
        grayscale=0.0,
        blur=Blur(probability=(0.5, 0.1), sigma=(0.1, 1.0)),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        flip_vertical=0.5,
        rotation=180.0,
    )


def _only_normalised(size: int = 224) -> ViewPolicy:
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


_PRESETS = {
    "byol": byol,
    "simclr": simclr,
    "multi_crop": multi_crop,
    "small_image": small_image,
    "grayscale": grayscale,
    "multispectral": multispectral,
}


def get(identifier: "str | ViewPolicy | Mapping[str, Any] | None") -> ViewPolicy:
    """Finds a policy.

    Args:
        identifier: the name of a preset ("byol", "simclr", "multi_crop", "small_image", "grayscale", "multispectral"), a
            `ViewPolicy`, what
            its `to_dict` returns (as a dict or an `ml_collections.ConfigDict`), or None: views are taken as
            they are and only normalised, by ImageNet's mean and standard deviation.

    Returns:
        A `ViewPolicy`.

    Raises:
        ValueError: for anything else.
    """
    if identifier is None:
        return _only_normalised()
    if isinstance(identifier, ViewPolicy):
        return identifier
    if isinstance(identifier, str):
        if identifier in _PRESETS:
            return _PRESETS[identifier]()
    elif hasattr(identifier, "items"):
        return ViewPolicy.from_dict(identifier)
    raise ValueError(
        f"Views must be one of {sorted(_PRESETS)}, a ViewPolicy, its dict or None, found {identifier!r}."
    )


def are_none(policy: ViewPolicy) -> bool:
    """Whether views are taken as they are, as by `get(None)`: those of one image would be the same."""
    return policy == dataclasses.replace(get(None), size=policy.size, mean=policy.mean, std=policy.std)


def make_views(
    images: tf.Tensor, policy: ViewPolicy, seed: tf.Tensor, share: Share = ALL
) -> tuple[tf.Tensor, ...]:
    """Makes the views of a batch of images.

    Args:
        images: [B, H, W, C], uint8 or float in [0, 1]; H, W and C static.
        policy: what to do.
        seed: int [2]; the same seed gives the same views.
        share: (i, n): the images are part i of n of the batch that the seed is of, and their views those that they have
            there. Operations of one's own draw for each part by itself.

    Returns:
        One float32 [B, S, S, C] a view, S its side, normalised by the policy's mean and standard deviation.

    Raises:
        ValueError: where the channels do not suit the policy; for numbers above those of [0, 1], where values are known.

    Example:
        >>> images = tf.zeros([8, 64, 64, 3], tf.uint8)
        >>> view1, view2 = make_views(images, byol(32), seed=[0, 1])
    """
    policy, images, seed = get(policy), tf.convert_to_tensor(images), tf.convert_to_tensor(seed)
    if images.shape.rank != 4 or not seed.shape.is_compatible_with([2]):
        raise ValueError(
            f"Expected images [B, H, W, C] and a seed int [2], found the shapes {images.shape} and {seed.shape}."
        )
    batch, height, width = tf.shape(images)[0], images.shape[1], images.shape[2]
    images = _to_unit_range(ops.to_channels_first(images))
    views = []
    for index, (size, crop) in enumerate(policy.crops):
        crop_seed, seed_after = _seeds(seed, index)
        boxes = crops.sample_crop_boxes(
            (batch, height, width), crop_seed, crop.area, crop.aspect, crop.box, share
        )
        view = crops.resize_crops(images, boxes, size, crop.method, crop.antialias, axis=1)
        view = tf.clip_by_value(view, 0.0, 1.0)  # bicubic interpolation overshoots
        views.append(_finish(view, policy, index, seed_after, share))
    return tuple(views)


def finish_views(
    views: Sequence[tf.Tensor], policy: ViewPolicy, seed: tf.Tensor, share: Share = ALL
) -> tuple[tf.Tensor, ...]:
    """Does all that follows the crop, for crops that were made elsewhere (from the original JPEG, say).

    Args:
        views: one [B, H, W, C] a view, uint8 or float in [0, 1]; H, W and C static.
        policy: what to do.
        seed: int [2].
        share: as in `make_views`.

    Returns:
        One float32 [B, H, W, C] a view, normalised.

    Raises:
        ValueError: where the channels or the number of views do not suit the policy; for numbers as in `make_views`.
    """
    if len(views) != policy.num_views:
        raise ValueError(f"The policy describes {policy.num_views} views, found {len(views)}.")
    finished = []
    for index, view in enumerate(views):
        _, seed_after = _seeds(seed, index)
        view = _to_unit_range(ops.to_channels_first(view))
        finished.append(_finish(view, policy, index, seed_after, share))
    return tuple(finished)


def prepare(images: tf.Tensor, policy: ViewPolicy) -> tf.Tensor:
    """Scales and normalises as `make_views` does, and nothing else: what an encoder gets at evaluation.

    Args:
        images: [B, H, W, C], uint8 or float in [0, 1].
        policy: whose mean and standard deviation are used.

    Returns:
        float32 [B, H, W, C].

    Raises:
        ValueError: as `make_views`.
    """
    images = _to_unit_range(images)
    return ops.normalize(images, *_statistics(policy, images))


def _to_unit_range(images: tf.Tensor) -> tf.Tensor:
    images = tf.convert_to_tensor(images)
    if images.dtype == tf.uint8:
        return tf.cast(images, tf.float32) / 255.0
    images = tf.cast(images, tf.float32)
    # Crops that were made elsewhere overshoot by less than half of the range.
    if tf.executing_eagerly() and (highest := float(tf.reduce_max(images))) > 1.5:
        raise ValueError(
            f"Images that are not uint8 lie in [0, 1] here, found values up to {highest:g}: divide those in [0, 255] by 255."
        )
    return images


def _statistics(policy: ViewPolicy, images: tf.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if images.shape[-1] != len(policy.mean):
        raise ValueError(
            f"The images have {images.shape[-1]} channels and the policy's mean and std {len(policy.mean)}: "
            "give the policy a mean and std of one number a channel."
        )
    return policy.mean, policy.std


def _finish(images: tf.Tensor, policy: ViewPolicy, view: int, seed: tf.Tensor, share: Share) -> tf.Tensor:
    """All that follows the crop: float [B, C, H, W] in [0, 1] to normalised [B, H, W, C]."""
    parameters = sample_parameters(tf.shape(images)[0], policy, view, seed, share)
    images = ops.to_channels_last(augment(images, parameters, policy, view))
    index, count = share
    if count > 1:  # each part would draw the same
        seed = tf.random.fold_in(seed, index, alg="philox")
    images = own.apply(images, policy.own, seed)
    return ops.normalize(images, *_statistics(policy, images))


def _seeds(seed: tf.Tensor, view: int) -> list[tf.Tensor]:
    """Two seeds of a view: that of its crop, and that of what follows, also where crops are ready-made."""
    return tf.unstack(tf.random.split(tf.random.fold_in(seed, view, alg="philox"), 2, alg="philox"))
