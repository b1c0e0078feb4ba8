"""What an evaluation returns, and the line of JSON it becomes."""

import dataclasses
import datetime
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np


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
            **context: what the protocol does not know itself, such as encoder="runs/a", encoder_hash=...,
                data=...
        """
        return {
            "protocol": self.protocol,
            **context,
            **dataclasses.asdict(self),
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }


def append(path: str | os.PathLike, record: dict[str, Any]) -> None:
    """Adds a record to a file of JSON lines, made with its folders if missing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(record, default=_plain)
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def read(path: str | os.PathLike) -> list[dict[str, Any]]:
    """Reads the records of one file, or of every `results.jsonl` under a folder, in the order of their time.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if a file is damaged or holds something else.
    """
    path = Path(path)
    files = sorted(path.rglob("results.jsonl")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"No results.jsonl under {path}: run an evaluation first.")
    records = []
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
            records += [json.loads(line) for line in lines if line.strip()]
        except ValueError as error:
            raise ValueError(f"{file} holds something else than results: {error}.") from error
    return sorted(records, key=lambda record: record.get("time", ""))


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
