import dataclasses
import io
import os
import zipfile

import crash
import keras
import numpy as np
import pyarrow
import pytest
import tiny
from PIL import Image
from pyarrow import parquet

from keras_sslhsic import lock
from keras_sslhsic.encoders import Encoder, with_preprocessing
from keras_sslhsic.evaluation import encoder_hash
from keras_sslhsic.evaluation.loading import of_folder
from keras_sslhsic.zoo import extract as module
from keras_sslhsic.zoo import load_pretrained, rows
from keras_sslhsic.zoo.extract import extract


@pytest.fixture
def folder(tmp_path, real_images):
    """Seven images of three sizes in two folders, and a broken one."""
    images = {"a/1.png": real_images[0][0], "a/2.png": real_images[1][0], "b/1.png": real_images[2][0]}
    images |= {f"b/{i}.png": real_images[1][i] for i in range(3, 7)}
    root = tmp_path / "images"
    for name, pixels in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / name)
    (root / "b" / "2.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"garbage" * 4)
    return root, dict(sorted(images.items()))


def seen_names(monkeypatch):
    """The names of the images whose features are computed from now on."""
    compute, seen = module.Extractor.compute, []
    monkeypatch.setattr(
        module.Extractor, "compute", lambda self, names, bar: seen.extend(names) or compute(self, names, bar)
    )
    return seen


def expected(encoder, images):
    size = encoder.spec.size_for(None)
    seen = (tiny.extracted([pixels], size) if size else pixels[None] for pixels in images.values())
    return np.concatenate([encoder(pixels) for pixels in seen])


def test_rows_are_keyed_by_file_and_broken_ones_listed(encoder, folder, tmp_path):
    root, images = folder
    result = extract(encoder, root, tmp_path / "out.npz", batch_size=3)
    assert (result.rows, list(result.broken)) == (7, ["b/2.png"])
    with np.load(tmp_path / "out.npz") as archive:
        assert archive["files"].tolist() == list(images)
        assert archive["features"].dtype == np.float32
        np.testing.assert_allclose(archive["features"], expected(encoder, images), atol=1e-4)
    assert (tmp_path / "out.npz.broken.txt").read_text().startswith("b/2.png\t")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images", "out.npz", "out.npz.broken.txt"]


@pytest.mark.parametrize("name", ["out.npz", "out.parquet"])
def test_features_of_a_classifier_name_its_classes(encoder, folder, tmp_path, name):
    root, _ = folder
    extract(encoder, root, tmp_path / name)
    assert rows.load(tmp_path / name)[1].class_names == ()
    (tmp_path / name).unlink()
    names = tuple(f"class {number}, größer" for number in range(encoder.spec.feature_size))
    spec = dataclasses.replace(encoder.spec, class_names=names)
    classifier = Encoder(encoder.inputs[0], encoder.outputs[0], spec)
    extract(classifier, root, tmp_path / name)
    assert rows.load(tmp_path / name)[1].class_names == names
    classifier.save(tmp_path / "classifier.keras")
    assert load_pretrained(tmp_path / "classifier.keras").spec == spec


def test_a_stopped_extraction_goes_on(encoder, folder, tmp_path, monkeypatch):
    root, images = folder
    monkeypatch.setattr(module, "PART", 3)
    compute, calls = module.Extractor.compute, []

    def stop_at_the_second(extractor, names, bar):
        calls.append(names)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return compute(extractor, names, bar)

    monkeypatch.setattr(module.Extractor, "compute", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        extract(encoder, root, tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()
    result = extract(encoder, root, tmp_path / "out.npz")
    assert [len(names) for names in calls] == [3, 3, 3, 2]  # the first three are not computed again
    assert calls[0] != calls[2]
    with np.load(tmp_path / "out.npz") as archive:
        np.testing.assert_allclose(archive["features"], expected(encoder, images), atol=1e-4)
    assert list(result.broken) == ["b/2.png"]


def test_new_images_are_added(encoder, folder, tmp_path, monkeypatch):
    root, images = folder
    extract(encoder, root, tmp_path / "out.npz")
    Image.fromarray(images["a/1.png"]).save(root / "a" / "0.png")
    seen = seen_names(monkeypatch)
    assert extract(encoder, root, tmp_path / "out.npz").rows == 8
    assert "a/0.png" in seen and "a/1.png" not in seen
    with np.load(tmp_path / "out.npz") as archive:
        assert archive["files"][0] == "a/0.png"
        # The same pixels in batches of one and of seven, which convolutions round differently.
        np.testing.assert_allclose(archive["features"][0], archive["features"][1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_changed_and_repaired_images_are_computed_again_and_gone_ones_left_out(
    encoder, folder, tmp_path, monkeypatch, ending
):
    root, images = folder
    extract(encoder, root, tmp_path / f"out.{ending}")
    for name in ("a/1.png", "b/2.png"):  # the second was broken
        Image.fromarray(255 - images["a/1.png"]).save(root / name)
    (root / "b" / "3.png").unlink()
    seen = seen_names(monkeypatch)
    result = extract(encoder, root, tmp_path / f"out.{ending}")
    assert seen == ["a/1.png", "b/2.png"]
    assert (result.rows, result.computed, result.gone, result.broken) == (7, 2, 1, {})
    assert not (tmp_path / f"out.{ending}.broken.txt").exists()
    fresh = extract(encoder, root, tmp_path / f"fresh.{ending}")
    assert (fresh.rows, fresh.computed, fresh.gone) == (7, 7, 0)
    read = [rows.read([path], encoder_hash(encoder), "32")[0] for path in (result.out, fresh.out)]
    assert list(read[0]) == list(read[1])
    for name, row in read[0].items():
        np.testing.assert_allclose(row.features, read[1][name].features, rtol=1e-5, atol=1e-6)


def test_an_output_of_other_images_is_not_replaced(encoder, folder, tmp_path):
    root, images = folder
    extract(encoder, root, tmp_path / "out.npz")
    before = (tmp_path / "out.npz").read_bytes()
    other = tmp_path / "other"
    (other / "a").mkdir(parents=True)
    for name in ("a/1.png", "new.png"):  # the first has the name of another image
        Image.fromarray(images["b/1.png"]).save(other / name)
    with pytest.raises(
        ValueError,
        match=r"out\.npz holds other images: none of its 8 files is, unchanged, in .*other, and they were in .*images",
    ):
        extract(encoder, other, tmp_path / "out.npz")
    assert (tmp_path / "out.npz").read_bytes() == before


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_images_that_have_all_changed_are_computed_again(encoder, folder, tmp_path, ending):
    root, _ = folder
    extract(encoder, root, tmp_path / f"out.{ending}")
    for file in root.rglob("*.png"):
        os.utime(file, ns=(0, 0))
    assert extract(encoder, root, tmp_path / f"out.{ending}").computed == 7


def test_a_saved_encoder_is_the_same(encoder, folder, tmp_path):
    extract(encoder, folder[0], tmp_path / "out.npz")
    encoder.save(tmp_path / "e.keras")
    assert extract(tmp_path / "e.keras", folder[0], tmp_path / "out.npz").computed == 0


def test_a_list_of_something_else_stays(encoder, folder, tmp_path):
    root, _ = folder
    (root / "b" / "2.png").unlink()
    (tmp_path / "out.npz.broken.txt").write_text("mine")
    extract(encoder, root, tmp_path / "out.npz")
    assert (tmp_path / "out.npz.broken.txt").read_text() == "mine"


def test_images_are_not_read_far_ahead(encoder, folder, tmp_path, monkeypatch):
    root, images = folder
    waiting, most = 0, 0
    decode = module.decode.decode

    def read(*arguments, **options):
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        return decode(*arguments, **options)

    def predict(batch):
        nonlocal waiting
        waiting -= len(batch)
        return encoder(batch)

    for i in range(40):
        Image.fromarray(images["a/1.png"]).save(root / "a" / f"more{i}.png")
    monkeypatch.setattr(module.decode, "decode", read)
    monkeypatch.setattr(encoder, "predict_on_batch", predict)
    assert extract(encoder, root, tmp_path / "out.npz", batch_size=2).rows == 47
    assert most <= 10


def test_names_that_are_not_utf8(encoder, folder, tmp_path):
    root, images = folder
    names = [b"\xff\xfe.png", b"\xff\xfd.png"]
    for name in names:
        Image.fromarray(images["a/1.png"]).save(os.fsdecode(os.path.join(os.fsencode(root), name)))
    (root / os.fsdecode(names[1])).write_bytes(b"")
    result = extract(encoder, root, tmp_path / "out.npz")
    assert os.fsdecode(names[1]) in result.broken and result.rows == 8
    assert (tmp_path / "out.npz.broken.txt").read_text().splitlines()[
        -1
    ] == "\\udcff\\udcfd.png\tthe file is empty"
    with pytest.raises(ValueError, match=r"is not UTF-8, as \.parquet needs"):
        extract(encoder, root, tmp_path / "out.parquet")


def test_capitals_and_what_lies_in_the_folder_between(encoder, folder, tmp_path):
    root, _ = folder
    parts = tmp_path / "OUT.NPZ.parts"
    parts.mkdir()
    (parts / "mine.txt").write_text("mine")
    assert extract(encoder, root, tmp_path / "OUT.NPZ").rows == 7
    assert extract(encoder, root, tmp_path / "OUT.NPZ").computed == 0
    assert [(p.name, p.read_text()) for p in parts.iterdir()] == [("mine.txt", "mine")]


def test_a_place_that_cannot_be_written_is_found_before_the_work(encoder, folder, monkeypatch):
    monkeypatch.setattr(module.Extractor, "compute", lambda *_: pytest.fail("computed first"))
    with pytest.raises(OSError, match=r"/proc/out\.npz cannot be written: "):
        extract(encoder, folder[0], "/proc/out.npz")


def test_images_without_resizing_keep_their_size(encoder, folder, tmp_path):
    root, images = folder
    free = with_preprocessing(encoder.get_layer("tiny"), 0.5, 0.25)
    extract(free, root, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as archive:
        np.testing.assert_allclose(archive["features"], expected(free, images), atol=1e-4)


def test_grayscale_encoders_read_colour_files(folder, tmp_path):
    root, _ = folder
    mean = keras.Sequential([keras.Input((None, None, 1)), keras.layers.GlobalAveragePooling2D()])
    extract(with_preprocessing(mean, 0.0, 1 / 255), root, tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as archive:
        luma = [np.asarray(Image.open(root / name).convert("L")).mean() for name in archive["files"]]
        np.testing.assert_allclose(archive["features"][:, 0], luma, rtol=1e-4)


def test_parquet_holds_the_same(encoder, folder, tmp_path):
    root, images = folder
    for _ in range(2):  # the second call finds everything done
        extract(encoder, root, tmp_path / "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["file"].to_pylist() == list(images)
    np.testing.assert_allclose(np.stack(table["features"].to_pylist()), expected(encoder, images), atol=1e-4)


def test_bad_input_is_named_and_nothing_written(encoder, folder, tmp_path):
    root, _ = folder
    with pytest.raises(ValueError, match=r"must end in \.npz or \.parquet, found 'out\.csv'"):
        extract(encoder, root, tmp_path / "out.csv")
    with pytest.raises(FileNotFoundError, match="missing"):
        extract(encoder, tmp_path / "missing", tmp_path / "out.npz")
    (tmp_path / "all_broken").mkdir()
    (tmp_path / "all_broken" / "x.png").write_bytes(b"")
    with pytest.raises(ValueError, match="None of the 1 images"):
        extract(encoder, tmp_path / "all_broken", tmp_path / "new.npz")
    with pytest.raises(ValueError, match="batch_size must be at least 1, found 0"):
        extract(encoder, root, tmp_path / "out.npz", batch_size=0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all_broken", "images"]
    np.savez(tmp_path / "foreign.npz", a=np.zeros(3))
    (tmp_path / "text.npz").write_text("text")
    (tmp_path / "empty.npz").touch()
    for name in ("foreign.npz", "text.npz", "empty.npz"):
        before = (tmp_path / name).read_bytes()
        reason = r".* \(it has no files\)" if name == "foreign.npz" else ""
        with pytest.raises(ValueError, match=f"{name} was not written by keras-sslhsic extract{reason}"):
            extract(encoder, root, tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    extract(encoder, root, tmp_path / "out.npz")
    network, spec = encoder.get_layer("tiny"), encoder.spec
    before = (tmp_path / "out.npz").read_bytes()
    for other in (
        with_preprocessing(network, 0.5, 0.25),
        with_preprocessing(network, spec.mean, spec.std, size=24),  # of the same layers and weights
    ):
        with pytest.raises(ValueError, match="written with another encoder"):
            extract(other, root, tmp_path / "out.npz")
        assert (tmp_path / "out.npz").read_bytes() == before


def test_rows_of_a_version_that_did_not_know_operations_are_not_taken(encoder, folder, tmp_path):
    root, _ = folder
    out = extract(encoder, root, tmp_path / "out.npz").out
    with np.load(out) as arrays:
        np.savez(out, **{**arrays, "encoder": "12d43117b1bbd54c"})
    before = out.read_bytes()
    with pytest.raises(ValueError, match="by an earlier version, which knew encoders by their layers"):
        extract(encoder, root, out)
    assert out.read_bytes() == before


@pytest.mark.parametrize("name", ["out.npz", "out.parquet"])
def test_features_of_images_that_were_resized_otherwise_are_not_added_to(
    encoder, folder, tmp_path, monkeypatch, name
):
    root, _ = folder
    monkeypatch.setattr(rows, "RESIZED", "")  # as earlier versions, which did not say it
    extract(encoder, root, tmp_path / name)
    monkeypatch.undo()
    before = (tmp_path / name).read_bytes()
    with pytest.raises(ValueError, match="by an earlier version, which resized images otherwise: remove it"):
        extract(encoder, root, tmp_path / name)
    assert (tmp_path / name).read_bytes() == before


def test_an_encoder_is_measured_on_what_is_extracted(encoder, folder, tmp_path):
    root, _ = folder
    (root / "b" / "2.png").unlink()  # the broken one
    noise = np.random.default_rng(0).integers(0, 256, (300, 200, 3), np.uint8)
    for side in (64, 90, 200):  # JPEGs could be decoded at a half, or a quarter
        Image.fromarray(noise[: side + 11, :side]).save(root / "b" / f"large{side}.jpg")
    found = np.load(extract(encoder, root, tmp_path / "out.npz").out)
    split = of_folder(root, size=32, short_side=32)
    (images, _), *_ = split.batches(99)
    np.testing.assert_allclose(encoder(images), found["features"], rtol=1e-5, atol=1e-6)


def same(path, other, encoder):
    """Whether two outputs hold the same, up to how batches of another size are rounded."""
    size = encoder.spec.size_for(None)
    one, two = (rows.read([each], encoder_hash(encoder), str(size or ""))[0] for each in (path, other))
    assert list(one) == list(two)
    for name, row in one.items():
        assert (row.stamp, row.reason) == (two[name].stamp, two[name].reason)
        if row.features is not None:
            np.testing.assert_allclose(row.features, two[name].features, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_an_extraction_killed_at_any_moment_goes_on(encoder, folder, tmp_path, monkeypatch, ending):
    root, _ = folder
    monkeypatch.setattr(module, "PART", 3)
    place = tmp_path / "out"
    place.mkdir()
    extract(encoder, root, tmp_path / f"whole.{ending}")
    killed, names = set(), sorted(path.name for path in tmp_path.glob("whole*"))
    for point in crash.points(lambda: extract(encoder, root, place / f"whole.{ending}"), place):
        killed.add(point)
        result = extract(encoder, root, place / f"whole.{ending}")
        assert (result.rows, list(result.broken)) == (7, ["b/2.png"]), point
        same(place / f"whole.{ending}", tmp_path / f"whole.{ending}", encoder)
        assert sorted(path.name for path in place.iterdir()) == names, point
        assert (place / names[-1]).read_text() == (tmp_path / names[-1]).read_text(), point
    assert len(killed) > 10


def test_a_second_process_is_refused(encoder, folder, tmp_path):
    root, _ = folder
    with (
        lock.held(tmp_path / "out.npz"),
        pytest.raises(lock.InUseError, match=rf"out\.npz is in use by process {os.getpid()} on "),
    ):
        extract(encoder, root, tmp_path / "out.npz")
    assert extract(encoder, root, tmp_path / "out.npz").rows == 7


def test_pipes_and_devices_are_listed_as_broken(encoder, folder, tmp_path):
    root, _ = folder
    os.mkfifo(root / "a" / "pipe.png")
    os.mkfifo(root / "a" / "pipe")
    (root / "a" / "zero.png").symlink_to("/dev/zero")
    assert extract(encoder, root, tmp_path / "out.npz").broken.keys() == {
        "a/pipe.png",
        "a/zero.png",
        "b/2.png",
    }
    assert (tmp_path / "out.npz.broken.txt").read_text().splitlines()[:2] == [
        "a/pipe.png\tis a named pipe: expected a regular file.",
        "a/zero.png\tis a device: expected a regular file.",
    ]


def test_names_are_listed_a_line_each(encoder, folder, tmp_path):
    root, _ = folder
    (root / "a" / "x\ny\x1b[31m.png").write_bytes(b"")
    extract(encoder, root, tmp_path / "out.npz")
    lines = (tmp_path / "out.npz.broken.txt").read_text().split("\n")
    assert lines[0] == "a/x\\ny\\x1b[31m.png\tthe file is empty" and len(lines) == 3
    with pytest.raises(FileNotFoundError, match=r"new\\nline.* holds no images") as raised:
        (tmp_path / "new\nline").mkdir()
        extract(encoder, tmp_path / "new\nline", tmp_path / "out.npz")
    assert "\n" not in str(raised.value)


def test_large_images_go_through_the_network_in_small_batches(encoder, tmp_path, monkeypatch):
    free = with_preprocessing(encoder.get_layer("tiny"), 0.5, 0.25)
    root, sizes = tmp_path / "images", []
    root.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(rng.integers(0, 256, (50, 40, 3), np.uint8)).save(root / f"{number}.png")
    Image.fromarray(rng.integers(0, 256, (1000, 900, 3), np.uint8)).save(root / "6.png")
    predict = free.predict_on_batch
    monkeypatch.setattr(
        free, "predict_on_batch", lambda images: sizes.append(images.shape[:2]) or predict(images)
    )
    extract(free, root, tmp_path / "out.npz")
    assert sizes == [(6, 50), (1, 1000)]
    sizes.clear()
    per_image = module._network_bytes(free) * 50 * 40
    fitting = 2**19 // per_image
    assert 1 < fitting < 6
    extract(free, root, tmp_path / "small.npz", memory_mb=1)
    assert sizes == [(fitting, 50)] * (6 // fitting) + [(6 % fitting, 50)] * (6 % fitting > 0) + [(1, 1000)]
    same(tmp_path / "out.npz", tmp_path / "small.npz", free)


@pytest.mark.parametrize("memory_mb", [1, 1024])
def test_an_error_while_images_wait_ends_the_threads(encoder, folder, tmp_path, monkeypatch, memory_mb):
    root, images = folder
    for i in range(10):
        Image.fromarray(np.tile(images["a/1.png"], (20, 20, 1))).save(root / "a" / f"large{i}.png")

    def fail(batch):
        raise FloatingPointError

    monkeypatch.setattr(encoder, "predict_on_batch", fail)
    with pytest.raises(FloatingPointError):
        extract(encoder, root, tmp_path / "out.npz", batch_size=1, memory_mb=memory_mb)


def bomb(path):
    np.savez_compressed(path, files=np.zeros([2**22], "U4"))


def declares_more(path):
    """An array of more elements than there are bytes."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(8, np.float32))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("files.npy", stream.getvalue().replace(b"(8,), }      ", b"(99999999,), }"))


def objects(path):
    np.savez(path, files=np.array([None], object))


def of_other_types(path):
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, **arrays | {"features": arrays["features"].astype(str)})


def repeated(path):
    """A member many times, in the same place of the file."""
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.filelist.extend(archive.filelist[:3] * 100)
        archive._didModify = True


@pytest.mark.parametrize("make", [bomb, declares_more, objects, of_other_types, repeated])
def test_outputs_that_state_more_than_they_hold_are_refused(encoder, folder, tmp_path, make):
    root, _ = folder
    extract(encoder, root, tmp_path / "out.npz")
    make(tmp_path / "out.npz")
    before = (tmp_path / "out.npz").read_bytes()
    with pytest.raises(ValueError, match=r"out\.npz was not written by keras-sslhsic extract: .*\)\.$"):
        extract(encoder, root, tmp_path / "out.npz")
    assert (tmp_path / "out.npz").read_bytes() == before


def test_parquet_files_that_state_more_than_they_hold_are_refused(encoder, folder, tmp_path):
    root, _ = folder
    width, count = 2**14, 2**11
    values = pyarrow.array(np.zeros(width * count, np.float32))
    columns = {
        "file": ["a"] * count,
        "features": pyarrow.FixedSizeListArray.from_arrays(values, width),
        "bytes": [0] * count,
        "changed_ns": [0] * count,
    }
    table = pyarrow.table(columns).replace_schema_metadata({"encoder": encoder_hash(encoder), "folder": "a"})
    parquet.write_table(table, tmp_path / "out.parquet")
    assert (tmp_path / "out.parquet").stat().st_size < 2**20
    with pytest.raises(ValueError, match=r"it states 134,\d{3},\d{3} bytes of rows in"):
        extract(encoder, root, tmp_path / "out.parquet")
