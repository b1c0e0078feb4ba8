"""The tables of the paper as runs: each row a config and what it changes, at the paper's scale and on the bundled images."""

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
from keras_sslhsic.evaluation.paper import WITH, WITHOUT
from keras_sslhsic.registries import Registry
from keras_sslhsic.runs import config, trials
from keras_sslhsic.runs.trials import Record
from keras_sslhsic.training.encoding import unit_range
from keras_sslhsic.views import policy

Changes = dict[str, Any]  # dotted field of a config -> value

LARGE, SMALL = Path("configs", "imagenet_r50_1x.py"), Path("configs", "fashion_small.py")
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


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: as `evaluation.paper.TABLES` has it, if it is there.
        large: what it changes of `base`.
        small: what it changes of the small run; None: it needs ImageNet, or a network of that size.
        choices: changes of which the best by kNN on held-out training images is taken, at small scale.
        chosen_for: what is trained to choose, where that is not this row itself: rows that share it share the choice.
        base: config at the paper's scale.
    """

    name: str
    large: Changes
    small: Changes | None = None
    choices: tuple[Changes, ...] = ({},)
    chosen_for: Changes | None = None
    base: Path = LARGE


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, or a statement of the text, of the paper.

    Attributes:
        name: what the command calls it.
        number: of the table in the paper, as `evaluation.paper.TABLES` has it; "" for one of the text.
        title: what it is about.
        rows: what is trained.
        trends: (better, worse) names of rows: what the paper says.
        commands: the evaluations at the paper's scale, for a run folder RUN.
        label: of the evaluation that decides at small scale.
        centred: whether the paper says that the rows' outputs have mean 0.
    """

    name: str
    number: str
    title: str
    rows: tuple[Row, ...]
    trends: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ("evaluate linear --run RUN --data imagenet2012 --test-split validation",)
    label: str = "linear"
    centred: bool = False


# Without a target network gamma has to be found for the batch: at 128 images 3 collapses.
_GAMMAS = tuple({"loss.gamma": gamma} for gamma in (0.5, 1.0, 2.0))
_ALONE: Changes = {"model.target": False}
_ABLATION: Changes = {**_ALONE, "epochs": 100}


def _alone(
    name: str, large: Changes, small: Changes | None = None, own_choice: bool = False, **others: Any
) -> Row:
    """A row of the ablations: 100 epochs without a target network; gamma is that of the kernel with 512 features."""
    changed = _ALONE | (large if small is None else small)
    return Row(name, _ABLATION | large, changed, _GAMMAS, None if own_choice else _ALONE, **others)


_EXACT: Changes = {"loss.num_features": None}
_TARGETS = (
    Row(WITH, {}, {}, tuple({"loss.gamma": gamma} for gamma in (3.0, 5.0))),
    Row(WITHOUT, _ALONE, _ALONE, _GAMMAS),
)
_METHODS = {
    "SimCLR": "simclr",
    "MoCo v2": "moco",
    "BYOL": "byol",
    "SwAV": "swav",
    "Barlow Twins": "barlow_twins",
}


def _others(*names: str) -> tuple[Row, ...]:
    """Rows of other methods, as their authors train them; docs/methods.md compares them in small."""
    return tuple(Row(name, {}, base=Path("configs", "methods", f"{_METHODS[name]}.py")) for name in names)


_LARGE_TARGETS = tuple(dataclasses.replace(row, small=None) for row in _TARGETS)
_FINETUNE = (
    "evaluate finetune --run RUN --data imagenet2012_subset/1pct --test-split validation",
    "evaluate finetune --run RUN --data imagenet2012_subset/10pct --test-split validation",
    "evaluate finetune --run RUN --data imagenet2012 --test-split validation",
)
_WIDTHS = tuple(
    row
    for label, name, width in (
        ("50 1x", "r50_1x", 0.125),
        ("50 2x", "r50_2x", 0.25),
        ("50 4x", "r50_4x", 0.5),
        ("200 2x", "r200_2x", None),
    )
    for row in (
        Row(
            f"{WITH}, ResNet-{label}",
            {"encoder.name": name},
            None if width is None else {"encoder.width": width},
            _TARGETS[0].choices,
            {},
        ),
        Row(
            f"BYOL, ResNet-{label}",
            {"encoder.name": name},
            base=Path("configs", "methods", "byol.py"),
        ),
    )
)
_WIDER = ((f"{WITH}, ResNet-50 4x", f"{WITH}, ResNet-50 1x"),)
_TRANSFERRED = tuple(column.data for column in next(one for one in paper.TABLES if one.number == "3").columns)
_DENSE = "--run RUN --data-dir DATA --work-dir RUN/dense"

