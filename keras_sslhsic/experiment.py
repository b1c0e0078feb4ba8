"""A whole experiment from its config: data, training, evaluation, pictures, and a run folder that holds them."""

import csv
import inspect
import io
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from keras_sslhsic import checks, evaluation, losses, plots, views
from keras_sslhsic import config as configs
from keras_sslhsic.data.sources import Labelled, Source, source
from keras_sslhsic.networks import build_encoder, with_preprocessing
from keras_sslhsic.training import batches, lars, schedules
from keras_sslhsic.training.callbacks import StopOnFault, TargetEMA
from keras_sslhsic.training.checkpoint import Checkpoint
from keras_sslhsic.training.model import SSLHSIC
from keras_sslhsic.training.progress import Progress
from keras_sslhsic.training.strategy import strategy

CONFIG, SUMMARY, HISTORY = "config.json", "summary.json", "history.csv"
ENCODER, MODEL, WEIGHTS = "encoder.keras", "model.keras", "encoder.weights.h5"


def pretrain(config: ConfigDict, workdir: str | os.PathLike, resume: bool = False) -> dict[str, Any]:
    """Trains as the config says, evaluates, and fills a run folder.

    The folder gets config.json, checkpoints/, history.csv, logs/ (TensorBoard), encoder.keras (images in [0, 255] to
    features), model.keras (to train on), encoder.weights.h5, curves.png, views.png, features.png and summary.json.

    Of several workers, all read the chief's checkpoints, so `workdir` is on a file system that they share; each fills
    a folder, the chief `workdir` and worker i `workdir`.workeri.

    Args:
        config: see configs/fashion_small.py.
        workdir: the run folder; made if it is missing.
        resume: go on with the run that the folder holds; one that is finished stays as it is.

    Returns:
        What summary.json holds: name, seed, epochs, seconds of all sessions (but not of epochs that were cut short), last
        metrics and the rows of the table.

    Raises:
        ValueError: if the folder holds another run, or none to resume, or the config does not fit the data.
    """
    started = time.monotonic()
    checks.integer("epochs", config.epochs, 1)
    # Several workers find each other before TensorFlow's first operation.
    machines = strategy(config.strategy)
    shared, workdir = Path(workdir), _own_folder(Path(workdir), machines)
    _check_folder(shared if resume else workdir, config, resume)
    if resume and is_finished(shared):
        return json.loads((shared / SUMMARY).read_text())
    data = source(config, error_log=workdir / "broken_images.log")
    model = build_model(config, data, machines)
    # What `fit` would refuse is said before anything is written.
    batches.check(data.batches(0), machines.num_replicas_in_sync, model.encoder.input_shape[1:], model.policy)
    workdir.mkdir(parents=True, exist_ok=True)
    _write_json(workdir / CONFIG, config.to_dict())
    untrained = model.encoder.get_weights()
    views.show(data.sample(8), model.policy).savefig(workdir / "views.png", dpi=110)

    checkpoint = Checkpoint(shared / "checkpoints")
    first_epoch = checkpoint.restore(model)
    records = HistoryFile(workdir / HISTORY, started)
    model.fit(
        data.batches(first_epoch),
        epochs=config.epochs,
        steps_per_epoch=data.steps_per_epoch,
        verbose=0,
        callbacks=[
            *([TargetEMA(config.target_ema)] if model.target else []),
            StopOnFault(),
            records,
            keras.callbacks.TensorBoard(str(workdir / "logs"), write_graph=False),
            checkpoint,
            Progress(),
        ],
    )
    history = read_history(workdir / HISTORY)
    plots.curves(history, workdir / "curves.png")
    serving_encoder(model, model.evaluation_encoder).save(workdir / ENCODER)
    model.evaluation_encoder.save_weights(workdir / WEIGHTS)
    model.save(workdir / MODEL)
    summary = {
        "name": config.name,
        "seed": config.seed,
        "epochs": config.epochs,
        "seconds": 0.0,
        "metrics": {name: values[-1] for name, values in history.items() if name not in ("epoch", "seconds")},
        "results": [],
    }
    if data.labelled_arrays is not None:
        # Read back, so that it shares no variables with the encoder that is set back to its first weights.
        encoder = keras.models.load_model(workdir / ENCODER, compile=False)
        model.encoder.set_weights(untrained)
        summary["results"] = compare(encoder, serving_encoder(model, model.encoder), *data.labelled_arrays)
        test, labels = data.labelled_arrays[1]
        features = evaluation.extract_features(encoder, test)
        plots.feature_map(features, labels, data.class_names, workdir / "features.png")
    summary["seconds"] = round(
        float(np.nansum(history.get("seconds", 0.0))) + time.monotonic() - records.since, 1
    )
    _write_json(workdir / SUMMARY, summary)
    return summary


