import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from keras_sslhsic.data.subsets import stratified_split, stratified_subset
from keras_sslhsic.evaluation import logistic, logistic_regression, metrics
from keras_sslhsic.evaluation.logistic import L2_GRID

RANDOM = np.random.default_rng(0).normal(size=(9, 16))


def split(blobs):
    train, labels, test, test_labels = blobs
    return (train[:300], labels[:300]), (test, test_labels), (train[300:], labels[300:])


def test_grid_is_45_values_from_1e_6_to_1e5():
    assert len(L2_GRID) == 45
    np.testing.assert_allclose([L2_GRID[0], L2_GRID[-1]], [1e-6, 1e5])
    np.testing.assert_allclose(np.diff(np.log10(L2_GRID)), 0.25)


def test_equals_scikit_learn_called_by_hand(blobs):
    train, test, validation = split(blobs)
    grid = [0.01, 1.0, 100.0]
    result = logistic_regression(train, test, validation, l2_grid=grid)
    scores = [LogisticRegression(C=1 / l2, max_iter=1000).fit(*train).score(*validation) for l2 in grid]
    # The largest of equals.
    assert result.l2 == grid[len(grid) - 1 - int(np.argmax(scores[::-1]))]
    assert result.validation_value == pytest.approx(max(scores))
    final = LogisticRegression(C=1 / result.l2, max_iter=1000).fit(blobs[0], blobs[1])
    assert result.top1 == pytest.approx(final.score(*test))


def test_a_planted_penalty_is_found():
    """Few, noisy examples of a linear rule in many dimensions: a penalty in between is best."""
    generator = np.random.default_rng(0)
    weights = generator.normal(size=60)

    def draw(n):
        features = generator.normal(size=(n, 60))
        flip = generator.random(n) < 0.15
        return features, ((features @ weights > 0) ^ flip).astype(int)

    train, validation, test = draw(120), draw(4000), draw(4000)
    grid = np.logspace(-4, 5, 10)
    best = max(
        grid, key=lambda l2: LogisticRegression(C=1 / l2, max_iter=2000).fit(*train).score(*validation)
    )
    result = logistic_regression(train, test, validation, l2_grid=grid)
    assert 1e-3 < best < 1e4
    assert abs(np.log10(result.l2 / best)) <= 1


@pytest.mark.parametrize("scale", [1e-7, 1e-4, 1.0, 1e4, 1e25])
def test_the_optimum_is_reached_whatever_the_scale(scale):
    """With a penalty of the square of the scale, scores are those of the features at scale 1."""
    generator = np.random.default_rng(0)
    labels = np.arange(600) % 3
    features = generator.normal(size=(600, 20)) + np.eye(3, 20)[labels]
    (train, test), (known, asked) = np.split(features, 2), np.split(labels, 2)
    exact = LogisticRegression(C=0.1, tol=1e-10, max_iter=10_000).fit(train[:240], known[:240])
    fitted = LogisticRegression(C=0.1, tol=1e-10, max_iter=10_000).fit(train, known)
    parts = [(scale * train[:240], known[:240]), (scale * test, asked), (scale * train[240:], known[240:])]
    result = logistic_regression(*parts, l2_grid=[10 * scale**2])
    assert result.converged
    # At the end no part of the mean gradient is above 1e-4, and the least curvature is that of the penalty: the 63 weights are
    # so near to the optimum, and images whose two best scores differ by less than that moves both may be of another class.
    distance = 1e-4 * 63**0.5 / (10 / 300)
    for found, model, images, wanted in (
        (result.value, fitted, test, asked),
        (result.validation_value, exact, train[240:], known[240:]),
    ):
        margins = np.diff(np.sort(model.decision_function(images))[:, -2:])[:, 0]
        near = margins < 2 * distance * (1 + np.square(images).sum(axis=1)) ** 0.5
        assert abs(found - model.score(images, wanted)) <= near.mean()


