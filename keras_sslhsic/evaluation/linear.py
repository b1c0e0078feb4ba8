"""Linear evaluation: a linear classifier on frozen features, its hyper-parameters chosen in one sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import tensorflow as tf

from keras_sslhsic.evaluation import metrics
from keras_sslhsic.evaluation.checks import check_split
from keras_sslhsic.evaluation.results import Result, wilson_interval
from keras_sslhsic.evaluation.subsets import stratified_split
from keras_sslhsic.evaluation.sweep import Candidate, Recipe, WideClassifier, grid

# Features are standardised, so one grid serves every encoder.
FAST_CANDIDATES = grid((0.001, 0.003, 0.01, 0.03, 0.1), (0.0, 3e-3, 3e-2))


@dataclass(frozen=True, kw_only=True)
class LinearResult(Result):
    """Result of a linear evaluation. Accuracies are shares in [0, 1].

    Attributes:
        top5: top-5 accuracy on the test split.
        learning_rate: that of the chosen candidate.
        weight_decay: that of the chosen candidate.
        validation_top1: accuracy of the chosen candidate on the held-out training images; None if nothing was
            chosen.
        epochs: length of each training.
        batch_size: images a step.
    """

    protocol: ClassVar[str] = "linear"

    top5: float
    learning_rate: float
    weight_decay: float
    validation_top1: float | None
    epochs: int
    batch_size: int


def linear_features(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    *,
    candidates: Sequence[Candidate] = FAST_CANDIDATES,
    epochs: int = 30,
    batch_size: int = 256,
    validation: float = 0.1,
    seed: int = 0,
) -> LinearResult:
    """The fast linear evaluation, on features that were extracted once.

    Features are standardised with the mean and standard deviation of the training features (a dimension that
    never varies becomes 0). All candidates (learning rate, weight decay) are trained at once on a part of the
    training images by SGD with Nesterov momentum and a cosine to 0; the best on the held-out part is trained
    again on all of them, and measured on the test images once.

    Args:
        train_features: float [N, F].
        train_labels: int [N].
        test_features: float [T, F].
        test_labels: int [T].
        candidates: what to choose from. One alone is trained without a validation split.
        epochs: passes over the training features.
        batch_size: features a step, at most the number there are.
        validation: share of each class that is held out, in (0, 1).
        seed: of the split and of the order.

    Returns:
        LinearResult.

    Raises:
        ValueError: if features or labels are unusable (see `checks`), or a class has too few images to hold
            one out.

    Example:
        >>> labels = np.arange(200) % 2
        >>> features = np.stack([labels, 1.0 - labels], axis=1)
        >>> linear_features(features, labels, features, labels, epochs=5, batch_size=20).top1
        1.0
    """
    arrays = check_split(train_features, train_labels, test_features, test_labels)
    train_features, train_labels, test_features, test_labels = arrays
    train_features, test_features = standardise(train_features, test_features)
    num_classes = int(train_labels.max()) + 1
    recipe = Recipe(epochs, min(batch_size, len(train_labels)))

    best, validation_top1 = candidates[0], None
    if len(candidates) > 1:
        fit, held_out = stratified_split(train_labels, validation, seed)
        sweep = _fit(train_features[fit], train_labels[fit], candidates, num_classes, recipe, seed)
        accuracies = sweep.accuracies(train_features[held_out], train_labels[held_out])
        best, validation_top1 = candidates[int(np.argmax(accuracies))], float(np.max(accuracies))
    classifier = _fit(train_features, train_labels, [best], num_classes, recipe, seed)
    scores = classifier.logits(tf.constant(test_features))[:, 0].numpy()
    return linear_result(scores, test_labels, best, validation_top1, recipe, seed)


def linear_result(
    scores: np.ndarray,
    labels: np.ndarray,
    candidate: Candidate,
    validation_top1: float | None,
    recipe: Recipe,
    seed: int,
) -> LinearResult:
    """The result of the chosen candidate from its scores [T, C] on the test split."""
    top1 = metrics.top_k(scores, labels)
    return LinearResult(
        value=top1,
        interval=wilson_interval(top1, len(labels)),
        num_test=len(labels),
        seed=seed,
        top5=metrics.top_k(scores, labels, 5),
        learning_rate=candidate.learning_rate,
        weight_decay=candidate.weight_decay,
        validation_top1=validation_top1,
        epochs=recipe.epochs,
        batch_size=recipe.batch_size,
    )


def standardise(train: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """(x - mean) / standard deviation for each dimension, both of `train`; a constant dimension becomes 0."""
    mean, std = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    return [((x - mean) * scale).astype(np.float32) for x in (train, *others)]


def _fit(features, labels, candidates, num_classes, recipe, seed):
    recipe = Recipe(recipe.epochs, min(recipe.batch_size, len(labels)))
    classifier = WideClassifier(features.shape[1], num_classes, candidates)
    classifier.fit(features, labels, recipe, seed)
    return classifier
