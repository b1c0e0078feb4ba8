"""What records say, and the file of lines that holds them."""

import json
import os
import warnings

import numpy as np
import pytest

from keras_sslhsic.evaluation import Result, knn, results

LINE = {"protocol": "knn", "value": 0.5, "interval": [0.4, 0.6]}


def test_records_survive_the_file(tmp_path, blobs):
    record = knn(*blobs).record(encoder="a", data="blobs", extra=np.float32(0.5))
    results.append(tmp_path / "results.jsonl", record)
    results.append(tmp_path / "results.jsonl", record)
    found = results.read(tmp_path)
    assert len(found) == 2 and found[0] == json.loads(json.dumps({**record, "extra": 0.5}))


def test_a_record_says_how_it_was_made(blobs):
    record = knn(*blobs, k=7, temperature=0.1).record(encoder="a")
    assert record["recipe"] == {"k": 7, "temperature": 0.1}
    assert (record["num_train"], record["num_test"]) == (400, 200)


def test_a_result_without_a_recipe_states_an_empty_one():
    result = Result(0.5, (0.4, 0.6), 10)
    assert result.record()["recipe"] == {} and hash(result) == hash(Result(0.5, (0.4, 0.6), 10))


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match="object cannot be written"):
        results.append(tmp_path / "results.jsonl", {"x": object()})
    assert not (tmp_path / "results.jsonl").exists()


def test_a_line_cut_anywhere_loses_itself_alone(tmp_path):
    whole = json.dumps({**LINE, "encoder": "cut"}).encode() + b"\n"
    for kept in range(len(whole) + 1):
        file = tmp_path / f"{kept}.jsonl"
        results.append(file, {**LINE, "encoder": "first"})
        with file.open("ab") as stream:
            stream.write(whole[:kept])
        results.append(file, {**LINE, "encoder": "last"})
        # Nothing written at all, or all but the line's end, is no damage.
        harmless = kept == 0 or kept >= len(whole) - 1
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = [record["encoder"] for record in results.read(file)]
        assert found == (["first", "cut", "last"] if kept >= len(whole) - 1 else ["first", "last"])
        assert [str(w.message).startswith(f"Line 2 of {file}") for w in caught] == (
            [] if harmless else [True]
        )


@pytest.mark.parametrize("damage", [b"\x00\x00\x00", b'\xff\xfe{"', b'{"protocol": "knn"}', b"[1, 2]", b"12"])
def test_a_damaged_line_among_whole_ones_is_left_out(tmp_path, damage):
    file = tmp_path / "results.jsonl"
    file.write_bytes(damage)
    results.append(file, LINE)
    with pytest.warns(UserWarning, match="Line 1 of .*results.jsonl"):
        assert results.read(file) == [LINE]


@pytest.mark.parametrize("text", ["# A page", '{\n  "name": "a"\n}', '{"name": "a"}', "[]", "\x00\x01"])
def test_another_file_is_an_error(tmp_path, text):
    (tmp_path / "results.jsonl").write_text(text)
    with pytest.raises(ValueError, match="holds something else than results: line 1"):
        results.read(tmp_path)


def test_a_first_line_cut_in_half_does_not_stop_the_others(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "results.jsonl").write_text('{"protocol": "kn')
    results.append(tmp_path / "b" / "results.jsonl", LINE)
    with pytest.warns(UserWarning, match="is no whole record"):
        assert results.read(tmp_path) == [LINE]
    with pytest.warns(UserWarning), pytest.raises(FileNotFoundError, match="run an evaluation first"):
        results.read(tmp_path / "a")


def test_a_record_is_one_write_and_on_the_disk(tmp_path, monkeypatch):
    synchronised = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda number: (synchronised.append(os.fstat(number).st_size), fsync(number))
    )
    results.append(tmp_path / "a" / "results.jsonl", LINE)
    assert synchronised == [(tmp_path / "a" / "results.jsonl").stat().st_size]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_a_full_disk_is_said():
    with pytest.raises(OSError, match="No space left"):
        results.append("/dev/full", LINE)


def test_records_are_in_the_order_of_their_time(tmp_path):
    for i, time in enumerate(("2024-01-03", "2024-01-01", "2024-01-02")):
        results.append(tmp_path / f"run{i}" / "results.jsonl", {**LINE, "time": time})
    assert [record["time"][-1] for record in results.read(tmp_path)] == ["1", "2", "3"]


def test_same_result_of_another_time_is_known(tmp_path):
    record = {
        "protocol": "knn",
        "value": np.float64(0.5),
        "interval": (0.4, 0.6),
        "recipe": {"k": 20},
        "time": "1",
    }
    results.append(tmp_path / "results.jsonl", record)
    [read] = results.read(tmp_path / "results.jsonl")
    assert results.same({**record, "time": "2"}, read)
    assert not results.same({**record, "value": 0.25}, read)


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
    for value in WRONG[name]:
        results.append(file, {**LINE, name: value})
    results.append(tmp_path / "b" / "results.jsonl", LINE)
    with pytest.warns(UserWarning, match="is no whole record") as warned:
        assert results.read(tmp_path) == [LINE]
    assert [str(w.message).split(" of ")[0] for w in warned] == [
        f"Line {number}" for number, _ in enumerate(WRONG[name], 1)
    ]


def test_a_line_nested_too_deep_to_read_is_left_out(tmp_path):
    file = tmp_path / "results.jsonl"
    deep = "[" * 200_000
    file.write_text('{"protocol": "knn", "recipe": ' + deep + "\n" + deep + "\n")
    results.append(file, LINE)
    with pytest.warns(UserWarning, match="is no whole record") as warned:
        assert results.read(file) == [LINE]
    assert len(warned) == 2


def test_records_of_every_kind_are_read(tmp_path):
    record = {
        **LINE, "encoder": "a", "encoder_hash": None, "metric": "top1", "value": 1, "interval": [0, 1.0], "top5": 1.0,
        "num_test": 10, "num_train": None, "fraction": 0.01, "seed": 0, "recipe": {"learning_rates": [[0.1, 0.2]]},
    }  # fmt: skip
    results.append(tmp_path / "results.jsonl", record)
    assert results.read(tmp_path) == [record]


def test_errors_of_writing_name_the_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"pipe cannot be written: Illegal seek\.$"):
        results.append(tmp_path / "pipe", LINE)
    if os.path.exists("/dev/full"):
        with pytest.raises(OSError, match=r"^/dev/full cannot be written: No space left on device\.$"):
            results.append("/dev/full", LINE)
