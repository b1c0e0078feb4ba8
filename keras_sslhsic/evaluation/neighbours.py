"""Weighted nearest neighbours on features: the evaluation that trains nothing."""

from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.evaluation import metrics
from keras_sslhsic.evaluation.checks import check_classes, check_features, check_labels, check_split
from keras_sslhsic.evaluation.protocol import register
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.settings import ENCODING, Setting, natural, positive

_QUERY_BLOCK, _BANK_BLOCK = 1024, 16384
_LARGE = 50_000


def _check_k(k: int, available: int) -> None:
    checks.integer("k", k, 1)
    if k > available:
        raise ValueError(f"k must be in 1 ... {available} (the training images), found {k}.")


def _ahead(train_labels: np.ndarray, test_labels: np.ndarray, k: int | None = None, **_: Any) -> None:
    check_classes(train_labels, test_labels)
    if k is not None:
        _check_k(k, len(train_labels))


@register(
    "knn",
    {
        "k": Setting(natural, "neighbours", "200 from 50,000 training images on, else 20"),
        "temperature": Setting(positive, "of the neighbours' votes", "0.07"),
        **ENCODING,
    },
    ahead=_ahead,
)
def knn(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray | None = None,
    test_labels: np.ndarray | None = None,
    *,
    k: int | None = None,
    temperature: float = 0.07,
) -> Result:
    """Classifies by the weighted vote of the k training features of the highest cosine similarity s.

    A neighbour's vote for its class is exp(s / temperature) (Wu et al. 2018, "Unsupervised Feature Learning
    via Non-Parametric Instance Discrimination", section 3.4). Similarities are computed by blocks, so memory
    does not grow with the product of the two sets.

    Args:
        train_features: float [N, F]. Needs no normalisation.
        train_labels: int [N].
        test_features: float [T, F]. None: each training image is classified by the others (leave-one-out).
        test_labels: int [T].
        k: number of neighbours. None: 200 from 50,000 training images on, else 20; never more than there are.
        temperature: positive. As it grows, the vote becomes uniform.

    Returns:
        Result with `top5`, `k`, as it was used, `temperature` and `leave_one_out`.

    Raises:
        ValueError: if k or the temperature is out of range, or features or labels are unusable (see
            `checks`).

    Example:
        >>> features = np.random.default_rng(0).normal(size=(100, 8))
        >>> knn(features, np.arange(100) % 2, k=5).leave_one_out
        True
    """
    leave_one_out = test_features is None
    if leave_one_out:
        train_features = check_features(train_features, "train_features")
        train_labels = check_labels(train_labels, len(train_features), "train_labels")
        test_features, test_labels = train_features, train_labels
    train_features, train_labels, test_features, test_labels = check_split(
        train_features, train_labels, test_features, test_labels
    )
    available = len(train_features) - leave_one_out
    if k is None:
        k = min(200 if len(train_features) >= _LARGE else 20, available)
    _check_k(k, available)
    checks.number("temperature", temperature, above=True)

    bank, queries = unit_rows(train_features), unit_rows(test_features)
    num_classes = int(train_labels.max()) + 1
    votes = np.empty([len(queries), num_classes], np.float32)
    for start in range(0, len(queries), _QUERY_BLOCK):
        block = queries[start : start + _QUERY_BLOCK]
        similarity, index = _nearest(block, bank, k, start if leave_one_out else None)
        # Dividing all votes of a query by the largest one keeps exp() in range.
        weights = np.exp((similarity - similarity.max(axis=1, keepdims=True)) / temperature)
        cells = np.arange(len(block))[:, None] * num_classes + train_labels[index]
        size = len(block) * num_classes
        cast = np.bincount(cells.ravel(), weights.ravel(), size)
        # A class without a neighbour is none of the five nearest, though there may be fewer than five.
        cast[np.bincount(cells.ravel(), minlength=size) == 0] = -np.inf
        votes[start : start + len(block)] = cast.reshape(-1, num_classes)
    top1 = metrics.top_k(votes, test_labels)
    given = {"k": k, "temperature": temperature}
    return Result(
        protocol="knn",
        value=top1,
        interval=metrics.wilson_interval(top1, len(queries)),
        num_test=len(queries),
        num_train=len(bank),
        recipe=given,
        details={"top5": metrics.top_k(votes, test_labels, 5), **given, "leave_one_out": leave_one_out},
    )


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Features [N, F] divided by their norms, of whatever scale; zero stays zero."""
    largest = np.abs(features).max(axis=1, keepdims=True)
    # Squares of float32 leave its range from 1e19 on, and below 1e-19.
    scaled = features / np.where(largest == 0, 1, largest)
    return scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1)


def _nearest(
    queries: np.ndarray, bank: np.ndarray, k: int, offset: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The k highest similarities [Q, k] of each query and their places in the bank, block after block.

    `offset` is the place of the first query in the bank; given, no query finds itself.
    """
    best = np.empty([len(queries), 0], np.float32)
    places = np.empty([len(queries), 0], np.int64)
    for start in range(0, len(bank), _BANK_BLOCK):
        block = bank[start : start + _BANK_BLOCK]
        similarity = tf.matmul(queries, block, transpose_b=True).numpy()
        if offset is not None:
            row = np.arange(len(queries))
            own = row + offset - start
            inside = (own >= 0) & (own < len(block))
            similarity[row[inside], own[inside]] = -np.inf
        found = tf.math.top_k(similarity, min(k, len(block)))
        best = np.concatenate([best, found.values.numpy()], axis=1)
        places = np.concatenate([places, found.indices.numpy() + start], axis=1)
        if best.shape[1] > k:
            kept = np.argsort(-best, axis=1, kind="stable")[:, :k]
            best, places = np.take_along_axis(best, kept, 1), np.take_along_axis(places, kept, 1)
    return best, places
