"""Exponential moving averages of one network's variables in another, inside the training step."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import compat


def update(averages: Sequence[keras.Variable], values: Sequence[keras.Variable], decay: Any) -> None:
    """Sets average = decay * average + (1 - decay) * value, for each pair of variables.

    Args:
        averages: Keras variables to update.
        values: Keras variables of the same shapes.
        decay: float32 scalar in [0, 1], equal on all replicas.
    """
    averages, values = [v.value for v in averages], [v.value for v in values]

    def blend(average: tf.Variable, value: tf.Tensor, decay: tf.Tensor) -> None:
        average.assign_add(tf.cast(1.0 - decay, average.dtype) * (tf.cast(value, average.dtype) - average))

    def on_all_replicas(distribution: Any, averages: Any, values: Any, decay: tf.Tensor) -> None:
        for average, value in zip(averages, values, strict=True):
            distribution.extended.update(average, blend, args=(value, decay), group=False)

    # A mirrored variable may only be assigned from the cross-replica context, as optimizers do.
    tf.__internal__.distribute.interim.maybe_merge_call(
        on_all_replicas, tf.distribute.get_strategy(), averages, values, tf.convert_to_tensor(decay)
    )


def parameters(network: keras.Model) -> list[keras.Variable]:
    """Weights that gradients train; the frozen ones of a target count as well."""
    moving = {id(v) for v in statistics(network)}
    return [v for v in network.weights if id(v) not in moving]


def statistics(network: keras.Model) -> list[keras.Variable]:
    """Moving statistics of the BatchNorm layers."""
    return [
        v
        for layer in compat.every_layer(network)
        if isinstance(layer, keras.layers.BatchNormalization)
        for v in (layer.moving_mean, layer.moving_variance)
    ]
