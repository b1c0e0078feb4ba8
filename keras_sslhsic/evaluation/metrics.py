"""Metrics of classification: top-k, mean per-class accuracy, average precision."""

from collections.abc import Callable

import numpy as np


def check_scores(scores: np.ndarray) -> np.ndarray:
    """Returns the scores, float [N] or [N, C].

    Raises:
        ValueError: if any is NaN, which no comparison orders, or +inf, as those of a classifier that diverged are.
    """
    unusable = np.isnan(scores) | np.isposinf(scores)
    if unusable.any():
        raise ValueError(
            f"Scores must be finite, found NaN or infinity in {np.sum(unusable)} of {np.size(scores)}: what made them "
            "has diverged."
        )
    return scores


def top_k(scores: np.ndarray, labels: np.ndarray, k: int = 1) -> float:
    """Share of examples whose label is among the k highest scores.

    A tie counts against the label only where a class of lower number has the same score.

    Args:
        scores: float [N, C]; -inf for a class that is ruled out.
        labels: int [N], in 0 ... C - 1.
        k: number of classes that may hold the label.

    Raises:
        ValueError: if scores are NaN or +inf, or a label has no score.
    """
    check_scores(scores)
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(
            f"Labels must lie in 0 ... {scores.shape[1] - 1}, found {labels.min()} to {labels.max()}: the classes that are "
            "scored are those of the training images, or num_classes."
        )
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(scores.shape[1]) < labels[:, None]
    rank = np.sum((scores > own) | ((scores == own) & before), axis=1)
    return float(np.mean(rank < k))


def mean_per_class(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean over the classes present in `labels` of the share of their examples that are predicted right.

    Args:
        predictions: int [N], predicted classes.
        labels: int [N].
    """
    from sklearn.metrics import recall_score

    return float(recall_score(labels, predictions, labels=np.unique(labels), average="macro"))


def average_precision(scores: np.ndarray, positives: np.ndarray) -> float:
    """VOC2007's 11-point average precision of one class (Everingham et al. 2010, section 4.2).

    The mean over the recalls r = 0, 0.1, ... 1 of the largest precision at a recall of at least r. Tied scores enter together,
    so the order of the examples does not matter.

    Args:
        scores: float [N], higher is more likely.
        positives: bool [N].

    Raises:
        ValueError: if no example is positive, or scores are NaN or +inf.
    """
    from sklearn.metrics import precision_recall_curve

    if not np.any(positives):
        raise ValueError("average_precision needs at least one positive example, found none.")
    precision, recall, _ = precision_recall_curve(positives, check_scores(scores))
    # The last point, of precision 1 at recall 0, is scikit-learn's own. Recall is a ratio of whole numbers: compared with a
    # margin, so that 3/10 reaches the level 0.3.
    levels = np.linspace(0.0, 1.0, 11) - 1e-9
    return float(np.mean([precision[:-1][recall[:-1] >= level].max() for level in levels]))


def mean_average_precision(scores: np.ndarray, positives: np.ndarray) -> float:
    """Mean of `average_precision` over the classes.

    Args:
        scores: float [N, C].
        positives: bool [N, C]; an example may have several classes.
    """
    return float(np.mean([average_precision(s, p) for s, p in zip(scores.T, positives.T, strict=True)]))


# Of scores [N, C] and labels, int [N] or bool [N, C].
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "top1": top_k,
    "mean_per_class": lambda scores, labels: mean_per_class(check_scores(scores).argmax(axis=1), labels),
    "map11": mean_average_precision,
}


def check_metric(metric: str) -> None:
    """Raises ValueError unless there is a metric of this name."""
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {sorted(METRICS)}, found {metric!r}.")


def measure(
    metric: str, scores: np.ndarray, labels: np.ndarray, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """A metric of `METRICS` with its 95 % interval: Wilson's for top-1, bootstrapped for the others.

    Args:
        metric: its name.
        scores: float [N, C].
        labels: int [N], or bool [N, C] for "map11".
        seed: of the bootstrap's draws.
    """
    value = METRICS[metric](scores, labels)
    if metric == "top1":
        return value, wilson_interval(value, len(labels))
    return value, bootstrap_interval(
        lambda rows: METRICS[metric](scores[rows], labels[rows]), len(labels), seed
    )


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """95 % score interval (Wilson 1927) of a share of `n` independent draws; within [0, 1] also near the ends."""
    from scipy.stats import binomtest

    interval = binomtest(round(share * n), n).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def bootstrap_interval(
    metric: Callable[[np.ndarray], float], num_examples: int, seed: int = 0, draws: int = 200
) -> tuple[float, float]:
    """95 % interval of a metric by drawing the examples again, with replacement (percentiles 2.5 and 97.5).

    Args:
        metric: function of the indices int [N] of the examples drawn.
        num_examples: N.
        seed: of the draws.
        draws: number of resamples.
    """
    generator = np.random.default_rng(seed)
    values = [metric(generator.integers(num_examples, size=num_examples)) for _ in range(draws)]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
