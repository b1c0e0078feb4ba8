"""The default run with several seeds: what its encoder gives, beside the untrained one and raw pixels.

    python experiments/default_run.py           train and measure what the records lack
    python experiments/default_run.py --table   write the table of README.md from the records

A line of experiments/default_run.jsonl is a result; run folders lie in runs/default_run, and a stopped training goes on there.
"""

import argparse
import gc
from pathlib import Path

import methods  # first: it sets how TensorFlow works, before that is imported

# isort: split
import keras

from keras_sslhsic.data.sources import bundled_splits
from keras_sslhsic.evaluation import Result, results
from keras_sslhsic.evaluation.compare import BUNDLED, compare
from keras_sslhsic.files import write_text
from keras_sslhsic.runs import config, folder, pretrain
from keras_sslhsic.runs.evaluate import encoders_of

RECORDS = methods.ROOT / "experiments" / "default_run.jsonl"
RUNS = methods.ROOT / "runs" / "default_run"
PAGE = methods.ROOT / "README.md"
BEGIN, END = "<!-- of experiments/default_run.py --table -->\n\n", "\n<!-- end -->"
SEEDS = (0, 1, 2)
FEATURES = ("pretrained", "untrained", "raw pixels")
# In the order of the table, and what takes longest at the end, after all seeds.
MEASURED = {
    "finetune 1 %": "fine-tuned on 1 % of the labels",
    "finetune 10 %": "fine-tuned on 10 %",
    "knn": "20 nearest neighbours",
    "linear": "linear classifier",
}
LAST = {"finetune 100 %": "fine-tuned on all labels"}


def train(seed: int) -> Path:
    """The folder of a finished run of the default config, trained as far as that lacks."""
    settings = config.read(methods.ROOT / "configs" / "fashion_small.py")
    settings.seed, settings.evals = seed, {}
    workdir = RUNS / f"seed_{seed}"
    keras.backend.clear_session()
    gc.collect()
    pretrain.run(settings, workdir, resume=(workdir / folder.CONFIG).exists())
    return workdir


def load() -> dict[tuple[str, str], Result]:
    """The results that there are, by features with their seed, and evaluation."""
    return (
        {(found.encoder, found.label): found for found in results.read(RECORDS)} if RECORDS.exists() else {}
    )


def named(features: str, seed: int) -> str:
    return f"{features}, seed {seed}"


def run() -> None:
    """Makes what the records lack."""
    splits = dict(zip(("train", "test"), bundled_splits(), strict=True))
    for labels in (MEASURED, LAST):
        for seed in SEEDS:
            for features, encoder in zip(FEATURES, encoders_of(train(seed)).values(), strict=True):
                name, known = named(features, seed), load()
                evals = {label: BUNDLED[label] for label in labels if (name, label) not in known}
                for result in compare({name: encoder}, evals, splits, data="bundled", seed=seed):
                    results.append(RECORDS, result)
                    print(f"{name}, {result.label}: {result.text()}", flush=True)


def table() -> None:
    """Writes the table of those evaluations that all seeds have."""
    known = load()
    lines = [f"| | {' | '.join(FEATURES)} | gain over untrained |", "|---" * 5 + "|"]
    for label, text in (MEASURED | LAST).items():
        values = {
            features: [
                100 * known[key].value for seed in SEEDS if (key := (named(features, seed), label)) in known
            ]
            for features in FEATURES
        }
        if len(values["untrained"]) < len(SEEDS):
            continue
        gains = [one - other for one, other in zip(values["pretrained"], values["untrained"], strict=True)]
        cells = [with_interval(found) for found in values.values()] + [f"**{with_interval(gains)}**"]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    write_text(PAGE, before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


def with_interval(values: list[float]) -> str:
    """The mean of the seeds and its 95 % interval; one number where all seeds have the same."""
    if not values:
        return "-"
    mean, half = methods.interval(values)
    return f"{mean:.1f} ± {half:.1f}" if half else f"{mean:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true", help="the table of the records")
    (table if parser.parse_args().table else run)()


if __name__ == "__main__":
    main()
