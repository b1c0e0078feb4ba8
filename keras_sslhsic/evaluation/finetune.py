"""Fine-tuning: the encoder and a new linear head trained on labelled images."""

from dataclasses import dataclass
from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.data.subsets import stratified_subset
from keras_sslhsic.evaluation import metrics
from keras_sslhsic.evaluation.checks import check_classes
from keras_sslhsic.evaluation.crops import random_crop_and_flip
from keras_sslhsic.evaluation.features import check_images
from keras_sslhsic.evaluation.results import Result, wilson_interval
from keras_sslhsic.evaluation.streams import Labelled, arrays, count_classes, features_and_labels, stream


@dataclass(frozen=True)
class FinetuneRecipe:
    """How the network is trained: SGD with Nesterov momentum 0.9 and a cosine to 0, without warm-up.

    Attributes:
        steps: number of updates.
        batch_size: images a step.
        head_learning_rate: peak for the new linear layer.
        encoder_learning_rate: peak for the encoder.
        weight_decay: of the l2 penalty weight_decay / 2 |W|^2 on all kernels (not on biases and
            BatchNormalization).
        crop_area: range of a random crop's share of the image's area; None trains without crops and
            mirroring.
    """

    steps: int = 20_000
    batch_size: int = 256
    head_learning_rate: float = 0.1
    encoder_learning_rate: float = 0.1
    weight_decay: float = 0.0
    crop_area: tuple[float, float] | None = (0.08, 1.0)


# The length of the paper's fine-tuning on the transfer sets.
TRANSFER_RECIPE = FinetuneRecipe(steps=20_000, batch_size=256)


@dataclass(frozen=True, kw_only=True)
class FinetuneResult(Result):
    """Result of `finetune`. Accuracies are shares in [0, 1].

    Attributes:
        fraction: share of the training labels that was used.
        num_train: number of training images that was used; None for a dataset of unknown size.
        top5: top-5 accuracy on the test split.
        batch_norm_momentum: of every BatchNormalization layer during the training.
        recipe: how it was trained.
    """

    protocol: ClassVar[str] = "finetune"

    fraction: float
    num_train: int | None
    top5: float
    batch_norm_momentum: float
    recipe: FinetuneRecipe


def batch_norm_momentum(steps_per_epoch: int) -> float:
    """max(1 - 10 / s, 0.9) for s steps an epoch (Kornblith et al. 2019)."""
    return max(1.0 - 10.0 / steps_per_epoch, 0.9)


def finetune(
    encoder: keras.Model,
    train: Labelled,
    test: Labelled,
    *,
    fraction: float = 1.0,
    recipe: FinetuneRecipe = TRANSFER_RECIPE,
    num_classes: int | None = None,
    seed: int = 0,
    in_place: bool = False,
    verbose: bool = False,
) -> FinetuneResult:
    """Trains the encoder and a linear layer of zeros on top of it, and measures them on the test images.

    The momentum of every BatchNormalization layer is max(1 - 10 / s, 0.9) for the s steps of an epoch, and
    what it was before once the training has ended. Under a tf.distribute strategy (call this in its scope, or
    build the encoder in it) each batch is split over the replicas.

    Args:
        encoder: keras.Model from images [B, H, W, C] in [0, 255] to features.
        train: (images uint8 [N, H, W, C], labels int [N]); or a finite dataset of batches (images, labels) or
            {"image", "label"}, all of one size.
        test: the same.
        fraction: share of each class that is trained on, drawn by `seed` (subsets of one seed are nested). A
            dataset must be the subset already: the official ones of ImageNet are TensorFlow Datasets'
            imagenet2012_subset/1pct and /10pct.
        recipe: learning rates, length and crops.
        num_classes: needed if `train` is a dataset without `class_names`.
        seed: of the subset, the order and the crops.
        in_place: whether to train the encoder itself. Otherwise a copy is trained, and the encoder stays as
            it is.
        verbose: whether to show a progress bar.

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
    num_classes = num_classes or count_classes(train=train, test=test)
    num_train = None
    if not isinstance(train, tf.data.Dataset):
        images, labels = arrays(train, "train")
        chosen = stratified_subset(labels, fraction, seed)
        num_train, num_classes = len(chosen), num_classes or int(labels.max()) + 1
        train = images[chosen], labels[chosen]
        check_classes(train[1], arrays(test, "test")[1] if not isinstance(test, tf.data.Dataset) else [])
    elif fraction != 1 or num_classes is None:
        raise ValueError(
            "A dataset must hold the fraction to train on already, and needs num_classes; "
            f"found fraction={fraction}, num_classes={num_classes}."
        )
    batches, steps_per_epoch = stream(train, recipe.batch_size, seed)
    shape = tuple(batches.element_spec[0].shape)
    check_images(encoder, shape)

    network = encoder if in_place else _copy(encoder)
    momentum = batch_norm_momentum(steps_per_epoch)
    layers = _batch_norm_layers(network)
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = momentum
    try:
        classifier = _Classifier(network, num_classes, recipe)
        classifier.compile(
            keras.optimizers.SGD(
                keras.optimizers.schedules.CosineDecay(1.0, recipe.steps), momentum=0.9, nesterov=True
            ),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        history = classifier.fit(
            _augmented(batches, recipe, shape, seed).take(recipe.steps),
            shuffle=False,
            verbose=1 if verbose else 0,
        )
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.momentum = value
    if not np.isfinite(history.history["loss"][-1]):
        raise ValueError(
            f"The loss is not finite after {recipe.steps} steps: lower the learning rates "
            f"({recipe.head_learning_rate:g} for the head, {recipe.encoder_learning_rate:g} for the encoder)."
        )

    scores, labels = features_and_labels(classifier, test, "test", verbose)
    top1 = metrics.top_k(scores, labels)
    return FinetuneResult(
        value=top1,
        interval=wilson_interval(top1, len(labels)),
        num_test=len(labels),
        seed=seed,
        fraction=fraction,
        num_train=num_train,
        top5=metrics.top_k(scores, labels, 5),
        batch_norm_momentum=momentum,
        recipe=recipe,
    )


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


def _augmented(batches, recipe, shape, seed):
    if recipe.crop_area is None:
        return batches

    def augment(step, batch):
        images, labels = batch
        step_seed = tf.stack([tf.constant(seed, tf.int32), tf.cast(step, tf.int32)])
        return random_crop_and_flip(images, shape[1], step_seed, recipe.crop_area), labels

    return batches.enumerate().map(augment, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)
