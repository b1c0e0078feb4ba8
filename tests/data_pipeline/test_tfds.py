"""from_tfds, on a small data set that the test prepares itself."""

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_sslhsic import views
from keras_sslhsic.data import from_tfds
from keras_sslhsic.data import tfds as module
from keras_sslhsic.data.memory import Lease

NUMBER = {"train": 45, "validation": 11}


class Grays(tfds.core.GeneratorBasedBuilder):
    """Image i of a split is of gray level 5 i; its label is i mod 3."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(4, 6, 3)),
            "label": tfds.features.ClassLabel(num_classes=3),
            "score": tfds.features.Scalar(np.float32),
            "parts": tfds.features.Sequence(tfds.features.ClassLabel(num_classes=3)),
            "text": tfds.features.Text(),
            "bright": tfds.features.Scalar(np.bool_),
            "depth": tfds.features.Image(shape=(4, 6, 1), dtype=np.float32),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split) for split in NUMBER}

    def _generate_examples(self, split):
        for number in range(NUMBER[split]):
            image = np.full((4, 6, 3), 5 * number, np.uint8)
            others = {"score": 0.5, "parts": [1, 2], "text": "gray", "bright": number % 2 == 0}
            others["depth"] = np.full((4, 6, 1), number, np.float32)
            yield number, {"image": image, "label": number % 3, **others}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """The data set in 5 files a split."""
    path = tmp_path_factory.mktemp("tfds")
    config = tfds.download.DownloadConfig(num_shards=5, try_download_gcs=False)
    Grays(data_dir=path).download_and_prepare(download_config=config)
    return path


def numbers(dataset):
    """The numbers of the images of each batch."""
    return [(batch["image"][:, 0, 0, 0] // 5).tolist() for batch in dataset.as_numpy_iterator()]


@pytest.fixture
def load(data_dir):
    def load(split="train", **options):
        return from_tfds(
            "grays", split, data_dir=data_dir, **({"batch_size": 8, "image_size": None} | options)
        )

    return load


def flat(batches):
    return [number for batch in batches for number in batch]


def test_batches_hold_the_images_and_their_labels(load):
    images = load(image_size=8)
    dataset = images.batches(epochs=1)
    assert images.steps_per_epoch == int(dataset.cardinality()) == 5 and images.num_examples == 45
    assert images.element_spec == dataset.element_spec
    assert images.element_spec["image"] == tf.TensorSpec([8, 8, 8, 3], tf.uint8)
    assert images.class_names == ["0", "1", "2"]
    batches = list(dataset.as_numpy_iterator())
    assert len(batches) == 5
    for batch in batches:
        assert batch["label"].dtype == np.int64
        np.testing.assert_array_equal(batch["image"][:, 0, 0, 0] // 5 % 3, batch["label"])
    assert load(image_size=None).element_spec["image"].shape == (8, 4, 6, 3)
    assert "label" not in load(labels=False).element_spec


def test_splits_are_those_of_tfds(load, data_dir):
    options = {"shuffle": False, "drop_remainder": False}
    builder = tfds.builder("grays", data_dir=data_dir)
    for split in ("train", "validation", "train[10:]", "train[:10]", "train[20%:60%]"):
        read = builder.as_dataset(split=split, read_config=tfds.ReadConfig(interleave_cycle_length=1))
        expected = [int(example["image"][0, 0, 0]) // 5 for example in read.as_numpy_iterator()]
        assert flat(numbers(load(split, **options).batches(epochs=1))) == expected


def test_the_papers_imagenet_splits_share_out_the_training_images():
    splits = module.SPLITS["imagenet2012"]
    assert (splits["TRAIN"], splits["VALID"], splits["TEST"]) == (
        "train[10000:]",
        "train[:10000]",
        "validation",
    )


@pytest.mark.parametrize("window", [1, 1000])
def test_each_epoch_visits_everything_once_in_an_order_of_its_own(load, window):
    def read(seed):
        return numbers(load(drop_remainder=False, window=window, seed=seed).batches(epochs=2))

    batches = read(1)
    first, second = flat(batches[:6]), flat(batches[6:])
    assert sorted(first) == sorted(second) == list(range(45))
    assert first != second and first != sorted(first)
    assert batches == read(1) and batches != read(2)


@pytest.mark.parametrize("window", [1, 20])
@pytest.mark.parametrize("start", [(0, 3), (1, 0), (0, 14)])
def test_a_stream_started_at_a_step_goes_on_as_the_uninterrupted_one(load, start, window):
    images = load(window=window)
    whole = numbers(images.batches(epochs=4))
    assert numbers(images.batches(*start, epochs=4)) == whole[start[0] * 5 + start[1] :]


def test_a_start_does_not_read_the_windows_of_the_past(load, monkeypatch):
    reads = []

    def counting(piece):
        reads.append(piece.first)
        return read(piece)

    read = module._read
    monkeypatch.setattr(module, "_read", counting)
    numbers(load(window=1, shuffle=False).batches(0, 4, epochs=1))
    assert len(reads) <= 2 and min(reads) >= 27


def test_workers_are_disjoint_and_cover_everything(load, count=3):
    images = load(drop_remainder=False, batch_size=12)
    workers = [flat(numbers(images.batches(epochs=1, share=(i, count)))) for i in range(count)]
    assert sorted(flat(workers)) == list(range(45))
    whole = load(batch_size=12)
    for index in range(count):
        batches = numbers(whole.batches(epochs=1, share=(index, count)))
        assert [len(batch) for batch in batches] == [4] * whole.steps_per_epoch


def test_workers_read_their_own_files_and_decode_their_own_images(load, monkeypatch):
    images, files, decoded = load(batch_size=10), [set(), set()], [0, 0]
    read, decode = module._read, module.decode.decode
    for index in range(2):
        monkeypatch.setattr(module, "_read", lambda piece, i=index: files[i].add(piece.file) or read(piece))

        def counted(*args, i=index):
            decoded[i] += 1
            return decode(*args)

        monkeypatch.setattr(module.decode, "decode", counted)
        list(images.batches(epochs=1, share=(index, 2)))
    assert decoded == [20, 20]
    assert (
        len(files[0] & files[1]) <= 1 and len(files[0] | files[1]) == 5
    )  # the file in the middle has both's


def test_a_handle_opens_its_data_set_once_and_a_sample_decodes_no_others(load, monkeypatch):
    opened, decoded, decode = [], [], module.decode.decode
    monkeypatch.setattr(module.decode, "decode", lambda *args: decoded.append(1) or decode(*args))
    prepared = module.prepared_builder
    monkeypatch.setattr(module, "prepared_builder", lambda *args: opened.append(1) or prepared(*args))
    images = load(cache="decoded", image_size=8)
    assert len(set(images.sample(11)[:, 0, 0, 0].tolist())) == len(decoded) == 11
    for _ in range(3):
        list(images.batches(epochs=1))
    assert len(opened) == 1 and len(decoded) <= 45
    assert load(host_crops=views.byol(4)).sample(100).shape == (45, 8, 8, 3)


def test_host_crops_differ_by_epoch_and_resume(load):
    options = {"host_crops": views.byol(4), "image_size": 8, "shuffle": False}
    images = load(**options)
    whole = list(images.batches(epochs=2).as_numpy_iterator())
    assert set(whole[0]) == {"view1", "view2", "label"} and whole[0]["view2"].shape == (8, 4, 4, 3)
    resumed = list(images.batches(1, 1, epochs=2).as_numpy_iterator())
    for one, other in zip(whole[6:], resumed, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_decoded_images_can_be_cached(load, monkeypatch):
    options = {"cache": "decoded", "image_size": 8}
    plain = numbers(load(**(options | {"cache": None})).batches(epochs=3))
    decoded = []
    decode = module.decode.decode
    monkeypatch.setattr(module.decode, "decode", lambda *args: decoded.append(1) or decode(*args))
    assert numbers(load(**options).batches(epochs=3)) == plain
    assert len(decoded) <= 45 + 8  # a batch of two epochs may be in flight


def test_labels_are_integers_or_truths(load):
    batch = next(load(label_key="bright").batches(epochs=1).as_numpy_iterator())
    np.testing.assert_array_equal(batch["label"], batch["image"][:, 0, 0, 0] // 5 % 2 == 0)


def test_what_is_not_prepared_says_how_to_prepare_it(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"grays is not prepared in .*builder\('grays', data_dir='/.*'\)\.down"
    ):
        from_tfds("grays", batch_size=8, data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match=r"(?s)imagenet2012 is not prepared.*by hand.*ILSVRC2012"):
        from_tfds("imagenet2012", "TRAIN", batch_size=8, data_dir=tmp_path)


def test_bad_input_is_named(load):
    with pytest.raises(
        ValueError, match=r"no feature 'photo', it has \['bright', 'depth', 'image', .*take image_key"
    ):
        load(image_key="photo")
    for key in ("score", "parts", "text", "image"):
        with pytest.raises(
            ValueError, match=f"grays has no integer in '{key}', but .*take image_key, label_"
        ):
            load(label_key=key)
    with pytest.raises(ValueError, match=r"grays has no image in 'label', but ClassLabel\("):
        load(image_key="label")
    with pytest.raises(
        ValueError, match="grays has images of float32 in 'depth', and those of uint8 or uint16"
    ):
        load(image_key="depth")
    with pytest.raises(ValueError, match="11 examples, fewer than one batch of 12"):
        load("validation", batch_size=12)
    with pytest.raises(ValueError, match="The data set has no examples"):
        load("train[:0%]")
    with pytest.raises(ValueError, match="seed must be at least 0, found -1"):
        load(seed=-1)
    with pytest.raises(ValueError, match="image_size must be None or at least 1, found 0"):
        load(image_size=0)
    message = (
        f"{Path.cwd()}/no/such folder is no folder, and TensorFlow Datasets has no data set no/such folder"
    )
    with pytest.raises(FileNotFoundError, match=message):
        from_tfds("no/such folder", batch_size=8)
    with pytest.raises(ValueError, match="cache must be"):
        load(cache="encoded")
    with pytest.raises(ValueError, match=r'cache_dir is .* nothing is cached: .*cache="decoded"'):
        load(cache_dir="cache")
    with pytest.raises(ValueError, match="window must be at least 1, found 0"):
        load(window=0)
    with pytest.raises(ValueError, match="labels must be True or False, found None"):
        load(labels=None)
    with pytest.raises(ValueError, match=r"(?i)split"):
        load("test")


@pytest.mark.parametrize(
    ("remains", "message"),
    [
        (lambda content, last: content[:last], "states 9 examples from number 0 on, found 8"),
        (lambda content, last: b"", "states 9 examples from number 0 on, found 0"),
        (lambda content, last: content[:-5], "is damaged: .*truncated"),
    ],
)
def test_a_file_shorter_than_stated_is_named(remains, message, tmp_path):
    config = tfds.download.DownloadConfig(num_shards=5, try_download_gcs=False)
    Grays(data_dir=tmp_path).download_and_prepare(download_config=config)
    file = min(tmp_path.glob("grays/*/*train*.tfrecord*"))
    content = file.read_bytes()
    start = last = 0
    while start < len(content):  # the length of a record, its checksum, the record, its checksum
        start, last = start + 16 + int.from_bytes(content[start : start + 8], "little"), start
    file.write_bytes(remains(content, last))
    images = from_tfds("grays", batch_size=8, image_size=None, data_dir=tmp_path, shuffle=False)
    with pytest.raises(tf.errors.OpError, match=f"{file.name}.*{message}"):
        numbers(images.batches(epochs=1))


def test_a_damaged_record_names_the_example(load, monkeypatch):
    decode = module.decode.decode

    def damaged(content, *args):
        return decode(content[:30] if decode(content)[0, 0, 0] == 50 else content, *args)

    monkeypatch.setattr(module.decode, "decode", damaged)
    with pytest.raises(tf.errors.OpError, match=r"grays, train, example \d+ cannot be decoded: "):
        numbers(load(drop_remainder=False).batches(epochs=1))


def test_threads_end_with_their_data_set(load):
    before = set(threading.enumerate())
    images = load(workers=2)
    dataset = images.batches(epochs=1)
    assert len(numbers(dataset)) == 5

    def own():
        return {t.name.split("_")[0] for t in threading.enumerate() if t not in before}

    assert {"decode", "files", "windows"} <= own()
    del images, dataset
    gc.collect()
    deadline = time.monotonic() + 60
    while {"decode", "files", "windows"} & own() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not {"decode", "files", "windows"} & own()


def test_images_larger_than_the_memory_are_decoded(load, monkeypatch):
    held = []
    hold = Lease.hold
    monkeypatch.setattr(Lease, "hold", lambda self, size: held.append(size) or hold(self, 2**21))
    assert sorted(
        flat(numbers(load(drop_remainder=False, workers=4, memory_mb=1).batches(epochs=1)))
    ) == list(range(45))
    assert held == [16 * 4 * 6] * 45


def test_the_digest_is_of_the_data_set_and_the_split(load):
    assert load().digest() == load(seed=1, batch_size=4).digest()
    assert len({load(split).digest() for split in ("train", "train[:30]", "train[15:]", "validation")}) == 4
