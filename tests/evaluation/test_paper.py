"""The paper's numbers: what the paper itself states twice agrees, and the documentation has every row."""

from pathlib import Path

import pytest

from keras_sslhsic.evaluation.paper import TABLES, WITH, WITHOUT
from keras_sslhsic.evaluation.transfer_sets import SETS

SETS_OF_TABLE_3 = {column.data: column.metric for column in TABLES[2].columns}
DOCS = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text()


def rows(number, title=""):
    [table] = [table for table in TABLES if table.number == number and title in table.title]
    return table.rows


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.name} {table.columns[0].protocol}")
def test_every_row_is_whole(table):
    assert len(set(table.columns)) == len(table.columns)
    for values in table.rows.values():
        assert len(values) == len(table.columns)
        for column, value in zip(table.columns, values, strict=True):
            assert value is None or (0 < value < 1 if column.metric in ("rms", "rel") else 20 < value < 100)
    # SSL-HSIC itself is measured everywhere.
    assert all(None not in values for name, values in table.rows.items() if name.startswith("SSL-HSIC"))


def test_all_tables_are_there():
    assert [table.number for table in TABLES] == [
        "1",
        "2",
        "3",
        "3",
        "4",
        "5",
        "6",
        "7",
        "8a",
        "8b",
        "8c",
        "8d",
        "",
    ]
    assert [len(table.rows) for table in TABLES] == [8, 7, 5, 6, 5, 7, 12, 4, 2, 7, 10, 5, 3]


def test_what_the_paper_states_twice_agrees():
    for name in (WITH, "BYOL"):
        assert rows("6")[f"{name}, ResNet-50 1x"] == rows("1")[name]
    assert rows("7")[f"{WITH}, ResNet-50 1x"] == rows("2")[WITH]
    assert rows("2")["supervised"][2::3] == rows("1")["supervised"]
    # One default run of 100 epochs stands in several ablations.
    assert rows("8b")["SSL-HSIC, 512 features"] == rows("8d")["SSL-HSIC, output 256"]
    assert rows("8a")["SSL-HSIC"][:1] == rows("8b")["SSL-HSIC, no approximation"]
    assert round(rows("")["SSL-HSIC, IMQ kernel"][0], 1) == rows("8a")["SSL-HSIC"][0]
    assert rows("8c")["SSL-HSIC, batch 4096"] == rows("8a")["SSL-HSIC"][:1]


def test_some_numbers_of_the_text():
    """Section 4.2, and what its bold type marks as best."""
    assert (rows("1")[WITHOUT], rows("1")[WITH]) == ((72.2, 90.7), (74.8, 92.2))
    linear, tuned = rows("3", "linear"), rows("3", "fine-tuned")
    columns = list(SETS_OF_TABLE_3)
    best = {
        name for i, name in enumerate(columns) if max(row[i] for row in linear.values()) == linear[WITH][i]
    }
    assert best == {"birdsnap", "dtd", "food101", "voc2007"}
    assert tuned["supervised"][columns.index("sun397")] == 94.3
    assert (
        max(row[columns.index("aircraft")] for row in tuned.values())
        == tuned[WITH][columns.index("aircraft")]
    )


def test_table_3_is_of_the_transfer_sets_and_their_metrics():
    assert {name: dataset.metric for name, dataset in SETS.items()} == SETS_OF_TABLE_3
    assert {column.data: column.metric for column in TABLES[3].columns} == SETS_OF_TABLE_3


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.name} {table.columns[0].protocol}")
def test_the_documentation_has_every_row(table):
    heading = f"**{table.name.capitalize()}**, section {table.section}: {table.title}.\n"
    lines = DOCS.split(heading)[1].split("\n**")[0].split("\n## ")[0]
    for method, values in table.rows.items():
        texts = ("-" if value is None else str(value) for value in values)
        assert f"| {method} | {' | '.join(texts)} |\n" in lines, method
