"""The tables of the paper as runs: small ones, whose records are compared, and those at the paper's scale."""

import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from ml_collections import ConfigDict

from keras_sslhsic import losses
from keras_sslhsic.analysis.centred import z_test
from keras_sslhsic.data import bundled
from keras_sslhsic.evaluation import paper
from keras_sslhsic.evaluation.compare import BUNDLED
from keras_sslhsic.registries import Registry
from keras_sslhsic.runs import config, trials
from keras_sslhsic.runs.tables import TABLES, Changes, Row, Table
from keras_sslhsic.runs.trials import Record
from keras_sslhsic.training.encoding import unit_range
from keras_sslhsic.views import policy

SMALL = Path("configs", "fashion_small.py")
SEEDS = (1, 2, 3, 4, 5)
HELD_OUT = 0.2
_SMALL: Changes = {
    "epochs": 8,
    "encoder.width": 0.25,
    "model.projector_hidden": 512,
    "model.projection_dim": 128,
    "optimizer.learning_rate": 1.6e-2,
}
LABELS = ("knn", "linear", "finetune 1 %")


def settings_of(path: Path, changes: Changes) -> ConfigDict:
    """The completed config of a file with some fields changed."""
    with warnings.catch_warnings():
        # A row that changes the loss or the method leaves out what the other one had.
        warnings.filterwarnings("ignore", message=".*is left out")
        changed = config.overridden(
            config.read(path), [f"{field}={value!r}" for field, value in changes.items()]
        )
    return config.completed(changed)


# At small scale -----------------------------------------------------------------------------------------------------


def trained(file: Path, changes: Changes, seed: int, holdout: float, run: bool) -> Record | None:
    """The record of a small training; without one None, or, to `run`, that of the training that is made now.

    All 10,000 test images of Fashion-MNIST measure it where Debian's package has them, the bundled 2,000 elsewhere.
    """
    settings = settings_of(SMALL, {**_SMALL, **changes, "seed": seed, "data.holdout": holdout})
    if (known := trials.found(file, settings)) or not run:
        return known
    evals = {label: BUNDLED[label] for label in LABELS}
    record: Record = {"seed": seed, "holdout": holdout, "changes": dict(changes)}
    with warnings.catch_warnings():
        # The grids of a table stay as they are.
        warnings.filterwarnings("ignore", message=".* is at its edge")
        record |= trials.train(settings, evals, _centred_outputs, bundled.all_test_images())
    record["settings"] = trials.plain(settings)
    trials.add(file, record)
    measured = [result["label"] for result in record["results"]]  # fewer on images that are held out
    measures = ", ".join(f"{label} {trials.value(record, label):.1f}" for label in measured) or "it diverged"
    print(f"seed {seed}, {'held out' if holdout else 'test'}, {dict(changes)}: {measures}", flush=True)
    return record


def chosen(file: Path, row: Row, run: bool = False) -> Changes | None:
    """The choice of the best accuracy on held-out images; None as long as one has no record."""
    if len(row.choices) == 1:
        return row.choices[0]
    for_choice = row.small if row.chosen_for is None else row.chosen_for
    assert for_choice is not None
    held_out = [trained(file, {**for_choice, **choice}, 0, HELD_OUT, run) for choice in row.choices]
    accuracy = [trials.value(record, "knn") for record in held_out if record is not None]
    return row.choices[int(np.argmax(accuracy))] if len(accuracy) == len(row.choices) else None


def records_of(
    file: Path, row: Row, seeds: Sequence[int] | None = None, run: bool = False
) -> dict[int, Record]:
    """Seed -> record of a row, by default of all that there are; those that lack are trained now to `run`."""
    if seeds is None:
        known = [record["settings"] for record in trials.load(file) if "settings" in record]
        seeds = sorted({settings["seed"] for settings in known if settings["data"]["holdout"] == 0})
    choice = chosen(file, row, run) if row.small is not None else None
    if row.small is None or choice is None:
        return {}
    found = {seed: trained(file, {**row.small, **choice}, seed, 0.0, run) for seed in seeds}
    return {seed: record for seed, record in found.items() if record is not None}


