"""A full disk is one error that names the file; what was there stays, and nothing else."""

import contextlib
import resource
import signal
import subprocess
import tempfile

import keras
import numpy as np
import pytest

from keras_sslhsic.export import export_litert, export_saved_model
from keras_sslhsic.zoo import convert, model_files
from keras_sslhsic.zoo.save import save_pretrained


@pytest.fixture(scope="module")
def encoder():
    """An encoder of a megabyte."""
    images = keras.Input((16, 16, 1))
    return keras.Model(images, keras.layers.Dense(1024)(keras.layers.Flatten()(images)))


@pytest.fixture(params=["limit", "disk"])
def full(request, tmp_path):
    """A folder, and a context within which little fits into it."""
    if request.param == "limit":

        @contextlib.contextmanager
        def limited():
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
                signal.signal(signal.SIGXFSZ, ignored)

        yield tmp_path, limited
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only an administrator may mount a small disk")
    try:
        yield tmp_path, contextlib.nullcontext
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize("name", ["a.weights.h5", "a.keras", "mine", "served"])
def test_the_error_names_the_file(name, full, encoder, monkeypatch):
    folder, limited = full
    monkeypatch.setattr(convert, "converted", lambda *arguments: (encoder, {}))
    write = {
        "a.weights.h5": lambda: convert.convert("checkpoint.npy", folder / name),
        "a.keras": lambda: convert.convert("checkpoint.npy", folder / name),
        "mine": lambda: save_pretrained(encoder, folder / name),
        "served": lambda: export_saved_model(encoder, folder / name),
    }[name]
    if "." in name:
        (folder / name).write_text("earlier")
    with (
        limited(),
        pytest.raises(
            OSError, match=rf"{folder / name} cannot be written: (No space left on device|File too large)\."
        ),
    ):
        write()
    assert [path.read_text() for path in folder.iterdir()] == ["earlier"] * ("." in name)


def test_a_full_disk_for_temporary_files_is_named(full, encoder, tmp_path_factory, monkeypatch):
    folder, limited = full
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    file = tmp_path_factory.mktemp("other") / "a.tflite"
    with (
        limited(),
        pytest.raises(OSError, match=rf"^{folder}/\w+ cannot be written: (No space|File too large).*\.$"),
    ):
        export_litert(encoder, file)
    assert not list(folder.iterdir()) and not list(file.parent.iterdir())


def test_what_is_written_by_way_of_memory_is_what_keras_writes(encoder, tmp_path):
    model_files.save_model(encoder, tmp_path / "a.weights.h5", {})
    model_files.save_model(encoder, tmp_path / "a.keras", {})
    for name in ("a.weights.h5", "a.keras"):
        copy = keras.models.clone_model(encoder)
        copy.load_weights(tmp_path / name)
        for found, expected in zip(copy.get_weights(), encoder.get_weights(), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_a_model_that_cannot_be_unpacked_is_not_called_damaged(encoder, tmp_path, monkeypatch):
    model_files.save_model(encoder, tmp_path / "a.keras", {"note": 1})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(
        OSError, match=r"a\.keras cannot be unpacked where temporary files go: No such file.*TMPDIR"
    ):
        model_files.load(tmp_path / "a.keras")
    monkeypatch.undo()
    assert model_files.load(tmp_path / "a.keras").count_params() == encoder.count_params()
