"""The guides in examples/ run from top to bottom, each in one file as keras.io has them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_begins_as_guides_of_keras_do(path):
    head = path.read_text("utf-8").split('"""')[1]
    fields = re.findall(r"^([A-Z][\w ]+): (.+)$", head, re.MULTILINE)
    assert [name for name, _ in fields] == [
        *("Title", "Author", "Date created", "Last modified", "Description", "Accelerator"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_runs(path, tmp_path):
    environment = os.environ | {"KERAS_SSLHSIC_FAST": "1"}
    done = subprocess.run(
        [sys.executable, path], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = re.findall(r"'(\w+)': '([\d.]+) %'", done.stdout.splitlines()[-1])
    assert [name for name, _ in found] == ["pretrained", "untrained"]
    assert all(0.0 < float(value) <= 100.0 for _, value in found)
