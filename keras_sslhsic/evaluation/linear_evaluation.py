"""Linear evaluation: a linear classifier on frozen features, its hyper-parameters chosen in one sweep."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_sslhsic.data.python_map import as_raised
from keras_sslhsic.data.subsets import stratified_split
from keras_sslhsic.encoders import check_images
from keras_sslhsic.evaluation import metrics
from keras_sslhsic.evaluation.checks import check_classes, check_features, check_split
from keras_sslhsic.evaluation.extraction import AnyEncoder, feature_step, shape_read
from keras_sslhsic.evaluation.images import ENCODING_BATCH, Labelled, Split, describe
from keras_sslhsic.evaluation.protocol import register
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.streams import features_and_labels, problem, select, stream
from keras_sslhsic.evaluation.sweep import (
    Candidate,
    Choice,
    Recipe,
    WideClassifier,
    choose,
    differing,
    grid,
    planned,
    scale_rates,
    schedule,
    several_of,
    training_settings,
    tried,
    warn_of_batch,
)

# Features are standardised, so one grid serves every encoder.
_FAST: dict[str, Any] = {
    "epochs": (30,),
    "batch_size": 256,
    "learning_rates": (0.001, 0.003, 0.01, 0.03, 0.1),
    "weight_decays": (0.0, 3e-3, 3e-2),
}
FAST_CANDIDATES = grid(_FAST["learning_rates"], _FAST["weight_decays"])  # for its batch
_BASES, _DECAYS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6), (0.0, 1e-6, 1e-5, 1e-4)
_PAPER: dict[str, Any] = {
    "epochs": (90,),
    "batch_size": 4096,
    "learning_rates": tuple(base * 4096 / 256 for base in _BASES),
    "weight_decays": _DECAYS,
}
PAPER_RECIPE = Recipe(epochs=90, batch_size=4096)
RELEASED_RECIPE = Recipe(epochs=90, batch_size=4096, warmup_steps=100, nesterov=False)


def default_candidates(batch_size: int) -> tuple[Candidate, ...]:
    """Learning rates of 0.05 to 1.6 x batch / 256, each with the weight decays 0, 1e-6, 1e-5 and 1e-4."""
    return grid([base * batch_size / 256 for base in _BASES], _DECAYS)


def released(batch_size: int) -> tuple[Candidate]:
    """The one candidate of the released code: learning rate 0.5 x batch / 256, no weight decay."""
    return (Candidate(0.5 * batch_size / 256),)


def _made(epochs: tuple[int, ...], batch_size: int, **plan: Any) -> dict[str, Any]:
    """The arguments of `linear` that a plan makes."""
    if len(epochs) != 1:
        raise ValueError(
            f"A linear evaluation has one number of epochs, found {', '.join(map(str, epochs))}."
        )
    candidates = grid(plan.pop("learning_rates"), plan.pop("weight_decays"))
    return {
        "candidates": candidates,
        "recipe": replace(PAPER_RECIPE, epochs=epochs[0], batch_size=batch_size),
        **plan,
    }


def _made_of_features(**plan: Any) -> dict[str, Any]:
    made = _made(**plan)
    recipe = made.pop("recipe")
    return {**made, "epochs": recipe.epochs, "batch_size": recipe.batch_size}


def _ahead(
    train_labels: np.ndarray,
    test_labels: np.ndarray,
    candidates: Sequence[Candidate] | None = None,
    validation: float = 0.1,
    seed: int = 0,
    **_: Any,
) -> None:
    check_classes(train_labels, test_labels)
    if candidates is None or len(candidates) > 1:
        stratified_split(train_labels, validation, seed)


@register(
    "linear_features",
    training_settings(_FAST),
    arguments=partial(planned, _FAST, _made_of_features),
    ahead=_ahead,
)
def linear_features(
    train_features: np.ndarray,
    train_labels: np.ndarray,
    test_features: np.ndarray,
    test_labels: np.ndarray,
    *,
    candidates: Candidate | Sequence[Candidate] | None = None,
    epochs: int = 30,
    batch_size: int = 256,
    validation: float = 0.1,
    seed: int = 0,
) -> Result:
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
        candidates: one or several to choose from, for batches of `batch_size`. One alone is trained without a validation
            split. None: `FAST_CANDIDATES`, with learning rates that follow the batch.
        epochs: passes over the training features.
        batch_size: features a step, at most the number there are.
        validation: share of each class that is held out, in (0, 1).
        seed: of the split and of the order.

    Returns:
        Result as of `linear`.

    Raises:
        ValueError: if features or labels are unusable (see `checks`), or a class has too few images to hold
            one out, or the training diverges.

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
    recipe = Recipe(epochs, batch_size)
    candidates = candidates or scale_rates(FAST_CANDIDATES, _FAST["batch_size"], batch_size)
    candidates = several_of(Candidate, candidates, "candidates")

    best, chosen, held_out = candidates[0], None, np.empty(0, int)
    if len(candidates) > 1:
        fit, held_out = stratified_split(train_labels, validation, seed)
        sweep = _fit(train_features[fit], train_labels[fit], candidates, num_classes, recipe, seed)
        values = sweep.accuracies(train_features[held_out], train_labels[held_out])
        chosen = choose(values, **differing(candidates))
        best = candidates[chosen.index]
    classifier = _fit(train_features, train_labels, [best], num_classes, recipe, seed)
    ran = min(batch_size, len(train_labels))
    given = {**_given(recipe, ran, candidates, len(held_out)), "standardised": True}
    result = _result(classifier, test_features, test_labels, best, chosen, recipe, ran, given, seed)
    return replace(result, protocol="linear_features", num_train=len(train_labels))


@as_raised()
def linear(
    encoder: AnyEncoder,
    train: Labelled,
    test: Labelled,
    validation: Labelled | int | None = None,
    *,
    candidates: Candidate | Sequence[Candidate] | None = None,
    recipe: Recipe = PAPER_RECIPE,
    crop_area: tuple[float, float] | None = (0.08, 1.0),
    num_classes: int | None = None,
    seed: int = 0,
    verbose: bool = False,
) -> Result:
    """The paper's linear evaluation: a linear layer on the frozen encoder's features of augmented images.

    Each step crops and mirrors a batch at random, runs the encoder once, in inference mode, and updates all
    candidates. The best on held-out training images is trained again on all training images, and measured on
    the test images once. Features are used as they are, without standardisation. The paper's recipe is the
    default; `released(batch_size)` is that of the released code, for `candidates`, with `RELEASED_RECIPE`.

    Learning rates are for batches of `recipe.batch_size`. If others are run, since there are fewer images or a
    dataset brings its own batches, the rates are scaled in proportion, and a warning and the result say so.

    Args:
        encoder: keras.Model, or function, from images [B, H, W, C] in [0, 255] to features. Its tensors stay
            as they are, bit for bit.
        train: (images uint8 [N, H, W, C], labels int [N]); or a `Split`; or a finite dataset of batches (images,
            labels) or {"image", "label"}, all of one size, in a new order whenever it is iterated.
        test: the same, at the encoder's size (see `data.central.resize_then_crop`).
        validation: number of training images to hold out, the same share of each class; None: the paper's 10,000, but
            at most a fifth. Or, needed if `train` is a dataset, a labelled set of its own, in batches of the same size.
        candidates: one or several to choose from. One alone is trained on all images, those of a validation set too. By
            default `default_candidates(recipe.batch_size)`.
        recipe: length, batch and momentum.
        crop_area: range of a random crop's share of the image's area; None trains without crops and
            mirroring.
        num_classes: needed if `train` is a dataset without `class_names`.
        seed: of the split, the order and the crops.
        verbose: whether to show progress bars.

    Returns:
        Result with `top5`; `learning_rate`, for the batch that was run, and `weight_decay` of the chosen candidate, and its
        `validation_top1` on held-out images (None if nothing was chosen); `at_edge`, the settings that it has at an edge of
        the sweep (see `sweep.Choice`); `epochs` and `batch_size`, as they were run.

    Raises:
        ValueError: if images or labels are unusable, a dataset comes without `num_classes` or `validation`, splits name
            other classes, or the training diverges.
    """
    encoder, images, validation, test, num_classes = problem(encoder, train, test, validation, num_classes)
    candidates = several_of(Candidate, candidates or default_candidates(recipe.batch_size), "candidates")

    def train_on(images: Any, candidates: Sequence[Candidate]) -> tuple[WideClassifier, int, int]:
        return _train(encoder, images, candidates, num_classes, recipe, crop_area, seed, verbose)

    def score(fit: Any, held: Any) -> tuple[np.ndarray, int]:
        sweep, _, _ = train_on(fit, candidates)
        features, labels = features_and_labels(encoder, held, "validation", verbose)
        return sweep.accuracies(features, labels), len(labels)

    best, chosen, images, held_out = select(
        candidates, images, validation, seed, score, differing(candidates)
    )
    classifier, ran, steps = train_on(images, [best])
    features, labels = features_and_labels(encoder, test, "test", verbose)
    given = _given(recipe, ran, candidates, held_out)
    given |= {"steps": steps, "crop_area": crop_area, **describe(test)}
    result = _result(classifier, check_features(features), labels, best, chosen, recipe, ran, given, seed)
    return replace(result, protocol="linear", num_train=len(images) if isinstance(images, Split) else None)


register(
    "linear",
    training_settings(_PAPER, "crops", "num_classes"),
    on_features=False,
    arguments=partial(planned, _PAPER, _made),
)(lambda encoder, splits, **arguments: linear(encoder, **splits, **arguments))


def _given(recipe: Recipe, ran: int, candidates: Sequence[Candidate], held_out: int) -> dict[str, Any]:
    """What was to be run, with the batch that was, and learning rates that follow it."""
    candidates = scale_rates(candidates, recipe.batch_size, ran)
    return {**asdict(recipe), "batch_size": ran, **tried(**differing(candidates)), "held_out": held_out}


def _result(
    classifier: WideClassifier,
    features: np.ndarray,
    labels: np.ndarray,
    best: Candidate,
    chosen: Choice | None,
    recipe: Recipe,
    ran: int,
    given: dict[str, Any],
    seed: int,
) -> Result:
    """The result of the classifier of the chosen candidate alone, on the test split."""
    warn_of_batch(recipe.batch_size, ran)
    scores = classifier.logits(tf.constant(features))[:, 0].numpy()
    (best,) = scale_rates([best], recipe.batch_size, ran)
    if not np.isfinite(scores).all():
        raise ValueError(
            f"The classifier diverged: lower the learning rate ({best.learning_rate:g}) or the weight decay "
            f"({best.weight_decay:g})."
        )
    top1 = metrics.top_k(scores, labels)
    return Result(
        value=top1,
        interval=metrics.wilson_interval(top1, len(labels)),
        num_test=len(labels),
        seed=seed,
        recipe=given,
        details={
            "top5": metrics.top_k(scores, labels, 5),
            **asdict(best),
            "validation_top1": chosen.value if chosen else None,
            "at_edge": chosen.at_edge if chosen else (),
            "epochs": recipe.epochs,
            "batch_size": ran,
        },
    )


def standardise(train: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """(x - mean) / standard deviation for each dimension, both of `train`; a constant dimension becomes 0."""
    mean, std = train.mean(axis=0, dtype=np.float64), train.std(axis=0, dtype=np.float64)
    scale = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    return [((x - mean) * scale).astype(np.float32) for x in (train, *others)]


def _fit(
    features: np.ndarray,
    labels: np.ndarray,
    candidates: Sequence[Candidate],
    num_classes: int,
    recipe: Recipe,
    seed: int,
) -> WideClassifier:
    ran = min(recipe.batch_size, len(labels))
    candidates = scale_rates(candidates, recipe.batch_size, ran)
    classifier = WideClassifier(features.shape[1], num_classes, candidates)
    classifier.fit(features, labels, replace(recipe, batch_size=ran), seed)
    return classifier


def _train(
    encoder: AnyEncoder,
    train: Any,
    candidates: Sequence[Candidate],
    num_classes: int,
    recipe: Recipe,
    crop_area: tuple[float, float] | None,
    seed: int,
    verbose: bool,
) -> tuple[WideClassifier, int, int]:
    """The classifier of all candidates, the batch that was run, and the number of steps."""
    batches, batch_size, steps_per_epoch = stream(train, recipe.batch_size, seed, crop_area)
    check_images(batches.element_spec[0], shape_read(encoder))
    candidates = scale_rates(candidates, recipe.batch_size, batch_size)
    steps = recipe.epochs * steps_per_epoch
    strategy, features_of = feature_step(encoder)
    # The encoder is frozen, so that it may see a batch in parts, of which each fits into memory.
    part = ENCODING_BATCH * strategy.num_replicas_in_sync
    batches = batches.flat_map(
        lambda images, labels: tf.data.Dataset.range(0, batch_size, part).map(
            lambda start: (images[start : start + part], labels[start : start + part])
        )
    )
    if strategy.num_replicas_in_sync > 1:
        batches = strategy.experimental_distribute_dataset(batches)
    features_of = tf.function(features_of, input_signature=[batches.element_spec])
    classifier: Any = None

    @tf.function
    def step(features: tf.Tensor, labels: tf.Tensor, number: tf.Tensor) -> None:
        classifier.step(features, labels, schedule(number, steps, recipe.warmup_steps), recipe)

    remaining = iter(batches)
    title = f"linear x {len(candidates)}"
    for number in tqdm(range(steps), unit="step", desc=title, disable=not verbose):
        parts = [features_of(next(remaining)) for _ in range(0, batch_size, part)]
        features, labels = (tf.concat(column, axis=0) for column in zip(*parts, strict=True))
        if classifier is None:
            classifier = WideClassifier(features.shape[1], num_classes, candidates)
        step(features, labels, tf.constant(number))
    return classifier, batch_size, steps
