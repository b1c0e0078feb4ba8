"""What the default run gives, with several seeds: its encoder beside the untrained one and raw pixels, and the bundled one.

    python experiments/default_run.py [FEATURES ...]   train and measure what the records lack, by default for the table
    python experiments/default_run.py --table          write the table of README.md from the records
    python experiments/default_run.py pretrained "low variance"; python experiments/default_run.py --paired
                                                       whether low-variance features should be the default

A seed is that of a whole run, and of the labels that fine-tuning draws; of the bundled encoder, which is one run's, of the
labels alone. A line of experiments/default_run.jsonl is a result; run folders lie in runs/default_run, and a stopped training
goes on there.
"""

import argparse
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import methods  # first: it sets how TensorFlow works, before that is imported

# isort: split
import keras
import pages
from ml_collections import ConfigDict

from keras_sslhsic.data.sources import bundled_splits
from keras_sslhsic.evaluation import Result, results
from keras_sslhsic.evaluation.compare import BUNDLED, compare, raw_pixels
from keras_sslhsic.runs import build, config, folder, pretrain, trials
from keras_sslhsic.zoo import load_pretrained

RECORDS = methods.ROOT / "experiments" / "default_run.jsonl"
RUNS = methods.ROOT / "runs" / "default_run"
PAGE = methods.ROOT / "README.md"
BEGIN, END = "<!-- of experiments/default_run.py --table -->\n", "<!-- end -->"
SEEDS = (0, 1, 2, 3, 4)
ALL_LABELS = "finetune 100 %"
# In the order of the table.
EVALS = {
    "finetune 1 %": "fine-tuned on 1 % of the labels",
    "finetune 10 %": "fine-tuned on 10 %",
    ALL_LABELS: "fine-tuned on all labels",
    "knn": "20 nearest neighbours",
    "linear": "linear classifier",
}


def settings(seed: int, low_variance: bool = False) -> ConfigDict:
    """The default config; what it is measured by comes afterwards."""
    found = config.read(methods.ROOT / "configs" / "fashion_small.py")
    found.seed, found.evals = seed, {}
    if low_variance:
        with found.unlocked():
            found.loss.low_variance = True
    return config.completed(found)


def pretrained(seed: int, low_variance: bool = False) -> Path:
    """The folder of a finished run, trained as far as that lacks."""
    workdir = RUNS / f"{'low_variance_' if low_variance else ''}seed_{seed}"
    keras.backend.clear_session()
    pretrain.run(settings(seed, low_variance), workdir, resume=(workdir / folder.CONFIG).exists())
    return workdir


# What needs no training comes first.
FEATURES: dict[str, Callable[[int], Any]] = {
    "raw pixels": lambda seed: raw_pixels,
    "untrained": lambda seed: build.initial_encoder(settings(seed)),
    "bundled encoder": lambda seed: load_pretrained("r18_fashion"),
    "pretrained": lambda seed: load_pretrained(pretrained(seed)),
    "low variance": lambda seed: load_pretrained(pretrained(seed, low_variance=True)),
}


def load() -> dict[tuple[str, str], Result]:
    """The results that there are, by features with their seed, and evaluation."""
    return (
        {(found.encoder, found.label): found for found in results.read(RECORDS)} if RECORDS.exists() else {}
    )


def named(features: str, seed: int) -> str:
    return f"{features}, seed {seed}"


def run(wanted: list[str]) -> None:
    """Makes what the records lack."""
    splits = dict(zip(("train", "test"), bundled_splits(0.0), strict=True))
    # The longest of all comes last.
    for labels in ([label for label in EVALS if label != ALL_LABELS], [ALL_LABELS]):
        for features, seed in itertools.product(wanted, SEEDS):
            name, known = named(features, seed), load()
            evals = {label: BUNDLED[label] for label in labels if (name, label) not in known}
            if not evals:
                continue
            for result in compare({name: FEATURES[features](seed)}, evals, splits, data="bundled", seed=seed):
                results.append(RECORDS, result)
                print(f"{name}, {result.label}: {result.text()}", flush=True)


def table() -> None:
    """Writes the table: means over the seeds that there are, with 95 % intervals; gains are those of each seed."""
    known = load()
    # Of whole runs, once there are three.
    first = "pretrained" if (named("pretrained", SEEDS[2]), "knn") in known else "bundled encoder"
    columns = [first, "untrained", "raw pixels"]
    lines = [
        f"| | {' | '.join(columns)} | gain over untrained | seeds |",
        "|---|" + "---:|" * (len(columns) + 2),
    ]
    for label, text in EVALS.items():
        values = {
            features: {
                seed: 100 * known[key].value
                for seed in SEEDS
                if (key := (named(features, seed), label)) in known
            }
            for features in columns
        }
        base = values["untrained"]
        gains = [value - base[seed] for seed, value in values[first].items() if seed in base]
        if gains:
            cells = [with_interval([*found.values()]) for found in values.values()]
            lines.append(f"| {text} | {' | '.join(cells)} | **{with_interval(gains)}** | {len(gains)} |")
    pages.rewrite(PAGE, BEGIN, END, ["", *lines, ""])


def paired() -> None:
    """Prints what low-variance features gain over the default ones, seed by seed, with 95 % intervals."""
    known = load()
    for label, text in EVALS.items():
        pairs = [
            [known.get((named(of, seed), label)) for of in ("low variance", "pretrained")] for seed in SEEDS
        ]
        gains = [100 * (new.value - old.value) for new, old in pairs if new and old]
        print(f"{text}: {with_interval(gains)}, {len(gains)} seeds")


def with_interval(values: list[float]) -> str:
    """The mean and its 95 % interval; one number where all are the same."""
    if not values:
        return "-"
    mean, half = trials.interval(values)
    return f"{mean:.1f} ± {half:.1f}" if half else f"{mean:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "features",
        nargs="*",
        default=[name for name in FEATURES if name != "low variance"],
        help=", ".join(FEATURES),
    )
    parser.add_argument("--table", action="store_true", help="the table of the records")
    parser.add_argument("--paired", action="store_true", help="low-variance features beside the default ones")
    options = parser.parse_args()
    if options.table:
        table()
    elif options.paired:
        paired()
    else:
        run(options.features)


if __name__ == "__main__":
    main()
