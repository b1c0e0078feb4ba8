"""The trainer that a config describes, and the encoder that it starts from."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf
from ml_collections import ConfigDict

from keras_sslhsic import losses, methods, views
from keras_sslhsic.encoders import build_encoder, with_preprocessing
from keras_sslhsic.registries import Registry
from keras_sslhsic.training import lars, schedules
from keras_sslhsic.zoo import load_pretrained

OPTIMIZERS: Registry[Callable[..., keras.optimizers.Optimizer]] = Registry("optimizer")
OPTIMIZERS.add("lars", lars.LARS)
OPTIMIZERS.add("adamw", keras.optimizers.AdamW)


@OPTIMIZERS.register("sgd")
def _sgd(
    learning_rate: keras.optimizers.schedules.LearningRateSchedule, weight_decay: float
) -> keras.optimizers.SGD:
    # Keras takes 0 for a decay, and then wants to be told of it once more.
    return keras.optimizers.SGD(learning_rate, momentum=0.9, nesterov=True, weight_decay=weight_decay or None)


def build_model(
    config: ConfigDict,
    steps_per_epoch: int,
    machines: tf.distribute.Strategy,
    init: str | os.PathLike | None = None,
) -> keras.Model:
    """The compiled trainer that a config describes; equal seeds give equal weights.

    Args:
        config: of a run, with all of its fields (`config.completed`).
        steps_per_epoch: batches in an epoch of its data.
        machines: the strategy to build it under.
        init: an encoder to start from, as `load_pretrained` takes it, in the place of `config.encoder`.

    Raises:
        ValueError: for an unknown method, loss, optimizer or encoder, or arguments that they do not take; for an encoder that
            normalises images otherwise than the views.
    """
    with _as_configured(config), machines.scope():
        encoder = load_pretrained(init, trainable=True) if init else build_encoder(**config.encoder)
        model = methods.METHODS[config.method](encoder, views=config.views, seed=config.seed, **config.model)
        model.compile(
            build_optimizer(config, steps_per_epoch, model.online_variables),
            loss=losses.get(config.loss) if config.get("loss") else None,
            steps_per_execution=config.steps_per_execution,
            chunks=config.chunks,
        )
    return model


def initial_encoder(config: ConfigDict) -> keras.Model:
    """The encoder that a run of this config starts from: images [B, H, W, C] in [0, 255] to features [B, F]."""
    policy = views.get(config.views)
    with _as_configured(config):
        return with_preprocessing(
            build_encoder(**config.encoder), policy.mean, policy.std, trained_at=policy.size
        )


@contextlib.contextmanager
def _as_configured(config: ConfigDict) -> Iterator[None]:
    """The precision and the seed of a config, for what is built meanwhile. The encoder comes first, of equal weights."""
    before = keras.config.dtype_policy()
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy(config.precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def build_optimizer(
    config: ConfigDict, steps_per_epoch: int, variables: Sequence[keras.Variable]
) -> keras.optimizers.Optimizer:
    """The optimizer of a config, its learning rate warmed up, then on a cosine to zero.

    `optimizer.learning_rate` is the peak for a batch of 256; the peak itself is in proportion to the batch.

    Args:
        config: of a run.
        steps_per_epoch: batches in an epoch.
        variables: what it will train; biases and BatchNorm are left out of weight decay.

    Raises:
        ValueError: for an unknown optimizer, or one of your own without a learning rate.
    """
    settings = config.optimizer
    make = OPTIMIZERS[settings.name]
    if settings.learning_rate is None:
        raise ValueError(
            f"The config gives no optimizer.learning_rate, and {settings.name} has none of its own here: give it the peak for "
            "a batch of 256."
        )
    rate = schedules.warmup_cosine(
        schedules.scaled_learning_rate(settings.learning_rate, config.batch_size),
        total_steps=config.epochs * steps_per_epoch,
        warmup_steps=min(settings.warmup_epochs, config.epochs - 1) * steps_per_epoch,
    )
    optimizer = make(rate, weight_decay=settings.weight_decay)
    if not isinstance(optimizer, lars.LARS):  # which leaves them out by itself
        optimizer.exclude_from_weight_decay([v for v in variables if not lars.is_adapted(v)])
    return optimizer
