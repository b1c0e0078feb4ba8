"""One table and one chart of many results, beside the paper's.

Two results are one only if protocol, recipe, seed, number of training images, metric, encoder (name and hash, of a function the
channels that it was given) and data (name and number of test images) are all the same; the later one then replaces the earlier.
"""

import dataclasses
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tabulate import tabulate

from keras_sslhsic import pictures
from keras_sslhsic.encoders import identity
from keras_sslhsic.evaluation import paper, results
from keras_sslhsic.evaluation.metrics import wilson_interval
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.files import check_writable, display, write_text
from keras_sslhsic.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Data sets that are a share of another one's labels.
_SUBSETS = {
    "imagenet2012_subset/1pct": ("imagenet2012", 0.01),
    "imagenet2012_subset/10pct": ("imagenet2012", 0.1),
}


class Row(NamedTuple):
    """What was measured on what."""

    encoder: str
    hash: str
    data: str
    num_test: int | None
    channels: int | None = None  # of what is no network, and has no hash


class Measure(NamedTuple):
    """How it was measured on that data; the recipe, which holds the metric too, is JSON with sorted keys."""

    data: str
    protocol: str
    fraction: float | None
    metric: str
    recipe: str


def report(path: str | os.PathLike, output: str | os.PathLike | None = None) -> str:
    """Writes `report.md` and `report.png` of all results under a folder.

    Args:
        path: a file of records, or a folder with `results.jsonl` anywhere below.
        output: folder to write to; by default the folder of the records.

    Returns:
        The table, in Markdown.

    Raises:
        FileNotFoundError: if there are no results.
        OSError: if the folder cannot be written to.
        ValueError: if a file holds something else.
    """
    records = results.read(path)
    path = Path(path)
    output = Path(output) if output is not None else (path if path.is_dir() else path.parent)
    check_writable(output, folder=True)
    text = table(records)
    write_text(output / "report.md", text + "\n")
    pictures.save(chart(records), output / pictures.REPORT, dpi=150)
    return text


def table(records: Iterable[Result]) -> str:
    """Markdown with a row for each encoder and data set, a column for each protocol and recipe, values in per cent.

    Of encoders of one name that differ, such as a run that went on, a row says when it was first measured. A cell holds the
    value and its 95 % interval, and the unit and the metric if they are not per cent and top-1; or - (raw pixels, say, have no
    encoder to fine-tune). A record of several metrics has a column for each; so has one with the top-5 accuracy beside its
    value, where the paper has both. The rows of the paper's tables 1 to 5 that measure the same follow, by table; then every
    column's recipe; then the rows of tables 6 to 8, of other networks and of ablations.
    """
    cells = _cells(records)
    labels = _labels(cells)
    columns = list(dict.fromkeys(labels.values()))
    head = ["encoder", "hash", "data", "test images", *columns]
    alike = Counter(row._replace(hash="", channels=None) for row in cells)
    lines = []
    for row, found in cells.items():
        texts = {labels[measure]: _format(record) for measure, record in found.items()}
        values = [texts.get(column, "-") for column in columns]
        name, times = row.encoder, sorted(record.time for record in found.values() if record.time)
        if alike[row._replace(hash="", channels=None)] > 1:
            name += f", {counted(row.channels, 'channel')}" if row.channels else ""
            name += f", measured {times[0][:16].replace('T', ' ')}" if times else ""
        lines.append([name, row.hash, row.data, f"{row.num_test or '?'}", *values])
    recipes = {
        f"- {label} on {measure.data}: "
        + ", ".join(f"{key}={_text(value)}" for key, value in json.loads(measure.recipe).items())
        for measure, label in labels.items()
    }
    parts = [
        _markdown(head, lines + _paper_rows("4.2", labels, columns)),
        "\n".join(map(display, sorted(recipes))),
    ]
    if named := _of_two_kinds(cells):
        parts.append(
            f"Of {display(', '.join(named))} there are hashes with 2- in front and hashes without, by earlier versions, which "
            "left out the operations between layers: rows of one name that differ in this alone may be of one encoder."
        )
    others = _paper_rows("5", labels, columns)
    if others:
        parts.append("Other networks, and ablations, in the paper:\n\n" + _markdown(head, others))
    return "\n\n".join(parts)


