"""A whole experiment from its config: data, training, evaluation, pictures, and a run folder that holds them."""

import contextlib
import csv
import inspect
import io
import json
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from keras_sslhsic import checks, evaluation, losses, plots, views
from keras_sslhsic import config as configs
from keras_sslhsic.data.sources import Labelled, Source, source
from keras_sslhsic.files import display, is_leftover, read_json, read_regular, write_json, write_text
from keras_sslhsic.lock import held
from keras_sslhsic.networks import build_encoder, with_preprocessing
from keras_sslhsic.training import batches, lars, schedules
from keras_sslhsic.training.callbacks import StopOnFault, TargetEMA
from keras_sslhsic.training.checkpoint import Checkpoint
from keras_sslhsic.training.model import SSLHSIC
from keras_sslhsic.training.progress import Progress
from keras_sslhsic.training.strategy import strategy
from keras_sslhsic.zoo import model_files

CONFIG, SUMMARY, HISTORY = "config.json", "summary.json", "history.csv"
RESULTS = "results.jsonl"
ENCODER, MODEL, WEIGHTS = "encoder.keras", "model.keras", "encoder.weights.h5"
VIEWS, BROKEN = "views.png", "broken_images.log"
CHECKPOINTS, LOGS = "checkpoints", "logs"


def pretrain(config: ConfigDict, workdir: str | os.PathLike, resume: bool = False) -> dict[str, Any]:
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
    shared, workdir = Path(workdir), _own_folder(Path(workdir), machines)
    _check_folder(shared if resume else workdir, config, resume)
    if resume and is_finished(shared):
        return read_summary(shared)
    with held(workdir):
        # Another process may have begun there just before.
        _check_folder(shared if resume else workdir, config, resume)
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
    batches.check(data.batches(0), machines.num_replicas_in_sync, model.encoder.input_shape[1:], model.policy)
    # The config first: it makes the folder a run.
    write_json(workdir / CONFIG, config.to_dict())
    untrained = model.encoder.get_weights()
    plots.save(views.show(data.sample(8), model.policy), workdir / VIEWS)

    checkpoint = Checkpoint(shared / CHECKPOINTS)
    first_epoch = checkpoint.restore(model)
    if records.rows and not first_epoch:
        warnings.warn(
            f"There is no checkpoint in {display(checkpoint.directory)}: training begins with the first epoch.",
            stacklevel=3,
        )
    model.fit(
        data.batches(first_epoch),
        epochs=config.epochs,
        steps_per_epoch=data.steps_per_epoch,
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
    if data.labelled_arrays is not None:
        # Read back, so that it shares no variables with the encoder that is set back to its first weights.
        encoder = model_files.load(workdir / ENCODER)
        model.encoder.set_weights(untrained)
        holdout = config.data.get("holdout", 0.0)
        summary["results"] = compare(
            encoder,
            serving_encoder(model, model.encoder),
            *data.labelled_arrays,
            f"{config.data.source}, {holdout:g} of train held out" if holdout else config.data.source,
            workdir,
        )
        test, labels = data.labelled_arrays[1]
        features = evaluation.extract_features(encoder, test)
        plots.feature_map(features, labels, data.class_names, workdir / "features.png")
    summary["seconds"] = round(
        float(np.nansum(history.get("seconds", 0.0))) + time.monotonic() - records.since, 1
    )
    write_json(workdir / SUMMARY, summary)
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
    encoder: keras.Model,
    untrained: keras.Model,
    train: Labelled,
    test: Labelled,
    data: str = "",
    workdir: Path | None = None,
) -> list[dict[str, Any]]:
    """kNN (k = 20) and linear accuracy of the pretrained encoder, beside raw pixels and the untrained encoder.

    Args:
        encoder: keras.Model from images in [0, 255] to features.
        untrained: the same before training.
        train: (images uint8 [N, H, W, C], labels int [N]) to fit on.
        test: the same, to measure on.
        data: name of the images, for the records.
        workdir: the run folder, to whose results.jsonl the records are added; None keeps none.

    Returns:
        One {"features", "knn", "linear"} for each, accuracies in [0, 1].
    """
    name = "pretrained" if workdir is None else str(workdir)
    file = None if workdir is None else workdir / RESULTS
    known: list[dict[str, Any]] = []
    if file is not None and file.exists():
        with contextlib.suppress(
            FileNotFoundError
        ):  # no whole record: a run was killed while it wrote the first
            known = evaluation.results.read(file)
    rows: dict[str, dict[str, Any]] = {}
    for record in evaluation.compare(encoder, untrained, train, test, data=data, name=name):
        # A run that was killed after this, and went on, has them already.
        if file is not None and not any(evaluation.results.same(record, other) for other in known):
            evaluation.results.append(file, record)
        features = "pretrained" if record["encoder"] == name else record["encoder"]
        protocol = record["protocol"].removesuffix("_features")
        rows.setdefault(features, {"features": features})[protocol] = record["value"]
    return list(rows.values())


