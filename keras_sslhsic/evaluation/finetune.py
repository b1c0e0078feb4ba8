"""Fine-tuning: the encoder and a new linear head trained on labelled images."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_sslhsic import checks, compat
from keras_sslhsic.data.subsets import stratified_subset
from keras_sslhsic.encoders import check_images
from keras_sslhsic.evaluation import metrics
from keras_sslhsic.evaluation.checks import check_classes
from keras_sslhsic.evaluation.extraction import shape_read
from keras_sslhsic.evaluation.images import Images
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.streams import (
    Labelled,
    count_classes,
    describe,
    features_and_labels,
    hold_out_of,
    images_of,
    stream,
)
from keras_sslhsic.evaluation.sweep import choose, warn_of_batch


@dataclass(frozen=True)
class FinetuneRecipe:
    """How the network is trained: SGD with Nesterov momentum 0.9 and a cosine to 0, without warm-up.

    Attributes:
        steps: number of updates; None: as many as `epochs` has.
        batch_size: images a step, for which the learning rates are meant.
        head_learning_rate: peak for the new linear layer.
        encoder_learning_rate: peak for the encoder.
        weight_decay: of the l2 penalty weight_decay / 2 |W|^2 on all kernels (not on biases and
            BatchNormalization).
        crop_area: range of a random crop's share of the image's area; None trains without crops and
            mirroring.
        epochs: passes over the training images, if no steps are given.

    Raises:
        ValueError: unless either steps or epochs are given, and for values out of range.
    """

    steps: int | None = None
    batch_size: int = 256
    head_learning_rate: float = 0.1
    encoder_learning_rate: float = 0.1
    weight_decay: float = 0.0
    crop_area: tuple[float, float] | None = (0.08, 1.0)
    epochs: int | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"Give either steps or epochs, found {self.steps} and {self.epochs}.")
        checks.integer("steps", self.steps, 1, optional=True)
        checks.integer("epochs", self.epochs, 1, optional=True)
        checks.integer("batch_size", self.batch_size, 1)
        for name in ("head_learning_rate", "encoder_learning_rate", "weight_decay"):
            checks.number(name, getattr(self, name))


def recipes(
    learning_rates: Sequence[float],
    weight_decays: Sequence[float] = (0.0,),
    epochs: Sequence[int] = (),
    **fixed: Any,
) -> tuple[FinetuneRecipe, ...]:
    """Every combination, the encoder's learning rate that of the head.

    Args:
        learning_rates: for batches of `batch_size`.
        weight_decays: each is divided by the learning rate, so that a step decays all alike.
        epochs: empty if `steps` is given.
        **fixed: other fields of `FinetuneRecipe`.
    """
    return tuple(
        FinetuneRecipe(
            head_learning_rate=rate,
            encoder_learning_rate=rate,
            weight_decay=decay / rate,
            epochs=length,
            **fixed,
        )
        for length, rate, decay in itertools.product(epochs or (None,), learning_rates, weight_decays)
    )


# On shares of the labels, as the appendix of BYOL (arXiv:2006.07733) has it.
SEMI_SUPERVISED: Mapping[str, Any] = {
    "learning_rates": (0.005, 0.01, 0.02, 0.05, 0.1),
    "epochs": (30, 50),
    "batch_size": 1024,
}
# On other data sets, from the same place (after Kornblith et al. 2019).
TRANSFER: Mapping[str, Any] = {
    "learning_rates": tuple(np.logspace(-4, -1, 7).tolist()),
    "weight_decays": (0.0, *np.logspace(-6, -3, 7).tolist()),
    "steps": 20_000,
    "batch_size": 256,
}


@dataclass(frozen=True, kw_only=True)
class FinetuneResult(Result):
    """Result of `finetune`. Accuracies are shares in [0, 1].

    Attributes:
        fraction: share of the training labels that was used.
        top5: top-5 accuracy on the test split; None where images may have several classes.
        batch_norm_momentum: of every BatchNormalization layer during the training.
        steps: number of updates.
        batch_size: images a step, as it was run.
        head_learning_rate: of the chosen recipe, for the batch that was run.
        encoder_learning_rate: the same for the encoder.
        weight_decay: of the chosen recipe, as the l2 penalty has it.
        weight_decay_times_learning_rate: that times the encoder's learning rate before it was scaled to the batch: what
            was given to `recipes`, which divides by the learning rate.
        epochs: of the chosen recipe; None if it has steps.
        validation_value: the metric of the chosen recipe on held-out training images; None if nothing was chosen.
        at_edge: the settings that the chosen recipe has at an edge of the sweep (see `sweep.Choice`).
    """

    protocol: ClassVar[str] = "finetune"

    fraction: float
    top5: float | None
    batch_norm_momentum: float
    steps: int
    batch_size: int
    head_learning_rate: float
    encoder_learning_rate: float
    weight_decay: float
    weight_decay_times_learning_rate: float
    epochs: int | None
    validation_value: float | None
    at_edge: tuple[str, ...] = ()


def batch_norm_momentum(steps_per_epoch: int) -> float:
    """max(1 - 10 / s, 0.9) for s steps an epoch (Kornblith et al. 2019)."""
    return max(1.0 - 10.0 / steps_per_epoch, 0.9)


def finetune(
    encoder: keras.Model,
    train: Labelled,
    test: Labelled,
    validation: Labelled | int | None = None,
    *,
    fraction: float = 1.0,
    recipe: FinetuneRecipe | Sequence[FinetuneRecipe] | None = None,
    metric: str = "top1",
    num_classes: int | None = None,
    seed: int = 0,
    in_place: bool = False,
    verbose: bool = False,
) -> FinetuneResult:
    """Trains the encoder and a linear layer of zeros on top of it, and measures them on the test images.

    Of several recipes the best on held-out training images is trained again on all of them; one alone is trained on
    all images, those of a validation set too. Learning rates are for batches of the recipe's size: if others are run,
    since there are fewer images or a dataset brings its own batches, the rates are scaled in proportion, and a warning
    and the result say so.

    The momentum of every BatchNormalization layer is max(1 - 10 / s, 0.9) for the s steps of an epoch, and
    what it was before once the training has ended. Under a tf.distribute strategy (call this in its scope, or
    build the encoder in it) each batch is split over the replicas.

    Args:
        encoder: keras.Model from images [B, H, W, C] in [0, 255] to features.
        train: (images uint8 [N, H, W, C], labels int [N]); or `Images`; or a finite dataset of batches (images,
            labels) or {"image", "label"}, all of one size.
        test: the same.
        validation: images to hold out of the training images to choose on, the same share of each class; None: 10,000,
            but at most a fifth. Or, needed if `train` is a dataset, a labelled set of its own.
        fraction: share of each class that is trained on, drawn by `seed` (subsets of one seed are nested). A
            dataset must be the subset already: the official ones of ImageNet are TensorFlow Datasets'
            imagenet2012_subset/1pct and /10pct.
        recipe: one, or several to choose from; None: those of `SEMI_SUPERVISED`.
        metric: "top1", "mean_per_class", or "map11" (labels bool [N, C], sigmoid cross-entropy: the mean over classes).
        num_classes: needed if `train` is a dataset without `class_names`.
        seed: of the subset, the order and the crops.
        in_place: whether to train the encoder itself. Otherwise a copy is trained, and the encoder stays as
            it is.
        verbose: whether to show progress bars.

    Returns:
        FinetuneResult.

    Raises:
        TypeError: if the encoder is not a keras.Model.
        ValueError: if images or labels are unusable, datasets name other classes, or the training diverges.

    Example:
        >>> recipe = FinetuneRecipe(steps=20, batch_size=16, encoder_learning_rate=0.01)
        >>> result = finetune(encoder, (x_train, y_train), (x_test, y_test), fraction=0.1, recipe=recipe)
        >>> 0.0 <= result.top1 <= 1.0
        True
    """
    if not isinstance(encoder, keras.Model):
        raise TypeError(f"Only a keras.Model can be fine-tuned, found {type(encoder).__name__}.")
    metrics.check_metric(metric)
    several = metric == "map11"
    recipe = recipes(**SEMI_SUPERVISED) if recipe is None else recipe
    candidates = [recipe] if isinstance(recipe, FinetuneRecipe) else list(recipe)
    images, test = images_of(train, "train"), images_of(test, "test")
    num_classes = count_classes(num_classes, train=images, validation=validation, test=test)
    if isinstance(images, Images):
        if fraction != 1:
            images = images.part(stratified_subset(images.labels, fraction, seed))
        if several:
            num_classes = images.labels.shape[1]
        else:
            num_classes = num_classes or int(images.labels.max()) + 1
            check_classes(images.labels, test.labels if isinstance(test, Images) else [])
    elif fraction != 1 or num_classes is None:
        raise ValueError(
            "A dataset must hold the fraction to train on already, and needs num_classes; "
            f"found fraction={fraction}, num_classes={num_classes}."
        )

    chosen, held_out = None, 0
    fit, held, images = hold_out_of(images, validation, seed, several=len(candidates) > 1)
    if len(candidates) > 1:
        values = []
        for candidate in tqdm(candidates, desc="fine-tuning", unit="recipe", disable=not verbose):
            run = _train(_copy(encoder), fit, candidate, num_classes, several, seed, verbose)
            scores, labels = features_and_labels(run.classifier, held, "validation", verbose)
            finite = run.finite and np.isfinite(scores).all()
            values.append(metrics.METRICS[metric](scores, labels) if finite else np.nan)
        chosen, held_out = choose(values, **_settings(candidates)), len(labels)
    best = candidates[chosen.index if chosen else 0]
    run = _train(encoder if in_place else _copy(encoder), images, best, num_classes, several, seed, verbose)
    scores, labels = features_and_labels(run.classifier, test, "test", verbose)
    if not (run.finite and np.isfinite(scores).all()):
        raise ValueError(
            f"The network diverged within {run.steps} steps: lower the learning rates "
            f"({best.head_learning_rate:g} for the head, {best.encoder_learning_rate:g} for the encoder)."
        )
    warn_of_batch(best.batch_size, run.recipe.batch_size)
    value, interval = metrics.measure(metric, scores, labels, seed)
    return FinetuneResult(
        value=value,
        interval=interval,
        num_test=len(labels),
        metric=metric,
        seed=seed,
        num_train=len(images) if isinstance(images, Images) else None,
        recipe=_given(candidates, run.recipe.batch_size, held_out, test),
        fraction=fraction,
        top5=None if several else metrics.top_k(scores, labels, 5),
        batch_norm_momentum=run.momentum,
        steps=run.steps,
        batch_size=run.recipe.batch_size,
        head_learning_rate=run.recipe.head_learning_rate,
        encoder_learning_rate=run.recipe.encoder_learning_rate,
        weight_decay=run.recipe.weight_decay,
        weight_decay_times_learning_rate=_decay_as_given(best),
        epochs=best.epochs,
        validation_value=chosen.value if chosen else None,
        at_edge=chosen.at_edge if chosen else (),
    )


def _scaled(recipe, ran):
    """The recipe with the batch that runs, and learning rates that follow it."""
    factor = ran / recipe.batch_size
    return replace(
        recipe,
        batch_size=ran,
        head_learning_rate=recipe.head_learning_rate * factor,
        encoder_learning_rate=recipe.encoder_learning_rate * factor,
    )


def _settings(candidates):
    """What differs among candidates."""
    return {
        "learning_rate": [c.encoder_learning_rate for c in candidates],
        "weight_decay": [_decay_as_given(c) for c in candidates],
        "epoch": [c.epochs or 0 for c in candidates],
    }


def _decay_as_given(recipe):
    """The weight decay as a step has it, times the learning rate; digits that the division cost are rounded off."""
    return float(f"{recipe.weight_decay * recipe.encoder_learning_rate:.12g}")


def _given(candidates, batch_size, held_out, test):
    given = [
        {**asdict(_scaled(c, batch_size)), "weight_decay_times_learning_rate": _decay_as_given(c)}
        for c in candidates
    ]
    differing = {key: list(dict.fromkeys(one[key] for one in given)) for key in given[0]}
    fixed = {key: values[0] if len(values) == 1 else values for key, values in differing.items()}
    return {**fixed, "momentum": 0.9, "nesterov": True, "held_out": held_out, **describe(test)}


@dataclass(frozen=True)
class _Run:
    """A finished training: what it made, and how it went."""

    classifier: keras.Model
    recipe: FinetuneRecipe  # with the batch that was run, and its learning rates
    steps: int
    momentum: float
    finite: bool


def _train(network, train, recipe, num_classes, several, seed, verbose):
    batches, batch_size, steps_per_epoch = stream(train, recipe.batch_size, seed, recipe.crop_area)
    check_images(batches.element_spec[0], shape_read(network))
    recipe = _scaled(recipe, batch_size)
    steps = recipe.steps or recipe.epochs * steps_per_epoch
    momentum = batch_norm_momentum(steps_per_epoch)
    layers = _batch_norm_layers(network)
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = momentum
    loss = keras.losses.BinaryCrossentropy if several else keras.losses.SparseCategoricalCrossentropy
    try:
        classifier = _Classifier(network, num_classes, recipe)
        classifier.compile(
            keras.optimizers.SGD(
                keras.optimizers.schedules.CosineDecay(1.0, steps), momentum=0.9, nesterov=True
            ),
            loss(from_logits=True),
            jit_compile=False,
        )
        history = classifier.fit(batches.take(steps), shuffle=False, verbose=1 if verbose else 0)
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.momentum = value
    return _Run(classifier, recipe, steps, momentum, bool(np.isfinite(history.history["loss"][-1])))


class _Classifier(keras.Model):
    """Encoder and head. SGD is linear in the gradient: a factor on it is a learning rate of its own."""

    def __init__(self, encoder, num_classes, recipe):
        super().__init__(name="classifier")
        self.encoder = encoder
        compat.set_trainable(self.encoder, True)
        self.head = keras.layers.Dense(num_classes, kernel_initializer="zeros", dtype="float32")
        self.recipe = recipe

    def call(self, images, training=False):
        features = self.encoder(images, training=training)
        return self.head(tf.reshape(features, [tf.shape(features)[0], -1]))

    def train_step(self, data):
        images, labels = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=labels, y_pred=self(images, training=True))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        in_head = {id(v) for v in self.head.trainable_variables}

        def own(variable, gradient):
            rate = (
                self.recipe.head_learning_rate
                if id(variable) in in_head
                else self.recipe.encoder_learning_rate
            )
            if len(variable.shape) > 1:
                gradient += self.recipe.weight_decay * tf.cast(variable, gradient.dtype)
            return rate * gradient / replicas

        self.optimizer.apply_gradients(
            (own(v, g), v) for v, g in zip(variables, gradients, strict=True) if g is not None
        )
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


def _copy(encoder: keras.Model) -> keras.Model:
    twin = keras.models.clone_model(encoder)
    twin.set_weights(encoder.get_weights())
    return twin


def _batch_norm_layers(network: keras.Model) -> list[keras.layers.BatchNormalization]:
    layers = network._flatten_layers()
    return [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
