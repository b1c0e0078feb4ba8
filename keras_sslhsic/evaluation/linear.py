"""Linear evaluation: a linear classifier on frozen features, its hyper-parameters chosen in one sweep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_sslhsic.data.subsets import stratified_split
from keras_sslhsic.evaluation import metrics
from keras_sslhsic.evaluation.checks import check_classes, check_features, check_split
from keras_sslhsic.evaluation.crops import random_crop_and_flip
from keras_sslhsic.evaluation.features import (
    Encoder,
    check_images,
    feature_step,
)
from keras_sslhsic.evaluation.results import Result, wilson_interval
from keras_sslhsic.evaluation.streams import Labelled, arrays, count_classes, features_and_labels, stream
from keras_sslhsic.evaluation.sweep import Candidate, Recipe, WideClassifier, grid, schedule

# Features are standardised, so one grid serves every encoder.
FAST_CANDIDATES = grid((0.001, 0.003, 0.01, 0.03, 0.1), (0.0, 3e-3, 3e-2))

PAPER_RECIPE = Recipe(epochs=90, batch_size=4096)
RELEASED_RECIPE = Recipe(epochs=90, batch_size=4096, warmup_steps=100, nesterov=False)


def default_candidates(batch_size: int) -> tuple[Candidate, ...]:
    """Learning rates of 0.05 to 1.6 x batch / 256, each with the weight decays 0, 1e-6, 1e-5 and 1e-4."""
    rates = [base * batch_size / 256 for base in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)]
    return grid(rates, (0.0, 1e-6, 1e-5, 1e-4))


def released(batch_size: int) -> tuple[Candidate]:
    """The one candidate of the released code: learning rate 0.5 x batch / 256, no weight decay."""
    return (Candidate(0.5 * batch_size / 256),)


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


def linear(
    encoder: Encoder,
    train: Labelled,
    test: Labelled,
    validation: Labelled | int = 10_000,
    *,
    candidates: Sequence[Candidate] | None = None,
    recipe: Recipe = PAPER_RECIPE,
    crop_area: tuple[float, float] | None = (0.08, 1.0),
    num_classes: int | None = None,
    seed: int = 0,
    verbose: bool = False,
) -> LinearResult:
    """The paper's linear evaluation: a linear layer on the frozen encoder's features of augmented images.

    Each step crops and mirrors a batch at random, runs the encoder once, in inference mode, and updates all
    candidates. The best on held-out training images is trained again on all training images, and measured on
    the test images once. Features are used as they are, without standardisation. The paper's recipe is the
    default; `released(batch_size)` is that of the released code, for `candidates`, with `RELEASED_RECIPE`.

    Args:
        encoder: keras.Model, or function, from images [B, H, W, C] in [0, 255] to features. Its tensors stay
            as they are, bit for bit.
        train: (images uint8 [N, H, W, C], labels int [N]); or a finite dataset of batches (images, labels) or
            {"image", "label"}, all of one size, in a new order whenever it is iterated.
        test: the same, at the encoder's size (see `crops` for the two test crops).
        validation: number of training images to hold out, the same share of each class; or, needed if `train`
            is a dataset, a labelled set of its own, in batches of the same size.
        candidates: what to choose from. One alone is trained without a validation split. By default
            `default_candidates(recipe.batch_size)`.
        recipe: length, batch and momentum.
        crop_area: range of a random crop's share of the image's area; None trains without crops and
            mirroring.
        num_classes: needed if `train` is a dataset without `class_names`.
        seed: of the split, the order and the crops.
        verbose: whether to show progress bars.

    Returns:
        LinearResult.

    Raises:
        ValueError: if images or labels are unusable, or a dataset comes without `num_classes` or
            `validation`, or datasets name other classes.
    """
    num_classes = num_classes or count_classes(train=train, validation=validation, test=test)
    in_memory = not isinstance(train, tf.data.Dataset)
    everything = train
    candidates = candidates or default_candidates(recipe.batch_size)
    if in_memory:
        images, labels = arrays(train, "train")
        num_classes = num_classes or int(labels.max()) + 1
        check_classes(labels, arrays(test, "test")[1] if not isinstance(test, tf.data.Dataset) else [])
        if isinstance(validation, int) and len(candidates) > 1:
            fit, held_out = stratified_split(labels, validation / len(labels), seed)
            train, validation = (images[fit], labels[fit]), (images[held_out], labels[held_out])
    elif num_classes is None or (isinstance(validation, int) and len(candidates) > 1):
        raise ValueError("A dataset of training batches needs num_classes, and a validation set of its own.")

    best, validation_top1 = candidates[0], None
    if len(candidates) > 1:
        sweep = _train(encoder, train, candidates, num_classes, recipe, crop_area, seed, verbose)
        accuracies = sweep.accuracies(*features_and_labels(encoder, validation, "validation", verbose))
        best, validation_top1 = candidates[int(np.argmax(accuracies))], float(np.max(accuracies))
        if not in_memory:
            everything = _mixed(train, validation)
    classifier = _train(encoder, everything, [best], num_classes, recipe, crop_area, seed, verbose)
    features, labels = features_and_labels(encoder, test, "test", verbose)
    scores = classifier.logits(tf.constant(check_features(features)))[:, 0].numpy()
    return linear_result(scores, labels, best, validation_top1, recipe, seed)


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


def _train(encoder, train, candidates, num_classes, recipe, crop_area, seed, verbose):
    batches, steps_per_epoch = stream(train, recipe.batch_size, seed)
    shape = tuple(batches.element_spec[0].shape)
    check_images(encoder, shape)
    strategy, features_of = feature_step(
        encoder, crop_area and (lambda images, key: random_crop_and_flip(images, shape[1], key, crop_area))
    )
    classifier: Any = None
    steps = recipe.epochs * steps_per_epoch

    @tf.function
    def step(batch, number):
        features, labels = features_of(batch, tf.stack([tf.constant(seed, tf.int32), number]))
        classifier.step(features, labels, schedule(number, steps, recipe.warmup_steps), recipe)

    if strategy.num_replicas_in_sync > 1:
        batches = strategy.experimental_distribute_dataset(batches)
    progress = tqdm(total=steps, unit="step", desc=f"linear x {len(candidates)}", disable=not verbose)
    for number, batch in zip(range(steps), batches, strict=False):
        if classifier is None:
            features, _ = features_of(batch, tf.zeros([2], tf.int32))
            classifier = WideClassifier(features.shape[1], num_classes, candidates)
        step(batch, tf.constant(number))
        progress.update()
    progress.close()
    return classifier


def _mixed(train, validation):
    """The batches of both datasets, in a random order."""
    sizes = [int(part.cardinality()) for part in (train, validation)]
    mixed = tf.data.Dataset.sample_from_datasets(
        [train, validation], [size / sum(sizes) for size in sizes], seed=0
    )
    return mixed.apply(tf.data.experimental.assert_cardinality(sum(sizes)))
