import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.evaluation import PROTOCOLS, FinetuneRecipe, evaluate
from keras_sslhsic.evaluation.benchmark import benchmark_bundled
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


def test_unknown_protocol(make_encoder, pictures):
    with pytest.raises(ValueError, match="knn, linear_features"):
        evaluate("svm", make_encoder(), *pictures)


def test_benchmark_yields_a_row_for_each_protocol(make_encoder, monkeypatch, pictures):
    module = __import__("sys").modules[benchmark_bundled.__module__]
    monkeypatch.setattr(module.bundled, "load", lambda: pictures)
    rows = list(benchmark_bundled(make_encoder(), recipes={0.1: FinetuneRecipe(3, 8)}))
    found = [(row["encoder"], row["protocol"]) for row in rows]
    common = ["knn", "linear", "transfer"]
    expected = [("pretrained", name) for name in (*common, "finetune")] + [
        ("raw pixels", name) for name in common
    ]
    assert found == expected
    assert all(np.isfinite(row["value"]) and row["data"] for row in rows)
    assert "encoder_hash" in rows[0] and "encoder_hash" not in rows[-1]