def chart(records: Iterable[Result]) -> "Figure":
    """Bars of all shares with their intervals, a group for each protocol; dashed, the paper's SSL-HSIC with target."""
    from matplotlib.figure import Figure

    measures = itertools.chain.from_iterable(record.measures() for record in records)
    cells = _cells(record for record in measures if record.unit == "share")
    labels = _labels(cells)
    columns = list(dict.fromkeys(labels.values()))
    figure = Figure(figsize=(max(6.0, 1.6 * len(columns)), 4.0), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / max(1, len(cells))
    bars = {}
    for i, (row, found) in enumerate(cells.items()):
        values = [100 * record.value for record in found.values()]
        ends = [[100 * end for end in record.interval] for record in found.values()]
        errors = [
            [max(0.0, v - low) for v, (low, _) in zip(values, ends, strict=True)],
            [max(0.0, high - v) for v, (_, high) in zip(values, ends, strict=True)],
        ]
        places = [columns.index(labels[measure]) + (i - (len(cells) - 1) / 2) * width for measure in found]
        label = display(", ".join(filter(None, (row.encoder, row.hash, row.data))))
        bars[label] = axes.bar(places, values, width, yerr=errors, capsize=2)
    for line in _paper_rows("4.2", labels, columns):
        if line[0].startswith(f"*{paper.WITH},"):
            for j, text in enumerate(line[4:]):
                if text:
                    axes.hlines(float(text), j - 0.45, j + 0.45, "black", "dashed")
    axes.set_xticks(range(len(columns)), map(display, columns), parse_math=False)
    axes.set_ylabel("% on the test split")
    # Given beside the bars, since a bar's own label with "_" in front is left out.
    for name in axes.legend(list(bars.values()), list(bars), fontsize="small").get_texts():
        name.set_parse_math(False)  # a name with dollar signs is no formula
    return figure


def _cells(records: Iterable[Result]) -> dict[Row, dict[Measure, Result]]:
    """Row -> measure -> the last result."""
    cells: dict[Row, dict[Measure, Result]] = {}
    for record in itertools.chain.from_iterable(map(_metrics, records)):
        data, fraction = record.data, record.details.get("fraction")
        if data in _SUBSETS:
            data, share = _SUBSETS[data]
            fraction = round(share * (1.0 if fraction is None else fraction), 9)
        given = {"seed": record.seed, "num_train": record.num_train, "fraction": fraction}
        settings = {name: value for name, value in given.items() if value is not None}
        recipe = json.dumps({**settings, **record.recipe, "metric": record.metric}, sort_keys=True)
        channels = record.details.get("channels")
        row = Row(record.encoder, record.encoder_hash or "", data, record.num_test, channels)
        measure = Measure(data, record.protocol, fraction, record.metric, recipe)
        cells.setdefault(row, {})[measure] = record
    return cells


def _of_two_kinds(rows: Iterable[Row]) -> list[str]:
    """The encoders with hashes of this version and of earlier ones, which cannot be compared."""
    kinds: dict[str, set[bool]] = {}
    for row in rows:
        if row.hash:
            kinds.setdefault(row.encoder, set()).add(identity.tells_operations(row.hash))
    return [name for name, found in kinds.items() if len(found) == 2]


def _metrics(record: Result) -> list[Result]:
    """A result for each metric; and one of the top-5 accuracy, if the paper has it of the same data and protocol."""
    data, _ = _SUBSETS.get(record.data, (record.data, None))
    columns = {(c.data, c.protocol, c.metric) for table in paper.TABLES for c in table.columns}
    top5 = record.details.get("top5")
    if (
        record.metric != "top1"
        or top5 is None
        or not record.num_test
        or (data, record.protocol, "top5") not in columns
    ):
        return record.measures()
    interval = wilson_interval(top5, record.num_test)
    return [record, dataclasses.replace(record, metric="top5", value=top5, interval=interval)]


def _labels(cells: Mapping[Row, Mapping[Measure, Any]]) -> dict[Measure, str]:
    """A column's heading for each measure: protocol and fraction; and what differs, of several recipes on the same data.

    Where lists differ in the middle alone, which a heading leaves out, it has a number.
    """
    groups: dict[tuple[str, str], list[Measure]] = {}
    for measure in dict.fromkeys(measure for found in cells.values() for measure in found):
        share = "" if measure.fraction is None else f" {100 * measure.fraction:g} %"
        groups.setdefault((measure.data, measure.protocol + share), []).append(measure)
    labels = {}
    for (_, name), group in groups.items():
        recipes = [json.loads(measure.recipe) for measure in group]
        keys = dict.fromkeys(key for recipe in recipes for key in recipe)
        differing = [key for key in keys if len({json.dumps(recipe.get(key)) for recipe in recipes}) > 1]
        seen: Counter = Counter()
        for measure, recipe in zip(group, recipes, strict=True):
            settings = [
                recipe[key] if key == "metric" else f"{key}={_short(recipe.get(key, '?'))}"
                for key in differing
            ]
            heading = ", ".join([name, *settings])
            seen[heading] += 1
            labels[measure] = f"{heading} #{seen[heading]}" if seen[heading] > 1 else heading
    return labels


def _paper_rows(section: str, labels: Mapping[Measure, str], columns: Sequence[str]) -> list[list[str]]:
    """Lines of the paper's tables of a section that measure what a record measures, on the same data."""
    lines = []
    for data in dict.fromkeys(measure.data for measure in labels):
        for table in (table for table in paper.TABLES if table.section == section):
            places = {
                label: table.columns.index(column)
                for measure, label in labels.items()
                for column in table.columns
                if dataclasses.astuple(column) == (data, measure.protocol, measure.metric, measure.fraction)
                and measure.data == data
            }
            for method, values in table.rows.items():
                shown = [values[places[label]] if label in places else None for label in columns]
                if any(value is not None for value in shown):
                    texts = ["" if value is None else str(value) for value in shown]
                    lines.append([f"*{method}, {table.name} of the paper*", "", data, "", *texts])
    return lines


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    # Names may hold what would end a cell.
    cells = [[display(text).replace("|", r"\|") for text in line] for line in (head, *lines)]
    alignment = ["left"] * 3 + ["right"] * (len(head) - 3)
    return tabulate(cells[1:], cells[0], "pipe", disable_numparse=True, colalign=alignment)


def _format(record: Result) -> str:
    text = record.text().removesuffix(" %")
    better = " (lower is better)" if record.lower_is_better else ""
    return text if record.metric == "top1" else f"{text} {record.metric}{better}"


def _short(value: Any) -> str:
    """A setting as text, lists by their ends."""
    if isinstance(value, list) and len(value) > 2:
        return f"{_text(value[0])}..{_text(value[-1])} ({len(value)} values)"
    return _text(value)


def _text(value: Any) -> str:
    """A setting as text, as it is."""
    return f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')