def run_small(of: Table, file: Path, seeds: Sequence[int] = SEEDS) -> None:
    """Trains what the records of a table lack: all rows with one seed, and then with the next."""
    for seed in seeds:
        for row in of.rows:
            records_of(file, row, [seed], run=True)


def progress(file: Path) -> tuple[int, int]:
    """Of how many small trainings, those that only choose not counted, there are records; and how many there are in all."""
    small = {
        repr((row.small, row.choices, row.chosen_for)): row
        for of in TABLES
        for row in of.rows
        if row.small is not None
    }
    return sum(len(records_of(file, row, SEEDS)) for row in small.values()), len(SEEDS) * len(small)


@dataclasses.dataclass(frozen=True)
class Trend:
    """What the small scale says of one statement of the paper, that `better` is better than `worse`.

    Attributes:
        better: name of a row.
        worse: name of a row.
        differences: better less worse, in points, a value for each seed that both rows have of the same test images.
        paper: the difference in the paper, where it has both.
    """

    better: str
    worse: str
    differences: tuple[float, ...]
    paper: float | None = None

    @property
    def verdict(self) -> str:
        """shown, not shown or contradicted, by the 95 % interval of the paired differences; not yet run below two seeds."""
        if len(self.differences) < 2:
            return "not yet run"
        mean, half = trials.interval(self.differences)
        return "shown" if mean - half > 0 else "contradicted" if mean + half < 0 else "not shown"

    def __str__(self) -> str:
        if len(self.differences) < 2:
            return f"{self.verdict} ({len(self.differences)} of at least 2 seeds)"
        mean, half = trials.interval(self.differences)
        return f"{self.verdict}: {mean:+.1f} ± {half:.1f} points ({len(self.differences)} seeds)"


def trends(of: Table, file: Path) -> Iterator[Trend]:
    """The statements of a table, by its evaluation of the small runs."""
    rows = {row.name: row for row in of.rows}
    numbers = of_paper(of)
    for better, worse in of.trends:
        first, second = records_of(file, rows[better]), records_of(file, rows[worse])
        images = {
            seed: (trials.num_test(first[seed]), trials.num_test(second[seed]))
            for seed in first
            if seed in second
        }
        both = [seed for seed, (one, other) in images.items() if one == other or 0 in (one, other)]
        differences = [
            trials.value(first[seed], of.label) - trials.value(second[seed], of.label) for seed in both
        ]
        printed = [number for name in (better, worse) if (number := numbers.get(name)) is not None]
        yield Trend(better, worse, tuple(differences), printed[0] - printed[1] if len(printed) == 2 else None)


def of_paper(of: Table) -> dict[str, float | None]:
    """Name of a row -> the first number that the paper has for it."""
    printed: dict[str, float | None] = {}
    for other in paper.TABLES:
        if other.number == of.number:
            printed |= {name: values[0] for name, values in other.rows.items() if name not in printed}
    return printed


def small_lines(of: Table, file: Path) -> Iterator[str]:
    """A table of Markdown: the paper's number and ours, mean and 95 % interval over the seeds; then the trends."""
    numbers = of_paper(of)
    yield f"| row | changed | paper | {' | '.join(LABELS)} | seeds | test images |"
    yield "| --- " * (5 + len(LABELS)) + "|"
    for row in of.rows:
        records = records_of(file, row)
        values = [[trials.value(record, label) for record in records.values()] for label in LABELS]
        choice = chosen(file, row) if row.small is not None else None
        changed = "needs ImageNet" if row.small is None else _said({**row.small, **(choice or {})})
        number = numbers.get(row.name)
        measures = " | ".join(map(_interval, values))
        images = " and ".join(
            f"{count:,}" for count in sorted({*map(trials.num_test, records.values())} - {0})
        )
        printed = "" if number is None else f"{number:g}"
        yield f"| {row.name} | {changed} | {printed} | {measures} | {len(records)} | {images} |"
    for trend in trends(of, file):
        of_the_paper = "" if trend.paper is None else f" ({trend.paper:+.1f} in the paper)"
        yield ""
        yield f"{trend.better} over {trend.worse}{of_the_paper}, {of.label}: {trend}."
    if of.centred:
        yield ""
        yield from _centred_lines(file, of.rows)


