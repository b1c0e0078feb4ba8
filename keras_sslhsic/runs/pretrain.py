"""A whole run from its config: data, training, evaluation, pictures, and a folder that holds them."""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from keras_sslhsic import pictures, plots, views
from keras_sslhsic.data.images import Images
from keras_sslhsic.data.sources import bundled_splits, source
from keras_sslhsic.evaluation import extract_features
from keras_sslhsic.files import display, write_json
from keras_sslhsic.lock import held
from keras_sslhsic.runs import config as configs
from keras_sslhsic.runs import defaults, folder, notices
from keras_sslhsic.runs.build import build_model
from keras_sslhsic.runs.evaluate import Group, callbacks, encoders_of, evaluate_run, groups_of, plans_of
from keras_sslhsic.training import inputs
from keras_sslhsic.training.callbacks import StopOnFault, TargetEMA, ViewSizes
from keras_sslhsic.training.checkpoint import Checkpoint
from keras_sslhsic.training.progress import Progress
from keras_sslhsic.training.strategy import strategy
from keras_sslhsic.training.trainer import Trainer
from keras_sslhsic.words import warn
from keras_sslhsic.zoo import model_files


def run(config: ConfigDict, workdir: str | os.PathLike, resume: bool = False) -> dict[str, Any]:
    """Trains as the config says, evaluates, and fills a run folder.

    The folder gets config.json, checkpoints/, history.csv, logs/ (TensorBoard), encoder.keras (images in [0, 255] to
    features), initial_encoder.keras (the same before training), model.keras (to train on), encoder.weights.h5, results.jsonl,
    curves.png, views.png, features.png and summary.json; and best_encoder.keras where `checkpoints.best` of the config says
    which is the best.
    Each file is written whole, so that a run that was killed at any moment goes on with `resume`; one process at a time
    writes to the folder.

    Of several workers, all read the chief's checkpoints, so `workdir` is on a file system that they share; each fills
    a folder, the chief `workdir` and worker i `workdir`.workeri.

    Args:
        config: see configs/fashion_small.py.
        workdir: the run folder; made if it is missing.
        resume: go on with the run that the folder holds, to the epochs of the config, over which its schedules are then; one
            that has them stays as it is. Where none has begun yet, as it was killed before it wrote its config, it begins,
            with a warning.

    Returns:
        What summary.json holds: name, seed, epochs, seconds of all sessions (but not of epochs that were cut short), last
        metrics and the rows of the table, whose results are in results.jsonl of the folder.

    Raises:
        ValueError: if the folder holds another run, something else or a run whose files are damaged, or one that has more
            epochs behind it than the config has, or the config does not fit the data, or names what there is not.
        FloatingPointError: if the loss or a variable is no longer finite; the last checkpoint is from before.
        lock.InUseError: if another process works in the folder.
    """
    started = time.monotonic()
    going_on = resume and (Path(workdir) / folder.CONFIG).exists()
    before = folder.load_config(workdir) if going_on else None
    config = defaults.suited(config, before)
    config = configs.completed(config)
    configs.check(config)
    plans_of(config)  # which raises for what is found without images
    # Several workers find each other before TensorFlow's first operation.
    machines = strategy(config.strategy)
    shared, workdir = Path(workdir), folder.own_folder(Path(workdir), machines)
    folder.check_folder(shared if resume else workdir, config, resume)
    intended = before.epochs if before is not None and before.epochs != config.epochs else None
    if resume and folder.is_finished(shared) and intended is None:
        return folder.read_summary(shared)
    if intended is not None:
        _check_length(shared, config.epochs)
    with held(workdir):
        # Another process may have begun there just before.
        folder.check_folder(shared if resume else workdir, config, resume)
        if resume and not (shared / folder.CONFIG).exists():
            warn(
                f"The run in {display(shared)} had not begun: it has no {folder.CONFIG}. It begins now.",
            )
        return _pretrain(config, shared, workdir, machines, started, intended)


def _check_length(workdir: Path, epochs: int) -> None:
    """Raises ValueError unless a run can go on to so many epochs."""
    trained = Checkpoint(workdir / folder.CHECKPOINTS).epoch
    if trained > epochs:
        raise ValueError(
            f"The run in {display(workdir)} has trained {trained} epochs, more than the {epochs} that are asked for: give at "
            "least as many."
        )
    if not trained and folder.is_finished(workdir):
        raise ValueError(
            f"The run in {display(workdir)} has no checkpoint to go on from: start another one from its weights, with its "
            "folder as init (--init)."
        )


