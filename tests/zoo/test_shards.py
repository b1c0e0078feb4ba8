"""Features in shards, by Apache Beam's direct runner."""

import contextlib
import functools
import signal
import threading
import zlib

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("apache_beam", reason="Apache Beam is not installed (pip install keras_sslhsic[beam])")

from keras_sslhsic import cli
from keras_sslhsic.encoders import Architecture, with_preprocessing
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.zoo import rows, shards
from keras_sslhsic.zoo.extract import extract
from keras_sslhsic.zoo.shards import extract_shards


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A file of an encoder."""
    file = tmp_path_factory.mktemp("model") / "tiny.keras"
    network = resnet(Architecture((1, 1), (8, 8), bottleneck=False, stem_channels=8), name="tiny")
    with_preprocessing(network, 0.5, 0.25, size=16).save(file)
    return file


@pytest.fixture
def images(tmp_path):
    """A folder of 20 images of two sizes, and a broken one."""
    root, rng = tmp_path / "images", np.random.default_rng(0)
    (root / "b").mkdir(parents=True)
    for number in range(20):
        pixels = rng.integers(0, 256, (20 + number % 2, 24, 3), np.uint8)
        Image.fromarray(pixels).save(root / ("b" if number % 3 else ".") / f"{number:02}.png")
    (root / "b" / "broken.png").write_bytes(b"no image")
    return root


def features(path):
    found, _ = rows.load_all(path)
    return {name: row.features for name, row in found.items() if row.features is not None}


def written(folder):
    return {file.name: file.stat().st_mtime_ns for file in rows.shards(folder)}


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        # Batches of other sizes are added up in another order: some hundred roundings of float32.
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-5 * np.abs(values).max())


def test_shards_hold_what_extract_writes_and_finished_ones_stay(model, images, tmp_path):
    local = extract(model, images, tmp_path / "local.npz")
    out = tmp_path / "shards"
    first = extract_shards(model, images, out, shards=9)
    assert [file.name for file in rows.shards(out)] == [
        f"features-0000{i}-of-00009.parquet" for i in range(9)
    ]
    assert (first.rows, first.computed, first.gone) == (20, 20, 0)
    assert first.broken == local.broken and [*first.broken] == ["b/broken.png"]
    same(features(out), features(local.out))

    before = written(out)
    again = extract_shards(model, images, out)  # their number is that of the files
    assert (again.rows, again.computed, again.broken) == (20, 0, local.broken) and written(out) == before

    rows.shard(out, 0, 9).unlink()
    lost = [name for name in features(local.out) if zlib.crc32(name.encode()) % 9 == 0]
    (images / "00.png").unlink()
    (images / "b" / "broken.png").unlink()
    Image.fromarray(np.zeros((20, 24, 3), np.uint8)).save(images / "b" / "new.png")
    changed = extract_shards(model, images, out)
    assert (changed.rows, changed.computed) == (20, len({*lost, "b/new.png"} - {"00.png"}))
    assert not changed.broken and not list(out.glob("*.broken.txt"))
    same(features(out), features(extract(model, images, tmp_path / "local.npz").out))
    touched = {zlib.crc32(name) % 9 for name in (b"00.png", b"b/broken.png", b"b/new.png")} | {0}
    rewritten = {file for file, time in written(out).items() if before[file] != time}
    assert rewritten == {rows.shard(out, number, 9).name for number in touched} != before.keys()
    with pytest.raises(ValueError, match="holds files of 9 shards: give their number"):
        extract_shards(model, images, out, shards=2)


def test_shards_without_an_image_are_files_too(model, images, tmp_path):
    for file in (images / "b").iterdir():
        file.unlink()
    made = extract_shards(model, images, tmp_path / "many", shards=30)
    assert made.rows == len(features(tmp_path / "many")) == 7
    for file in images.glob("*.png"):
        file.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"None of the 7 images under .*images can be read"):
        extract_shards(model, images, tmp_path / "none", shards=2)
    with pytest.raises(ValueError, match="holds no shards of features"):
        features(images)


def test_the_command_runs_in_two_processes(model, images, tmp_path, capsys):
    out = tmp_path / "shards"
    words = ["extract", "--model", str(model), "--data", str(images), "--out", str(out)]
    options = "direct_num_workers=2,direct_running_mode=multi_processing"
    assert cli.main([*words, "--shards", "2"]) == 2
    assert "--beam-options and --shards go with --runner" in capsys.readouterr().err
    words += ["--runner", "DirectRunner", "--shards", "4", "--beam-options", options]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert f"20 rows in {out}, 20 of them computed now" in said
    assert f"1 image could not be read; {out}/*.broken.txt name it." in said
    same(features(out), features(extract(model, images, tmp_path / "local.npz").out))
    assert cli.main(words) == 0
    assert f"20 rows in {out}, 0 of them computed now" in capsys.readouterr().out


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN, signal.SIG_DFL])
def test_a_process_that_dies_ends_what_waits_for_it(monkeypatch, request, handler):
    """Beam's direct runner reports it in the thread that waited for the process, and goes on waiting for its work."""
    request.addfinalizer(
        functools.partial(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, handler))
    )
    reported = []
    monkeypatch.setattr(threading, "excepthook", lambda error: reported.append(error.thread.name))

    def run():
        raise RuntimeError("exited with return code 137")

    with shards._ended_with_a_worker():
        thread = threading.Thread(target=run, name="another")
        thread.start()
        thread.join()
    sentence = r"return code 137\. .* fewer processes .* goes on"
    with pytest.raises(OSError, match=sentence), shards._ended_with_a_worker():
        threading.Thread(target=run, name="run_worker").start()
        threading.Event().wait(60)
    assert reported == ["another"]
    assert signal.getsignal(signal.SIGINT) is handler
    ignored = contextlib.nullcontext() if handler is signal.SIG_IGN else pytest.raises(KeyboardInterrupt)
    with ignored, shards._ended_with_a_worker():
        signal.raise_signal(signal.SIGINT)
