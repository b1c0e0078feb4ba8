"""A whole run on a data set of TensorFlow Datasets, by its name."""

import json

import keras
import numpy as np
import pytest
import tensorflow_datasets as tfds
from ml_collections import ConfigDict

from keras_sslhsic import cli, encoders
from keras_sslhsic.evaluation import results
from keras_sslhsic.runs import defaults, folder


class Patches(tfds.core.GeneratorBasedBuilder):
    """Images of 14 x 12 pixels, dark ones and bright ones."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=["dark", "bright"]),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        numbers = {"train": 32, "validation": 8, "unlabelled": 40}
        return {split: self._generate_examples(number) for split, number in numbers.items()}

    def _generate_examples(self, number):
        rng = np.random.default_rng(number)
        for i in range(number):
            pixels = 120 * (i % 2) + rng.integers(0, 100, (14, 12, 3))
            yield i, {"image": pixels.astype(np.uint8), "label": -1 if number == 40 else i % 2}


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds") / "sets"
    config = tfds.download.DownloadConfig(try_download_gcs=False)
    Patches(data_dir=folder).download_and_prepare(download_config=config)
    return folder


@pytest.mark.parametrize("split", ["unlabelled", "train+unlabelled", "train[:16]"])
def test_images_without_labels_are_trained_on_without_them_and_measured_on_others(split, sets, monkeypatch):
    monkeypatch.chdir(sets.parent)
    given = {"data": {"name": "patches", "data_dir": "sets", "split": split}, "views": {"size": 8}}
    config = defaults.suited(ConfigDict(given))
    labelled = split.startswith("train[")
    assert config.data.labels == labelled and ("num_classes" in config.model) == labelled
    expected = {"test_split": "validation"} | ({} if labelled else {"train_split": "train"})
    assert config.evals.to_dict() == {"knn": expected}
    with pytest.raises(ValueError, match="no examples"):
        defaults.suited(ConfigDict(given | {"data": given["data"] | {"split": "train[:0%]"}}))


@pytest.mark.slow
def test_a_data_set_is_trained_on_by_its_name_and_measured_on_its_own_images(
    sets, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    pixels = keras.Input((None, None, 3))
    network = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(pixels)))
    encoders.with_preprocessing(network, 0.5, 0.25).save("start.keras")

    small = ["--image-size", "8", "--epochs", "1", "--init", "start.keras", f"--config.data.data_dir={sets}"]
    assert cli.main(["pretrain", "--data", "patches", "--workdir", "run", *small]) == 0
    told = capsys.readouterr().out
    assert (
        "32 images of sizes that are not known, in colour, 2 classes" in told
        and "images: 1 epoch of 4 steps" in told
    )
    config = folder.load_config("run")
    assert (config.data.name, config.data.labels, config.batch_size) == ("patches", True, 8)
    assert (config.views.size, config.evals.to_dict()) == (8, {"knn": {"test_split": "validation"}})
    (first, *_) = results.read("run")
    assert (first.data, first.protocol, first.num_train, first.num_test) == ("patches", "knn", 32, 8)
    assert first.recipe["image_size"] == 8

    # What is trained on is not measured on, with its labels.
    of_test = ConfigDict({"data": {"name": "patches", "data_dir": str(sets), "split": "validation"}})
    assert defaults.suited(of_test).evals.to_dict() == {}

    # Without a word on images those of the run, at its size.
    assert cli.main(["evaluate", "knn", "--run", "run", "--k", "3", "--test-split", "validation"]) == 0
    assert "knn on patches at 8 pixels" in capsys.readouterr().out
    last = json.loads((tmp_path / "run" / "results.jsonl").read_text().splitlines()[-1])
    assert (last["k"], last["num_test"], last["recipe"]["image_size"]) == (3, 8, 8)