def _pretrain(
    config: ConfigDict,
    shared: Path,
    workdir: Path,
    machines: tf.distribute.Strategy,
    started: float,
    intended: int | None,
) -> dict[str, Any]:
    """Trains and fills `workdir`, from the checkpoints in `shared` on, of a run that was to have `intended` epochs before."""
    checkpoint = Checkpoint(shared / folder.CHECKPOINTS, **config.checkpoints)
    records = folder.HistoryFile(workdir / folder.HISTORY, started, checkpoint)
    images = source(config, error_log=workdir / folder.BROKEN)
    started_from = workdir / folder.INITIAL
    # What it started from may have been moved since, or trained further.
    init = started_from if config.init and started_from.exists() else config.init
    model = build_model(config, images.steps_per_epoch, machines, init)
    # What `fit` would refuse, and views that cannot be made, are said before anything is written.
    sides = model.encoder.input_shape[1:]
    inputs.check(images, machines.num_replicas_in_sync, sides, model.policy, chunks=model.chunks)
    if config.view_sizes:
        inputs.check_growing(images, sides, model.policy, config.view_sizes, config.epochs)
    groups = groups_of(config, workdir / folder.BROKEN)
    _check_best(config.checkpoints.best, model, groups)
    drawn = views.show(images.sample(8), model.policy)
    if intended is not None:
        (workdir / folder.SUMMARY).unlink(missing_ok=True)  # it is not finished any more
    # The config first: it makes the folder a run.
    write_json(workdir / folder.CONFIG, config.to_dict())
    if not (workdir / folder.INITIAL).exists():
        model_files.save_model(model.serving_encoder(), workdir / folder.INITIAL, {})

    trained = checkpoint.restore(model)
    if records.rows and not trained:
        warn(
            f"There is no checkpoint in {display(checkpoint.directory)}: training begins with the first epoch.",
        )
    checkpoint.train_on(images)  # those of before, or nothing is drawn
    pictures.save(drawn, workdir / folder.VIEWS)
    for line in notices.before_training(config, images, model, trained, intended):
        print(line, flush=True)
    with contextlib.closing(Progress()) as bar:
        model.fit(
            images,
            epochs=config.epochs,
            verbose=0,
            callbacks=[
                *([TargetEMA(config.target_ema)] if model.target else []),
                *([ViewSizes(config.view_sizes)] if config.view_sizes else []),
                StopOnFault(),
                *callbacks(groups),
                records,
                keras.callbacks.TensorBoard(str(workdir / folder.LOGS), write_graph=False),
                checkpoint,
                bar,
            ],
        )
    history = folder.read_history(workdir / folder.HISTORY)
    plots.curves(history, workdir / folder.CURVES)
    encoder = model.serving_encoder()
    model_files.save_model(encoder, workdir / folder.ENCODER, {})
    model_files.save_model(model.evaluation_encoder, workdir / folder.WEIGHTS, {})
    model_files.save_model(model, workdir / folder.MODEL, {})
    rows = evaluate_run(workdir, groups)
    if config.data.source == "bundled":
        _, (test, labels) = bundled_splits(config.data.get("holdout", 0.0))
        features = extract_features(encoder, test)
        print(f"{folder.FEATURES} is drawn, which takes up to a minute.", flush=True)
        plots.feature_map(features, labels, images.class_names, workdir / folder.FEATURES)
    else:
        _draw_neighbours(images, model.policy.size, workdir)
    seconds = float(np.nansum(history.get("seconds", 0.0))) + time.monotonic() - records.since
    summary = {
        "name": config.name,
        "seed": config.seed,
        "epochs": config.epochs,
        "seconds": round(seconds, 1),
        "metrics": {
            name: _last(values)
            for name, values in history.items()
            if name not in ("epoch", "seconds", "checkpoint_seconds")
        },
        "results": rows,
    }
    if epoch := checkpoint.restore_best(model):
        model_files.save_model(model.serving_encoder(), workdir / folder.BEST, {})
        summary["best"] = {"epochs": epoch, checkpoint.best: checkpoint.best_value}
    write_json(workdir / folder.SUMMARY, summary)
    return summary


def _check_best(best: str | None, model: Trainer, groups: Sequence[Group]) -> None:
    """Raises ValueError for a measure that is never logged."""
    watched = [label for group in groups for label in group.every]
    if best is None or any(best.startswith(f"{label}_") for label in watched):
        return
    if best != "online_accuracy" or model.num_classes is None:
        known = ["online_accuracy"] * (model.num_classes is not None) + [f"{label}_..." for label in watched]
        raise ValueError(
            "checkpoints.best of the config must be online_accuracy, of a model with num_classes, or the measure of an "
            f'evaluation with "every", such as knn_top1, found {best!r}: this run logs {", ".join(known) or "neither"}.'
        )


def _draw_neighbours(images: Images, size: int, workdir: Path) -> None:
    """A picture of the nearest neighbours among some images, by the encoder of a run and the one that it started from."""
    sample = images.sample(256)
    side = min(size, *sample.shape[1:3])
    shrunk = np.rint(tf.image.resize(sample, (side, side), antialias=True)).clip(0, 255).astype(np.uint8)
    encoders = {name: encoder for name, encoder in encoders_of(workdir).items() if name != "raw pixels"}
    names = {str(workdir): "pretrained"}
    features = {
        names.get(name, name): extract_features(encoder, shrunk) for name, encoder in encoders.items()
    }
    plots.neighbours(shrunk, features, workdir / folder.NEIGHBOURS)


def _last(values: Sequence[float]) -> float:
    """The value of the last epoch that has one."""
    return next((value for value in reversed(values) if not np.isnan(value)), float("nan"))
