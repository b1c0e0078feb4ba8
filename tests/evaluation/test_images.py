"""Images that are read one by one: from arrays, folders and TensorFlow Datasets alike."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from keras_sslhsic.data import TooManyBrokenFiles
from keras_sslhsic.data.central import resize_then_crop
from keras_sslhsic.evaluation import PROTOCOLS
from keras_sslhsic.evaluation.images import Split, of_arrays
from keras_sslhsic.evaluation.loading import load, of_folder, of_tfds


def first(dataset, steps):
    return list(itertools.islice(dataset.as_numpy_iterator(), steps))


@pytest.fixture
def arrays(pictures):
    """24 gray images, sorted by class."""
    images, labels = pictures[0]
    rows = np.argsort(labels[:24], kind="stable")
    return images[:24][rows], labels[:24][rows]


@pytest.fixture
def folder(tmp_path, arrays):
    """The same images as files."""
    for number, (image, label) in enumerate(zip(*arrays, strict=True)):
        (tmp_path / "images" / f"class {label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(tmp_path / "images" / f"class {label}" / f"{number:02}.png")
    return tmp_path / "images"


@pytest.mark.parametrize("crop_area", [None, (0.2, 1.0)])
def test_a_folder_gives_the_batches_of_its_images_as_arrays(folder, arrays, crop_area):
    read = of_folder(folder, size=8, short_side=8, channels=1)
    assert read.class_names == ["class 0", "class 1", "class 2", "class 3"]
    for one, other in zip(
        first(read.training_batches(7, 5, crop_area), 6),
        first(of_arrays(*arrays).training_batches(7, 5, crop_area), 6),
        strict=True,
    ):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
    for images, labels in first(read.batches(24), 1):
        np.testing.assert_array_equal(images, arrays[0])
        np.testing.assert_array_equal(labels, arrays[1])


def test_every_epoch_has_an_order_of_its_own_and_leaves_out_other_images():
    images = np.arange(10, dtype=np.uint8)[:, None, None, None] * np.ones([1, 2, 2, 1], np.uint8)
    batches = of_arrays(images, np.arange(10)).training_batches(4, 0, None)
    numbers = [labels for _, labels in first(batches, 40)]
    epochs = np.concatenate(numbers).reshape(20, 8)
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 20
    # Each image is left out with probability 1/5; that some is seen in all of 20 epochs has probability below 10 * 0.8^20.
    left_out = {number for epoch in epochs for number in set(range(10)) - set(epoch)}
    assert len(left_out) > 8


@pytest.fixture
def wide(tmp_path):
    """Two classes of one image: the left third red, the right third blue, green growing from top to bottom."""
    pixels = np.zeros([20, 60, 3], np.uint8)
    pixels[:, :20, 0], pixels[:, 40:, 2] = 255, 255
    pixels[..., 1] = 12 * np.arange(20)[:, None]
    for name in "ab":
        (tmp_path / name).mkdir()
        for i in range(8):
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    return of_folder(tmp_path, size=16, short_side=18)


def test_training_crops_come_from_the_whole_image(wide):
    """The central square is without red and blue."""
    (images, _), *_ = first(wide.training_batches(16, 0, (0.08, 1.0)), 1)
    assert images.dtype == np.uint8 and images.shape == (16, 16, 16, 3)
    brightest = images.max(axis=(1, 2))
    assert (brightest[:, 0] == 255).any() and (brightest[:, 2] == 255).any()
    red_left = images[:, :, 0, 0].max(1) > images[:, :, -1, 0].max(1)
    blue_left = images[:, :, 0, 2].max(1) > images[:, :, -1, 2].max(1)
    assert red_left.any() and blue_left.any()  # blue is on the left in mirrored images alone


def test_test_images_are_resized_by_their_short_side_and_cut(wide):
    (images, labels), *_ = first(wide.batches(16), 1)
    assert images.dtype == np.float32 and labels.tolist() == [0] * 8 + [1] * 8
    np.testing.assert_array_equal(images[0], resize_then_crop(wide.read(0), 16, 18))
    assert not np.array_equal(images[0], resize_then_crop(wide.read(0), 16, 16))


def test_broken_files_are_left_out_of_tests_and_replaced_in_training(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (folder / "class 1" / "06.png").write_bytes(b"no image")
    images = of_folder(folder, size=8, short_side=8, channels=1, max_broken=0.05)
    with pytest.warns(UserWarning, match="Skipping broken files"):
        found = np.concatenate([labels for _, labels in images.batches(10)])
    assert np.bincount(found).tolist() == [6, 5, 6, 6]
    (_, labels), *_ = first(images.training_batches(24, 0, None), 1)
    assert np.bincount(labels).tolist() == [6, 6, 6, 6]  # 07 twice
    strict = of_folder(folder, size=8, short_side=8, channels=1, max_broken=0.01)
    with pytest.raises(tf.errors.UnknownError, match=r"1 of 24 files \(4.2%\) are broken"):
        first(strict.batches(10), 3)


@pytest.mark.parametrize("protocol", ["knn", "linear", "finetune"])
def test_too_many_broken_files_end_a_protocol_by_their_own_error(protocol, folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (folder / "class 1" / "06.png").write_bytes(b"no image")
    images = of_folder(folder, size=8, short_side=8, channels=1)
    encoder = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Conv2D(2, 3), keras.layers.GlobalMaxPooling2D()]
    )
    options: dict = {"knn": {}, "linear": {"epochs": 1}, "finetune": {"epochs": 1, "learning_rates": [0.1]}}[
        protocol
    ]
    with (
        pytest.warns(UserWarning),
        pytest.raises(TooManyBrokenFiles, match=r"1 of 24 files \(4.2%\) are broken"),
    ):
        PROTOCOLS[protocol].run(encoder, {"train": images, "test": images}, **options)


def test_parts_and_sums(arrays):
    images = of_arrays(*arrays)
    part = images.part(np.array([3, 20])) + images.part(np.array([1]))
    (found, labels), *_ = first(part.batches(3), 1)
    np.testing.assert_array_equal(found, arrays[0][[3, 20, 1]])
    np.testing.assert_array_equal(labels, arrays[1][[3, 20, 1]])


def test_sizes_are_checked(arrays):
    with pytest.raises(ValueError, match="short_side must be None or at least 8, found 7"):
        Split(arrays[0].__getitem__, arrays[1], (8, 8, 1), 7)


class Objects(tfds.core.GeneratorBasedBuilder):
    """Images of levels 5 i, with a class i mod 3, and a sequence of classes."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=["x", "y", "z"]),
            "labels": tfds.features.Sequence(tfds.features.ClassLabel(names=["x", "y", "z"])),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(20):
            pixels = np.full((8, 8 + i % 2, 3), 5 * i, np.uint8)
            yield i, {"image": pixels, "label": i % 3, "labels": sorted({i % 3, i % 2})}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("tfds")
    config = tfds.download.DownloadConfig(num_shards=3, try_download_gcs=False)
    Objects(data_dir=path).download_and_prepare(download_config=config)
    return path


