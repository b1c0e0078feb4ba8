"""Killed at any of their operations on files, the commands of the zoo leave the earlier state or the new one."""

import itertools
import json
import os
import types

import crash
import keras
import numpy as np
import pytest

from keras_sslhsic import compat, files, lock
from keras_sslhsic.encoders import EncoderSpec
from keras_sslhsic.export import saved_model
from keras_sslhsic.zoo import convert, model_files, pack, registry
from keras_sslhsic.zoo.load import load_pretrained
from keras_sslhsic.zoo.save import save_pretrained

PIXELS = np.full((1, 2, 2, 1), 255, np.uint8)


@pytest.fixture(autouse=True)
def no_flushing(monkeypatch):
    """Of what power loss would do nothing is tried here, and flushing takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def encoder(value):
    """An encoder whose feature tells it from others."""
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(value / 1020))
    images = keras.Input((2, 2, 1))
    return keras.Model(images, dense(keras.layers.Flatten()(images)), name="tiny")


def value(path):
    return round(float(load_pretrained(path)(PIXELS)[0, 0]))


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def undated(monkeypatch):
    """Keras writes the time into its archives."""
    content = {}

    def archive(model, note=None):
        key = float(model.layers[-1].bias[0] + model.layers[-1].kernel[0, 0]), json.dumps(note)
        return content.setdefault(key, original(model, note))

    original = compat.archive
    monkeypatch.setattr(compat, "archive", archive)


@pytest.mark.parametrize("exchanges", [True, False])
def test_saving_over_an_earlier_save(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(files, "_exchange_names", lambda *paths: False)
    undated(monkeypatch)
    old, new, target = encoder(1), encoder(2), tmp_path / "sub" / "mine"
    save_pretrained(new, tmp_path / "sub" / "mine", recipe="new")
    expected = contents(tmp_path) | {"sub/mine/own": b"kept"}
    save_pretrained(old, target, recipe="old")
    (target / "own").write_bytes(b"kept")
    seen = set()
    for point in crash.points(lambda: save_pretrained(new, target, recipe="new"), tmp_path):
        if exchanges or target.exists():  # else the next one puts it back
            seen.add(value(target))
            assert f"Recipe: {['', 'old', 'new'][value(target)]}\n" in (target / "README.md").read_text(), (
                point
            )
        save_pretrained(new, target, recipe="new")
        assert contents(tmp_path) == expected, point
    assert seen == {1, 2}


def test_saving_for_the_first_time(tmp_path, monkeypatch):
    undated(monkeypatch)
    save_pretrained(encoder(1), tmp_path / "mine")
    expected = contents(tmp_path)
    for path in (tmp_path / "mine").iterdir():
        path.unlink()
    (tmp_path / "mine").rmdir()
    for point in crash.points(lambda: save_pretrained(encoder(1), tmp_path / "mine"), tmp_path):
        assert not (tmp_path / "mine").exists() or value(tmp_path / "mine") == 1, point
        save_pretrained(encoder(1), tmp_path / "mine")
        assert contents(tmp_path) == expected, point


@pytest.mark.parametrize("exchanges", [True, False])
def test_exporting_over_an_earlier_export(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(files, "_exchange_names", lambda *paths: False)

    def write(model, spec, folder, size, max_pixels):  # tracing takes seconds
        for name in ("saved_model.pb", "variables/variables.index"):
            files.write_text(f"{folder}/{name}", model)

    monkeypatch.setattr(saved_model, "_write", write)
    monkeypatch.setattr(
        saved_model, "encoder_of", lambda name: types.SimpleNamespace(name=name, spec=EncoderSpec(8, 8, 1, 4))
    )
    monkeypatch.setattr(saved_model, "folded", lambda encoder: encoder.name)
    target = tmp_path / "served" / "1"
    saved_model.export_saved_model("new", target)
    expected = contents(tmp_path)
    saved_model.export_saved_model("old", target)
    earlier = contents(tmp_path)
    seen = []
    for point in crash.points(lambda: saved_model.export_saved_model("new", target), tmp_path):
        if exchanges or target.exists():
            seen.append(contents(target))
        saved_model.export_saved_model("new", target)
        assert contents(tmp_path) == expected, point
    states = [
        {name.removeprefix("served/1/"): c for name, c in state.items()} for state in (earlier, expected)
    ]
    assert [state for state, _ in itertools.groupby(seen)] == states


@pytest.mark.parametrize("name", ["a.weights.h5", "a.keras"])
def test_converting(name, tmp_path, monkeypatch):
    monkeypatch.setattr(
        convert, "converted", lambda *arguments: (encoder(2), {"architecture": "tiny", "value": 2})
    )
    target = tmp_path / name
    model_files.save_model(encoder(1), target, {"value": 1})

    def stated():
        copy = encoder(3)
        copy.load_weights(target)
        return round(float(copy(PIXELS.astype(np.float32))[0, 0])), model_files.read_note(target)["value"]

    seen = set()
    for point in crash.points(lambda: convert.convert("checkpoint.npy", target), tmp_path):
        seen.add(stated())
        convert.convert("checkpoint.npy", target)
        assert stated() == (2, 2), point
        assert [path.name for path in tmp_path.iterdir()] == [name], point
    assert seen == {(1, 1), (2, 2)}


def test_packing(tmp_path, monkeypatch):
    run, bundled = tmp_path / "run", tmp_path / "bundled"
    run.mkdir()
    bundled.mkdir()
    monkeypatch.setattr(registry, "BUNDLED", bundled)
    config = {"name": "tiny", "epochs": 3, "batch_size": 128, "encoder": {"name": "tiny"}}
    rows = [{"features": "pretrained", "knn": 0.8312, "linear": 0.8467}]
    (run / "config.json").write_text(json.dumps(config))
    (run / "summary.json").write_text(json.dumps({"seed": 0, "results": rows}))
    encoder(1).save(run / "encoder.keras")
    pack.pack(run, "other", bundled)
    pack.pack(run, "tiny", bundled)
    encoder(2).save(run / "encoder.keras")
    between = 0
    for point in crash.points(lambda: pack.pack(run, "tiny", bundled), bundled):
        try:
            assert value("tiny") in (1, 2), point
        except ValueError as error:
            assert "tiny.keras has SHA-256" in str(error) and "Restore it" in str(error), point
            between += 1
        assert value("other") == 1, point
        pack.pack(run, "tiny", bundled)
        assert value("tiny") == 2, point
        names = ["other.json", "other.keras", "tiny.json", "tiny.keras"]
        assert sorted(path.name for path in bundled.iterdir()) == names, point
    assert between


def test_the_second_process_is_told_who_is_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "converted", lambda *arguments: (encoder(2), {}))
    for name, write in {
        "mine": lambda path: save_pretrained(encoder(1), path),
        "served": lambda path: saved_model.export_saved_model(encoder(1), path),
        "a.keras": lambda path: convert.convert("checkpoint.npy", path),
    }.items():
        in_use = pytest.raises(lock.InUseError, match=f"{name} is in use by process {os.getpid()} on ")
        with lock.held(tmp_path / name), in_use:  # the locks of one process exclude each other too
            write(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
