"""What an evaluation returns, and the file of JSON lines that keeps it."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_sslhsic.files import append_line, display, named, read_regular
from keras_sslhsic.words import warn

MAX_BYTES = 2**30  # of a file of results
_DEEPEST = 8  # lists and mappings within each other in a result
_LARGEST = 2**53  # count
_DATA = {"fashion_mnist_subset": "bundled"}  # names of earlier versions


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What an evaluation measured, on which encoder and data, and how: what protocols return and files of results hold.

    Two results that differ in protocol, recipe, seed, metric, encoder, data or number of images are never one.

    Attributes:
        value: the protocol's metric on the test split.
        interval: its 95 % interval (low, high) over the drawing of the test images.
        num_test: number of test examples; None where it is not known.
        metric: what `value` is, such as "top1".
        seed: seed of whatever the protocol draws.
        num_train: number of training examples, where it is known.
        recipe: how the protocol was run, all that was given rather than chosen or measured; values for JSON.
        details: what else the protocol chose or measured. Names in it, and that of the metric, can be read as attributes:
            `result.top1`, `result.learning_rate`.
        unit: of the value: "share", in [0, 1], shown in per cent; or another, such as "m" or "ratio", of numbers from 0 up.
        lower_is_better: whether a lower value is a better one.
        others: what else was measured on the same images: metric -> {"value", "interval", and where they differ "unit" and
            "lower_is_better"}; see `measures`.
        protocol: name of the protocol.
        encoder: name of the encoder.
        encoder_hash: what identifies it, `encoders.encoder_hash`; None for a function, whose weights cannot be seen.
        data: name of the images.
        label: what a config calls the evaluation.
        time: when it was made, in ISO 8601.
    """

    value: float
    interval: tuple[float, float]
    num_test: int | None = None
    metric: str = "top1"
    seed: int | None = None
    num_train: int | None = None
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    unit: str = "share"
    lower_is_better: bool = False
    others: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict, hash=False)
    protocol: str = ""
    encoder: str = "?"
    encoder_hash: str | None = None
    data: str = "?"
    label: str = ""
    time: str = ""

    def __getattr__(self, name: str) -> Any:
        known = self.__dict__
        others = {metric: other["value"] for metric, other in known.get("others", {}).items()}
        values = {known.get("metric"): known.get("value"), **others, **known.get("details", {})}
        if name not in values:
            raise AttributeError(f"This result has no {name}: it has {', '.join(map(str, values))}.")
        return values[name]

    def measures(self) -> list["Result"]:
        """A result for each metric, the first one that of `value`."""
        parts = {self.metric: {}, **self.others}
        return [dataclasses.replace(self, metric=name, others={}, **part) for name, part in parts.items()]

    def text(self) -> str:
        """The value and its interval as people read them: "76.0 [75.1, 76.9] %"."""
        share = self.unit == "share"
        value, low, high = (f"{100 * x:.1f}" if share else f"{x:.3f}" for x in (self.value, *self.interval))
        return f"{value} [{low}, {high}] {'%' if share else self.unit}"

    def to_dict(self) -> dict[str, Any]:
        """The result as the line of JSON that a file has of it."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        details = fields.pop("details")
        return json.loads(json.dumps({**fields, **details}, default=_plain))

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Result":
        """The result of a line of JSON, also one that an earlier version wrote.

        Raises:
            ValueError: if it lacks what every result has, or has values of another kind.
        """
        if not _is_result(found):
            raise ValueError(
                "A result has a protocol, a value and its interval, shares in [0, 1] or of another unit."
            )
        # Versions before 0.1.0 had other names, and settings of kNN that stood beside the recipe alone.
        found = {"data": found.get("dataset"), **found}
        names = {field.name for field in dataclasses.fields(cls)}
        fields = {name: value for name, value in found.items() if name in names and value is not None}
        details = {name: value for name, value in found.items() if name not in names}
        recipe: dict[str, Any] = {name: details[name] for name in ("k", "temperature") if name in details}
        if (
            "label" not in found
            and found["protocol"] == "logistic"
            and (found.get("recipe") or {}).get("max_iter") == 100
        ):
            # The table of the bundled images of version 0.1.0, which did not say it.
            recipe["standardised"] = True
        data = fields.get("data", "?")
        return cls(
            **fields
            | {
                "interval": tuple(found["interval"]),
                "data": _DATA.get(data, data),
                "recipe": {**recipe, **fields.get("recipe", {})},
                "details": details,
            }
        )


def append(path: str | os.PathLike, result: Result) -> None:
    """Adds a result to a file of JSON lines, made with its folders if missing.

    The line is on the disk then; see `files.append_line`.

    Raises:
        TypeError: if the result holds what JSON cannot.
        ValueError: if `read` would leave it out.
        OSError: if it cannot be written.
    """
    line = json.dumps(result.to_dict()).encode()
    if not _is_result(json.loads(line)):
        raise ValueError(
            "Expected a result with a value and an interval (low, high) that are shares in [0, 1], or of another unit "
            f"from 0 up, low first, and counts of at least 1; found value {result.value}, interval {result.interval}, unit "
            f"{result.unit} and {result.num_test} test images."
        )
    with named(path):
        append_line(path, line)


def read(path: str | os.PathLike) -> list[Result]:
    """Reads the results of one file, or of every `results.jsonl` under a folder, in the order of their time.

    A line that is damaged, or whose values are no result's, is left out with a warning, which names it; so is a file of
    something else among others.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if the one file holds something else than results.
    """
    path = Path(path)
    files = sorted(path.rglob("results.jsonl")) if path.is_dir() else [path]
    results: list[Result] = []
    for file in files:
        try:
            results += _results(file)
        except ValueError as error:
            if len(files) == 1:
                raise
            warn(f"{error} The file is left out.")
    if not results:
        raise FileNotFoundError(f"No results in {display(path)}: run an evaluation first.")
    return sorted(results, key=lambda result: result.time)


def same(result: Result, other: Result) -> bool:
    """Whether two results, of which one may have been read back, say the same of different times."""
    one, two = (dataclasses.replace(r, time="").to_dict() for r in (result, other))
    return one == two


def _results(file: Path) -> list[Result]:
    results: list[Result] = []
    damaged: list[int] = []
    foreign: list[int] = []
    for number, line in enumerate(read_regular(file, MAX_BYTES).split(b"\n"), 1):
        try:
            found = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):  # of JSON, of the encoding, of numbers too long
            # A result that was cut short is half an object.
            (damaged if line.startswith(b'{"') else foreign).append(number)
            continue
        if isinstance(found, dict) and _is_result(found):
            results.append(Result.from_dict(found))
        elif line.strip():
            is_ours = isinstance(found, dict) and {"protocol", "value"} <= found.keys()
            (damaged if is_ours else foreign).append(number)
    if foreign and not results:
        raise ValueError(
            f"{display(file)} holds something else than results: line {foreign[0]} is no record."
        )
    for number in sorted(damaged + foreign):
        warn(f"Line {number} of {display(file)} is no whole record; it is left out.")
    return results


def _is_result(found: Mapping[str, Any]) -> bool:
    """Whether it has what every result has, and nothing of another kind."""
    match found:
        case {"protocol": str(), "value": value, "interval": [low, high]}:
            shares = [found[name] for name in ("top5", "fraction") if _has(found, name)]
            mappings = [found.get(name) for name in ("recipe", "others")]
            counts = [found[name] for name in ("num_test", "num_train") if _has(found, name)]
            texts = [
                found[name]
                for name in ("metric", "unit", "encoder", "encoder_hash", "data", "dataset", "label", "time")
                if _has(found, name)
            ]
            return (
                all(map(_is_share, shares))
                and _is_measure({"unit": found.get("unit"), "value": value, "interval": [low, high]})
                and all(isinstance(mapping, dict | None) for mapping in mappings)
                and all(map(_is_measure, (found.get("others") or {}).values()))
                and all(type(count) is int and 0 < count <= _LARGEST for count in counts)
                and all(isinstance(text, str) for text in texts)
                and _depth(found) <= _DEEPEST
            )
    return False


def _is_measure(found: Any) -> bool:
    """Whether it is a value with its interval around it, of one unit."""
    match found:
        case {"value": value, "interval": [low, high]}:
            is_one = _is_share if found.get("unit") in (None, "share") else _is_number
            unit, direction = found.get("unit"), found.get("lower_is_better")
            usable = isinstance(unit, str | None) and isinstance(direction, bool | None)
            return usable and all(map(is_one, (value, low, high))) and low <= high
    return False


def _has(found: Mapping[str, Any], name: str) -> bool:
    return found.get(name) is not None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _LARGEST


def _is_share(value: Any) -> bool:
    return _is_number(value) and value <= 1 + 1e-9  # a mean is rounded


def _depth(value: Any) -> int:
    """How many lists and mappings are within each other, counted to one more than a record has at most."""
    level, depth = [value], 0
    while depth <= _DEEPEST and (level := [item for item in level if isinstance(item, list | dict)]):
        level = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
        depth += 1
    return depth


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")
