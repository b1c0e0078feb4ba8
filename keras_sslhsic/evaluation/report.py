"""One table and one chart of many results, beside the paper's."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from keras_sslhsic.evaluation import results

# (data, protocol) -> value, with its source.
REFERENCE: Mapping[tuple[str, str], tuple[float, str]] = {
    ("imagenet2012", "linear"): (0.748, "SSL-HSIC, ResNet-50: top-1 stated with the released code"),
}


def report(path: str | os.PathLike, output: str | os.PathLike | None = None) -> str:
    """Writes `report.md` and `report.png` of all results under a folder.

    Args:
        path: a file of records, or a folder with `results.jsonl` anywhere below.
        output: folder to write to; by default the folder of the records.

    Returns:
        The table, in Markdown.

    Raises:
        FileNotFoundError: if there are no results.
    """
    records = results.read(path)
    path = Path(path)
    output = Path(output) if output is not None else (path if path.is_dir() else path.parent)
    output.mkdir(parents=True, exist_ok=True)
    text = table(records)
    (output / "report.md").write_text(text + "\n", encoding="utf-8")
    chart(records).savefig(output / "report.png", dpi=150)
    return text


def table(records: Iterable[Mapping[str, Any]]) -> str:
    """Markdown with a row for each encoder and data set, a column for each protocol, values in per cent.

    A cell holds the latest value and its 95 % interval, or - (raw pixels, say, have no encoder to
    fine-tune). Reference rows are added for the data sets at hand.
    """
    cells = _cells(records)
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    lines = [["encoder", "data", *columns]]
    for (encoder, data), row in cells.items():
        lines.append([encoder, data, *(_format(row.get(column)) for column in columns)])
    for data in dict.fromkeys(data for _, data in cells):
        known = {p: (value, source) for (d, p), (value, source) in REFERENCE.items() if d == data}
        if known:
            source = "; ".join(dict.fromkeys(source for _, source in known.values()))
            values = (f"{100 * known[c][0]:.1f}" if c in known else "" for c in columns)
            lines.append([f"*{source}*", data, *values])
    rule = ["---", "---", *("---:" for _ in columns)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))


def chart(records: Iterable[Mapping[str, Any]]) -> Figure:
    """Bars of the same values, a group for each protocol, with their intervals."""
    cells = _cells(records)
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    figure = Figure(figsize=(max(6.0, 1.6 * len(columns)), 4.0), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(cells)
    for i, ((encoder, data), row) in enumerate(cells.items()):
        found = [j for j, column in enumerate(columns) if column in row]
        values = [100 * row[columns[j]]["value"] for j in found]
        low, high = zip(*(row[columns[j]]["interval"] for j in found), strict=True)
        errors = [
            [max(0.0, v - 100 * end) for v, end in zip(values, low, strict=True)],
            [max(0.0, 100 * end - v) for v, end in zip(values, high, strict=True)],
        ]
        places = [j + (i - (len(cells) - 1) / 2) * width for j in found]
        axes.bar(places, values, width, yerr=errors, capsize=2, label=f"{encoder}, {data}")
    for j, column in enumerate(columns):
        for data in dict.fromkeys(data for _, data in cells):
            if (data, column) in REFERENCE:
                axes.hlines(100 * REFERENCE[data, column][0], j - 0.45, j + 0.45, "black", "dashed")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_ylabel("% on the test split")
    axes.legend(fontsize="small")
    return figure


def _cells(records: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], dict[str, Mapping[str, Any]]]:
    """(encoder, data) -> column -> the last record."""
    cells: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for record in records:
        key = str(record.get("encoder", "?")), str(record.get("data", record.get("dataset", "?")))
        cells.setdefault(key, {})[_column(record)] = record
    return cells


def _column(record: Mapping[str, Any]) -> str:
    if record["protocol"] == "finetune":
        return f"finetune {100 * record['fraction']:g} %"
    return record["protocol"]


def _format(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return "-"
    low, high = record["interval"]
    return f"{100 * record['value']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
