"""The table of results: nothing in it stands for two results, and the paper's numbers are beside."""

import itertools
from pathlib import Path

import pytest

from keras_sslhsic.evaluation import report, reporting, results
from keras_sslhsic.evaluation.metrics import wilson_interval
from keras_sslhsic.evaluation.results import Result

RECORD = {
    "protocol": "linear",
    "recipe": {"epochs": 90},
    "encoder": "a",
    "encoder_hash": "1234",
    "data": "imagenet2012",
    "num_train": 100,
    "num_test": 50,
    "metric": "top1",
    "value": 0.5,
    "interval": [0.4, 0.6],
    "seed": 0,
}


def table(records):
    return reporting.table(map(Result.from_dict, records))


def chart(records):
    return reporting.chart(map(Result.from_dict, records))


def cells(text):
    """Every line of the first table as a list of its cells."""
    first = text.split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in first.splitlines()]


def test_encoders_of_one_name_are_told_apart_by_when_they_were_measured():
    first = {**RECORD, "encoder_hash": "12", "time": "2026-11-30T10:12:33+00:00"}
    later = {**RECORD, "encoder_hash": "34", "time": "2026-12-01T09:00:00+00:00"}
    lines = cells(table([first, later, {**first, "protocol": "knn", "time": "2026-12-02T10:12:33+00:00"}]))
    assert [line[0] for line in lines[2:4]] == [
        "a, measured 2026-11-30 10:12",
        "a, measured 2026-12-01 09:00",
    ]
    assert cells(table([first, {**later, "encoder": "b"}]))[2][0] == "a"


def test_report_of_a_folder(tmp_path):
    records = [
        {**RECORD, "protocol": "knn", "value": 0.1, "time": "2024-01-01"},
        {**RECORD, "protocol": "knn", "value": 0.7, "time": "2024-01-02"},
        {**RECORD, "value": 0.7, "time": "2024-01-03"},
        {**RECORD, "encoder": "b", "protocol": "finetune", "fraction": 0.01, "time": "2024-01-04"},
    ]
    for i, record in enumerate(reversed(records)):
        results.append(tmp_path / f"run{i}" / "results.jsonl", Result.from_dict(record))
    text = report(tmp_path, tmp_path / "out")
    lines = cells(text)
    assert lines[0] == ["encoder", "hash", "data", "test images", "knn", "linear", "finetune 1 %"]
    assert lines[2] == ["a", "1234", "imagenet2012", "50", "70.0 [40.0, 60.0]", "70.0 [40.0, 60.0]", "-"]
    assert lines[3][6] == "50.0 [40.0, 60.0]"
    assert "- linear on imagenet2012: epochs=90, metric=top1, num_train=100, seed=0" in text
    assert (tmp_path / "out" / "report.md").read_text() == text + "\n"
    assert (tmp_path / "out" / "report.png").stat().st_size > 1000
    with pytest.raises(NotADirectoryError, match=r"report\.md is a file: give the name of a folder"):
        report(tmp_path, tmp_path / "out" / "report.md")


def test_hashes_of_earlier_versions_are_not_silently_of_other_encoders():
    new = {**RECORD, "encoder_hash": "2-1234", "value": 0.25}
    assert "Of a there are hashes with 2- in front" in table([RECORD, new])
    for pair in ([RECORD, {**new, "encoder": "b"}], [new, {**new, "encoder_hash": "2-5678"}], [new]):
        assert "there are hashes" not in table(pair)


def test_names_do_not_end_a_cell_or_a_line():
    text = table([{**RECORD, "encoder": "a|b\nc\x1b[31m"}])
    lines = text.split("\n\n")[0].splitlines()
    assert lines[2].startswith(r"| a\|b\nc\x1b[31m ") and "| 1234 " in lines[2]


OTHERS = {
    "protocol": "linear_features",
    "recipe": {"epochs": 80},
    "encoder": "b",
    "encoder_hash": "5678",
    "data": "cars",
    "num_train": 99,
    "num_test": 49,
    "metric": "top5",
    "seed": 1,
}


