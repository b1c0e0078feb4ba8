"""Metrics of classification: top-k, mean per-class accuracy, average precision."""

from collections.abc import Callable
from functools import partial

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

    A tie counts against the label only where a class of lower number has the same score, and a class that is ruled out is not
    among the highest.

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
    return float(np.mean((rank < k) & ~np.isneginf(own[:, 0])))


def mean_per_class(predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Mean over the classes present in `labels` of the share of their examples that are predicted right.

    Args:
        predictions: int [N], predicted classes.
        labels: int [N].
        weights: positive float [N], how much each example counts; None for all alike.
    """
    from sklearn.metrics import recall_score

    return float(
        recall_score(labels, predictions, labels=np.unique(labels), average="macro", sample_weight=weights)
    )


def average_precision(scores: np.ndarray, positives: np.ndarray, weights: np.ndarray | None = None) -> float:
    """VOC2007's 11-point average precision of one class (Everingham et al. 2010, section 4.2).

    The mean over the recalls r = 0, 0.1, ... 1 of the largest precision at a recall of at least r. Tied scores enter together,
    so the order of the examples does not matter.

    Args:
        scores: float [N], higher is more likely.
        positives: bool [N].
        weights: positive float [N], how much each example counts; None for all alike.

    Raises:
        ValueError: if no example is positive, or scores are NaN or +inf.
    """
    from sklearn.metrics import precision_recall_curve

    if not np.any(positives):
        raise ValueError("average_precision needs at least one positive example, found none.")
    precision, recall, _ = precision_recall_curve(positives, check_scores(scores), sample_weight=weights)
    # The last point, of precision 1 at recall 0, is scikit-learn's own. Recall is a ratio of sums: compared with a margin, so
    # that 3/10 reaches the level 0.3.
    levels = np.linspace(0.0, 1.0, 11) - 1e-9
    return float(np.mean([precision[:-1][recall[:-1] >= level].max() for level in levels]))


def mean_average_precision(
    scores: np.ndarray, positives: np.ndarray, weights: np.ndarray | None = None
) -> float:
    """Mean of `average_precision` over the classes.

    Args:
        scores: float [N, C].
        positives: bool [N, C]; an example may have several classes.
        weights: positive float [N], how much each example counts; None for all alike.
    """
    each = zip(scores.T, positives.T, strict=True)
    return float(np.mean([average_precision(s, p, weights) for s, p in each]))


def _mean_per_class(scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> float:
    return mean_per_class(check_scores(scores).argmax(axis=1), labels, weights)


# Of scores [N, C] and labels, int [N] or bool [N, C]; all but top1 of weights [N] too.
METRICS: dict[str, Callable[..., float]] = {
    "top1": top_k,
    "mean_per_class": _mean_per_class,
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
    return value, bootstrap_interval(partial(METRICS[metric], scores, labels), len(labels), seed)


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """95 % score interval (Wilson 1927) of a share of `n` independent draws; within [0, 1] also near the ends."""
    from scipy.stats import binomtest

    interval = binomtest(round(share * n), n).proportion_ci(0.95, method="wilson")
    return float(interval.low), float(interval.high)


def bootstrap_interval(
    metric: Callable[[np.ndarray], float], num_examples: int, seed: int = 0, draws: int = 200
) -> tuple[float, float]:
    """95 % interval of a metric by the Bayesian bootstrap (Rubin 1981), percentiles 2.5 and 97.5.

    The examples are weighted at random, uniformly among all weights of one sum, where the bootstrap draws them again with
    replacement. The variance of a mean is the bootstrap's times N / (N + 1), and every example counts in every draw: a class of
    which there are few examples is never without any.

    Args:
        metric: function of the weights of the examples, positive float [N] of mean 1.
        num_examples: N.
        seed: of the draws.
        draws: number of weightings.
    """
    weights = np.random.default_rng(seed).dirichlet(np.ones(num_examples), draws)
    low, high = np.percentile([metric(num_examples * one) for one in weights], [2.5, 97.5])
    return float(low), float(high)