def is_finished(workdir: str | os.PathLike) -> bool:
    """Whether a run folder holds all that a run leaves."""
    return all((Path(workdir) / name).exists() for name in (SUMMARY, ENCODER))


def build_model(config: ConfigDict, data: Source, machines: tf.distribute.Strategy | None = None) -> SSLHSIC:
    """The compiled trainer that a config describes; equal seeds give equal weights.

    Args:
        config: of an experiment.
        data: its data set.
        machines: the strategy to build it under; None makes the one that the config names.
    """
    keras.utils.set_random_seed(config.seed)
    keras.mixed_precision.set_dtype_policy(config.precision)
    machines = strategy(config.strategy) if machines is None else machines
    with machines.scope():
        model = SSLHSIC(
            build_encoder(**config.encoder),
            views=config.views,
            seed=config.seed,
            **config.model,
        )
        model.compile(
            build_optimizer(config, data.steps_per_epoch, model.online_variables),
            loss=build_loss(config.loss),
            steps_per_execution=config.steps_per_execution,
        )
    return model


def build_optimizer(
    config: ConfigDict, steps_per_epoch: int, variables: Sequence
) -> keras.optimizers.Optimizer:
    """The optimizer of a config, its learning rate warmed up, then on a cosine to zero.

    `optimizer.learning_rate` is the peak for a batch of 256; the peak itself is in proportion to the batch.
    """
    settings = config.optimizer
    rate = schedules.WarmupCosine(
        schedules.scaled_learning_rate(settings.learning_rate, config.batch_size),
        total_steps=config.epochs * steps_per_epoch,
        warmup_steps=min(settings.warmup_epochs, config.epochs - 1) * steps_per_epoch,
    )
    makers = {
        "lars": lambda: lars.LARS(rate, weight_decay=settings.weight_decay),
        "adamw": lambda: keras.optimizers.AdamW(rate, weight_decay=settings.weight_decay),
        "sgd": lambda: keras.optimizers.SGD(
            rate, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay or None
        ),
    }
    if settings.name not in makers:
        raise ValueError(f"Unknown optimizer {settings.name!r}; expected one of {', '.join(makers)}.")
    optimizer = makers[settings.name]()
    if settings.name != "lars":
        optimizer.exclude_from_weight_decay([v for v in variables if not lars.is_adapted(v)])
    return optimizer


def build_loss(settings: ConfigDict) -> keras.losses.Loss:
    """The loss of a config: {"name": "ssl_hsic" or "info_nce", and its arguments}."""
    arguments = settings.to_dict()
    makers = {"ssl_hsic": losses.SSLHSICLoss, "info_nce": losses.InfoNCELoss}
    name = arguments.pop("name")
    if name not in makers:
        raise ValueError(f"Unknown loss {name!r}; expected one of {', '.join(makers)}.")
    foreign = set(arguments) - set(inspect.signature(makers[name]).parameters)
    if foreign:
        raise ValueError(
            f"The loss {name!r} takes no {', '.join(sorted(foreign))}: give the whole `loss` of another kind in a config file."
        )
    return makers[name](**arguments)


def serving_encoder(model: SSLHSIC, encoder: keras.Model) -> keras.Model:
    """An encoder with the normalisation of the model's views in front: images in [0, 255] to features."""
    return with_preprocessing(encoder, model.policy.mean, model.policy.std)


# The table ----------------------------------------------------------------------------------------------------------


def compare(
    encoder: keras.Model, untrained: keras.Model, train: Labelled, test: Labelled
) -> list[dict[str, Any]]:
    """kNN (k = 20) and linear accuracy of the pretrained encoder, beside raw pixels and the untrained encoder.

    Args:
        encoder: keras.Model from images in [0, 255] to features.
        untrained: the same before training.
        train: (images uint8 [N, H, W, C], labels int [N]) to fit on.
        test: the same, to measure on.

    Returns:
        One {"features", "knn", "linear"} for each, accuracies in [0, 1].
    """
    images = (train[0], test[0])
    pairs = {
        "pretrained": [evaluation.extract_features(encoder, x) for x in images],
        "untrained": [evaluation.extract_features(untrained, x) for x in images],
        "raw pixels": [x.reshape(len(x), -1).astype(np.float32) / 255 for x in images],
    }
    rows = []
    for name, (train_features, test_features) in pairs.items():
        arguments = (train_features, train[1], test_features, test[1])
        knn = evaluation.knn(*arguments, k=20)
        linear = evaluation.linear_features(*arguments)
        rows.append({"features": name, "knn": knn.top1, "linear": linear.top1})
    return rows


def untrained_encoder(workdir: str | os.PathLike) -> keras.Model:
    """The encoder that a run started from, normalisation inside."""
    config = load_config(workdir)
    model = build_model(config, source(config), strategy("one"))
    return serving_encoder(model, model.encoder)


