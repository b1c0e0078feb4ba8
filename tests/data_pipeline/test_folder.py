"""from_folder: what is found, in which order, what happens to broken files, caches and host crops."""

import errno
import gc
import os
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from keras_sslhsic import SSLHSIC, pictures, views
from keras_sslhsic.data import DecodeError, TooManyBrokenFiles, decode, from_folder, inspect_folder
from keras_sslhsic.data import folder as module
from keras_sslhsic.data.broken import BrokenFiles
from keras_sslhsic.data.folder import list_images
from keras_sslhsic.evaluation import extract_features, loading
from keras_sslhsic.zoo.extract import extract

OPTIONS = {"image_size": 8, "workers": 2}


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path, monkeypatch):
    """The log of broken files is written where the run starts."""
    monkeypatch.chdir(tmp_path)


def test_class_folders_give_images_and_labels(folder, identities):
    images = from_folder(folder(24, classes=3), batch_size=5, **OPTIONS)
    assert images.class_names == ["class 0", "class 1", "class 2"]
    dataset = images.batches(epochs=1)
    assert images.element_spec == dataset.element_spec
    assert images.element_spec["image"] == tf.TensorSpec([5, 8, 8, 3], tf.uint8)
    batches = list(dataset)
    assert len(batches) == images.steps_per_epoch == 4 and images.num_examples == 24
    seen = []
    for batch in batches:
        numbers = identities(batch["image"])
        assert batch["label"].numpy().tolist() == [number % 3 for number in numbers]
        seen += numbers
    assert len(set(seen)) == 20 and not images.broken.reasons


def test_a_flat_folder_has_no_labels(folder, identities):
    images = from_folder(folder(7, classes=0), batch_size=4, drop_remainder=False, shuffle=False, **OPTIONS)
    assert "label" not in images.element_spec and images.class_names is None
    assert [identities(batch["image"]) for batch in images.batches(epochs=1)] == [[0, 1, 2, 3], [4, 5, 6]]


def test_pictures_of_a_run_in_the_folder_are_no_images(folder):
    root = folder(6)
    (root / "run").mkdir()
    for name in ("views.png", "curves.png", "features.png"):
        pictures.save(Figure(), root / "run" / name)
    Figure().savefig(root / "report.png")  # as earlier versions wrote them
    with pytest.warns(UserWarning, match="4 pictures under .*report"):
        images = from_folder(root, batch_size=3, **OPTIONS)
    assert (images.num_examples, images.class_names) == (6, ["class 0", "class 1"])


def test_the_digest_is_of_names_and_sizes(folder, tmp_path):
    root = folder(6)
    digest = from_folder(root, batch_size=2).digest()
    moved = root.rename(tmp_path / "moved")
    assert from_folder(moved, batch_size=3, seed=1, image_size=8, labels=False).digest() == digest
    (moved / "class 0").rename(moved / "class 2")
    renamed = from_folder(moved, batch_size=2).digest()
    with open(moved / "class 2" / "000.jpg", "ab") as stream:
        stream.write(b"0")
    assert len({digest, renamed, from_folder(moved, batch_size=2).digest()}) == 3


# Each looks at a folder by itself.
@pytest.mark.parametrize("names", [("test", "train"), ("cat", "train")])
def test_parts_of_a_data_set_that_are_taken_for_classes_are_warned_of(tmp_path, names):
    for name in names:
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        from_folder(tmp_path, batch_size=2, image_size=8)
    said = [str(one.message) for one in found if "parts of a data set" in str(one.message)]
    assert [message.endswith("train.") for message in said] == [True] * (names[0] == "test")


def test_features_of_a_folder_come_without_a_warning_of_their_end(folder):
    pixels = keras.Input((8, 8, 3))
    model = SSLHSIC(
        keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(pixels))),
        8,
        4,
        views=views.byol(8),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = model.predict(from_folder(folder(7, classes=2), batch_size=3, image_size=8), verbose=0)
    assert found.shape == (7, 4)


