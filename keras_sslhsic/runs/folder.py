"""The folder of a run: the names of its files, and what they hold."""

import contextlib
import csv
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from ml_collections import ConfigDict

from keras_sslhsic import pictures
from keras_sslhsic.data import broken
from keras_sslhsic.files import display, is_leftover, is_utf8, read_json, read_regular, write_text
from keras_sslhsic.runs import config as configs
from keras_sslhsic.training.checkpoint import Checkpoint

CONFIG, SUMMARY, HISTORY = "config.json", "summary.json", "history.csv"
RESULTS = "results.jsonl"
ENCODER, MODEL, WEIGHTS = "encoder.keras", "model.keras", "encoder.weights.h5"
INITIAL, BEST = "initial_encoder.keras", "best_encoder.keras"
VIEWS, CURVES, FEATURES = pictures.VIEWS, pictures.CURVES, pictures.FEATURES
NEIGHBOURS = pictures.NEIGHBOURS
BROKEN = broken.LOG
CHECKPOINTS, LOGS = "checkpoints", "logs"
# Fields that a run may go on with others of: its length, its machines, and what it keeps.
_FREE = {"epochs", "strategy", "checkpoints.keep", "checkpoints.best"}


def is_finished(workdir: str | os.PathLike) -> bool:
    """Whether a run folder holds all that a run leaves."""
    return all((Path(workdir) / name).exists() for name in (SUMMARY, ENCODER))


def own_folder(workdir: Path, machines: tf.distribute.Strategy) -> Path:
    """The folder that this process writes to."""
    if machines.extended.should_checkpoint:
        return workdir
    return workdir.with_name(f"{workdir.name}.worker{machines.cluster_resolver.task_id}")


def check_folder(workdir: Path, config: ConfigDict, resume: bool) -> None:
    """Raises ValueError unless the folder is free for a run to begin, or holds the one to resume, be it for longer."""
    name = display(workdir)
    if not is_utf8(workdir):
        raise ValueError(
            f"{name} is not UTF-8, as TensorFlow needs for its checkpoints: give another --workdir."
        )
    for folder in (workdir, workdir / CHECKPOINTS, workdir / LOGS):
        if os.path.lexists(folder) and not folder.is_dir():
            raise ValueError(f"{display(folder)} is no folder: remove it, or give another --workdir.")
    if (workdir / CONFIG).exists():
        flat = configs.flatten(ConfigDict(json.loads(json.dumps(configs.completed(config).to_dict()))))
        other = configs.flatten(ConfigDict(json.loads(json.dumps(_read_config(workdir)))))
        differing = sorted(
            key for key in (flat.keys() | other.keys()) - _FREE if flat.get(key) != other.get(key)
        )
        if differing:
            measured = all(key.startswith("evals") for key in differing)
            remedy = (
                "`keras-sslhsic evaluate PROTOCOL --run` measures the run by others"
                if measured
                else "Give another --workdir"
            )
            raise ValueError(
                f"{name} holds a run of another config; they differ in "
                + ", ".join(
                    f"{display(key)} ({other.get(key)!r} there, {flat.get(key)!r} now)" for key in differing
                )
                + f". {remedy}."
            )
        if not resume:
            raise ValueError(
                f"{name} holds a run of this config already. Add --resume to go on with it, or give another --workdir."
            )
        return
    # What a run that was killed at its beginning leaves.
    found = workdir.iterdir() if workdir.exists() else []
    only_leftovers = all(path.name in (VIEWS, BROKEN) or is_leftover(path) for path in found)
    if not only_leftovers:
        raise ValueError(
            f"{name} is not empty and holds no run: it has no {CONFIG}. Give a new or an empty --workdir, or that of the "
            "run."
        )


def load_config(workdir: str | os.PathLike) -> ConfigDict:
    """The config of a run folder.

    Raises:
        ValueError: if the folder holds no run, or its config is damaged.
    """
    file = Path(workdir) / CONFIG
    if not file.exists():
        raise ValueError(
            f"{display(workdir)} holds no run: there is no {CONFIG} in it. Make one with `keras-sslhsic pretrain`."
        )
    return ConfigDict(_read_config(Path(workdir)))


def _read_config(workdir: Path) -> dict[str, Any]:
    config = read_json(workdir / CONFIG)
    with described_by(workdir):
        try:
            return configs.completed(ConfigDict(config)).to_dict()
        except ValueError as error:
            raise TypeError(error) from error


@contextlib.contextmanager
def described_by(workdir: str | os.PathLike) -> Iterator[None]:
    """Says that a config is to blame where it lacks something, or has something of another type."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{display(Path(workdir) / CONFIG)} is not the config of a run: {display(error)}. Restore it."
        ) from error


def read_summary(workdir: str | os.PathLike) -> dict[str, Any]:
    """What summary.json of a finished run holds; see `pretrain`.

    Raises:
        ValueError: if it holds something else.
    """
    file = Path(workdir) / SUMMARY
    summary = read_json(file)
    rows = summary.get("results")
    if not isinstance(rows, list) or not all(map(_is_row, rows)) or len({frozenset(row) for row in rows}) > 1:
        raise ValueError(
            f"{display(file)} is not the summary of a run: its results are no list of mappings from the same names to "
            "numbers and text. Remove it, and make it anew with --resume."
        )
    return summary


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and bool(row) and all(isinstance(v, (str, float)) for v in row.values())


def read_history(file: Path) -> dict[str, list[float]]:
    """{name: a value an epoch} from history.csv.

    Raises:
        ValueError: if it holds anything but a line of names and lines of as many numbers.
    """
    rows = _read_rows(file)
    return {name: [float(row[name]) for row in rows] for name in rows[0]} if rows else {}


def _read_rows(file: Path) -> list[dict[str, str]]:
    """The lines of history.csv; none if there is no file."""
    if not file.exists():
        return []
    content = read_regular(file, limit=2**28)
    try:
        rows = list(csv.DictReader(io.StringIO(content.decode(), newline="")))
        for row in rows:
            for value in row.values():
                float(value)
    except (ValueError, TypeError, csv.Error) as error:
        raise ValueError(
            f"{display(file)} is not the history of a run ({display(error)}). Restore it; or remove it, to go on without what "
            "it recorded."
        ) from error
    return rows


class HistoryFile(keras.callbacks.Callback):
    """Writes the metrics of every epoch, and the seconds that it took, to a CSV file.

    Rows of epochs that are trained once more are replaced.

    Args:
        file: the CSV file; its lines are read now.
        since: `time.monotonic()` from which the first epoch's seconds count.
        checkpoint: comes after this one; for how many of the seconds it has held training up is written too.

    Attributes:
        since: the end of the last epoch.
        rows: a mapping an epoch.

    Raises:
        ValueError: if the file is not such a history.
    """

    def __init__(self, file: Path, since: float, checkpoint: Checkpoint):
        super().__init__()
        self.file, self.checkpoint = file, checkpoint
        self.since = since
        self.rows: list[dict[str, Any]] = [*_read_rows(file)]

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        now = time.monotonic()
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        seconds = round(now - self.since, 1)
        # That of the epoch before, which came after its row.
        held = round(self.checkpoint.seconds, 3)
        self.rows[epoch:] = [{"epoch": epoch, **metrics, "seconds": seconds, "checkpoint_seconds": held}]
        self.since = now
        text = io.StringIO()
        # Some epochs have an evaluation more; and a run that an earlier version began may have other columns.
        columns = dict.fromkeys(name for row in self.rows for name in row)
        table = csv.DictWriter(text, columns, restval="nan", lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        write_text(self.file, text.getvalue())
