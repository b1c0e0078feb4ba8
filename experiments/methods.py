"""All methods on the bundled images: one network, one set of views, one budget, one choice of the learning rate.

    python experiments/methods.py            train and measure what the records lack
    python experiments/methods.py --plot     write the table of docs/methods.md, and its chart, from the records

Every method is trained once with each learning rate of one grid on four fifths of the training images; the rate of the best
kNN accuracy on the other fifth is then trained with three seeds on all of them, and measured on the test images. A line of
experiments/methods.jsonl is one training, written when it is over: a stopped experiment goes on where it was. What was
trained with other settings is trained anew.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

# As `keras-sslhsic pretrain` has it: the networks of a step run side by side.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import numpy as np
import pages
from ml_collections import ConfigDict

from keras_sslhsic import pictures
from keras_sslhsic.evaluation.compare import BUNDLED
from keras_sslhsic.runs import build, config, trials
from keras_sslhsic.runs.trials import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "experiments" / "methods.jsonl"
PAGE, CHART = ROOT / "docs" / "methods.md", ROOT / "docs" / "images" / "methods.png"
BEGIN, END = "<!-- of experiments/methods.py --plot -->\n\n", "\n<!-- end -->"
EVALS = {label: BUNDLED[label] for label in ("knn", "linear", "finetune 1 %")}
RATES = (4e-3, 1.6e-2, 6.4e-2)  # peaks for a batch of 256, as in configs
SEEDS = (1, 2, 3)
HELD_OUT = 0.2
EPOCHS = 4

# Beside its network and its loss as they are by default: what its authors evaluate, and sizes that suit 10,000 images.
METHODS: dict[str, dict[str, Any]] = {
    "ssl_hsic": {"model": {"weight_ema": 0.99}},
    "byol": {},
    "simsiam": {},
    "simclr": {},
    "moco": {"loss": {"queue_size": 2048}},
    "swav": {"loss": {"num_prototypes": 300, "frozen_steps": 78}},
    "barlow_twins": {},
    "vicreg": {},
    "lejepa": {},
}
UNTRAINED = "untrained"


def settings_of(name: str, rate: float, seed: int, holdout: float) -> ConfigDict:
    """The config of one training, or of the untrained encoder."""
    own, method = METHODS.get(name, {}), "ssl_hsic" if name == UNTRAINED else name
    base = config.read(ROOT / "configs" / "fashion_small.py").to_dict()
    changed = {
        "name": name,
        "method": method,
        "seed": seed,
        "epochs": EPOCHS,
        "data": {"source": "bundled", "holdout": holdout},
        "encoder": base["encoder"] | {"width": 0.25},
        "model": {"projector_hidden": 512, "projection_dim": 128, **own.get("model", {})},
        "loss": {"name": config.schema.loss_of(method), **own["loss"]} if "loss" in own else None,
        "optimizer": base["optimizer"] | {"learning_rate": rate},
    }
    return config.completed(ConfigDict(base | changed))


def record_of(method: str, rate: float, seed: int, holdout: float, run: bool) -> Record | None:
    """The record of a training; without one None, or, to `run`, that of the training that is made now."""
    settings = settings_of(method, rate, seed, holdout)
    if (known := trials.found(RECORDS, settings)) or not run:
        return known
    if method == UNTRAINED:
        trained: Record = {"results": trials.measured(build.initial_encoder(settings), settings, EVALS)}
    else:
        trained = trials.train(settings, EVALS)
    made = {
        "method": method,
        "rate": rate,
        "seed": seed,
        "holdout": holdout,
        **trained,
        "settings": trials.plain(settings),
    }
    trials.add(RECORDS, made)
    print(
        f"{method}, rate {rate:g}, seed {seed}:",
        *(f"{trials.value(made, label):.1f}" for label in EVALS),
        flush=True,
    )
    return made


def run() -> None:
    """Makes what the records lack: the choice of the rates, and then all methods with one seed after the other."""
    chosen = {method: choice(method, run=True) for method in METHODS}
    for seed in SEEDS:
        for method, held_out in chosen.items():
            record_of(method, best(held_out), seed, 0.0, run=True)
        record_of(UNTRAINED, RATES[0], seed, 0.0, run=True)


def choice(method: str, run: bool = False) -> dict[float, float]:
    """The kNN accuracy on held-out images by learning rate, in percent."""
    found = {rate: record_of(method, rate, 0, HELD_OUT, run) for rate in RATES}
    return {rate: trials.value(record, "knn") for rate, record in found.items() if record is not None}


def best(held_out: dict[float, float]) -> float:
    """The learning rate of the best accuracy."""
    return max(held_out, key=lambda rate: held_out[rate], default=RATES[0])


def summary(method: str) -> tuple[dict[float, float], list[Record]]:
    """The accuracies by learning rate, and the records of the seeds that there are."""
    held_out = {} if method == UNTRAINED else choice(method)
    rate = RATES[0] if method == UNTRAINED else best(held_out)
    found = [record_of(method, rate, seed, 0.0, run=False) for seed in SEEDS]
    return held_out, [record for record in found if record is not None]


def plot() -> None:
    """Writes the table and the chart of those methods that have a record of a seed."""
    found = {method: summary(method) for method in (*METHODS, UNTRAINED)}
    found = {method: (held_out, records) for method, (held_out, records) in found.items() if records}
    points = {
        method: [trials.interval([trials.value(record, label) for record in records]) for label in EVALS]
        for method, (_, records) in found.items()
    }
    # The least of the seeds: other work on the machine makes a step longer, and none makes it shorter.
    seconds = {
        method: min((record["step_seconds"] for record in records if "step_seconds" in record), default=0.0)
        for method, (_, records) in found.items()
    }
    rates = " / ".join(f"{rate:g}" for rate in RATES)
    lines = [
        f"| method | held out, at {rates} | {' | '.join(EVALS)} | a step | state, MB | seeds |",
        "| --- " * (5 + len(EVALS)) + "|",
    ]
    for method, (held_out, records) in found.items():
        chosen = " / ".join(
            f"**{v:.1f}**" if rate == best(held_out) else f"{v:.1f}" for rate, v in held_out.items()
        )
        measures = " | ".join(
            f"{mean:.1f} ± {half:.1f}" if len(records) > 1 else f"{mean:.1f}" for mean, half in points[method]
        )
        step = f"{seconds[method] / seconds['ssl_hsic']:.2f}" if seconds[method] else ""
        size = f"{records[0]['state_bytes'] / 1e6:.1f}" if seconds[method] else ""
        lines.append(f"| `{method}` | {chosen} | {measures} | {step} | {size} | {len(records)} |")
    lines += ["", f"![Accuracies of the methods](images/{CHART.name})"]
    pages.rewrite(PAGE, BEGIN, END, lines)
    pictures.save(chart(points), CHART)


def chart(points: dict[str, list[tuple[float, float]]]) -> "Figure":
    """A row for each method, a mark with its interval for each evaluation."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    axes = figure.subplots()
    for index, label in enumerate(EVALS):
        means, halves = np.transpose([measures[index] for measures in points.values()])
        places = -np.arange(len(means)) - 0.2 * (index - 1)
        axes.errorbar(means, places, xerr=halves, fmt="o", capsize=2, label=label)
    axes.set_yticks(-np.arange(len(points)), list(points))
    axes.set_xlabel("% of the test images")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=len(EVALS))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", action="store_true", help="the table and the chart of the records")
    if parser.parse_args().plot:
        plot()
    else:
        run()


if __name__ == "__main__":
    main()