DOORS = {
    "from_folder": lambda path: from_folder(path, batch_size=2),
    "inspect": inspect_folder,
    "evaluate": lambda path: loading.of_folder(path, size=8, short_side=8),
    "extract": lambda path: extract("r18_fashion", path, path.parent / "f.npz"),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_folder_that_cannot_be_listed_is_no_missing_class(door, folder, monkeypatch):
    root = folder(6, classes=3)
    (root / "lost+found").mkdir()
    scandir = os.scandir

    def denied(path):
        if os.path.basename(path) in ("class 1", "lost+found"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", denied)
        with pytest.raises(
            PermissionError, match=r"class 1 cannot be listed \(Permission denied\): .* Make it readable"
        ):
            door(root)
    (root / "class 4").symlink_to(root / "gone")
    (root / "class 5").symlink_to(root / "class 5")
    for name in ("class 4", "class 5"):
        with pytest.raises(OSError, match=rf"The link .*{name} leads nowhere, and may be one to a folder"):
            door(root)
        (root / name).unlink()
    door(root)


def test_names_of_every_kind_are_found(tmp_path, photo, encode):
    root = tmp_path / "root"
    contents = {
        "a/upper.JPG": encode(photo()),
        "a/deep/er/ünïcode 图.jpeg": encode(photo()),
        "a/two words.PNG": encode(photo(), "PNG"),
        "b/wrong extension.png": encode(photo(), "BMP"),
        "b/no_extension": encode(photo(), "WEBP"),
        "b/photo.dat": encode(photo(), "GIF"),
        "b/notes.txt": b"some notes, longer than a signature",
        "b/Thumbs.db": b"",
        "b/.hidden.jpg": encode(photo()),
        ".git/c.jpg": encode(photo()),
    }
    for name, content in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    (root / "b" / "loop").symlink_to(root, target_is_directory=True)
    images = from_folder(root, batch_size=6, shuffle=False, **OPTIONS)
    assert [os.path.relpath(file, root) for file in images.files] == [
        "a/two words.PNG",
        "a/upper.JPG",
        "a/deep/er/ünïcode 图.jpeg",
        "b/no_extension",
        "b/photo.dat",
        "b/wrong extension.png",
    ]
    (batch,) = images.batches(epochs=1)
    assert batch["label"].numpy().tolist() == [0, 0, 0, 1, 1, 1]
    expected = decode.square(np.asarray(photo()), 8).astype(int)
    assert np.abs(batch["image"].numpy() - expected).max() <= 40  # a GIF has 256 colours
    for file, image in zip(images.files, batch["image"].numpy(), strict=True):
        content = decode.decode(Path(file).read_bytes(), short_side=8)
        np.testing.assert_array_equal(image, decode.square(content, 8))


@pytest.mark.filterwarnings("ignore:Skipping broken files")
@pytest.mark.parametrize("start", [(0, 2), (1, 0), (3, 1)])
@pytest.mark.parametrize("host_crops", [None, views.byol(8)])
def test_a_stream_started_at_a_step_goes_on_as_the_uninterrupted_one(folder, start, host_crops):
    root = folder(20)
    (root / "class 0" / "004.jpg").write_bytes(b"broken")
    options = {"batch_size": 6, "seed": 3, "host_crops": host_crops, "max_broken": 0.1, **OPTIONS}
    images = from_folder(root, **options)
    whole = list(images.batches(epochs=4).as_numpy_iterator())
    resumed = list(images.batches(*start, epochs=4).as_numpy_iterator())
    skipped = start[0] * 3 + start[1]
    assert len(resumed) == len(whole) - skipped > 0
    for one, other in zip(resumed, whole[skipped:], strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.filterwarnings("ignore:Skipping broken files")
@pytest.mark.parametrize("host_crops", [None, views.multi_crop(8, local_size=5, num_local=1)])
def test_workers_share_each_batch_and_decode_nothing_else(folder, host_crops, monkeypatch):
    root = folder(24)
    (root / "class 0" / "004.jpg").write_bytes(b"broken")
    images = from_folder(root, batch_size=6, seed=3, host_crops=host_crops, max_broken=0.1, **OPTIONS)
    whole = list(images.batches(epochs=2).as_numpy_iterator())
    decoded, opened = [], module.open_regular
    monkeypatch.setattr(
        module, "open_regular", lambda path, *args: decoded.append(path) or opened(path, *args)
    )
    shares = []
    for index in range(2):
        decoded.clear()
        shares.append(list(images.batches(epochs=2, share=(index, 2)).as_numpy_iterator()))
        assert 24 <= len(decoded) <= 24 + 2  # of 48: half, and what takes the place of the broken one
    for one, first, second in zip(whole, *shares, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], np.concatenate([first[name], second[name]]))


def test_a_handle_lists_its_folder_once_and_has_one_cache_and_one_pool(folder, monkeypatch):
    listed, decoded, opened = [], [], module.open_regular
    monkeypatch.setattr(module, "list_images", lambda path: listed.append(path) or list_images(path))
    monkeypatch.setattr(
        module, "open_regular", lambda path, *args: decoded.append(path) or opened(path, *args)
    )
    before = decoders()
    images = from_folder(folder(12), batch_size=4, cache="decoded", **OPTIONS)
    assert images.sample(3).shape == (3, 8, 8, 3) and len(decoded) == 3
    for _ in range(3):
        list(images.batches(epochs=1))
    assert len(listed) == 1 and len(decoded) == 12 and decoders() <= before + 2


@pytest.mark.filterwarnings("ignore:Skipping broken files")
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("host_crops", [None, views.byol(8)])
def test_a_sample_has_whole_images_of_every_class_and_no_broken_ones(tmp_path, channels, host_crops):
    for number in range(12):
        (tmp_path / f"{number % 3}").mkdir(exist_ok=True)
        image = Image.new("RGBA", (20, 30), (20 * number, 0, 0, 255))
        image.save(tmp_path / f"{number % 3}" / f"{number:02}.png")
    (tmp_path / "1" / "04.png").write_bytes(b"")
    images = from_folder(
        tmp_path, batch_size=4, channels=channels, host_crops=host_crops, max_broken=0.1, image_size=16
    )
    name = "image" if host_crops is None else "view1"
    assert next(iter(images.batches()))[name].shape[-1] == channels
    assert images.sample(4).shape == (4, 16, 16, channels)
    assert len(images.sample(100)) == 12
    if channels > 1:
        assert sorted({int(n) // 20 % 3 for n in images.sample(4)[:, 0, 0, 0]}) == [0, 1, 2]


def test_host_crops_differ_by_view_image_and_epoch(folder, photo):
    root = folder(4, classes=0)
    for number, file in enumerate(sorted(root.iterdir())):
        photo(seed=number).save(file)
    images = from_folder(root, batch_size=4, shuffle=False, host_crops=views.byol(16))
    assert {name: spec.shape for name, spec in images.element_spec.items()} == {
        "view1": (4, 16, 16, 3),
        "view2": (4, 16, 16, 3),
    }
    first, second = images.batches(epochs=2).as_numpy_iterator()
    crops = [first["view1"], first["view2"], second["view1"], second["view2"]]
    for row in range(4):
        assert len({crop[row].tobytes() for crop in crops}) == 4


BROKEN = {
    "empty.jpg": lambda file: file.write_bytes(b""),
    "text.jpg": lambda file: file.write_text("no image"),
    "cut.jpg": lambda file: file.write_bytes(file.read_bytes()[:-300]),
    "gone.jpg": lambda file: file.unlink(),
    "directory.jpg": lambda file: (file.unlink(), file.mkdir()),
    "bomb.jpg": lambda file: Image.new("L", (600, 600)).save(file, "PNG"),
}


def break_some(root, names=BROKEN):
    """Adds a file for each kind of damage; returns what breaks them, to be called after the listing."""
    files = {name: root / "class 0" / name for name in names}
    for file in files.values():
        noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
        Image.fromarray(noise).save(file, "JPEG", quality=95)
    return lambda: [BROKEN[name](file) for name, file in files.items()]


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_broken_files_are_skipped_counted_and_logged(folder, identities, drop_remainder):
    root = folder(24)
    damage = break_some(root)
    images = from_folder(
        root,
        batch_size=5,
        drop_remainder=drop_remainder,
        max_broken=0.25,
        max_pixels=100_000,
        error_log="broken.log",
        **OPTIONS,
    )
    damage()
    with pytest.warns(UserWarning, match="broken.log"):
        batches = list(images.batches(epochs=1))
    if drop_remainder:
        assert [len(batch["image"]) for batch in batches] == [5] * 6
        for batch in batches:
            numbers = identities(batch["image"])
            assert len(set(numbers)) == 5 and max(numbers) < 24
            assert [number % 2 for number in numbers] == batch["label"].numpy().tolist()
    else:
        assert sorted(n for batch in batches for n in identities(batch["image"])) == list(range(24))
    assert {os.path.basename(path) for path in images.broken.reasons} == set(BROKEN)
    with open("broken.log") as log:
        logged = dict(line.rstrip("\n").split("\t") for line in log)
    assert logged == images.broken.reasons
    reasons = {os.path.basename(path): reason for path, reason in logged.items()}
    assert reasons["empty.jpg"] == "the file is empty"
    assert "not a readable JPEG" in reasons["text.jpg"]
    assert "truncated" in reasons["cut.jpg"]
    assert reasons["gone.jpg"] == "No such file or directory"
    assert "600 x 600 pixels are more than the limit of 100000" in reasons["bomb.jpg"]


def test_a_file_that_may_not_be_read_is_skipped(folder, monkeypatch):
    root = folder(24)
    opened = module.open_regular

    def denied(path, limit):  # not by chmod: root may read everything
        if path.endswith("001.jpg"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, limit)

    monkeypatch.setattr(module, "open_regular", denied)
    images = from_folder(root, batch_size=24, drop_remainder=False, max_broken=0.1, **OPTIONS)
    with pytest.warns(UserWarning, match="Permission denied"):
        (batch,) = images.batches(epochs=1)
    assert len(batch["image"]) == 23


def test_a_log_that_cannot_be_written_stops_nothing(folder, tmp_path):
    root = folder(24)
    break_some(root, ["text.jpg"])()
    (tmp_path / "file").touch()
    options = OPTIONS | {"error_log": tmp_path / "file" / "broken.log"}
    images = from_folder(root, batch_size=25, drop_remainder=False, max_broken=0.1, **options)
    with pytest.warns(UserWarning, match=r"broken\.log, which cannot be written \(File exists"):
        (batch,) = images.batches(epochs=1)
    assert len(batch["image"]) == 24 and len(images.broken.reasons) == 1


def test_too_many_broken_files_stop_the_run_with_a_summary(folder):
    root = folder(24)
    damage = break_some(root, ["empty.jpg", "text.jpg"])
    images = from_folder(root, batch_size=26, drop_remainder=False, max_broken=0.05, **OPTIONS)
    damage()
    with (
        pytest.warns(UserWarning),
        pytest.raises(
            tf.errors.OpError, match=r"(?s)2 of 26 files \(7.7%\) are broken, 5.0% allowed.*empty.jpg"
        ),
    ):
        list(images.batches(epochs=1))
    flat = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
    model = SSLHSIC(flat, 8, 4, views=views.byol(8))
    model.compile("sgd")
    for read in (model.fit, model.evaluate, model.predict, partial(extract_features, model)):
        images = from_folder(root, batch_size=13, max_broken=0.05, **OPTIONS)
        with pytest.warns(UserWarning), pytest.raises(TooManyBrokenFiles, match="raise max_broken"):
            read(images)
    images.broken.total = 1
    for _ in range(2):  # the first may have been raised where nobody looked
        with pytest.raises(TooManyBrokenFiles, match="raise max_broken"):
            images.broken.report("another.jpg", DecodeError("the file is empty"))


def test_one_percent_is_allowed_by_default(folder):
    root = folder(2)
    for number in range(98):
        Image.new("L", (8, 8)).save(root / "class 0" / f"more {number}.png")
    break_some(root, ["text.jpg"])()
    images = from_folder(root, batch_size=101, drop_remainder=False, **OPTIONS)
    with pytest.warns(UserWarning, match="broken_images.log"):
        (batch,) = images.batches(epochs=1)
    assert len(batch["image"]) == 100


def test_features_of_a_folder_with_broken_files_say_that_rows_are_missing(folder):
    root = folder(12)
    break_some(root, ["text.jpg"])()
    images = from_folder(root, batch_size=5, max_broken=0.1, **OPTIONS)
    flat = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
    model = SSLHSIC(flat, 8, 4, views=views.byol(8))
    for read in (model.predict, partial(extract_features, model)):
        with pytest.warns(UserWarning, match=r"12 rows of 13 images: .*`broken\.reasons`"):
            features = read(images)
        assert len(features) == 12


def test_on_error_raise_names_the_file_and_the_reason(folder):
    root = folder(24)
    break_some(root, ["text.jpg"])()
    images = from_folder(root, batch_size=25, on_error="raise", **OPTIONS)
    with pytest.raises(tf.errors.OpError, match=r"text\.jpg: not a readable JPEG"):
        list(images.batches(epochs=1))


def test_no_file_to_take_the_place_of_a_broken_one(folder):
    root = folder(10)
    break_some(root, ["text.jpg"])()
    images = from_folder(root, batch_size=11, max_broken=0.5, **OPTIONS)
    with pytest.warns(UserWarning), pytest.raises(tf.errors.OpError, match="No file is left"):
        list(images.batches(epochs=1))


@pytest.mark.parametrize("kind", ["encoded", "decoded"])
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_cache_gives_the_same_images_without_reading_the_files(
    folder, tmp_path, kind, on_disk, monkeypatch
):
    root = folder(12)
    options = {"batch_size": 4, "cache": kind, **OPTIONS}
    plain = list(from_folder(root, **(options | {"cache": None})).batches(epochs=2).as_numpy_iterator())
    reads = []
    opened = module.open_regular
    monkeypatch.setattr(module, "open_regular", lambda path, limit: reads.append(path) or opened(path, limit))
    cached = from_folder(root, cache_dir=tmp_path / "cache" if on_disk else None, **options)
    for one, other in zip(plain, cached.batches(epochs=2).as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(one["image"], other["image"])
    # The last batch of an epoch and the first of the next are in flight together.
    assert 12 <= len(reads) <= 16
    reads.clear()
    if on_disk:
        again = from_folder(root, cache_dir=tmp_path / "cache", **options)
        for one, other in zip(plain, again.batches(epochs=2).as_numpy_iterator(), strict=True):
            np.testing.assert_array_equal(one["image"], other["image"])
        assert not reads


def test_the_cache_reads_a_changed_file_again(folder, tmp_path, identities):
    root = folder(12)
    options = {"batch_size": 12, "shuffle": False, "cache_dir": tmp_path / "cache", **OPTIONS}
    for kind in ("encoded", "decoded"):
        list(from_folder(root, cache=kind, **options).batches(epochs=1))
    Image.new("RGB", (12, 16), (255, 255, 255)).save(root / "class 0" / "000.jpg")
    os.utime(root / "class 0" / "000.jpg", (0, 0))
    for kind in ("encoded", "decoded"):
        (batch,) = from_folder(root, cache=kind, **options).batches(epochs=1)
        assert identities(batch["image"])[:3] == [49, 2, 4]


def test_cached_decoded_images_still_get_new_crops(folder, photo):
    root = folder(4, classes=0)
    for file in root.iterdir():
        photo().save(file)
    images = from_folder(root, batch_size=4, host_crops=views.byol(16), cache="decoded")
    dataset = images.batches(epochs=3)
    views_of_all = [image.tobytes() for batch in dataset for name in batch for image in batch[name].numpy()]
    assert len(set(views_of_all)) == len(views_of_all) == 24


def test_memory_stays_flat_over_epochs(folder):
    """A folder of 13 MB decoded, a cache of 1 MB: after the first epoch nothing more is kept."""
    resident = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")  # noqa: E731, SIM115
    options = {"image_size": 128, "cache": "decoded", "cache_bytes": 2**20, "workers": 2}
    dataset = iter(from_folder(folder(270, size=(128, 128)), batch_size=18, **options).batches(epochs=6))
    for _ in range(15):
        next(dataset)
    after_one = resident()
    for _ in range(75):
        next(dataset)
    assert resident() - after_one < 8 * 2**20


def test_decoding_runs_ahead_and_in_order(folder):
    """Determinism does not depend on the number of threads or on how fast each image is."""
    root = folder(24)
    Image.new("RGB", (2500, 2500), (10, 10, 10)).save(root / "class 0" / "000.jpg", quality=95)
    batches = []
    for workers in (1, 5):
        images = from_folder(root, batch_size=6, image_size=8, workers=workers)
        batches.append([batch["image"].tobytes() for batch in images.batches(epochs=2).as_numpy_iterator()])
        time.sleep(0.01)
    assert batches[0] == batches[1]


def test_images_of_one_size_need_no_image_size(folder):
    images = from_folder(folder(8, size=(12, 16)), batch_size=8, image_size=None, channels=1)
    (batch,) = images.batches(epochs=1)
    assert batch["image"].shape == (8, 16, 12, 1)


def test_images_of_several_sizes_need_image_size(folder):
    root = folder(8, size=(12, 16))
    Image.new("RGB", (20, 20)).save(root / "class 0" / "large.png")
    images = from_folder(root, batch_size=9, image_size=None)
    with pytest.raises(tf.errors.OpError, match=r"one size in a batch.*pass image_size"):
        list(images.batches(epochs=1))


def test_bad_input_is_named(folder, tmp_path, monkeypatch):
    root = folder(8)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/nowhere does not exist"):
        from_folder("nowhere", batch_size=2)
    with pytest.raises(NotADirectoryError, match="expected a folder"):
        from_folder(root / "class 0" / "000.jpg", batch_size=2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no images"):
        list_images(tmp_path / "empty")
    with pytest.raises(ValueError, match="8 examples, fewer than one batch of 9"):
        from_folder(root, batch_size=9)
    with pytest.raises(ValueError, match="since labels=True, found none"):
        from_folder(folder(3, classes=0, root="flat"), batch_size=2, labels=True)
    with pytest.raises(ValueError, match="seed must be at least 0, found -1"):
        from_folder(root, batch_size=2, seed=-1)
    with pytest.raises(ValueError, match="found 'ignore'"):
        from_folder(root, batch_size=2, on_error="ignore")
    Image.new("RGB", (8, 8)).save(root / "stray.png")
    with pytest.raises(ValueError, match=r"1 beside them, such as .*stray.png.*labels=False"):
        from_folder(root, batch_size=2)
    assert "label" not in from_folder(root, batch_size=2, labels=False).element_spec


@pytest.mark.parametrize(
    "options, message",
    [
        ({"image_size": (32, 32)}, r"image_size must be None or an integer, found \(32, 32\)"),
        ({"image_size": 0}, "image_size must be None or at least 1, found 0"),
        ({"channels": 2}, "channels must be 1, 3 or 4, found 2"),
        ({"channels": [3]}, r"channels must be 1, 3 or 4, found \[3\]"),
        ({"max_pixels": 0}, "max_pixels must be at least 1, found 0"),
        ({"memory_mb": 0}, "memory_mb must be at least 1, found 0"),
        ({"workers": 0}, "workers must be None or at least 1, found 0"),
        ({"labels": "yes"}, "labels must be True, False or None, found 'yes'"),
        ({"cache": "views"}, 'cache must be "encoded", "decoded" or None, found \'views\''),
        ({"cache_dir": "cache"}, 'cache_dir is \'cache\', but nothing is cached: .* cache="encoded" or "decoded"'),
        ({"cache": "encoded", "cache_bytes": -1}, "cache_bytes must be at least 1, found -1"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_meant_are_refused_when_called(folder, options, message):
    with pytest.raises(ValueError, match=message):
        from_folder(folder(4), batch_size=2, **options)
    assert os.listdir() == ["images"]


def test_a_last_batch_of_broken_files_is_left_out(folder, tmp_path):
    root = folder(5)
    sorted(root.rglob("*.*g"))[-1].write_bytes(b"")
    images = from_folder(root, batch_size=4, shuffle=False, drop_remainder=False, max_broken=1.0, **OPTIONS)
    assert [len(batch["image"]) for batch in images.batches(epochs=1)] == [4]


@pytest.mark.filterwarnings("ignore:Skipping broken files")
def test_pipes_and_devices_are_broken_files_and_nobody_waits_for_them(folder):
    root = folder(8)
    os.mkfifo(root / "class 0" / "no extension")
    os.mkfifo(root / "class 0" / "pipe.jpg")
    (root / "class 0" / "device.png").symlink_to("/dev/zero")
    images = from_folder(root, batch_size=10, drop_remainder=False, max_broken=0.5, **OPTIONS)
    assert len(images.files) == 10
    assert [len(batch["image"]) for batch in images.batches(epochs=1)] == [8]
    reasons = {os.path.basename(path): reason for path, reason in images.broken.reasons.items()}
    assert reasons == {
        "pipe.jpg": "is a named pipe: expected a regular file.",
        "device.png": "is a device: expected a regular file.",
    }


def test_large_files_are_broken_files(folder, monkeypatch):
    root = folder(8)
    with open(root / "class 0" / "large.jpg", "wb") as file:
        file.truncate(decode.MAX_BYTES + 1)
    images = from_folder(root, batch_size=9, drop_remainder=False, max_broken=0.5, **OPTIONS)
    with pytest.warns(UserWarning, match=r"has 1,073,741,825 bytes, more than the limit"):
        list(images.batches(epochs=1))


def test_names_are_shown_and_logged_escaped(folder, recwarn):
    root = folder(6)
    name = "new\nline\ttab \x1b[31m.jpg"
    (root / "class 0" / name).write_bytes(b"")
    images = from_folder(root, batch_size=7, drop_remainder=False, max_broken=0.5, **OPTIONS)
    list(images.batches(epochs=1))
    (path,) = images.broken.reasons
    # Another reader of the same folder, such as an evaluation at the end, adds no line.
    BrokenFiles(7, "skip", 0.5, "broken_images.log").report(path, DecodeError("the file is empty"))
    recwarn.pop(UserWarning)
    assert path.endswith(name)
    with open("broken_images.log") as log:
        ((logged, reason),) = [line.rstrip("\n").split("\t") for line in log]
    assert logged.endswith(r"new\nline\ttab \x1b[31m.jpg") and reason == "the file is empty"
    texts = [str(warning.message) for warning in recwarn] + images.broken.summary().splitlines()[1:2]
    assert len(texts) == 2
    for text in texts:
        assert logged in text and "\x1b" not in text and "\n" not in text


def decoders():
    return sum(thread.name.startswith("decode") for thread in threading.enumerate())


def test_threads_and_memory_end_with_their_data_set(folder):
    root = folder(8)
    gc.collect()  # what earlier tests left
    before = decoders()
    for _ in range(3):
        images = from_folder(root, batch_size=4, cache="decoded", **OPTIONS)
        dataset = images.batches(epochs=1)
        derived = dataset.map(lambda batch: batch["image"]).take(2)
        iterator = iter(derived)
        del images, dataset, derived
        gc.collect()
        assert len(list(iterator)) == 2  # what is made of a data set keeps it
        assert decoders() == before + 2
        held = [thing for thing in gc.get_objects() if issubclass(type(thing), module.FolderImages)]
        assert len(held) == 1
        del iterator, held
        gc.collect()
        deadline = time.monotonic() + 60
        while decoders() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert decoders() == before
        assert not [thing for thing in gc.get_objects() if issubclass(type(thing), module.FolderImages)]


@pytest.mark.parametrize("crops", [None, views.byol(16)])
def test_images_larger_than_the_memory_are_decoded_one_at_a_time(folder, encode, crops, monkeypatch):
    root = folder(3)
    for number in range(6):  # of 4.8 MB while they are decoded
        (root / "class 0" / f"large {number}.png").write_bytes(
            encode(Image.new("RGB", (600, 500), (number,) * 3), "PNG")
        )
    loading, most, lock, load = 0, 0, threading.Lock(), PngImageFile.load

    def counted(image):
        nonlocal loading, most
        if image.size != (600, 500):
            return load(image)
        with lock:
            loading += 1
            most = max(most, loading)
        time.sleep(0.02)
        try:
            return load(image)
        finally:
            with lock:
                loading -= 1

    monkeypatch.setattr(PngImageFile, "load", counted)
    options = {"batch_size": 9, "image_size": 8, "workers": 4, "host_crops": crops}
    whole = list(from_folder(root, **options).batches(epochs=2).as_numpy_iterator())
    assert most > 1
    most = 0
    one_by_one = list(from_folder(root, memory_mb=1, **options).batches(epochs=2).as_numpy_iterator())
    assert most == 1
    for one, other in zip(whole, one_by_one, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