@pytest.mark.parametrize("field", OTHERS)
def test_results_that_differ_in_one_field_are_never_one(field):
    """Both values are shown, in places whose headings differ; so they are in all pairs of two fields."""
    for second in OTHERS:
        other = {**RECORD, field: OTHERS[field], second: OTHERS[second], "value": 0.25}
        for pair in itertools.permutations([RECORD, other]):
            lines = cells(table(pair))
            places = {
                (*line[:4], column)
                for line in lines[2:]
                for column, cell in zip(lines[0], line, strict=True)
                if cell.startswith(("50.0 [", "25.0 ["))
            }
            assert len(places) == 2, field
            assert len(chart(pair).axes[0].patches) == 2


def test_the_later_of_two_equal_results_stands():
    text = table([{**RECORD, "value": 0.25}, RECORD])
    assert "25.0 [" not in text and text.count("50.0 [") == 1


def test_of_several_recipes_the_headings_say_what_differs():
    text = table([RECORD, {**RECORD, "recipe": {"epochs": 10, "rates": [0.1] * 7 + [0.5]}}])
    assert cells(text)[0][4:] == [
        "linear, epochs=90, rates=?",
        "linear, epochs=10, rates=0.1..0.5 (8 values)",
    ]
    assert "on imagenet2012: rates" not in text and "rates=[0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.5]" in text


def test_lists_that_differ_in_their_middle_alone_have_columns_of_their_own():
    one, two = ({**RECORD, "recipe": {"rates": [0.1, middle, 0.5]}} for middle in (0.2, 0.3))
    text = table([one, {**two, "value": 0.25}])
    heading = "linear, rates=0.1..0.5 (3 values)"
    assert cells(text)[0][4:] == [heading, f"{heading} #2"]
    assert cells(text)[2][4:] == ["50.0 [40.0, 60.0]", "25.0 [40.0, 60.0]"]
    assert f"- {heading} #2 on imagenet2012: metric=top1, num_train=100, rates=[0.1, 0.3, 0.5]" in text


def test_the_top5_accuracy_of_a_record_stands_beside_the_papers():
    record = {**RECORD, "top5": 0.75, "num_test": 100}
    text = table([record])
    lines = {line[0]: line[4:] for line in cells(text)}
    assert lines["encoder"] == ["linear, top1", "linear, top5"]
    low, high = wilson_interval(0.75, 100)
    assert lines["a"] == ["50.0 [40.0, 60.0]", f"75.0 [{100 * low:.1f}, {100 * high:.1f}] top5"]
    assert lines["*SSL-HSIC with target, table 1 of the paper*"] == ["74.8", "92.2"]
    assert cells(table([{**record, "data": "bundled"}]))[0][4:] == ["linear"]
    assert cells(table([{**record, "num_test": None}]))[0][4:] == ["linear"]


def test_a_share_of_a_subset_is_one_of_the_whole_set():
    record = {**RECORD, "protocol": "finetune", "data": "imagenet2012_subset/10pct", "fraction": 0.1}
    text = table([record])
    assert cells(text)[0][4:] == ["finetune 1 %"]
    assert "- finetune 1 % on imagenet2012: epochs=90, fraction=0.01, " in text
    assert "*BYOL, table 2 of the paper*" in text


def test_names_with_dollar_signs_and_control_characters_are_drawn_as_they_are(tmp_path):
    record = {**RECORD, "encoder": "_a$\\frac{$\x1b", "protocol": "$x_{$", "data": "bundled"}
    results.append(tmp_path / "results.jsonl", Result.from_dict(record))
    report(tmp_path)
    [label] = [text.get_text() for text in chart([record]).axes[0].get_legend().get_texts()]
    assert label == r"_a$\frac{$\x1b, 1234, bundled"


def test_data_sets_of_different_size_share_a_column():
    text = table([RECORD, {**RECORD, "data": "cars", "num_train": 8144, "recipe": {"epochs": 1}}])
    assert cells(text)[0][4:] == ["linear"]
    assert "- linear on cars: epochs=1" in text


def test_records_of_earlier_versions_have_a_place():
    old = {"protocol": "knn", "encoder": "pretrained", "value": 0.8, "interval": [0.7, 0.9], "k": 20}
    lines = cells(table([{**old, "data": "fashion_mnist_subset"}, {**old, "data": "bundled", "k": 5}]))
    assert lines[0][4:] == ["knn, k=20", "knn, k=5"]
    assert lines[2:] == [["pretrained", "", "bundled", "?", "80.0 [70.0, 90.0]", "80.0 [70.0, 90.0]"]]


