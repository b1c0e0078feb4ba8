"""Fine-tuning: the encoder and a new linear head trained on labelled images."""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_sslhsic import checks, compat, files
from keras_sslhsic.data.python_map import as_raised
from keras_sslhsic.data.subsets import stratified_subset
from keras_sslhsic.encoders import Encoder, check_images, copying
from keras_sslhsic.encoders.spec import EncoderSpec
from keras_sslhsic.evaluation import metrics
from keras_sslhsic.evaluation.descent import compile_for, descend
from keras_sslhsic.evaluation.extraction import shape_read
from keras_sslhsic.evaluation.images import Labelled, Split, describe
from keras_sslhsic.evaluation.protocol import register
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.settings import Setting, text
from keras_sslhsic.evaluation.streams import features_and_labels, problem, select, stream
from keras_sslhsic.evaluation.sweep import (
    planned,
    several_of,
    training_settings,
    warn_of_batch,
)
from keras_sslhsic.training import penalties
from keras_sslhsic.training.strategy import warn_of_own_statistics


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
    head_learning_rate: float | None = None,
    **fixed: Any,
) -> tuple[FinetuneRecipe, ...]:
    """Every combination.

    Args:
        learning_rates: for batches of `batch_size`.
        weight_decays: each is divided by the learning rate, so that a step decays all alike.
        epochs: empty if `steps` is given.
        head_learning_rate: of the head; None: as the encoder's.
        **fixed: other fields of `FinetuneRecipe`.
    """
    return tuple(
        FinetuneRecipe(
            head_learning_rate=rate if head_learning_rate is None else head_learning_rate,
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


def batch_norm_momentum(steps_per_epoch: int) -> float:
    """max(1 - 10 / s, 0.9) for s steps an epoch (Kornblith et al. 2019)."""
    return max(1.0 - 10.0 / steps_per_epoch, 0.9)


@as_raised()
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
    save_to: str | os.PathLike | None = None,
    verbose: bool = False,
) -> Result:
    """Trains the encoder and a linear layer of zeros on top of it, and measures them on the test images.

    Of several recipes the best on held-out training images is trained again on all of them; one alone is trained on
    all images, those of a validation set too. Learning rates are for batches of the recipe's size: if others are run,
    since there are fewer images or a dataset brings its own batches, the rates are scaled in proportion, and a warning
    and the result say so.

    The momentum of every BatchNormalization layer is max(1 - 10 / s, 0.9) for the s steps of an epoch, and
    what it was before once the training has ended. Under a tf.distribute strategy (call this in its scope, or
    build the encoder in it) each batch is split over the replicas.

    Args:
        encoder: keras.Model from images [B, H, W, C] in [0, 255] to features; or a model that trains one.
        train: (images uint8 [N, H, W, C], labels int [N]); or a `Split`; or a finite dataset of batches (images,
            labels) or {"image", "label"}, all of one size (the last one may be smaller).
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
        save_to: file NAME.keras that gets the classifier: an `Encoder` from images, as `encoder` reads them, to a
            probability for each class, in the order of their labels; `spec.class_names` names them, where the images do. It
            loads without this package.
        verbose: whether to show progress bars.

    Returns:
        Result with `fraction`; `top5` (None where images may have several classes); `batch_norm_momentum` during the
        training; `steps` and `batch_size`, as they were run; and of the chosen recipe, for that batch,
        `head_learning_rate`, `encoder_learning_rate`, `weight_decay`, as the penalty has it,
        `weight_decay_times_learning_rate`, as it was given to `recipes`, `epochs` (None if it has steps),
        `validation_value`, the metric on held-out images (None if nothing was chosen), and `at_edge`, the settings that it
        has at an edge of the sweep (see `sweep.Choice`).

    Raises:
        ValueError: if the encoder is not a keras.Model, or cannot be copied; if images or labels are unusable, datasets name
            other classes, or the training diverges.

    Example:
        >>> recipe = FinetuneRecipe(steps=20, batch_size=16, encoder_learning_rate=0.01)
        >>> result = finetune(encoder, (x_train, y_train), (x_test, y_test), fraction=0.1, recipe=recipe)
        >>> 0.0 <= result.top1 <= 1.0
        True
    """
    metrics.check_metric(metric)
    several = metric == "map11"
    if save_to is not None:
        if Path(save_to).suffix != ".keras":
            raise ValueError(f"A classifier is saved to NAME.keras, found {files.display(save_to)}.")
        files.check_writable(Path(save_to))
    recipe = recipes(**SEMI_SUPERVISED) if recipe is None else recipe
    candidates = several_of(FinetuneRecipe, recipe, "recipe")
    encoder, images, validation, test, num_classes = problem(
        encoder, train, test, validation, num_classes, several
    )
    if not isinstance(encoder, keras.Model):
        raise ValueError(f"Only a keras.Model can be fine-tuned, found a {type(encoder).__name__}.")
    if fraction != 1:
        if not isinstance(images, Split):
            raise ValueError(
                f"A dataset must hold the fraction to train on already, found fraction={fraction:g}: leave it out."
            )
        if several:
            raise ValueError(
                f"A fraction is a share of each class, and images have several, found fraction={fraction:g}: give the images "
                "to train on themselves."
            )
        images = images.part(stratified_subset(images.labels, fraction, seed))

    def train_on(network: keras.Model, images: Any, recipe: FinetuneRecipe) -> _Run:
        return _train(network, images, recipe, num_classes, several, seed, verbose)

    def score(fit: Any, held: Any) -> tuple[Sequence[float], int]:
        values, number = [], 0
        for candidate in tqdm(candidates, desc="fine-tuning", unit="recipe", disable=not verbose):
            run = train_on(_copy(encoder), fit, candidate)
            scores, labels = features_and_labels(run.classifier, held, "validation", verbose)
            number = len(labels)
            finite = run.finite and np.isfinite(scores).all()
            values.append(metrics.METRICS[metric](scores, labels) if finite else np.nan)
        return values, number

    best, chosen, images, held_out = select(
        candidates, images, validation, seed, score, _settings(candidates)
    )
    run = train_on(encoder if in_place else _copy(encoder), images, best)
    scores, labels = features_and_labels(run.classifier, test, "test", verbose)
    if not (run.finite and np.isfinite(scores).all()):
        raise ValueError(
            f"The network diverged within {run.steps} steps: lower the learning rates "
            f"({best.head_learning_rate:g} for the head, {best.encoder_learning_rate:g} for the encoder)."
        )
    warn_of_batch(best.batch_size, run.recipe.batch_size)
    value, interval = metrics.measure(metric, scores, labels, seed)
    if save_to is not None:
        names = getattr(images, "class_names", None) or ()
        _whole(run.classifier, several, describe(test), names).save(save_to)
    return Result(
        protocol="finetune",
        value=value,
        interval=interval,
        num_test=len(labels),
        metric=metric,
        seed=seed,
        num_train=len(images) if isinstance(images, Split) else None,
        recipe=_given(candidates, run.recipe.batch_size, held_out, test),
        details={
            **{name: value for name, value in asdict(run.recipe).items() if name != "crop_area"},
            "steps": run.steps,
            "weight_decay_times_learning_rate": _decay_as_given(best),
            "fraction": fraction,
            "top5": None if several else metrics.top_k(scores, labels, 5),
            "batch_norm_momentum": run.momentum,
            "validation_value": chosen.value if chosen else None,
            "at_edge": chosen.at_edge if chosen else (),
        },
    )


def finetune_arguments(defaults: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `finetune` from checked settings; see `sweep.planned`."""
    return planned(defaults, lambda **plan: {"recipe": recipes(**plan)}, given)


register(
    "finetune",
    training_settings(SEMI_SUPERVISED, "steps", "head_learning_rate", "crops", "num_classes")
    | {
        "fraction": Setting(partial(checks.number, above=True, most=1.0), "share of the labels", "1"),
        "save_to": Setting(
            text,
            "file NAME.keras that gets the classifier: images to a probability for each class, in the order of their names",
            parse=str,
        ),
    },
    on_features=False,
    network=True,
    arguments=partial(finetune_arguments, SEMI_SUPERVISED),
)(lambda encoder, splits, **arguments: finetune(encoder, **splits, **arguments))


def _scaled(recipe: FinetuneRecipe, ran: int) -> FinetuneRecipe:
    """The recipe with the batch that runs, and learning rates that follow it."""
    factor = ran / recipe.batch_size
    return replace(
        recipe,
        batch_size=ran,
        head_learning_rate=recipe.head_learning_rate * factor,
        encoder_learning_rate=recipe.encoder_learning_rate * factor,
    )


def _settings(candidates: Sequence[FinetuneRecipe]) -> dict[str, list[float]]:
    """What differs among candidates."""
    return {
        "learning_rate": [c.encoder_learning_rate for c in candidates],
        "weight_decay": [_decay_as_given(c) for c in candidates],
        "epoch": [c.epochs or 0 for c in candidates],
    }


def _decay_as_given(recipe: FinetuneRecipe) -> float:
    """The weight decay as a step has it, times the learning rate; digits that the division cost are rounded off."""
    return float(f"{recipe.weight_decay * recipe.encoder_learning_rate:.12g}")


def _given(
    candidates: Sequence[FinetuneRecipe], batch_size: int, held_out: int, test: Labelled
) -> dict[str, Any]:
    given = [
        {**asdict(_scaled(c, batch_size)), "weight_decay_times_learning_rate": _decay_as_given(c)}
        for c in candidates
    ]
    differing = {key: list(dict.fromkeys(one[key] for one in given)) for key in given[0]}
    fixed = {key: values[0] if len(values) == 1 else values for key, values in differing.items()}
    return {**fixed, "momentum": 0.9, "nesterov": True, "held_out": held_out, **describe(test)}


class _Run(NamedTuple):
    """A finished training: what it made, and how it went."""

    classifier: keras.Model
    recipe: FinetuneRecipe  # with the batch that was run, and its learning rates
    steps: int
    momentum: float
    finite: bool


def _train(
    network: keras.Model,
    train: Any,
    recipe: FinetuneRecipe,
    num_classes: int,
    several: bool,
    seed: int,
    verbose: bool,
) -> _Run:
    replicas = network.distribute_strategy.num_replicas_in_sync
    batches, batch_size, steps_per_epoch = stream(train, recipe.batch_size, seed, recipe.crop_area, replicas)
    check_images(batches.element_spec[0], shape_read(network))
    warn_of_own_statistics([network], network.distribute_strategy)
    if several:  # Keras adds up a batch of all replicas, which booleans do not take
        batches = batches.map(lambda images, labels: (images, tf.cast(labels, tf.float32)))
    recipe = _scaled(recipe, batch_size)
    steps = recipe.steps or (recipe.epochs or 1) * steps_per_epoch
    momentum = batch_norm_momentum(steps_per_epoch)
    layers = [x for x in compat.every_layer(network) if isinstance(x, keras.layers.BatchNormalization)]
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = momentum
    try:
        with network.distribute_strategy.scope():
            classifier = _Classifier(network, num_classes, recipe, several)
            rate = keras.optimizers.schedules.CosineDecay(1.0, steps)
            compile_for(classifier, network, keras.optimizers.SGD(rate, momentum=0.9, nesterov=True))
        history = classifier.fit(batches.take(steps), shuffle=False, verbose=1 if verbose else 0)
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.momentum = value
    return _Run(classifier, recipe, steps, momentum, bool(np.isfinite(history.history["loss"][-1])))


class _Classifier(keras.Model):
    """Encoder and head. SGD is linear in the gradient: a factor on it is a learning rate of its own."""

    def __init__(self, encoder: keras.Model, num_classes: int, recipe: FinetuneRecipe, several: bool) -> None:
        super().__init__(name="classifier")
        self.encoder = encoder
        compat.set_trainable(self.encoder, True)
        self.head = keras.layers.Dense(num_classes, kernel_initializer="zeros", dtype="float32")
        self.recipe, self.several = recipe, several

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        features = self.encoder(images, training=training)
        return self.head(tf.reshape(features, [-1, math.prod(features.shape[1:])]))

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        images, labels = data
        in_head = {id(v) for v in self.head.trainable_variables}
        of_head, of_encoder = self.recipe.head_learning_rate, self.recipe.encoder_learning_rate

        def loss_of() -> tf.Tensor:
            # Not Keras's losses: over several replicas those of late versions are divided by their number already.
            return _cross_entropy(labels, self(images, training=True), self.several) + penalties.added([self])

        loss = descend(
            self, loss_of, self.recipe.weight_decay, lambda v: of_head if id(v) in in_head else of_encoder
        )
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


def _cross_entropy(labels: tf.Tensor, scores: tf.Tensor, several: bool) -> tf.Tensor:
    """The mean over the images, and of several classes an image, float32 [B, K], over those; float32 []."""
    if several:
        each = tf.nn.sigmoid_cross_entropy_with_logits(labels, scores)
    else:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
    return tf.reduce_mean(each)


def _whole(classifier: _Classifier, several: bool, test: Mapping[str, Any], names: Sequence[str]) -> Encoder:
    """One model from images to probabilities of the classes of these names; it sees of them what the test images were."""
    network = classifier.encoder
    height, width, channels = network.input_shape[1:]
    images = keras.Input((height, width, channels), dtype="float32", name="image")
    scores = classifier.head(keras.layers.Flatten()(network(images)))
    found = keras.layers.Activation("sigmoid" if several else "softmax", dtype="float32")(scores)
    spec = EncoderSpec(
        height, width, channels, found.shape[-1], trained_at=test["image_size"],
        short_side=test.get("short_side"), class_names=tuple(names),
    )  # fmt: skip
    return Encoder(images, found, spec, "classifier")


def _copy(encoder: keras.Model) -> keras.Model:
    if not compat.is_functional(encoder) and not isinstance(encoder, keras.Sequential):
        raise ValueError(
            f"Only a functional or sequential model can be copied, found {type(encoder).__name__} {encoder.name!r}: give "
            "in_place=True and one recipe, or wrap it in keras.Model(images, encoder(images))."
        )
    return copying.copy_of(encoder, encoder.name)
