import json

import numpy as np
import pytest

from keras_sslhsic.evaluation import knn, report, results


def records(value=0.7):
    base = {"data": "imagenet2012", "interval": [value - 0.02, value + 0.02]}
    return [
        {**base, "encoder": "a", "protocol": "knn", "value": 0.1, "time": "2024-01-01"},
        {**base, "encoder": "a", "protocol": "knn", "value": value, "time": "2024-01-02"},
        {**base, "encoder": "a", "protocol": "linear", "value": value, "time": "2024-01-03"},
        {
            **base,
            "encoder": "b",
            "protocol": "finetune",
            "fraction": 0.01,
            "value": value,
            "time": "2024-01-04",
        },
    ]


def test_report_of_a_folder(tmp_path):
    for i, record in enumerate(reversed(records())):
        results.append(tmp_path / f"run{i}" / "results.jsonl", record)
    text = report(tmp_path, tmp_path / "out")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert lines[0] == ["encoder", "data", "knn", "linear", "finetune 1 %"]
    assert lines[2] == ["a", "imagenet2012", "70.0 [68.0, 72.0]", "70.0 [68.0, 72.0]", "-"]
    assert lines[3][4] == "70.0 [68.0, 72.0]"
    assert lines[4][3] == "74.8" and "SSL-HSIC" in lines[4][0]
    assert (tmp_path / "out" / "report.md").read_text() == text + "\n"
    assert (tmp_path / "out" / "report.png").stat().st_size > 1000


def test_records_survive_the_file(tmp_path, blobs):
    record = knn(*blobs).record(encoder="a", data="blobs", extra=np.float32(0.5))
    results.append(tmp_path / "results.jsonl", record)
    results.append(tmp_path / "results.jsonl", record)
    found = results.read(tmp_path)
    assert len(found) == 2 and found[0] == json.loads(json.dumps({**record, "extra": 0.5}))


def test_an_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="run an evaluation first"):
        report(tmp_path)


def test_what_json_cannot_hold_is_refused(tmp_path):
    with pytest.raises(TypeError, match="object cannot be written"):
        results.append(tmp_path / "results.jsonl", {"x": object()})
    assert not (tmp_path / "results.jsonl").exists()