def untrained_encoder(workdir: str | os.PathLike) -> keras.Model:
    """The encoder that a run started from, normalisation inside."""
    config = load_config(workdir)
    with _described_by(workdir):
        model = build_model(config, source(config), strategy("one"))
    return serving_encoder(model, model.encoder)


def evaluate_run(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The table of a finished run, computed again; see `compare`.

    Raises:
        ValueError: if the folder holds no finished run, or its data have no labelled arrays.
    """
    workdir = Path(workdir)
    config = load_config(workdir)
    with _described_by(workdir):
        data = source(config)
    if data.labelled_arrays is None:
        raise ValueError(
            f"The data of {display(workdir)} are not labelled arrays: name a protocol and --data."
        )
    if not (workdir / ENCODER).exists():
        raise ValueError(
            f"The run in {display(workdir)} is not finished: it has no {ENCODER}. Go on with it by --resume."
        )
    encoder = model_files.load(workdir / ENCODER)
    return compare(encoder, untrained_encoder(workdir), *data.labelled_arrays)


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of `compare` as text, accuracies in per cent."""
    names = list(rows[0])
    cells = [[display(name) for name in names]] + [
        [f"{100 * row[name]:.1f}" if isinstance(row[name], float) else display(row[name]) for name in names]
        for row in rows
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
    """Raises ValueError unless the folder is free for a run to begin, or holds the one to resume."""
    name = display(workdir)
    for folder in (workdir, workdir / CHECKPOINTS, workdir / LOGS):
        if os.path.lexists(folder) and not folder.is_dir():
            raise ValueError(f"{display(folder)} is no folder: remove it, or give another --workdir.")
    if (workdir / CONFIG).exists():
        flat = _flat(json.loads(json.dumps(config.to_dict())))
        other = _flat(_read_config(workdir))
        differing = sorted(key for key in flat.keys() | other.keys() if flat.get(key) != other.get(key))
        if differing:
            raise ValueError(
                f"{name} holds a run of another config; they differ in "
                + ", ".join(
                    f"{display(key)} ({other.get(key)!r} there, {flat.get(key)!r} now)" for key in differing
                )
                + ". Give another --workdir."
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


def _flat(config: dict) -> dict[str, Any]:
    if "views" in config:
        # As they are made: a run that an earlier version began lacks the fields that came since.
        config = {**config, "views": views.get(config["views"]).to_dict()}
    return configs.flatten(ConfigDict(config))


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
    config = ConfigDict(_read_config(Path(workdir)))
    with _described_by(workdir):
        config.data.source  # noqa: B018  what others look at first
    return config


def _read_config(workdir: Path) -> dict[str, Any]:
    config = read_json(workdir / CONFIG)
    with _described_by(workdir):
        try:
            views.get(config.get("views"))
        except (ValueError, OverflowError) as error:
            raise TypeError(f"views: {error}") from error
    return config


@contextlib.contextmanager
def _described_by(workdir: str | os.PathLike) -> Iterator[None]:
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
    return (
        isinstance(row, dict) and bool(row) and all(isinstance(value, (str, float)) for value in row.values())
    )


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

    Attributes:
        since: the end of the last epoch.
        rows: a mapping an epoch.

    Raises:
        ValueError: if the file is not such a history.
    """

    def __init__(self, file: Path, since: float):
        super().__init__()
        self.file = file
        self.since = since
        self.rows: list[dict[str, Any]] = [*_read_rows(file)]

    def on_epoch_end(self, epoch, logs=None):
        now = time.monotonic()
        metrics = {name: float(value) for name, value in logs.items()}
        seconds = round(now - self.since, 1)
        self.rows[epoch:] = [{"epoch": epoch, **metrics, "seconds": seconds}]
        self.since = now
        text = io.StringIO()
        # A run that an earlier version began may have other columns.
        table = csv.DictWriter(text, self.rows[-1], restval="nan", extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        write_text(self.file, text.getvalue())
