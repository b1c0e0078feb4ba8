"""What an evaluation returns, and the line of JSON it becomes."""

import dataclasses
import datetime
import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from warnings import warn

import numpy as np

from keras_sslhsic.files import display, named, read_regular

MAX_BYTES = 2**30  # of a file of results
_DEEPEST = 8  # lists and mappings within each other in a record
_LARGEST = 2**53  # count


@dataclasses.dataclass(frozen=True)
class Result:
    """Base of the results. Metrics are shares in [0, 1].

    Attributes:
        value: the protocol's metric on the test split.
        interval: its 95 % interval (low, high) over the drawing of the test images.
        num_test: number of test examples.
        metric: what `value` is, such as "top1".
        seed: seed of whatever the protocol draws.
        num_train: number of training examples, where it is known.
        recipe: how the protocol was run, all that was given rather than chosen or measured; values for JSON.
    """

    protocol: ClassVar[str] = ""

    value: float
    interval: tuple[float, float]
    num_test: int
    metric: str = "top1"
    seed: int | None = None
    num_train: int | None = None
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    @property
    def top1(self) -> float:
        """Top-1 accuracy.

        Raises:
            AttributeError: if the protocol's metric is another one.
        """
        if self.metric != "top1":
            raise AttributeError(f"The metric of this result is {self.metric}; read `value`.")
        return self.value

    def record(self, **context: Any) -> dict[str, Any]:
        """The result as plain values for JSON.

        Args:
            **context: what the protocol does not know itself: encoder="runs/a", encoder_hash=..., data="cars".
        """
        return {
            "protocol": self.protocol,
            **context,
            **dataclasses.asdict(self),
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }


def append(path: str | os.PathLike, record: Mapping[str, Any]) -> None:
    """Adds a record to a file of JSON lines, made with its folders if missing.

    The line is written by one call and synchronised to the disk. After a line that was cut short, by a kill or a full
    disk, it begins a new one.

    Raises:
        TypeError: if the record holds what JSON cannot.
        OSError: if it cannot be written.
    """
    line = json.dumps(record, default=_plain).encode() + b"\n"
    path = Path(path)
    with named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+", buffering=0) as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = b"\n" + line
            written = file.write(line)
            os.fsync(file.fileno())
        if written != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads the records of one file, or of every `results.jsonl` under a folder, in the order of their time.

    A line that is damaged, or whose values are no record's, is left out with a warning, which names it.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if a file holds something else than results.
    """
    path = Path(path)
    files = sorted(path.rglob("results.jsonl")) if path.is_dir() else [path]
    records = [record for file in files for record in _records(file)]
    if not records:
        raise FileNotFoundError(f"No results in {display(path)}: run an evaluation first.")
    return sorted(records, key=lambda record: str(record.get("time", "")))


def same(record: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two records, of which one may have been read back, say the same of different times."""
    one, two = ({k: v for k, v in r.items() if k != "time"} for r in (record, other))
    return json.dumps(one, default=_plain, sort_keys=True) == json.dumps(two, default=_plain, sort_keys=True)


def _records(file: Path) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    damaged: list[int] = []
    foreign: list[int] = []
    for number, line in enumerate(read_regular(file, MAX_BYTES).split(b"\n"), 1):
        try:
            found = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):  # of JSON, of the encoding, of numbers too long
            # A record that was cut short is half an object.
            (damaged if line.startswith(b'{"') else foreign).append(number)
            continue
        if isinstance(found, dict) and _is_record(found):
            records.append(found)
        elif line.strip():
            is_ours = isinstance(found, dict) and {"protocol", "value"} <= found.keys()
            (damaged if is_ours else foreign).append(number)
    if foreign and not records:
        raise ValueError(
            f"{display(file)} holds something else than results: line {foreign[0]} is no record."
        )
    for number in sorted(damaged + foreign):
        warn(f"Line {number} of {display(file)} is no whole record; it is left out.", stacklevel=4)
    return records


def _is_record(found: dict[str, Any]) -> bool:
    """Whether it has what every record has, and nothing of another kind."""
    match found:
        case {"protocol": str(), "value": value, "interval": [low, high]}:
            shares = [value, low, high, *(found[name] for name in ("top5", "fraction") if _has(found, name))]
            counts = [found[name] for name in ("num_test", "num_train") if _has(found, name)]
            texts = [
                found[name]
                for name in ("metric", "encoder", "encoder_hash", "data", "dataset", "time")
                if _has(found, name)
            ]
            return (
                all(map(_is_share, shares))
                and low <= high
                and all(type(count) is int and 0 < count <= _LARGEST for count in counts)
                and all(isinstance(text, str) for text in texts)
                and isinstance(found.get("recipe") or {}, dict)
                and _depth(found) <= _DEEPEST
            )
    return False


def _has(found: dict[str, Any], name: str) -> bool:
    return found.get(name) is not None


def _is_share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1 + 1e-9  # a mean is rounded


def _depth(value: Any) -> int:
    """How many lists and mappings are within each other, counted to one more than a record has at most."""
    level, depth = [value], 0
    while depth <= _DEEPEST and (level := [item for item in level if isinstance(item, list | dict)]):
        level = [item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer)]
        depth += 1
    return depth


def wilson_interval(share: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share of `n` independent draws; 95 % by default.

    Wilson (1927): (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n). Within [0, 1] also near the
    ends.
    """
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON.")