TABLES: tuple[Table, ...] = (
    Table(
        "linear",
        "1",
        "Linear evaluation; with a target network and without",
        (*_TARGETS, *_others("SimCLR", "MoCo v2", "BYOL", "SwAV", "Barlow Twins")),
        ((WITH, WITHOUT),),
    ),
    Table(
        "fixed",
        "",
        "Random features drawn anew at every step, or once",
        tuple(
            row
            for count in (64, 512)
            for row in (
                _alone(f"drawn anew, {count} features", {"loss.num_features": count}),
                _alone(
                    f"drawn once, {count} features",
                    {"loss.redraw": False, "loss.num_features": count},
                ),
            )
        ),
        tuple((f"drawn anew, {count} features", f"drawn once, {count} features") for count in (64, 512)),
    ),
    Table(
        "kernels",
        "",
        "Kernel; without random features",
        tuple(
            _alone(f"SSL-HSIC, {label} kernel", {"loss.kernel": kernel, **_EXACT}, own_choice=kernel != "imq")
            for label, kernel in (("linear", "linear"), ("Gaussian", "gaussian"), ("IMQ", "imq"))
        ),
        tuple((f"SSL-HSIC, {label} kernel", "SSL-HSIC, linear kernel") for label in ("Gaussian", "IMQ")),
    ),
    Table(
        "regulariser",
        "8a",
        "Regulariser: SSL-HSIC or InfoNCE",
        (
            _alone("SSL-HSIC", _EXACT),
            Row(
                "InfoNCE",
                _ABLATION | {"loss.name": "info_nce", "loss.temperature": 0.1},
                _ALONE | {"loss.name": "info_nce"},
                tuple({"loss.temperature": temperature} for temperature in (0.1, 0.2, 0.5)),
            ),
        ),
        (("SSL-HSIC", "InfoNCE"),),
    ),
    Table(
        "features",
        "8b",
        "Number of random features",
        (
            *(
                _alone(f"SSL-HSIC, {count} features", {"loss.num_features": count})
                for count in (64, 128, 256, 512, 1024, 2048)
            ),
            _alone("SSL-HSIC, no approximation", _EXACT),
        ),
        (("SSL-HSIC, no approximation", "SSL-HSIC, 64 features"),),
    ),
    Table(
        "batch",
        "8c",
        "Batch size",
        (
            *(
                _alone(
                    f"SSL-HSIC, batch {large}",
                    {"batch_size": large, **_EXACT},
                    {"batch_size": large // 8, **_EXACT},
                    own_choice=True,
                )
                for large in (256, 512, 1024, 2048, 4096)
            ),
            *(
                Row(
                    f"SimCLR, batch {large}",
                    {"epochs": 100, "batch_size": large},
                    {
                        "method": "simclr",
                        "model.projection_dim": 128,
                        "batch_size": large // 8,
                    },
                    base=Path("configs", "methods", "simclr.py"),
                )
                for large in (256, 512, 1024, 2048, 4096)
            ),
        ),
        (
            ("SSL-HSIC, batch 1024", "SSL-HSIC, batch 256"),
            ("SimCLR, batch 1024", "SimCLR, batch 256"),
        ),
    ),
    Table(
        "outputs",
        "8d",
        "Output size of the projector",
        tuple(
            _alone(
                f"SSL-HSIC, output {size}",
                {"model.projection_dim": size},
                {"model.projection_dim": size // 4},
            )
            for size in (64, 128, 256, 512, 1024)
        ),
        (("SSL-HSIC, output 512", "SSL-HSIC, output 64"),),
    ),
    Table("widths", "6", "Wider and deeper networks, linear evaluation", _WIDTHS, _WIDER),
    Table(
        "widths_finetune",
        "7",
        "Wider and deeper networks, fine-tuned",
        tuple(row for row in _WIDTHS if row.name.startswith(WITH)),
        _WIDER,
        _FINETUNE,
        "finetune 1 %",
    ),
    Table(
        "centred",
        "",
        "Outputs of BYOL have mean 0 (appendix B.3)",
        (Row("BYOL", {}, {"method": "byol"}, base=Path("configs", "methods", "byol.py")),),
        centred=True,
    ),
    Table(
        "finetune",
        "2",
        "Fine-tuned on 1 %, 10 % and 100 % of the labels",
        (*_TARGETS, *_others("SimCLR", "BYOL", "SwAV", "Barlow Twins")),
        ((WITH, WITHOUT),),
        _FINETUNE,
        "finetune 1 %",
    ),
    Table(
        "transfer",
        "3",
        "Transfer to twelve data sets, linear and fine-tuned",
        (*_LARGE_TARGETS, *_others("SimCLR", "BYOL")),
        (),
        tuple(
            f"evaluate {kind} --run RUN --data {name}"
            for kind in ("transfer", "transfer_finetune")
            for name in _TRANSFERRED
        ),
    ),
    Table(
        "dense",
        "4",
        "Segmentation and depth",
        (*_LARGE_TARGETS, *_others("SimCLR", "BYOL")),
        (),
        (
            f"evaluate segmentation --data voc2012 {_DENSE}",
            f"evaluate depth --data nyu_depth_v2 {_DENSE}",
        ),
    ),
    Table(
        "detection",
        "5",
        "Object detection and instance segmentation",
        (*_LARGE_TARGETS, *_others("SimCLR", "MoCo v2", "BYOL", "SwAV")),
        (),
        (f"evaluate detection --data coco {_DENSE}",),
    ),
)


def table(name: str) -> Table:
    """A table by its name.

    Raises:
        ValueError: if there is none.
    """
    tables: Registry[Table] = Registry("table")
    for one in TABLES:
        tables.add(one.name, one)
    return tables[name]


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
    record = {"seed": seed, "holdout": holdout, "changes": dict(changes)}
    record |= trials.train(settings, evals, _centred_outputs, bundled.all_test_images())
    record["settings"] = trials.plain(settings)
    trials.add(file, record)
    measures = ", ".join(f"{label} {trials.value(record, label):.1f}" for label in LABELS)
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


def records_of(file: Path, row: Row, seeds: Sequence[int] = SEEDS, run: bool = False) -> dict[int, Record]:
    """Seed -> record of a row; those that lack are trained now to `run`."""
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
    return sum(len(records_of(file, row)) for row in small.values()), len(SEEDS) * len(small)


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
