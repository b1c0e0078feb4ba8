"""The paper's claims and trends on the bundled images.

    python experiments/reproduction.py            make what the records lack: claims, then trainings (eight hours)
    python experiments/reproduction.py --plot     write the section of docs/reproduction.md, and its chart, from the records

What is run stands in `keras_sslhsic.runs.tables`, how a choice is made on held-out images in `.reproduce`. A line of
experiments/reproduction.jsonl is one training or one claim: a stopped experiment goes on where it was, and several
processes with other --seeds may work at once.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

# As `keras-sslhsic pretrain` has it: the networks of a step run side by side.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import pages

from keras_sslhsic import pictures
from keras_sslhsic.runs import claims, reproduce, tables, trials

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "experiments" / "reproduction.jsonl"
PAGE, CHART = ROOT / "docs" / "reproduction.md", ROOT / "docs" / "images" / "reproduction.png"
BEGIN, END = "<!-- of experiments/reproduction.py --plot -->\n\n", "\n<!-- end -->"


def plot() -> None:
    """Writes the section and the chart."""
    done, needed = reproduce.progress(RECORDS)
    lines = [
        f"Of {needed} trainings, {len(reproduce.SEEDS)} seeds of each row, {done} are recorded.",
        "",
        "### What is stated of the estimators and the loss",
        "",
        "`keras-sslhsic reproduce claims`, within a minute.",
        "",
    ]
    lines += claims.lines(claims.recorded(RECORDS))
    trends = []
    for of in tables.TABLES:
        where = f" (table {of.number})" if of.number else ""
        lines += ["", f"### {of.title}{where}", "", f"`keras-sslhsic reproduce {of.name}`", ""]
        lines += reproduce.small_lines(of, RECORDS)
        trends += [(of.label, trend) for trend in reproduce.trends(of, RECORDS) if len(trend.differences) > 1]
    if trends:
        pictures.save(chart(trends), CHART)
        lines += ["", "### All trends", "", f"![Paired differences of the small runs](images/{CHART.name})"]
    pages.rewrite(PAGE, BEGIN, END, lines)


def chart(trends: list[tuple[str, reproduce.Trend]]) -> "Figure":
    """A row for each trend and what measures it: ours with its 95 % interval, the paper's difference beside it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 1.2 + 0.35 * len(trends)), layout="constrained")
    axes = figure.subplots()
    for place, (_, trend) in enumerate(reversed(trends)):
        mean, half = trials.interval(trend.differences)
        axes.errorbar(mean, place, xerr=half, fmt="o", color="C0", capsize=2)
        if trend.paper is not None:
            axes.plot(trend.paper, place, "D", color="C1")
    axes.axvline(0.0, color="gray", lw=1)
    names = [f"{trend.better} over {trend.worse} ({label})" for label, trend in reversed(trends)]
    axes.set_yticks(range(len(trends)), names)
    figure.supxlabel(
        "points: here with its 95 % interval (circles), in the paper on ImageNet (diamonds)",
        fontsize="medium",
    )
    axes.grid(axis="x", alpha=0.3)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plot", action="store_true", help="the section and the chart of the records")
    parser.add_argument("--seeds", default="1,2,3,4,5", help="of the trainings")
    options = parser.parse_args()
    os.chdir(ROOT)  # where configs/ is
    if not options.plot:
        claims.recorded(RECORDS, run=True)
        for seed in map(int, options.seeds.split(",")):
            for of in tables.TABLES:
                reproduce.run_small(of, RECORDS, [seed])
    plot()


if __name__ == "__main__":
    main()
