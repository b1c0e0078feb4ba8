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
