"""What records say, and the file of lines that holds them."""

import copy
import dataclasses
import json
import os
import pickle
import warnings

import numpy as np
import pytest

from keras_sslhsic.evaluation import Result, knn, results

LINE = {"protocol": "knn", "value": 0.5, "interval": [0.4, 0.6]}
RESULT = Result(protocol="knn", value=0.5, interval=(0.4, 0.6))


def write(file, *lines):
    """A file of these lines of JSON, as any version may have written them."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_results_survive_the_file(tmp_path, blobs):
    details = {"k": np.int64(7), "extra": np.float32(0.5), "at_edge": ("k",)}
    result = dataclasses.replace(knn(*blobs), encoder="a", data="blobs", details=details, label="x")
    results.append(tmp_path / "results.jsonl", result)
    results.append(tmp_path / "results.jsonl", result)
    found = results.read(tmp_path)
    assert found == [dataclasses.replace(result, details={"k": 7, "extra": 0.5, "at_edge": ["k"]})] * 2
    assert (found[0].extra, found[0].top1) == (0.5, result.value)


def test_a_result_says_how_it_was_made(blobs):
    result = knn(*blobs, k=7, temperature=0.1)
    assert result.recipe == {"k": 7, "temperature": 0.1}
    assert (result.protocol, result.num_train, result.num_test) == ("knn", 400, 200)


def test_its_metric_and_details_are_read_by_their_names():
    result = Result(value=0.5, interval=(0.4, 0.6), metric="map11", details={"l2": 3.0})
    assert (result.map11, result.l2) == (0.5, 3.0)
    with pytest.raises(AttributeError, match="no top1: it has map11, l2"):
        result.top1  # noqa: B018
    assert pickle.loads(pickle.dumps(result)) == copy.copy(result) == result
    assert hash(RESULT) == hash(dataclasses.replace(RESULT))


@pytest.mark.parametrize(
    "fields",
    [{"value": 3.2, "interval": (3.0, 3.4)}, {"interval": (0.6, 0.4)}, {"num_test": 0}, {"value": np.nan}],
)
def test_what_reading_would_leave_out_is_not_written(fields, tmp_path):
    with pytest.raises(ValueError, match=r"shares in \[0, 1\]"):
        results.append(tmp_path / "results.jsonl", dataclasses.replace(RESULT, **fields))
    assert not (tmp_path / "results.jsonl").exists()


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match="object cannot be written"):
        results.append(tmp_path / "results.jsonl", dataclasses.replace(RESULT, details={"x": object()}))
    assert not (tmp_path / "results.jsonl").exists()


# As version 0.1.0 wrote them, and versions before.
OLD = {
    "protocol": "linear_features", "encoder": "runs/a", "encoder_hash": "12d43117b1bbd54c", "data": "bundled", "value": 0.6335,
    "interval": [0.612, 0.654], "num_test": 2000, "metric": "top1", "seed": 0, "num_train": 10000,
    "recipe": {"epochs": 30, "held_out": 1000, "image_size": 28}, "top5": 0.9695, "validation_top1": None, "epochs": 30,
    "time": "2026-11-28T23:41:33+00:00",
}  # fmt: skip
OLDER = {"protocol": "knn", "dataset": "fashion_mnist_subset", "value": 0.8, "interval": [0.7, 0.9], "k": 20}


def test_records_of_earlier_versions_are_results(tmp_path):
    write(tmp_path / "results.jsonl", OLDER, OLD)
    older, old = results.read(tmp_path)
    assert (old.encoder, old.encoder_hash, old.data, old.num_train) == (
        "runs/a",
        OLD["encoder_hash"],
        "bundled",
        10000,
    )
    assert (old.recipe, old.top5, old.epochs, old.seed) == (OLD["recipe"], 0.9695, 30, 0)
    assert (older.data, older.recipe, older.encoder, older.time) == ("bundled", {"k": 20}, "?", "")
    assert OLD.items() <= old.to_dict().items()
    # The table of the bundled images was of standardised features, which its lines did not say.
    bundled = Result.from_dict({**OLD, "protocol": "logistic", "recipe": {"max_iter": 100}})
    other = Result.from_dict({**OLD, "protocol": "logistic", "recipe": {"max_iter": 1000}})
    assert bundled.recipe["standardised"] is True and "standardised" not in other.recipe
    with pytest.raises(ValueError, match="has a protocol, a value"):
        Result.from_dict({"protocol": "knn"})


def test_a_line_cut_anywhere_loses_itself_alone(tmp_path):
    whole = json.dumps({**LINE, "encoder": "cut"}).encode() + b"\n"
    for kept in range(len(whole) + 1):
        file = tmp_path / f"{kept}.jsonl"
        results.append(file, dataclasses.replace(RESULT, encoder="first"))
        with file.open("ab") as stream:
            stream.write(whole[:kept])
        results.append(file, dataclasses.replace(RESULT, encoder="last"))
        # Nothing written at all, or all but the line's end, is no damage.
        harmless = kept == 0 or kept >= len(whole) - 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = [result.encoder for result in results.read(file)]
        assert found == (["first", "cut", "last"] if kept >= len(whole) - 1 else ["first", "last"])
        assert [str(w.message).startswith(f"Line 2 of {file}") for w in caught] == (
            [] if harmless else [True]
        )


@pytest.mark.parametrize(
    "damage",
    [
        b"\x00\x00\x00",
        b'\xff\xfe{"',
        b'{"protocol": "knn"}',
        b"[1, 2]",
        b"12",
        *(
            json.dumps({**LINE, name: wrong}).encode()
            for name in ("recipe", "others")
            for wrong in ([], "", 0, [1])
        ),
    ],
)
def test_a_damaged_line_among_whole_ones_is_left_out(tmp_path, damage):
    file = tmp_path / "results.jsonl"
    file.write_bytes(damage)
    results.append(file, RESULT)
    with pytest.warns(UserWarning, match="Line 1 of .*results.jsonl"):
        assert results.read(file) == [RESULT]


@pytest.mark.parametrize("text", ["# A page", '{\n  "name": "a"\n}', '{"name": "a"}', "[]", "\x00\x01"])
def test_another_file_is_an_error(tmp_path, text):
    (tmp_path / "results.jsonl").write_text(text)
    with pytest.raises(ValueError, match="holds something else than results: line 1"):
        results.read(tmp_path)


def test_a_first_line_cut_in_half_does_not_stop_the_others(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "results.jsonl").write_text('{"protocol": "kn')
    results.append(tmp_path / "b" / "results.jsonl", RESULT)
    with pytest.warns(UserWarning, match="is no whole record"):
        assert results.read(tmp_path) == [RESULT]
    with pytest.warns(UserWarning), pytest.raises(FileNotFoundError, match="run an evaluation first"):
        results.read(tmp_path / "a")


def test_a_file_of_something_else_does_not_stop_the_others(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "results.jsonl").write_bytes(b"\x00\x01\n\xff")
    results.append(tmp_path / "b" / "results.jsonl", RESULT)
    with pytest.warns(UserWarning, match=r"a/results.jsonl holds something else .* The file is left out"):
        assert results.read(tmp_path) == [RESULT]
    with pytest.raises(ValueError, match="holds something else"):
        results.read(tmp_path / "a")


def test_a_record_is_one_write_and_on_the_disk(tmp_path, monkeypatch):
    synchronised = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (synchronised.append(os.fstat(number).st_size), fsync(number))
    )
    results.append(tmp_path / "a" / "results.jsonl", RESULT)
    assert synchronised == [(tmp_path / "a" / "results.jsonl").stat().st_size]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_a_full_disk_is_said():
    with pytest.raises(OSError, match="No space left"):
        results.append("/dev/full", RESULT)


def test_records_are_in_the_order_of_their_time(tmp_path):
    for i, time in enumerate(("2024-01-03", "2024-01-01", "2024-01-02")):
        results.append(tmp_path / f"run{i}" / "results.jsonl", dataclasses.replace(RESULT, time=time))
    assert [result.time[-1] for result in results.read(tmp_path)] == ["1", "2", "3"]


def test_same_result_of_another_time_is_known(tmp_path):
    result = Result(
        protocol="knn",
        value=np.float64(0.5),
        interval=(0.4, 0.6),
        recipe={"k": 20},
        details={"top5": None},
        time="1",
    )
    results.append(tmp_path / "results.jsonl", result)
    [read] = results.read(tmp_path / "results.jsonl")
    assert results.same(dataclasses.replace(result, time="2"), read)
    assert not results.same(dataclasses.replace(result, value=0.25), read)


WRONG = {
    "recipe": [[1], "k=20", 3, {"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {}}}}}}}}}],
    "metric": [3, ["top1"]],
    "encoder": [["a"]],
    "encoder_hash": [{}],
    "data": [1],
    "time": [[2024]],
    "num_test": ["10", 1.5, True, 0, 10**400],
    "num_train": [[]],
    "fraction": ["x", -0.1, 2],
    "top5": ["0.5", True, 1.5],
    "value": [10**400, float("nan"), float("inf"), True, -5, 1.5, None, "0.5"],
    "interval": [[0.6, 0.4], [0.4], [float("nan"), 0.5], [0.4, 10**400], ["0.4", "0.6"], None],
}


@pytest.mark.parametrize("name", WRONG)
def test_lines_with_values_of_another_kind_are_left_out_by_their_numbers(tmp_path, name):
    file = tmp_path / "a" / "results.jsonl"
    write(file, *({**LINE, name: value} for value in WRONG[name]))
    results.append(tmp_path / "b" / "results.jsonl", RESULT)
    with pytest.warns(UserWarning, match="is no whole record") as warned:
        assert results.read(tmp_path) == [RESULT]
    assert [str(w.message).split(" of ")[0] for w in warned] == [
        f"Line {number}" for number, _ in enumerate(WRONG[name], 1)
    ]


def test_a_line_nested_too_deep_to_read_is_left_out(tmp_path):
    file = tmp_path / "results.jsonl"
    deep = "[" * 200_000
    file.write_text('{"protocol": "knn", "recipe": ' + deep + "\n" + deep + "\n")
    results.append(file, RESULT)
    with pytest.warns(UserWarning, match="is no whole record") as warned:
        assert results.read(file) == [RESULT]
    assert len(warned) == 2


def test_records_of_every_kind_are_read(tmp_path):
    record = {
        **LINE, "encoder": "a", "encoder_hash": None, "metric": "top1", "value": 1, "interval": [0, 1.0], "top5": 1.0,
        "num_test": 10, "num_train": None, "fraction": 0.01, "seed": 0, "recipe": {"learning_rates": [[0.1, 0.2]]},
    }  # fmt: skip
    write(tmp_path / "results.jsonl", record)
    [result] = results.read(tmp_path)
    assert (result.value, result.fraction, result.num_train) == (1, 0.01, None)


def test_errors_of_writing_name_the_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"pipe cannot be written: Illegal seek\.$"):
        results.append(tmp_path / "pipe", RESULT)
    if os.path.exists("/dev/full"):
        with pytest.raises(OSError, match=r"^/dev/full cannot be written: No space left on device\.$"):
            results.append("/dev/full", RESULT)


def test_a_result_of_another_unit_and_of_several_metrics(tmp_path):
    others = {
        "rms": {"value": 2.5, "interval": (2.0, 3.0), "unit": "m", "lower_is_better": True},
        "pct": {"value": 0.75, "interval": (0.7, 0.8)},
    }
    result = dataclasses.replace(RESULT, metric="miou", others=others)
    results.append(tmp_path / "results.jsonl", result)
    [found] = results.read(tmp_path)
    assert results.same(found, result) and found.rms == 2.5
    miou, rms, pct = found.measures()
    assert [measure.metric for measure in (miou, rms, pct)] == ["miou", "rms", "pct"]
    assert (miou.text(), rms.text(), pct.text()) == (
        "50.0 [40.0, 60.0] %", "2.500 [2.000, 3.000] m", "75.0 [70.0, 80.0] %",
    )  # fmt: skip
    assert (miou.lower_is_better, rms.lower_is_better) == (False, True)
    for value in (1.5, -0.1, np.inf):
        wrong = {"pct": {"value": value, "interval": (value, value)}}
        with pytest.raises(ValueError, match=r"shares in \[0, 1\], or of another unit"):
            results.append(tmp_path / "results.jsonl", dataclasses.replace(result, others=wrong))
    assert len(results.read(tmp_path)) == 1
