"""What an encoder reads and gives, said once: written when the encoder is made, and saved with it."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras

from keras_sslhsic import checks, compat

LARGEST_SIDE = 2**14  # pixels
_ANY_SIDE = 1024  # maps are compared with it: those of small images are rounded up


class Stage(NamedTuple):
    """The last map of a stride.

    Attributes:
        layer: name of the layer or operation of the network that gives it.
        stride: pixels of the network's input for one of the map, along each side.
        channels: of the map.
        call: which of the calls of that layer within the network, from 0.
    """

    layer: str
    stride: int
    channels: int
    call: int = 0

    def map_of(self, network: keras.Model) -> Any:
        """The symbolic map of the network; None if it has none such."""
        found = compat.results(network, self.layer)
        return found[self.call] if self.call < len(found) else None

    def to_dict(self) -> dict[str, Any]:
        """The stage in what JSON has; of a layer that is called once as earlier versions read it."""
        return {key: value for key, value in self._asdict().items() if key != "call" or value}


@dataclasses.dataclass(frozen=True)
class EncoderSpec:
    """What an encoder reads and gives.

    Attributes:
        height: of the images; None is free.
        width: of the images; None is free.
        channels: of the images.
        feature_size: F, of the features [B, F].
        resize: (height, width) to which images are resized (bilinear) before the network sees them, or None.
        crop: whether the largest central part of that aspect ratio is, rather than all of an image, stretched.
        antialias: whether shrinking averages over all the pixels it covers.
        mean: what is subtracted of pixels in [0, 1], one number a channel; empty where it is not known.
        std: what they are divided by then; empty where it is not known.
        network: name of the network inside, which reads normalised pixels; None where it is not known.
        stages: {"P2": stage of stride 2^2, ...}; empty where they are not known.
        trained_at: side of the views that it was trained on; None where it is not known.
        short_side: what the short side of an image was resized to before the central square of `trained_at` that it was
            measured on, such as 256 for 224; None: the same.
        class_names: of a classifier, whose features are probabilities of these classes; empty where they are not known.
    """

    height: int | None
    width: int | None
    channels: int
    feature_size: int
    resize: tuple[int, int] | None = None
    antialias: bool = False
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    network: str | None = None
    stages: Mapping[str, Stage] = dataclasses.field(default_factory=dict)
    trained_at: int | None = None
    class_names: tuple[str, ...] = ()
    crop: bool = False  # as files of earlier versions have it
    short_side: int | None = None

    @property
    def shape(self) -> tuple[int | None, int | None, int]:
        """(height, width, channels) of the images."""
        return self.height, self.width, self.channels

    @property
    def shape_seen(self) -> tuple[int | None, int | None, int]:
        """(height, width, channels) that the network itself sees, after any resizing."""
        height, width = self.resize or (self.height, self.width)
        return height, width, self.channels

    def size_for(self, given: int | None) -> int | None:
        """Side of the central squares that images of any size are made before the encoder sees them.

        That is the given one, or else that of what the network sees if that is a square, or `trained_at` if that is of any
        size; None where all of an image is seen.

        Raises:
            ValueError: if it reads images of another size alone.
        """
        checks.integer("image_size", given, 1, optional=True, most=LARGEST_SIDE)
        if given and not {self.height, self.width} <= {None, given}:
            raise ValueError(
                f"The encoder reads images of {self.height} x {self.width} pixels, found image_size={given}: leave it out."
            )
        height, width, _ = self.shape_seen
        if given or height != width:
            return given
        return height or self.trained_at

    def short_side_for(self, size: int) -> int:
        """What the short side of an image is resized to before its central square of this size."""
        if self.short_side is None or self.trained_at is None:
            return size
        return max(size, round(size * self.short_side / self.trained_at))

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std of the images that the network inside is trained on; without one those of pixels in [0, 255]."""
        if self.network:
            return self.mean, self.std
        return (0.0,) * self.channels, (1 / 255,) * self.channels

    def named_in(self, network: Any) -> "EncoderSpec":
        """The spec of a network that was made again, where layers whose config holds no name have other ones than before.

        Stages that the network has not stay as they are.
        """
        found = find_stages(network)
        known, sizes = (
            {name: (stage.stride, stage.channels) for name, stage in stages.items()}
            for stages in (self.stages, found)
        )
        return dataclasses.replace(self, stages=found) if sizes == known else self

    def to_dict(self) -> dict[str, Any]:
        """The spec in what JSON has."""
        stages = {name: stage.to_dict() for name, stage in self.stages.items()}
        return {**dataclasses.asdict(self), "stages": stages}

    @classmethod
    def from_dict(cls, fields: Any) -> "EncoderSpec":
        """Reads back what `to_dict` gives.

        Raises:
            ValueError: if it is something else; a file may come from anywhere, also from a later version of this package.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if isinstance(fields, Mapping) and known < fields.keys():
            raise ValueError(
                "A later version of keras_sslhsic saved this encoder, whose spec has more than this one knows "
                f"({', '.join(sorted(map(repr, fields.keys() - known)))}): install a newer keras_sslhsic."
            )
        try:
            stages = {str(name): Stage(**stage) for name, stage in fields["stages"].items()}
            lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
            spec = cls(**{**fields, **lists, "stages": stages})
            usable = spec._is_usable()
        except (TypeError, KeyError, AttributeError, ValueError):
            usable = False
        if not usable:
            raise ValueError(f"The spec of the encoder is damaged, save it again: {fields!r:.200}.")
        return spec

    def _is_usable(self) -> bool:
        sides = self.height, self.width, self.trained_at, self.short_side, *(self.resize or ())
        counts = self.channels, self.feature_size, *(n for s in self.stages.values() for n in s[1:3])
        numbers = *self.mean, *self.std
        return (
            all(side is None or (type(side) is int and 0 < side <= LARGEST_SIDE) for side in sides)
            and all(type(count) is int and 0 < count <= 2**31 for count in counts)
            and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
            and len(self.mean) == len(self.std) in (0, self.channels)
            and all(number > 0 for number in self.std)
            and (self.resize is None or len(self.resize) == 2)
            and type(self.antialias) is bool
            and type(self.crop) is bool
            and isinstance(self.network, str | None)
            and len(self.class_names) in (0, self.feature_size)
            and all(isinstance(name, str) for name in self.class_names)
            and (not self.stages or (self.network is not None and len(self.mean) > 0))
            and all(isinstance(stage.layer, str) for stage in self.stages.values())
            and all(type(stage.call) is int and stage.call >= 0 for stage in self.stages.values())
        )


def _is_padded(tensor: Any) -> bool:
    """Whether it is a map with zeros around it, which a strided convolution is about to read."""
    return type(compat.layer_before(tensor)).__name__ in ("ZeroPadding2D", "Pad")


def find_stages(network: keras.Model) -> dict[str, Stage]:
    """Finds the last map of each stride that everything after it is computed from.

    Where a network has blocks with a way around them, the layers before the first one are its stem, and no stage.

    Args:
        network: a functional or sequential keras.Model that reads images.

    Returns:
        {"P<k>": stage of stride 2^k}; empty for another model.
    """
    network = compat.graph_of(network)
    if network is None:
        return {}
    maps = [
        tensor for tensor in compat.passages(network) if len(tensor.shape) == 4 and not _is_padded(tensor)
    ]
    joined = [i for i, tensor in enumerate(maps) if compat.is_joined(tensor)]
    maps = maps[joined[0] if joined else 0 :]
    if not maps:
        return {}
    try:
        shapes = compat.shapes(network, maps, (1, _ANY_SIDE, _ANY_SIDE, network.input_shape[-1]))
    except Exception:  # of layers for images of one size alone, which raise what they like
        return {}
    stages = {}
    for tensor, (_, side, *_) in zip(maps, shapes, strict=True):
        exact = math.log2(_ANY_SIDE / side)
        level = round(exact)
        if level >= 0 and abs(exact - level) < 0.1:
            layer = compat.layer_before(tensor).name
            call = [found is tensor for found in compat.results(network, layer)].index(True)
            stages[f"P{level}"] = Stage(layer, 2**level, tensor.shape[-1], call)
    return stages