def test_what_did_not_converge_is_said(blobs, monkeypatch):
    train, test, validation = split(blobs)
    assert logistic_regression(train, test, validation, l2_grid=[1.0], max_iter=1).converged is False
    monkeypatch.setattr(logistic, "MAX_ITER", 1)
    with pytest.warns(UserWarning, match="l2=1 did not converge within 1 iteration: .* standardise"):
        logistic_regression(train, test, validation, l2_grid=[1.0], max_iter=1)
    mixed = [(np.concatenate([x, 1e4 * x[:, :1]], axis=1), labels) for x, labels in (train, test, validation)]
    with pytest.warns(UserWarning, match="times as large as most: .* standardise them"):
        logistic_regression(*mixed, l2_grid=[1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert logistic_regression(*mixed, l2_grid=[1.0], standardised=True).converged


def test_separable_features_give_1_for_every_metric():
    labels = np.arange(90) % 3
    features = np.eye(3)[labels]
    for metric in ("top1", "mean_per_class"):
        data = (features, labels)
        assert logistic_regression(data, data, l2_grid=[0.1, 1], metric=metric).value == 1.0
    data = (features, np.eye(3, dtype=bool)[labels])
    result = logistic_regression(data, data, data, l2_grid=[0.1, 1], metric="map11")
    assert result.value == 1.0 and result.interval == (1.0, 1.0)


def test_random_labels_give_chance_within_the_interval():
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(900, 5)), generator.integers(3, size=900)
    result = logistic_regression(
        (features[:400], labels[:400]), (features[400:], labels[400:]), l2_grid=[1, 10]
    )
    assert result.interval[0] < 1 / 3 < result.interval[1]


def test_mean_per_class_and_two_classes_with_a_gap(blobs):
    train, labels, test, test_labels = blobs
    labels, test_labels = (np.where(y < 2, 0, 3) for y in (labels, test_labels))
    result = logistic_regression(
        (train, labels), (test, test_labels), 0.25, l2_grid=[1.0], metric="mean_per_class"
    )
    predictions = LogisticRegression(max_iter=1000).fit(train, labels).predict(test)
    assert result.value == pytest.approx(metrics.mean_per_class(predictions, test_labels))
    assert result.interval[0] < result.value < result.interval[1]
    with pytest.raises(AttributeError, match="mean_per_class"):
        _ = result.top1


def test_map11_is_the_mean_over_one_against_the_rest(blobs):
    train, labels, test, test_labels = blobs
    several = np.stack([labels == c for c in range(3)] + [labels >= 2], axis=1)
    test_several = np.stack([test_labels == c for c in range(3)] + [test_labels >= 2], axis=1)
    half = (train[:200], several[:200]), (train[200:], several[200:])
    result = logistic_regression(half[0], (test, test_several), half[1], metric="map11", l2_grid=[1.0])
    each = [
        metrics.average_precision(
            LogisticRegression(max_iter=1000).fit(train, several[:, c]).decision_function(test),
            test_several[:, c],
        )
        for c in range(4)
    ]
    assert result.value == pytest.approx(np.mean(each), abs=1e-6)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"validation": (RANDOM[:9], np.zeros(9, int))}, r"validation labels lack the classes \[1, 2, 3\]"),
        ({"train": (RANDOM[:9], np.zeros(9, int))}, "one class only"),
        ({"train": (RANDOM[:9], None)}, "train labels are missing"),
        ({"train": (np.ones([9, 16]), np.arange(9) % 4)}, "zero variance"),
        ({"test": (np.full([9, 16], np.inf), np.arange(9) % 4)}, "NaN or infinity"),
        ({"metric": "f1"}, "metric must be one of"),
        ({"metric": "map11"}, r"bool \[300, K\]"),
        ({"validation": 1.5}, "found 1.5"),
    ],
)
def test_unusable_input_is_named(blobs, change, message):
    train, test, validation = split(blobs)
    with pytest.raises(ValueError, match=message):
        logistic_regression(
            **{**{"train": train, "test": test, "validation": validation, "l2_grid": [1.0]}, **change}
        )


def test_subsets_are_stratified_nested_and_seeded():
    labels = np.repeat([0, 1, 2], [1000, 100, 10])
    one, ten = stratified_subset(labels, 0.01, 4), stratified_subset(labels, 0.1, 4)
    assert np.bincount(labels[one]).tolist() == [10, 1, 1] and np.bincount(labels[ten]).tolist() == [
        100,
        10,
        1,
    ]
    assert np.isin(one, ten).all()
    assert not np.array_equal(one, stratified_subset(labels, 0.01, 5))
    np.testing.assert_array_equal(stratified_subset(labels, 1.0), np.arange(1110))
    fit, held_out = stratified_split(labels, 0.2, 0)
    np.testing.assert_array_equal(np.sort(np.r_[fit, held_out]), np.arange(1110))
    assert np.bincount(labels[held_out]).tolist() == [200, 20, 2]
    with pytest.raises(ValueError, match=r"classes \[3\]"):
        stratified_split(np.r_[labels, 3], 0.1)
    with pytest.raises(ValueError, match="found 0"):
        stratified_subset(labels, 0)
