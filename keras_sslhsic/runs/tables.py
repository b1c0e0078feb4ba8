"""The tables of the paper as rows: each a config, and what it changes at the paper's scale and on the bundled images."""

import dataclasses
from pathlib import Path
from typing import Any

from keras_sslhsic.evaluation import paper
from keras_sslhsic.evaluation.paper import WITH, WITHOUT
from keras_sslhsic.registries import Registry

Changes = dict[str, Any]  # dotted field of a config -> value

LARGE = Path("configs", "imagenet_r50_1x.py")
_IMAGENET = (
    "--data imagenet2012 --data-dir DATA --train-split TRAIN --validation-split VALID --test-split TEST"
)


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
    commands: tuple[str, ...] = (f"evaluate linear --run RUN {_IMAGENET}",)
    label: str = "linear"
    centred: bool = False


# Without a target network gamma has to be found for the batch: at 128 images the paper's 3 is too large.
_GAMMAS = tuple({"loss.gamma": gamma} for gamma in (0.5, 1.0, 2.0, 3.0))
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
    "evaluate finetune --run RUN --data imagenet2012_subset/1pct --data-dir DATA --test-split validation",
    "evaluate finetune --run RUN --data imagenet2012_subset/10pct --data-dir DATA --test-split validation",
    f"evaluate finetune --run RUN {_IMAGENET}",
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
                tuple({"loss.temperature": temperature} for temperature in (0.05, 0.1, 0.2, 0.5)),
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
        commands=(),
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
            f"evaluate {kind} --run RUN --data {name} --data-dir DATA"
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
