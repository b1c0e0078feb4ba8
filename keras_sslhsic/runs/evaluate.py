"""What the encoder of a run has learnt: beside the one it started from, and raw pixels."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
from ml_collections import ConfigDict
from tabulate import tabulate

from keras_sslhsic import checks, views
from keras_sslhsic.data.broken import LOG
from keras_sslhsic.data.folder import own_test_folder
from keras_sslhsic.data.sources import bundled_splits
from keras_sslhsic.evaluation import PROTOCOLS, Result, results
from keras_sslhsic.evaluation.checks import CollapsedError
from keras_sslhsic.evaluation.compare import compare, raw_pixels
from keras_sslhsic.evaluation.extraction import AnyEncoder
from keras_sslhsic.evaluation.images import Labelled
from keras_sslhsic.evaluation.loading import FOR_FEATURES, FOR_TRAINING
from keras_sslhsic.evaluation.probes import Evaluate
from keras_sslhsic.evaluation.protocol import Protocol
from keras_sslhsic.evaluation.settings import checked
from keras_sslhsic.files import check_appendable, display
from keras_sslhsic.runs import build, folder
from keras_sslhsic.words import warn
from keras_sslhsic.zoo import model_files


@dataclasses.dataclass
class Group:
    """Evaluations of a config that see the same images.

    Attributes:
        data: name of the images.
        splits: the images.
        evals: label -> settings, as `compare` takes them.
        every: label -> number of epochs from one measurement to the next, for evaluations that watch the training too.
    """

    data: str
    splits: Mapping[str, Labelled]
    evals: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    every: dict[str, int] = dataclasses.field(default_factory=dict)


def groups_of(config: ConfigDict, error_log: str | Path = LOG) -> list[Group]:
    """The evaluations that a config names, with their images.

    `config.evals` is {label: {"protocol": a key of PROTOCOLS, "data": name of the images, "every": epochs, **settings}}, where
    the protocol may be the label itself, and the images those of the run, if they are the bundled ones, a data set with a split
    "test", or a folder of classes, a fifth of which is held out then (not from the training, which sees no labels). Images of
    other names have the size of the views, and lie where the run's own do, where the settings say nothing else.

    Args:
        config: of a run.
        error_log: file in which broken files are named.

    Raises:
        ValueError: for an unknown protocol, settings that cannot be, or images that there are not; names the evaluation.
    """
    groups: dict[Any, Group] = {}
    for label, planned in plans_of(config).items():
        with _naming(label):
            _add(groups, label, planned, config, error_log)
    return list(groups.values())


class Plan(NamedTuple):
    """An evaluation of a config: its protocol and settings, how often it is made, and where its images lie."""

    protocol: Protocol
    settings: dict[str, Any]
    every: int | None
    data: str | None
    where: dict[str, Any]


def plans_of(config: ConfigDict) -> dict[str, Plan]:
    """Label -> evaluation that a config names, as far as can be told without its images; raises as `groups_of`."""
    plans = {}
    for label, given in config.evals.items():
        with _naming(label):
            plans[label] = _planned(label, dict(given), config)
    return plans


@contextlib.contextmanager
def _naming(label: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(
            f"The evaluation {display(label)!r} of the config cannot be made: {error}"
        ) from error


def _planned(label: str, settings: dict[str, Any], config: ConfigDict) -> Plan:
    every, data = settings.pop("every", None), settings.pop("data", None)
    checks.integer("every", every, 1, optional=True)
    protocol = PROTOCOLS[settings.get("protocol", label)]
    if data is None and protocol.needs not in (FOR_FEATURES, FOR_TRAINING):
        raise ValueError(
            f'{protocol.name} needs images of another kind than a run has: name some as its "data".'
        )
    if "save_to" in settings:
        raise ValueError(
            "several encoders are measured, and one can be saved: `evaluate finetune --save-to` does it."
        )
    policy = views.get(config.views)
    own = {"image_size": policy.size, **as_read(config)} if data else {}
    own = {name: value for name, value in own.items() if name in protocol.needs.settings}
    own |= {name: settings.pop(name) for name in protocol.needs.settings if name in settings}
    where = checked(protocol.name, protocol.needs.settings, own)
    protocol.arguments_of({name: value for name, value in settings.items() if name != "protocol"})
    return Plan(protocol, settings, every, data, where)


def _add(
    groups: dict[Any, Group], label: str, planned: Plan, config: ConfigDict, error_log: str | Path
) -> None:
    """Adds an evaluation to the group that sees its images."""
    protocol, settings, every, data, where = planned
    policy, labelled = views.get(config.views), protocol.needs in (FOR_FEATURES, FOR_TRAINING)
    log = {"error_log": error_log} if labelled else {}
    key = (data, data and protocol.needs.load, json.dumps(where, default=str))
    if key not in groups:
        groups[key] = (
            _own_images(config, where, error_log)
            if data is None
            else Group(data, protocol.needs.load(data, channels=len(policy.mean), **where, **log))
        )
    protocol.check(
        groups[key].splits, **{name: value for name, value in settings.items() if name != "protocol"}
    )
    groups[key].evals[label] = settings
    if every is not None:
        groups[key].every[label] = every


def _own_images(config: ConfigDict, where: Mapping[str, Any], error_log: str | Path) -> Group:
    """The labelled images of a run, of which it trains on "train"; a folder's are split here, and trained on as a whole."""
    data, policy = config.data, views.get(config.views)
    if data.source == "bundled":
        holdout = data.get("holdout", 0.0)
        name = f"bundled, {holdout:g} of train held out" if holdout else "bundled"
        return Group(name, dict(zip(("train", "test"), bundled_splits(holdout), strict=True)))
    name, lie = own_data(config)
    where = {"channels": len(policy.mean), "image_size": policy.size, **lie, **where}
    return Group(name, FOR_FEATURES.load(name, **where, error_log=error_log))


