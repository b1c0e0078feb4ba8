"""Trainings on the bundled images as records: what one was set to, and what it measured, is a line of a file of JSON lines."""

import functools
import gc
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
from ml_collections import ConfigDict
from scipy import stats

from keras_sslhsic.data.bundled import Arrays
from keras_sslhsic.data.sources import bundled_splits, source
from keras_sslhsic.evaluation.compare import compare
from keras_sslhsic.evaluation.results import MAX_BYTES
from keras_sslhsic.files import append_line, display, named, read_regular
from keras_sslhsic.runs import build, config
from keras_sslhsic.training import state
from keras_sslhsic.training.callbacks import StopOnFault, TargetEMA
from keras_sslhsic.training.strategy import strategy
from keras_sslhsic.words import warn

Record = dict[str, Any]
Evals = Mapping[str, Mapping[str, Any]]


class Clock(keras.callbacks.Callback):
    """Processor seconds of a step, of all threads: the least of the epochs, without the first, which traces."""

    seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.begun = time.process_time()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch:
            seconds = (time.process_time() - self.begun) / self.params["steps"]
            self.seconds = min(self.seconds or seconds, seconds)


def train(
    settings: ConfigDict,
    evals: Evals,
    look: Callable[[keras.Model], Record] = lambda model: {},
    test: Arrays | None = None,
) -> Record:
    """Trains as a config says, and measures.

    Args:
        settings: of a run on the bundled images.
        evals: as `evaluation.compare.compare` takes them. Where images are held out they are measured on, by kNN alone.
        look: what else is asked of the trained model, for the record.
        test: images and labels in the place of the bundled test images.

    Returns:
        "results", and of a training that did not diverge "last", what was logged in the end, "step_seconds" and "state_bytes".
    """
    keras.backend.clear_session()
    gc.collect()
    images = source(settings)
    model = build.build_model(settings, images.steps_per_epoch, strategy("one"))
    clock = Clock()
    target = [TargetEMA(settings.target_ema)] if model.target else []
    callbacks = [StopOnFault(), clock, *target]
    try:
        fitted = model.fit(images, epochs=settings.epochs, verbose=0, callbacks=callbacks)
    except FloatingPointError:
        return {"results": []}
    return {
        "results": measured(model.serving_encoder(), settings, evals, test),
        "last": {name: round(float(values[-1]), 6) for name, values in fitted.history.items()},
        "step_seconds": round(clock.seconds, 5),
        "state_bytes": sum(v.numpy().nbytes for v in state.variables(model).values()),
        **look(model),
    }


def measured(
    encoder: Any, settings: ConfigDict, evals: Evals, test: Arrays | None = None
) -> list[dict[str, Any]]:
    """Results of an encoder; see `train`."""
    fit, apart = bundled_splits(settings.data.holdout)
    evals = {"knn": evals["knn"]} if settings.data.holdout else evals
    splits = {"train": fit, "test": apart if settings.data.holdout or test is None else test}
    found = compare({settings.name: encoder}, evals, splits, data="bundled", seed=settings.seed)
    return [result.to_dict() for result in found]


def value(record: Record, label: str) -> float:
    """What an evaluation measured, in percent; that of a training that diverged is below all others."""
    return next((100 * found["value"] for found in record["results"] if found["label"] == label), -1.0)


def num_test(record: Record) -> int:
    """How many images measured a training; 0 of one that diverged."""
    return max((found["num_test"] for found in record["results"]), default=0)


def load(file: Path) -> list[Record]:
    """The records there are; a setting that came later has its default.

    A line that was cut short, as by a full disk, is left out with a warning.

    Raises:
        ValueError: if the file holds something else.
    """
    return _records(file, read_regular(file, MAX_BYTES)) if file.exists() else []


@functools.lru_cache(maxsize=2)
def _records(file: Path, content: bytes) -> list[Record]:
    records = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            record = dict(json.loads(line))
        except (TypeError, ValueError) as error:
            if not line.startswith(b"{"):
                raise ValueError(
                    f"Line {number} of {display(file)} is no record of a training: give another file."
                ) from error
            warn(f"Line {number} of {display(file)} is no whole record; it is left out.")
            continue
        if "settings" in record:
            record["settings"] = plain(config.completed(ConfigDict(record["settings"])))
        records.append(record)
    return records


def plain(settings: ConfigDict) -> Any:
    """A config as its record has it."""
    return json.loads(json.dumps(settings.to_dict()))


def found(file: Path, settings: ConfigDict) -> Record | None:
    """The record of a training with these settings."""
    given = plain(settings)
    return next((record for record in load(file) if record.get("settings") == given), None)


def add(file: Path, record: Record) -> None:
    """Adds a record, by one of several processes; see `files.append_line`."""
    with named(file):
        append_line(file, json.dumps(record).encode())


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the 95 % interval of Student's t over the seeds; 0 of one."""
    if len(values) < 2:
        return float(np.mean(values)), 0.0
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return float(np.mean(values)), float(half)
