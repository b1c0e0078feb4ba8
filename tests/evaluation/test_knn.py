import dataclasses
import json

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from keras_sslhsic.evaluation import knn, neighbours
from keras_sslhsic.evaluation.neighbours import unit_rows


def by_scikit_learn(train, labels, test, k, temperature):
    model = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / temperature))
    return model.fit(train, labels).predict(test)


@pytest.mark.parametrize("k, temperature", [(1, 0.07), (5, 0.07), (20, 0.5), (400, 0.1)])
def test_equals_scikit_learns_weighted_neighbours(blobs, k, temperature):
    train, labels, test, test_labels = blobs
    predicted = by_scikit_learn(train.astype(np.float64), labels, test.astype(np.float64), k, temperature)
    result = knn(*blobs, k=k, temperature=temperature)
    assert result.top1 == pytest.approx(np.mean(predicted == test_labels))
    assert (result.k, result.temperature, result.num_test) == (k, temperature, 200)


@pytest.mark.parametrize("leave_one_out", [False, True])
def test_blocks_do_not_change_the_result(blobs, monkeypatch, leave_one_out):
    data = blobs[:2] if leave_one_out else blobs
    whole = knn(*data, k=30)
    monkeypatch.setattr(neighbours, "_QUERY_BLOCK", 33)
    monkeypatch.setattr(neighbours, "_BANK_BLOCK", 27)
    assert knn(*data, k=30) == whole


def test_leave_one_out_classifies_each_image_by_the_others(blobs):
    features, labels = blobs[0][:60], blobs[1][:60]
    right = []
    for i in range(60):
        others = np.arange(60) != i
        right.append(
            by_scikit_learn(features[others], labels[others], features[[i]], 5, 0.07)[0] == labels[i]
        )
    result = knn(features, labels, k=5)
    assert result.leave_one_out and result.top1 == pytest.approx(np.mean(right))


def test_separable_features_give_1_and_scale_does_not_matter():
    labels = np.arange(50) % 5
    features = 1000.0 * np.eye(5)[labels] + 0.01
    result = knn(features, labels, 1e-3 * features, labels, k=3)
    assert result.top1 == result.top5 == 1.0


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1e10, 1e20, 1e38])
def test_squares_of_the_scale_need_not_be_numbers(scale):
    rng = np.random.default_rng(0)
    features = rng.uniform(-1, 1, [200, 5]).astype(np.float32)
    units = unit_rows(features)
    np.testing.assert_allclose(np.linalg.norm(units.astype(float), axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(unit_rows(features * np.float32(scale)), units, rtol=0, atol=8 * 2**-24)
    assert not unit_rows(np.zeros([2, 3], np.float32)).any()


def test_random_labels_give_chance_within_the_interval():
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(3000, 16)), generator.integers(10, size=3000)
    result = knn(features[:2000], labels[:2000], features[2000:], labels[2000:])
    assert result.k == 20
    assert result.interval[0] < 0.1 < result.interval[1]
    assert 0.42 < result.top5 < 0.58


def test_a_class_without_a_neighbour_is_not_among_the_five_nearest():
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(300, 4)), generator.integers(10, size=300)
    one = knn(features[:200], labels[:200], features[200:], labels[200:], k=1)
    assert one.top5 == one.top1
    two = knn(features[:200], labels[:200], features[200:], labels[200:], k=2)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    similarity = unit[200:] @ unit[:200].T
    near = labels[:200][np.argsort(-similarity, axis=1)[:, :2]]
    assert two.top5 == np.mean((near == labels[200:, None]).any(axis=1))


def test_default_k_depends_on_the_size_of_the_set(monkeypatch, blobs):
    monkeypatch.setattr(neighbours, "_LARGE", 400)
    assert knn(*blobs).k == 200
    assert knn(blobs[0][:9], blobs[1][:9], *blobs[2:]).k == 9


@pytest.mark.parametrize(
    "change, message",
    [
        ({"k": 401}, "k must be in 1 ... 400"),
        ({"k": 0}, "found 0"),
        ({"temperature": 0.0}, "temperature must be above 0, found 0"),
        ({"temperature": np.inf}, "temperature must be a finite number, found inf"),
        ({"train_labels": None}, "train_labels are missing"),
        ({"test_labels": None}, "test_labels are missing"),
        ({"train_labels": np.zeros(400, int)}, "one class only"),
        ({"train_labels": np.zeros(399, int)}, r"shape \[400\]"),
        ({"train_labels": np.full(400, 0.5)}, "integers"),
        ({"test_labels": np.full(200, 9)}, r"lack: \[9\]"),
        ({"train_features": np.ones([400, 16])}, "zero variance"),
        ({"train_features": np.full([400, 16], np.nan)}, "NaN or infinity in 400 of 400"),
        ({"test_features": np.random.default_rng(0).normal(size=(200, 5))}, "found 16 and 5"),
        ({"train_features": np.ones([400])}, "matrix"),
        (
            {"train_features": (np.ones([400, 16]), np.ones(400))},
            "found a tuple: give features and labels one by one",
        ),
    ],
)
def test_unusable_input_is_named(blobs, change, message):
    names = ("train_features", "train_labels", "test_features", "test_labels")
    with pytest.raises(ValueError, match=message):
        knn(**{**dict(zip(names, blobs, strict=True)), **change})


def test_its_line_of_json_has_everything_that_was_chosen(blobs):
    result = dataclasses.replace(knn(*blobs, k=7), encoder="a", encoder_hash="0f", data="blobs")
    line = json.loads(json.dumps(result.to_dict()))
    assert line["protocol"] == "knn" and line["metric"] == "top1" and line["encoder_hash"] == "0f"
    assert {f.name for f in dataclasses.fields(result)} - {"details"} <= set(line)
    assert line["value"] == result.top1 and line["k"] == 7