def test_a_data_set_of_tfds_gives_what_tfds_gives(data_dir):
    for split in ("train", "train[5:17]"):
        images = of_tfds("objects", split, size=8, short_side=8, data_dir=data_dir)
        read = tfds.ReadConfig(interleave_cycle_length=1)
        expected = list(
            tfds.load("objects", split=split, data_dir=data_dir, read_config=read).as_numpy_iterator()
        )
        (found, labels), *_ = first(images.batches(len(expected)), 1)
        assert labels.tolist() == [row["label"] for row in expected]
        assert found[:, 0, 0, 0].tolist() == [row["image"][0, 0, 0] for row in expected]
        assert images.class_names == ["x", "y", "z"]


def test_images_of_several_classes(data_dir):
    images = of_tfds("objects", "train", size=8, short_side=8, data_dir=data_dir, label_key="labels")
    (found, labels), *_ = first(images.training_batches(20, 0, None), 1)
    assert labels.dtype == bool and images.class_names == ["x", "y", "z"]
    for level, row in zip(found[:, 0, 0, 0] / 5, labels, strict=True):
        assert set(np.flatnonzero(row)) == {level % 3, level % 2}


def test_a_feature_that_tfds_has_not(data_dir):
    with pytest.raises(ValueError, match=r"no feature 'colour', it has \['image', 'label', 'labels'\]"):
        of_tfds("objects", "train", size=8, short_side=8, data_dir=data_dir, label_key="colour")
    with pytest.raises(ValueError, match=r"objects has no integer in 'image', but Image\("):
        of_tfds("objects", "train", size=8, short_side=8, data_dir=data_dir, label_key="image")


@pytest.mark.parametrize(
    "given, message",
    [
        (
            {"train_split": "train"},
            r"train split train and the test split train\[:8\] of objects have 8 images",
        ),
        (
            {"validation_split": "train[6:8]"},
            r"test split train\[:8\] and the validation split .* have 2 images in",
        ),
        (
            {"validation_split": "train[10:]"},
            r"train split train\[8:\] and the validation split .* 10 images",
        ),
    ],
)
def test_no_image_is_in_two_splits(data_dir, given, message):
    """TensorFlow Datasets tells the three files of the split apart."""
    splits = {"data_dir": data_dir, "test_split": "train[:8]", "train_split": "train[8:]"}
    found = load("objects", training=True, **splits)
    assert {name: len(part) for name, part in found.items()} == {"train": 12, "test": 8}
    with pytest.raises(ValueError, match=message):
        load("objects", training=True, **splits | given)
