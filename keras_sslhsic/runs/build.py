"""The trainer that a config describes."""

from collections.abc import Sequence

import keras
import tensorflow as tf
from ml_collections import ConfigDict

from keras_sslhsic import losses, methods
from keras_sslhsic.data.sources import Source
from keras_sslhsic.encoders import build_encoder
from keras_sslhsic.training import lars, schedules
from keras_sslhsic.training.strategy import strategy


def build_model(config: ConfigDict, data: Source, machines: tf.distribute.Strategy | None = None) -> keras.Model:
    """The compiled trainer that a config describes; equal seeds give equal weights.

    Args:
        config: of an experiment.
        data: its data set.
        machines: the strategy to build it under; None makes the one that the config names.
    """
    keras.utils.set_random_seed(config.seed)
    keras.mixed_precision.set_dtype_policy(config.precision)
    machines = strategy(config.strategy) if machines is None else machines
    with machines.scope():
        model = methods.METHODS[config.get("method", "ssl_hsic")](
            build_encoder(**config.encoder),
            views=config.views,
            seed=config.seed,
            **config.model,
        )
        model.compile(
            build_optimizer(config, data.steps_per_epoch, model.online_variables),
            loss=losses.get(config.loss),
            steps_per_execution=config.steps_per_execution,
        )
    return model


def build_optimizer(
    config: ConfigDict, steps_per_epoch: int, variables: Sequence
) -> keras.optimizers.Optimizer:
    """The optimizer of a config, its learning rate warmed up, then on a cosine to zero.

    `optimizer.learning_rate` is the peak for a batch of 256; the peak itself is in proportion to the batch.
    """
    settings = config.optimizer
    rate = schedules.WarmupCosine(
        schedules.scaled_learning_rate(settings.learning_rate, config.batch_size),
        total_steps=config.epochs * steps_per_epoch,
        warmup_steps=min(settings.warmup_epochs, config.epochs - 1) * steps_per_epoch,
    )
    makers = {
        "lars": lambda: lars.LARS(rate, weight_decay=settings.weight_decay),
        "adamw": lambda: keras.optimizers.AdamW(rate, weight_decay=settings.weight_decay),
        "sgd": lambda: keras.optimizers.SGD(
            rate, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay or None
        ),
    }
    if settings.name not in makers:
        raise ValueError(f"Unknown optimizer {settings.name!r}; expected one of {', '.join(makers)}.")
    optimizer = makers[settings.name]()
    if settings.name != "lars":
        optimizer.exclude_from_weight_decay([v for v in variables if not lars.is_adapted(v)])
    return optimizer
