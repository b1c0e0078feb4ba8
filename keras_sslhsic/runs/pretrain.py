"""A whole run from its config: data, training, evaluation, pictures, and a folder that holds them."""

import os
import time
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
from ml_collections import ConfigDict

from keras_sslhsic import checks, evaluation, plots, views
from keras_sslhsic.data.sources import bundled_splits, source
from keras_sslhsic.files import display, write_json
from keras_sslhsic.lock import held
from keras_sslhsic.runs.build import build_model
from keras_sslhsic.runs.evaluate import compare, serving_encoder
from keras_sslhsic.runs.folder import (
    BROKEN, CHECKPOINTS, CONFIG, ENCODER, HISTORY, LOGS, MODEL, SUMMARY, VIEWS, WEIGHTS, HistoryFile, check_folder,
    is_finished, own_folder, read_history, read_summary,
)
from keras_sslhsic.training import inputs
from keras_sslhsic.training.callbacks import StopOnFault, TargetEMA
from keras_sslhsic.training.checkpoint import Checkpoint
from keras_sslhsic.training.progress import Progress
from keras_sslhsic.training.strategy import strategy
from keras_sslhsic.zoo import model_files


def run(config: ConfigDict, workdir: str | os.PathLike, resume: bool = False) -> dict[str, Any]:
    """Trains as the config says, evaluates, and fills a run folder.

    The folder gets config.json, checkpoints/, history.csv, logs/ (TensorBoard), encoder.keras (images in [0, 255] to
    features), model.keras (to train on), encoder.weights.h5, curves.png, views.png, features.png and summary.json.
    Each file is written whole, so that a run that was killed at any moment goes on with `resume`; one process at a time
    writes to the folder.

    Of several workers, all read the chief's checkpoints, so `workdir` is on a file system that they share; each fills
    a folder, the chief `workdir` and worker i `workdir`.workeri.

    Args:
        config: see configs/fashion_small.py.
        workdir: the run folder; made if it is missing.
        resume: go on with the run that the folder holds; one that is finished stays as it is. Where none has begun yet,
            as it was killed before it wrote its config, it begins, with a warning.

    Returns:
        What summary.json holds: name, seed, epochs, seconds of all sessions (but not of epochs that were cut short), last
        metrics and the rows of the table, whose results are in results.jsonl of the folder.

    Raises:
        ValueError: if the folder holds another run, something else or a run whose files are damaged, or the config does
            not fit the data.
        FloatingPointError: if the loss or a variable is no longer finite; the last checkpoint is from before.
        lock.InUseError: if another process works in the folder.
    """
    started = time.monotonic()
    checks.integer("epochs", config.epochs, 1)
    # Several workers find each other before TensorFlow's first operation.
    machines = strategy(config.strategy)
    shared, workdir = Path(workdir), own_folder(Path(workdir), machines)
    check_folder(shared if resume else workdir, config, resume)
    if resume and is_finished(shared):
        return read_summary(shared)
    with held(workdir):
        # Another process may have begun there just before.
        check_folder(shared if resume else workdir, config, resume)
        if resume and not (shared / CONFIG).exists():
            warnings.warn(
                f"The run in {display(shared)} had not begun: it has no {CONFIG}. It begins now.",
                stacklevel=2,
            )
        return _pretrain(config, shared, workdir, machines, started)


def _pretrain(config, shared, workdir, machines, started):
    """Trains and fills `workdir`, from the checkpoints in `shared` on."""
    records = HistoryFile(workdir / HISTORY, started)
    data = source(config, error_log=workdir / BROKEN)
    model = build_model(config, data, machines)
    # What `fit` would refuse is said before anything is written.
    inputs.check(data, machines.num_replicas_in_sync, model.encoder.input_shape[1:], model.policy)
    # The config first: it makes the folder a run.
    write_json(workdir / CONFIG, config.to_dict())
    untrained = model.encoder.get_weights()
    plots.save(views.show(data.sample(8), model.policy), workdir / VIEWS)

    checkpoint = Checkpoint(shared / CHECKPOINTS)
    if records.rows and not checkpoint.restore(model):
        warnings.warn(
            f"There is no checkpoint in {display(checkpoint.directory)}: training begins with the first epoch.",
            stacklevel=3,
        )
    model.fit(
        data,
        epochs=config.epochs,
        verbose=0,
        callbacks=[
            *([TargetEMA(config.target_ema)] if model.target else []),
            StopOnFault(),
            records,
            keras.callbacks.TensorBoard(str(workdir / LOGS), write_graph=False),
            checkpoint,
            Progress(),
        ],
    )
    history = read_history(workdir / HISTORY)
    plots.curves(history, workdir / "curves.png")
    model_files.save_model(serving_encoder(model, model.evaluation_encoder), workdir / ENCODER, {})
    model_files.save_model(model.evaluation_encoder, workdir / WEIGHTS, {})
    model_files.save_model(model, workdir / MODEL, {})
    summary = {
        "name": config.name,
        "seed": config.seed,
        "epochs": config.epochs,
        "seconds": 0.0,
        "metrics": {name: values[-1] for name, values in history.items() if name not in ("epoch", "seconds")},
        "results": [],
    }
    if config.data.source == "bundled":
        # Read back, so that it shares no variables with the encoder that is set back to its first weights.
        encoder = model_files.load(workdir / ENCODER)
        model.encoder.set_weights(untrained)
        holdout = config.data.get("holdout", 0.0)
        splits = bundled_splits(holdout)
        summary["results"] = compare(
            encoder,
            serving_encoder(model, model.encoder),
            *splits,
            f"{config.data.source}, {holdout:g} of train held out" if holdout else config.data.source,
            workdir,
        )
        test, labels = splits[1]
        features = evaluation.extract_features(encoder, test)
        plots.feature_map(features, labels, data.class_names, workdir / "features.png")
    summary["seconds"] = round(
        float(np.nansum(history.get("seconds", 0.0))) + time.monotonic() - records.since, 1
    )
    write_json(workdir / SUMMARY, summary)
    return summary