def test_results_of_version_0_1_0_stand_in_the_table_of_new_ones():
    """The same encoder, protocol, recipe and data: one place, which the later result takes."""
    old = results.read(Path(__file__).parents[1] / "data" / "run_0.1.0")
    recipe = {"k": 20, "temperature": 0.07, "image_size": 28}
    new = Result(
        protocol="knn", value=0.25, interval=(0.2, 0.3), num_test=2000, num_train=10000, recipe=recipe, data="bundled",
        encoder="untrained", encoder_hash="7dd2e31cea5e7201", details={"top5": 0.5}, label="knn",
    )  # fmt: skip
    lines = cells(reporting.table([*old, new]))
    assert lines[0][4:] == ["knn", "linear_features"]
    assert [line[0] for line in lines[2:]] == ["runs/a", "untrained", "raw pixels"]
    assert [line[4][:4] for line in lines[2:]] == ["61.2", "25.0", "79.3"]


def test_pixels_of_gray_and_of_coloured_images_are_two_rows():
    """No hash tells them apart, where both runs read one folder."""
    pixels = {**RECORD, "encoder": "raw pixels", "encoder_hash": None, "data": "photos"}
    gray, coloured = ({**pixels, "channels": channels, "value": channels / 5} for channels in (1, 3))
    assert [line[0] for line in cells(table([gray, gray]))[2:]] == ["raw pixels"]
    found = cells(table([gray, coloured]))[2:]
    assert [line[0] for line in found] == ["raw pixels, 1 channel", "raw pixels, 3 channels"]
    assert [line[4].split()[0] for line in found] == ["20.0", "60.0"]


def test_the_papers_rows_name_their_tables():
    finetuned = {"protocol": "finetune", "value": 0.5, "interval": [0.4, 0.6], "encoder": "a"}
    text = table(
        [
            RECORD,
            {**finetuned, "data": "imagenet2012_subset/1pct", "fraction": 1.0},
            {**finetuned, "data": "imagenet2012", "fraction": 1.0},
            {
                **finetuned,
                "protocol": "transfer_finetune",
                "data": "pets",
                "fraction": 1.0,
                "metric": "mean_per_class",
            },
            {**RECORD, "data": "pets", "protocol": "transfer", "metric": "mean_per_class"},
            {**RECORD, "data": "bundled"},
        ]
    )
    lines = {tuple(line[:3:2]): line[4:] for line in cells(text)}
    assert cells(text)[0][4:] == [
        "linear",
        "finetune 1 %",
        "finetune 100 %",
        "transfer_finetune 100 %",
        "transfer",
    ]
    paper = {method: f"*{method}, table {{}} of the paper*" for method in ("SwAV", "SSL-HSIC with target")}
    of = {(method, n): text.format(n) for method, text in paper.items() for n in "123"}
    assert lines[of["SwAV", "1"], "imagenet2012"] == ["75.3", "", "", "", ""]
    assert lines[of["SwAV", "2"], "imagenet2012"] == ["", "53.9", "", "", ""]
    assert lines[of["SSL-HSIC with target", "2"], "imagenet2012"] == ["", "52.1", "77.2", "", ""]
    pets = [
        line[4:] for line in cells(text) if (line[0], line[2]) == (of["SSL-HSIC with target", "3"], "pets")
    ]
    assert pets == [["", "", "", "", "91.2"], ["", "", "", "91.7", ""]]
    assert not [key for key in lines if key[0].startswith("*") and key[1] == "bundled"]
    ablations = text.split("ablations, in the paper")[1]
    assert "table 8c" in ablations and "section 5 of the paper" in ablations and "table 7" in ablations


def test_the_papers_metric_is_that_of_the_result():
    top5 = {**RECORD, "metric": "top5"}
    lines = {line[0]: line[4:] for line in cells(table([top5]))}
    assert lines["*SSL-HSIC with target, table 1 of the paper*"] == ["92.2"]
    assert table([{**RECORD, "metric": "mean_per_class"}]).count("*") == 0


def test_an_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="run an evaluation first"):
        report(tmp_path)