def as_read(config: ConfigDict) -> dict[str, Any]:
    """Where images lie and how many may be broken, as the config of a run says it of its own, for evaluations to load any."""
    return {name: config.data[name] for name in ("data_dir", "max_broken") if name in config.data}


def own_data(config: ConfigDict) -> tuple[str, dict[str, Any]]:
    """The name of the images that a run trains on, as evaluations load them, and what they need to know beside it.

    Raises:
        ValueError: for images that have no name.
    """
    data = config.data
    if data.source == "folder":
        whole = Path(data.path).parent if own_test_folder(data.path) else data.path
        return str(whole), as_read(config)
    if data.source == "bundled":
        return data.source, {}
    if data.source == "tfds":
        return data.name, {"train_split": data.get("split", "train"), **as_read(config)}
    raise ValueError('no images are held back of those that the run trains on: name some as its "data".')


def callbacks(groups: Iterable[Group]) -> list[keras.callbacks.Callback]:
    """Those that run the evaluations of a config every n epochs, where it says so, and log them by their labels."""
    return [
        Evaluate(
            group.evals[label].get("protocol", label),
            group.splits,
            every=every,
            name=label,
            **{name: value for name, value in group.evals[label].items() if name != "protocol"},
        )
        for group in groups
        for label, every in group.every.items()
    ]


def evaluate_run(
    workdir: str | os.PathLike, groups: Iterable[Group] | None = None, verbose: bool = False
) -> list[dict[str, Any]]:
    """Runs the evaluations of a finished run, and adds their results to its results.jsonl.

    Args:
        workdir: the run folder.
        groups: the evaluations; None: those of its config.
        verbose: whether to show progress bars.

    Returns:
        A row an encoder, {"features": "pretrained", label: value, ...}, values in [0, 1], text with the unit where it is
        another ("0.532 m"), "-" where an evaluation needs a network; none without evaluations.

    Raises:
        ValueError: if the folder holds no finished run; as `groups_of`.
    """
    workdir = Path(workdir)
    encoders = encoders_of(workdir)
    if groups is None:
        with folder.described_by(workdir):
            groups = groups_of(folder.load_config(workdir), workdir / folder.BROKEN)
    found: dict[str, dict[str, Any]] = {}
    labels: dict[str, str] = {}
    for group in groups:
        file = workdir / folder.RESULTS
        labels |= dict.fromkeys(group.evals, "-")
        for own, encoder in encoders.items():
            name = "pretrained" if own == str(workdir) else own
            row = found.setdefault(name, {})
            try:
                measured = measure(
                    {own: encoder}, group.evals, group.splits, file, data=group.data, verbose=verbose
                )
            except CollapsedError as error:  # the others are measured nevertheless
                warn(f"What is {name} is not measured: {error}")
                continue
            for result in measured:
                row[result.label] = (
                    result.value if result.unit == "share" else f"{result.value:.3f} {result.unit}"
                )
    return [{"features": name, **labels, **values} for name, values in found.items()]


def measure(
    encoders: Mapping[str, AnyEncoder],
    evals: Mapping[str, Mapping[str, Any]],
    splits: Mapping[str, Labelled],
    file: str | os.PathLike,
    **options: Any,
) -> list[Result]:
    """The results of `compare`, which takes the options, each added to a file as it is ready, but if the file has it.

    Raises:
        ValueError: if the file holds something else than results; as `compare`.
        OSError: if it cannot be made, before anything is measured.
    """
    try:
        known = results.read(file)
    except FileNotFoundError:  # or no whole line: a run was killed while it wrote the first
        known = []
    check_appendable(file)
    found = []
    for result in compare(encoders, evals, splits, **options):
        # A run that was killed after this, and went on, has it already.
        if not any(results.same(result, other) for other in known):
            results.append(file, result)
        found.append(result)
    return found


def encoders_of(workdir: str | os.PathLike) -> dict[str, Any]:
    """What a finished run is measured by: its encoder, by the run's name, the one it started from, and "raw pixels".

    What it started from is "untrained", or, of a run with `init`, "start".

    Raises:
        ValueError: if the folder holds no finished run.
    """
    workdir = Path(workdir)
    config = folder.load_config(workdir)
    if not (workdir / folder.ENCODER).exists():
        raise ValueError(
            f"The run in {display(workdir)} is not finished: it has no {folder.ENCODER}. Go on with it by --resume."
        )
    encoder = model_files.load(workdir / folder.ENCODER)
    if (workdir / folder.INITIAL).exists():
        initial = model_files.load(workdir / folder.INITIAL)
    else:  # a run of version 0.1.0, whose config says what it started from
        with folder.described_by(workdir):
            initial = build.initial_encoder(config)
    start = "start" if config.init else "untrained"
    return {str(workdir): encoder, start: initial, "raw pixels": raw_pixels}


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `evaluate_run` as text, shares in per cent."""
    cells = [
        [f"{100 * row[name]:.1f}" if isinstance(row[name], float) else display(row[name]) for name in rows[0]]
        for row in rows
    ]
    shares = {name for row in rows for name, value in row.items() if isinstance(value, float)}
    head = [f"{display(name)}, %" if name in shares else display(name) for name in rows[0]]
    alignment = ["left"] + ["right"] * (len(head) - 1)
    return tabulate(cells, head, "simple", disable_numparse=True, colalign=alignment)
