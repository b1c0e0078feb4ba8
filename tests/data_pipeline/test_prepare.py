"""Preparing folders with Apache Beam's direct runner."""

import numpy as np
import pytest

from keras_sslhsic.data import from_tfds

pytest.importorskip("apache_beam", reason="Apache Beam is not installed (pip install keras_sslhsic[beam])")

from keras_sslhsic.data.prepare import prepare_folders


def test_folders_become_splits(folder, tmp_path, identities, caplog):
    folders = {"train": folder(20, root="train"), "validation": folder(6, root="validation")}
    (folders["train"] / "class 1" / "broken.jpg").write_bytes(b"no image")
    builder = prepare_folders("gray_photos", folders, tmp_path / "tfds", num_shards=2)
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        "train": 20,
        "validation": 6,
    }
    options = {"data_dir": tmp_path / "tfds", "image_size": 8}
    for split, count in (("train", 20), ("validation", 6)):
        images = from_tfds("gray_photos", split, batch_size=count, **options)
        assert images.class_names == ["class 0", "class 1"]
        (batch,) = images.batches(epochs=1)
        numbers = identities(batch["image"])
        assert sorted(numbers) == list(range(count))
        np.testing.assert_array_equal(batch["label"], np.array(numbers) % 2)


def test_splits_must_have_the_same_classes(folder, tmp_path):
    folders = {"train": folder(6, classes=2, root="train"), "test": folder(6, classes=3, root="test")}
    with pytest.raises(ValueError, match="same class folders"):
        prepare_folders("gray_photos", folders, tmp_path / "tfds")