def _centred_lines(file: Path, rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        tests = [record["z_test"] for record in records_of(file, row).values() if record.get("z_test")]
        for network in ("online", "target"):
            found = [test[network] for test in tests if network in test]
            accepted = sum(one["p_value"] >= 0.025 for one in found)
            verdict = (
                {0: "contradicted", len(found): "shown"}.get(accepted, "not shown")
                if found
                else "not yet run"
            )
            shares = ", ".join(f"{100 * one['rejected']:.0f} %" for one in found)
            yield (
                f"Outputs of {row.name}, {network} network, have mean 0: {verdict}, by a Z-test of 4096 images at 0.025. "
                f"Dimensions that differ, by seed: {shares or 'none measured'}."
            )
            yield ""


def _interval(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean, half = trials.interval(values)
    return f"{mean:.1f} ± {half:.1f}" if len(values) > 1 else f"{mean:.1f}"


def _said(changes: Changes) -> str:
    """Changes as text for a table."""
    return ", ".join(f"{field.split('.')[-1]} {value}" for field, value in changes.items()) or "nothing"


def _centred_outputs(model: keras.Model) -> Record:
    """The Z-test of the trained networks' outputs, divided by their norms, for one view each of 4096 images (appendix B.3)."""
    images = bundled.load()[0][0][:4096]
    outputs: dict[str, list[np.ndarray]] = {"online": [], "target": []}
    for start in range(0, len(images), 512):
        seed = tf.constant([model.seed, start], tf.int32)
        views = policy.make_views(unit_range(tf.constant(images[start : start + 512])), model.policy, seed)
        hiddens, _ = model.hiddens(views, training=False)
        for name, z in (("online", hiddens.online), ("target", hiddens.target)):
            if z is not None:
                outputs[name].append(losses.base.unit_norm(z[:, 0]).numpy())
    found = {}
    for name, parts in outputs.items():
        if parts:
            test = z_test(np.concatenate(parts))
            found[name] = {"rejected": round(test.rejected(), 4), "p_value": float(f"{test.p_value:.3g}")}
    return {"z_test": found}


# At the paper's scale -----------------------------------------------------------------------------------------------

_IMAGES = 1_281_167
# Of one image in two views through ResNet-50 and heads, with a target network and without (docs/methods.md).
_FLOPS = {True: 64.8e9, False: 48.7e9}


def large_lines(of: Table) -> Iterator[str]:
    """The runs of a table, what they cost, and the commands that make and measure them."""
    numbers = of_paper(of)
    yield f"{of.title} ({f'table {of.number}' if of.number else 'section 5'} of the paper)"
    for row in of.rows:
        settings = settings_of(row.base, row.large)
        number = numbers.get(row.name)
        yield ""
        yield f"{row.name}{'' if number is None else f': {number:g} in the paper'}"
        steps = settings.epochs * (_IMAGES // settings.batch_size)
        cost = f"{settings.epochs} epochs, {steps:,} steps of {settings.batch_size} images"
        if settings.encoder.name == "r50_1x" and settings.method == "ssl_hsic":
            flops = settings.epochs * _IMAGES * _FLOPS[settings.model.target]
            cost += f", {flops:.2g} floating point operations"
        yield f"  changes of {row.base}: {_said(row.large)}"
        yield f"  cost: {cost}"
        yield (
            f'  keras-sslhsic reproduce {of.name} --scale paper --row "{row.name}" --workdir RUN '
            "--config.data.data_dir=DATA"
        )
    yield ""
    if of.centred:
        yield "off_centre in RUN/history.csv is the share of dimensions that a Z-test rejects: 0.025 of centred outputs."
    if of.commands:
        yield "Each run is measured by:"
        yield from (f"  keras-sslhsic {command}" for command in of.commands)


def run_large(of: Table, name: str, workdir: Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Starts the run of a row, or goes on with it where its folder holds it already; see `pretrain.run`.

    Raises:
        ValueError: if the table has no such row; as `pretrain.run`.
    """
    from keras_sslhsic.runs import folder, pretrain

    rows: Registry[Row] = Registry("row")
    for row in of.rows:
        rows.add(row.name, row)
    row = rows[name]
    settings = config.overridden(settings_of(row.base, row.large), list(overrides))
    return pretrain.run(settings, workdir, resume=(workdir / folder.CONFIG).exists())
