from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic.data import from_folder
from keras_sslhsic.evaluation import PROTOCOLS, FinetuneRecipe, evaluate
from keras_sslhsic.evaluation.benchmark import benchmark_bundled
from keras_sslhsic.evaluation.streams import count_classes
from keras_sslhsic.evaluation.sweep import Candidate, Recipe

OPTIONS = {
    "knn": {"k": 5},
    "linear_features": {"epochs": 10},
    "logistic": {"l2_grid": [0.1, 1.0]},
    "linear": {"candidates": [Candidate(0.3)], "recipe": Recipe(20, 40), "crop_area": None},
    "finetune": {"recipe": FinetuneRecipe(20, 40, crop_area=None)},
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_beats_chance_on_pictures(make_encoder, pictures, protocol):
    result = evaluate(protocol, make_encoder(), *pictures, **OPTIONS[protocol])
    assert result.interval[0] > 0.25 and result.num_test == 80


def test_datasets_give_what_arrays_give(make_encoder, pictures):
    encoder = make_encoder()
    datasets = [tf.data.Dataset.from_tensor_slices(part).batch(32) for part in pictures]
    assert evaluate("knn", encoder, *datasets, k=5) == evaluate("knn", encoder, *pictures, k=5)


@pytest.mark.parametrize("protocol", ["knn", "linear", "finetune"])
def test_folders_whose_classes_are_not_the_same_are_refused(protocol, make_encoder, pictures, tmp_path):
    splits = {"train": "abc", "test": "ac", "validation": "abc"}
    for split, classes in splits.items():
        for name in classes:
            (tmp_path / split / name).mkdir(parents=True)
            Image.fromarray(pictures[0][0][0].squeeze()).save(tmp_path / split / name / "x.png")
    data = {
        split: from_folder(tmp_path / split, batch_size=2, image_size=8, epochs=1, drop_remainder=False)
        for split in (splits if protocol == "linear" else ("train", "test"))
    }
    with pytest.raises(
        ValueError, match="classes of train and test are not the same: b in one of them alone"
    ):
        evaluate(protocol, make_encoder(), **data)


def test_classes_are_counted_by_their_names():
    named = SimpleNamespace(class_names=["a", "b", "c"])
    assert count_classes(train=named, validation=5, test=named) == 3
    assert count_classes(train=(1, 2), test=SimpleNamespace(class_names=None)) is None


def test_unknown_protocol(make_encoder, pictures):
    with pytest.raises(ValueError, match="knn, linear_features"):
        evaluate("svm", make_encoder(), *pictures)


def test_benchmark_yields_a_row_for_each_protocol(make_encoder, monkeypatch, pictures):
    module = __import__("sys").modules[benchmark_bundled.__module__]
    monkeypatch.setattr(module.bundled, "load", lambda: pictures)
    rows = list(benchmark_bundled(make_encoder(), recipes={0.1: FinetuneRecipe(3, 8)}))
    found = [(row["encoder"], row["protocol"]) for row in rows]
    common = ["knn", "linear_features", "logistic"]
    expected = [("pretrained", name) for name in (*common, "finetune")] + [
        ("raw pixels", name) for name in common
    ]
    assert found == expected
    assert all(np.isfinite(row["value"]) and row["data"] for row in rows)
    assert "encoder_hash" in rows[0] and "encoder_hash" not in rows[-1]
