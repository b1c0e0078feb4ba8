import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, top_k_accuracy_score

from keras_sslhsic.evaluation import metrics
from keras_sslhsic.evaluation.metrics import wilson_interval


def scores_and_labels(seed, n=60, classes=7):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, classes)), generator.integers(classes, size=n)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
def test_top_k_equals_scikit_learn(k):
    scores, labels = scores_and_labels(0)
    expected = top_k_accuracy_score(labels, scores, k=k, labels=range(7))
    assert metrics.top_k(scores, labels, k) == pytest.approx(expected)


def test_top_k_of_ties_takes_the_lower_class_first():
    assert metrics.top_k(np.zeros([2, 3]), np.array([0, 1])) == 0.5
    assert metrics.top_k(np.zeros([2, 3]), np.array([1, 2]), 2) == 0.5


@given(st.integers(0, 10_000))
def test_mean_per_class_equals_balanced_accuracy(seed):
    scores, labels = scores_and_labels(seed)
    predictions = np.where(np.random.default_rng(seed).random(60) < 0.5, labels, scores.argmax(1))
    value = metrics.mean_per_class(predictions, labels)
    present = np.isin(predictions, labels)
    if present.all():
        assert value == pytest.approx(balanced_accuracy_score(labels, predictions))


def test_mean_per_class_weighs_classes_equally():
    labels = np.array([0] * 8 + [1] * 2)
    assert metrics.mean_per_class(np.zeros(10, int), labels) == 0.5


def eleven_points(scores, positives):
    """By the definition: for every threshold its precision and recall."""
    points = [
        (np.mean(positives[scores >= t]), np.sum(positives[scores >= t]) / positives.sum())
        for t in np.unique(scores)
    ]
    return np.mean([max(p for p, r in points if r >= level / 10 - 1e-9) for level in range(11)])


@given(st.integers(0, 10_000), st.booleans())
def test_average_precision_is_that_of_its_definition(seed, ties):
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=40)
    scores = np.round(scores) if ties else scores
    positives = generator.random(40) < 0.3
    positives[0] = True
    assert metrics.average_precision(scores, positives) == pytest.approx(eleven_points(scores, positives))


def test_eleven_point_average_precision_by_hand():
    # Ranked: + - + - -. Precision 1 up to recall 1/2 (levels 0 ... 0.5), 2/3 up to recall 1 (0.6 ... 1).
    scores, positives = np.array([5.0, 4, 3, 2, 1]), np.array([1, 0, 1, 0, 0], bool)
    assert metrics.average_precision(scores, positives) == pytest.approx((6 * 1 + 5 * 2 / 3) / 11)
    # Where the first is wrong, no level has precision 1.
    assert metrics.average_precision(scores, ~positives) == pytest.approx((11 * 3 / 5) / 11)


def test_eleven_point_levels_are_reached_by_tenths():
    # Ten positives first: recall 0.1, 0.2, ... 1.0 with precision 1 at every level.
    scores, positives = np.arange(20, 0, -1.0), np.arange(20) < 10
    assert metrics.average_precision(scores, positives) == 1.0


def test_average_precision_needs_a_positive():
    with pytest.raises(ValueError, match="at least one positive"):
        metrics.average_precision(np.zeros(3), np.zeros(3, bool))


def test_mean_average_precision_is_the_mean_over_columns():
    generator = np.random.default_rng(0)
    scores, positives = generator.normal(size=(30, 3)), generator.random((30, 3)) < 0.4
    each = [metrics.average_precision(scores[:, c], positives[:, c]) for c in range(3)]
    assert metrics.mean_average_precision(scores, positives) == pytest.approx(np.mean(each))


def test_bootstrap_interval_of_a_mean_agrees_with_the_normal_one():
    values = np.random.default_rng(0).normal(size=2000)
    low, high = metrics.bootstrap_interval(
        lambda weights: np.average(values, weights=weights), 2000, draws=1000
    )
    half = 1.96 * values.std() / np.sqrt(2000)
    assert low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.15 * half)


@pytest.mark.parametrize("metric", ["mean_per_class", "map11"])
def test_a_weight_of_two_is_an_example_that_is_there_twice(metric):
    generator = np.random.default_rng(0)
    scores, labels = generator.normal(size=(30, 3)), np.arange(30) % 3
    labels = np.eye(3, dtype=bool)[labels] if metric == "map11" else labels
    weights = generator.integers(1, 4, 30)
    rows = np.repeat(np.arange(30), weights)
    weighted = metrics.METRICS[metric](scores, labels, weights.astype(float))
    assert weighted == pytest.approx(metrics.METRICS[metric](scores[rows], labels[rows]))


@pytest.mark.parametrize("metric", ["mean_per_class", "map11"])
def test_a_class_with_one_example_is_in_every_draw_of_an_interval(metric):
    labels = np.array([0, 0, 0, 0, 0, 0, 0, 1])
    labels = np.eye(2, dtype=bool)[labels] if metric == "map11" else labels
    scores = np.stack([np.ones(8), np.array([0, 0, 2, 0, 0, 0, 0, 0.5])], axis=1)
    value, (low, high) = metrics.measure(metric, scores, labels)
    assert low <= value <= high


def test_wilson_interval_equals_scipy():
    from scipy.stats import binomtest

    for right, n in ((0, 20), (20, 20), (13, 40), (1600, 2000)):
        expected = binomtest(right, n).proportion_ci(0.95, method="wilson")
        assert wilson_interval(right / n, n) == pytest.approx((expected.low, expected.high), abs=1e-7)


@pytest.mark.parametrize("score", [np.nan, np.inf])
@pytest.mark.parametrize("metric", sorted(metrics.METRICS))
def test_scores_of_what_diverged_are_never_right(metric, score):
    labels = np.arange(5) % 2
    labels = np.eye(2, dtype=bool)[labels] if metric == "map11" else labels
    with pytest.raises(ValueError, match="what made them has diverged"):
        metrics.measure(metric, np.full((5, 2), score), labels)


def test_a_class_may_be_ruled_out():
    assert metrics.top_k(np.array([[-np.inf, 1.0], [-np.inf, 0.0]]), np.array([1, 0])) == 0.5
    assert (
        metrics.top_k(np.array([[-np.inf, 1.0], [-np.inf, 0.0]]), np.array([1, 0]), 2) == 0.5
    )  # nor the second best