def evaluate_run(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The table of a finished run, computed again; see `compare`.

    Raises:
        ValueError: if the folder holds no finished run, or its data have no labelled arrays.
    """
    workdir = Path(workdir)
    data = source(load_config(workdir))
    if data.labelled_arrays is None:
        raise ValueError(f"The data of {workdir} are not labelled arrays: name a protocol and --data.")
    if not (workdir / ENCODER).exists():
        raise ValueError(
            f"The run in {workdir} is not finished: it has no {ENCODER}. Go on with it by --resume."
        )
    encoder = keras.models.load_model(workdir / ENCODER, compile=False)
    return compare(encoder, untrained_encoder(workdir), *data.labelled_arrays)


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of `compare` as text, accuracies in per cent."""
    names = list(rows[0])
    cells = [names] + [
        [f"{100 * v:.1f}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    lines = [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


# The run folder -----------------------------------------------------------------------------------------------------


def _own_folder(workdir: Path, machines: tf.distribute.Strategy) -> Path:
    """The folder that this process writes to."""
    if machines.extended.should_checkpoint:
        return workdir
    return workdir.with_name(f"{workdir.name}.worker{machines.cluster_resolver.task_id}")


def _check_folder(workdir: Path, config: ConfigDict, resume: bool) -> None:
    """Raises ValueError unless the folder is free for a new run, or holds the one to resume."""
    wanted = json.loads(json.dumps(config.to_dict()))
    file = workdir / CONFIG
    if resume and not file.exists():
        raise ValueError(
            f"There is no run in {workdir} to go on with: it has no {CONFIG}. Leave out --resume to begin one there, or give "
            "the --workdir of the run."
        )
    if file.exists():
        found = json.loads(file.read_text())
        flat, other = _flat(wanted), _flat(found)
        differing = sorted(name for name in flat.keys() | other.keys() if flat.get(name) != other.get(name))
        if differing:
            raise ValueError(
                f"{workdir} holds a run of another config; they differ in "
                + ", ".join(
                    f"{name} ({other.get(name)!r} there, {flat.get(name)!r} now)" for name in differing
                )
                + ". Give another --workdir."
            )
        if not resume:
            raise ValueError(
                f"{workdir} holds a run of this config already. Add --resume to go on with it, or give another --workdir."
            )
    elif workdir.exists() and any(workdir.iterdir()):
        raise ValueError(f"{workdir} is not empty and holds no run. Give a new or an empty --workdir.")


def _flat(config: dict) -> dict[str, Any]:
    if "views" in config:
        # As they are made: a run that an earlier version began lacks the fields that came since.
        config = {**config, "views": views.get(config["views"]).to_dict()}
    return configs.flatten(ConfigDict(config))


def load_config(workdir: str | os.PathLike) -> ConfigDict:
    """The config of a run folder.

    Raises:
        ValueError: if the folder holds no run.
    """
    file = Path(workdir) / CONFIG
    if not file.exists():
        raise ValueError(
            f"{workdir} holds no run: there is no {CONFIG} in it. Make one with `keras-sslhsic pretrain`."
        )
    return ConfigDict(json.loads(file.read_text()))


def read_history(file: Path) -> dict[str, list[float]]:
    """{name: a value an epoch} from history.csv."""
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {name: [float(row[name]) for row in rows] for name in rows[0]} if rows else {}


class HistoryFile(keras.callbacks.Callback):
    """Writes the metrics of every epoch, and the seconds that it took, to a CSV file.

    Rows of epochs that are trained once more are replaced.

    Args:
        file: the CSV file.
        since: `time.monotonic()` from which the first epoch's seconds count.

    Attributes:
        since: the end of the last epoch.
    """

    def __init__(self, file: Path, since: float):
        super().__init__()
        self.file = file
        self.since = since

    def on_epoch_end(self, epoch, logs=None):
        rows: list[dict[str, Any]] = []
        if self.file.exists():
            with open(self.file, newline="") as lines:
                rows = list(csv.DictReader(lines))[:epoch]
        now = time.monotonic()
        metrics = {name: float(value) for name, value in logs.items()}
        rows.append({"epoch": epoch, **metrics, "seconds": round(now - self.since, 1)})
        self.since = now
        text = io.StringIO()
        # A run that an earlier version began may have other columns.
        table = csv.DictWriter(text, rows[-1], restval="nan", extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        _write(self.file, text.getvalue())


def _write_json(file: Path, content: Any) -> None:
    _write(file, json.dumps(content, indent=2) + "\n")


def _write(file: Path, text: str) -> None:
    """Writes a file so that a reader finds the old one or the new one, never half of it."""
    partial = file.with_name(file.name + ".partial")
    partial.write_text(text)
    os.replace(partial, file)
