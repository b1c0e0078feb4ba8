"""The test helper that kills: it must find what is wrong in careless functions."""

import shutil
from pathlib import Path

import crash
import pytest

from keras_sslhsic import files, lock


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_careless_function_is_seen_at_every_step(tmp_path):
    (tmp_path / "a").write_text("old")

    def careless():
        try:
            (tmp_path / "a").unlink()
            (tmp_path / "a").write_text("newer")
        finally:
            (tmp_path / "b").mkdir()

    def state():
        return (tmp_path / "a").read_text() if (tmp_path / "a").exists() else None, (tmp_path / "b").exists()

    states = [state() for _ in crash.points(careless, tmp_path)]
    assert states == [("old", False), (None, False), ("newer", False), ("ne", False)]
    assert state() == ("newer", True)  # the last run was not killed


def test_nothing_outside_counts_and_each_run_begins_with_the_same(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    (inside / "link").symlink_to("nowhere")

    def function():
        assert names(inside) == ["link"]
        outside.write_text("x")
        (inside / "a").mkdir()

    assert list(crash.points(function, inside)) == ["operation 1, os.mkdir a"]
    with pytest.raises(AssertionError, match="did nothing"):
        list(crash.points(lambda: outside.write_text("x"), inside))


def test_half_of_what_is_added_is_lost(tmp_path):
    (tmp_path / "a").write_text("old")

    def append():
        with (tmp_path / "a").open("a") as file:
            file.write("1234")
        (tmp_path / "a").rename(tmp_path / "b")

    states = [(tmp_path / "a").read_text() for _ in crash.points(append, tmp_path)]
    assert states == ["old", "old1234", "old12"]


def test_removing_a_tree_can_stop_anywhere(tmp_path):
    for name in "ab":
        (tmp_path / "tree" / name).mkdir(parents=True)
        (tmp_path / "tree" / name / "file").touch()
    counts = [len(names(tmp_path)) for _ in crash.points(lambda: shutil.rmtree(tmp_path / "tree"), tmp_path)]
    assert counts == [5, 4, 3, 2, 1]


def test_errors_are_not_kills(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(crash.points(lambda: Path(tmp_path / "a").unlink(), tmp_path))


def write(target):
    with lock.held(target):
        files.write_text(target, "new")


def swap(target):
    with lock.held(target), files.replaced_folder(target, keep=True) as new:
        (new / "a").write_text("new")


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("function", [write, swap])
def test_the_writers_of_the_package_hold(function, exchanges, tmp_path, monkeypatch):
    if not exchanges:
        monkeypatch.setattr(files, "_exchange_names", lambda *paths: False)
    target = tmp_path / "target"
    if function is swap:
        target.mkdir()
        (target / "kept").write_text("own")
    content = target / "a" if function is swap else target
    content.write_text("old")
    count = 0
    for point in crash.points(lambda: function(target), tmp_path):
        count += 1
        if exchanges or function is write or target.exists():
            assert content.read_text() in ("old", "new"), point
        function(target)
        assert content.read_text() == "new", point
        assert not crash.leftovers(tmp_path), point
        if function is swap:
            assert names(target) == ["a", "kept"], point
    assert count > 5
