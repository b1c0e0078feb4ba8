"""What the zoo knows: one entry a network, with where its numbers come from."""

import dataclasses
import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from keras_sslhsic.files import display

BUNDLED = Path(__file__).parent / "files"  # NAME.json beside NAME.keras

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_PAPER_RECIPE = (
    "SSL-HSIC with target network: 1000 epochs, batch 4096, LARS 0.4 x batch/256 (configs/imagenet_r50_1x.py)"
)


@dataclasses.dataclass(frozen=True)
class Entry:
    """One network of the zoo.

    Attributes:
        name: what `load_pretrained` is asked for.
        architecture: a name of `encoders.ARCHITECTURES`.
        width: multiplier of the base channels, or None for the one in the name.
        stem: ``"imagenet"`` or ``"small"``.
        input_size: side in pixels that images are resized to, or None to take them as they come.
        trained_at: side of the images that it was trained on, or None if it is not known.
        channels: channels of the images.
        mean: mean of each channel, of pixels in [0, 1].
        std: standard deviation of each channel, of pixels in [0, 1].
        feature_size: length of the feature vector.
        parameters: trainable parameters.
        method: what it was trained with.
        training_data: what it was trained on.
        recipe: how it was trained.
        metrics: reported numbers, in percent.
        metrics_source: who measured them, and where that is published.
        licence: licence of the weights.
        url: where the weights are, or None.
        file: name of the bundled file, or None.
        sha256: hash of the file, or None if its publisher gives none.
        size: bytes of the file, or None.
    """

    name: str
    architecture: str
    feature_size: int
    parameters: int
    width: float | None = None
    stem: str = "imagenet"
    input_size: int | None = 224
    trained_at: int | None = None
    channels: int = 3
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    method: str = ""
    training_data: str = ""
    recipe: str = ""
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metrics_source: str = ""
    licence: str = ""
    url: str | None = None
    file: str | None = None
    sha256: str | None = None
    size: int | None = None

    @property
    def available(self) -> str:
        """Where the weights are: "bundled", "download" or "none published"."""
        return "bundled" if self.file else "download" if self.url else "none published"

    def to_json(self) -> str:
        """Returns the entry as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Entry":
        """Reads an entry back.

        Raises:
            ValueError: if it is no mapping in JSON, has fields that an entry has not or lacks some, or one of them is
                nothing that it can be.
        """
        try:
            fields: dict[str, Any] = json.loads(text)
        except RecursionError as error:
            raise ValueError("A registry entry is nested too deeply.") from error
        if not isinstance(fields, dict):
            raise ValueError(f"A registry entry is a mapping, found {type(fields).__name__}.")
        if unknown := set(fields) - set(_FIELDS):
            raise ValueError(f"A registry entry has no field {', '.join(map(display, sorted(unknown)))}.")
        if missing := [field for field in _NEEDED if field not in fields]:
            raise ValueError(f"A registry entry needs the fields {', '.join(missing)}.")
        check_fields(fields)
        fields = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        return cls(**fields)


def _count(most: int, least: int = 1) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= most


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_number, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _or_null(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_TEXTS = ("name", "architecture", "stem", "method", "training_data", "recipe", "metrics_source", "licence")
_NEEDED = ("name", "architecture", "feature_size", "parameters")
# What each field of an entry is in a file.
_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(_TEXTS, ("is a text", _text)),
    **dict.fromkeys(("mean", "std"), ("is a list of numbers", _numbers)),
    "feature_size": ("is a number of features", _count(2**31)),
    "parameters": ("is a number of parameters", _count(2**40, least=0)),
    "width": ("is a positive number or null", _or_null(lambda value: _number(value) and 0 < value <= 1024)),
    "input_size": ("is a number of pixels or null", _or_null(_count(2**14))),
    "trained_at": ("is a number of pixels or null", _or_null(_count(2**14))),
    "channels": ("is a number of channels", _count(2**14)),
    "metrics": ("maps names to numbers", lambda value: type(value) is dict and _numbers([*value.values()])),
    "url": ("is an address or null", _or_null(_text)),
    "file": ("lies beside it", _or_null(lambda value: _text(value) and Path(value).name == value)),
    "sha256": (
        "is 64 hexadecimal digits or null",
        _or_null(lambda value: _text(value) and re.fullmatch("[0-9a-fA-F]{64}", value) is not None),
    ),
    "size": ("is a number of bytes or null", _or_null(_count(2**50))),
}


def check_fields(fields: Mapping[str, Any]) -> None:
    """Raises ValueError for a field of an entry, as JSON has it, that is nothing that it can be."""
    for field, value in fields.items():
        expected, fits = _FIELDS[field]
        if not fits(value):
            raise ValueError(f"The {field} of a registry entry {expected}, found {value!r:.100}.")


def unstated(entry: Entry) -> Entry:
    """An entry with what holds for any weights of its network, and nothing of how they came about."""
    return dataclasses.replace(
        entry, method="", training_data="", recipe="", metrics={}, metrics_source="", licence="",
        url=None, file=None, sha256=None, size=None,
    )  # fmt: skip


_SIZES = {  # features and parameters
    "r50_1x": (2048, 23_508_032),
    "r50_2x": (4096, 93_907_072),
    "r50_4x": (8192, 375_378_176),
    "r200_2x": (4096, 250_128_512),
}


def _imagenet(name: str, architecture: str, top1: float | None, **fields: Any) -> Entry:
    metrics = {} if top1 is None else {"ImageNet linear top-1": top1}
    data = "ImageNet (ILSVRC 2012), without labels"
    return Entry(name, architecture, *_SIZES[architecture], metrics=metrics, training_data=data, **fields)


def _official(name: str, top1: float | None = None, metrics_source: str = "") -> Entry:
    how = {"method": "SSL-HSIC", "recipe": _PAPER_RECIPE, "licence": "no weights were published"}
    return _imagenet(name, name, top1, metrics_source=metrics_source, **how)


def _byol(architecture: str, top1: float, file: str) -> Entry:
    return _imagenet(
        f"byol_{architecture}",
        architecture,
        top1,
        method="BYOL",
        recipe="BYOL, 1000 epochs, batch 4096 (Grill et al. 2020)",
        metrics_source="the authors, with the release of the weights (deepmind-research, byol/README.md)",
        licence="CC BY-NC 4.0 (not for commercial use)",
        url=f"https://storage.googleapis.com/deepmind-byol/checkpoints/{file}",
    )


_ENTRIES = (
    _official("r50_1x", 74.8, "the authors, with the release of their code (deepmind/ssl_hsic, README.md)"),
    _official("r50_2x"),
    _official("r50_4x"),
    _official("r200_2x"),
    _byol("r50_1x", 74.4, "pretrain_res50x1.pkl"),
    _byol("r200_2x", 79.6, "pretrain_res200x2.pkl"),
)


def entries() -> dict[str, Entry]:
    """Returns every entry by name: the bundled networks, then those known by their publication."""
    bundled = [Entry.from_json(path.read_text("utf-8")) for path in sorted(BUNDLED.glob("*.json"))]
    return {entry.name: entry for entry in (*bundled, *_ENTRIES)}


def list_pretrained() -> dict[str, Entry]:
    """Returns the zoo's networks by name; see `Entry` for what is known of each.

    Example:
        >>> "r50_1x" in list_pretrained()
        True
    """
    return entries()


def get(name: str) -> Entry:
    """Returns the entry of a name.

    Raises:
        ValueError: if there is none; the nearest name is suggested.
    """
    known = entries()
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(
            f"Unknown network {name!r}, and no such file or folder; the zoo has {', '.join(known)}.{hint}"
        )
    return known[name]


def format_table() -> str:
    """Formats the registry as a table of text, one line a network."""
    header = ("name", "method", "features", "parameters", "input", "weights", "reported", "licence")
    rows = []
    for entry in entries().values():
        side = entry.input_size or entry.trained_at
        takes_any = ", or any size" if side != entry.input_size else ""
        shape = f"{f'{side}x{side}' if side else 'any'}x{entry.channels}{takes_any}"
        sizes = str(entry.feature_size), f"{entry.parameters:,}", shape
        reported = ", ".join(f"{metric} {value:.1f}" for metric, value in entry.metrics.items()) or "-"
        rows.append((entry.name, entry.method, *sizes, entry.available, reported, entry.licence or "-"))
    return tabulate(rows, header, "simple", disable_numparse=True)
