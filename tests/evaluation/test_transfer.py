import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic.evaluation import logistic_regression, transfer
from keras_sslhsic.evaluation.transfer import SETS, get, load

METRIC = {"aircraft", "pets", "caltech101", "flowers"}


def test_the_twelve_sets_and_their_metrics():
    assert len(SETS) == 12
    for name, dataset in SETS.items():
        expected = "map11" if name == "voc2007" else "mean_per_class" if name in METRIC else "top1"
        assert dataset.metric == expected
        assert (dataset.tfds is None) == (dataset.page is not None)


def test_names_and_classes_are_those_of_tensorflow_datasets():
    import tensorflow_datasets as tfds

    known = set(tfds.list_builders())
    for dataset in SETS.values():
        if dataset.tfds is not None:
            assert dataset.tfds.split("/")[0] in known


def test_unknown_set():
    with pytest.raises(ValueError, match="food101, cifar10"):
        get("mnist")


def test_transfer_is_logistic_regression_on_features(make_encoder, pictures):
    encoder, (train, test) = make_encoder(), pictures
    splits = {
        name: tf.data.Dataset.from_tensor_slices(part).batch(32)
        for name, part in {"train": train, "test": test}.items()
    }
    result = transfer(encoder, "pets", splits, l2_grid=[0.1, 1.0], seed=2)
    features = [(encoder(x, training=False).numpy(), y) for x, y in (train, test)]
    expected = logistic_regression(
        *features, metric="mean_per_class", l2_grid=[0.1, 1.0], seed=2, dataset="pets"
    )
    assert result.dataset == "pets" and result.l2 == expected.l2
    assert result.value == pytest.approx(expected.value, abs=0.02)


def test_a_set_from_files(tmp_path):
    generator = np.random.default_rng(0)
    for split in ("train", "validation", "test"):
        for label, name in enumerate(("finch", "wren")):
            folder = tmp_path / "birdsnap" / split / name
            folder.mkdir(parents=True)
            for i in range(4):
                pixels = generator.integers(0, 60, size=(40, 50, 3)) + 150 * label
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    splits = load("birdsnap", size=28, batch_size=3, data_dir=tmp_path)
    images, labels = (
        np.concatenate(parts) for parts in zip(*splits["train"].as_numpy_iterator(), strict=True)
    )
    assert images.shape == (8, 28, 28, 3) and labels.tolist() == [0] * 4 + [1] * 4
    encoder = keras.Sequential([keras.Input((28, 28, 3)), keras.layers.GlobalAveragePooling2D()])
    result = transfer(encoder, "birdsnap", size=28, data_dir=tmp_path, l2_grid=[1.0])
    assert result.top1 == 1.0 and result.num_test == 8


def test_missing_files_say_where_they_go(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"birdsnap/SPLIT/CLASS.*data_dir="):
        load("birdsnap", data_dir=tmp_path)
