"""What a loss is to the trainer, and what the losses share."""

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_sslhsic.registries import Registry


class Hiddens(NamedTuple):
    """What the networks make of the views of a batch, float32, **not** of unit norm.

    Attributes:
        online: outputs [B, M, Q] of the online network for M views of each of B images; gradients flow through them.
        target: outputs [B, M, Q] of the target network, under stop-gradient; None without one.
    """

    online: tf.Tensor
    target: tf.Tensor | None = None


LOSSES: Registry[type] = Registry("loss")


def get(settings: Mapping[str, Any]) -> keras.losses.Loss:
    """The loss of a config: {"name": "ssl_hsic", and its arguments}.

    Raises:
        ValueError: for an unknown name, or an argument that the loss does not take.
    """
    arguments = dict(settings)
    name = arguments.pop("name")
    loss = LOSSES[name]
    foreign = set(arguments) - set(inspect.signature(loss).parameters)
    if foreign:
        raise ValueError(
            f"The loss {name!r} takes no {', '.join(sorted(foreign))}: give the whole `loss` of another kind in a config file."
        )
    return loss(**arguments)


def unit_norm(z: tf.Tensor) -> tf.Tensor:
    """Divides vectors [..., Q] by their norm, without overflow, underflow or an infinite gradient.

    Vectors shorter than 1e-6 are divided by 1e-6 instead, so that zero stays zero.
    """
    largest = tf.maximum(tf.reduce_max(tf.abs(z), axis=-1, keepdims=True), 1e-6)
    # The norm cancels a constant factor, so this one needs no gradient.
    z = z / tf.stop_gradient(largest)
    return z * tf.math.rsqrt(tf.maximum(tf.reduce_sum(tf.square(z), axis=-1, keepdims=True), 1.0))


def identities(y_true):
    if y_true.shape.rank not in (1, 2) or (y_true.shape.rank == 2 and y_true.shape[1] != 1):
        raise ValueError(
            f"Expected y_true with the identities [n] or [n, 1], but found the shape {tuple(y_true.shape)}."
        )
    return tf.cast(tf.reshape(y_true, [-1]), tf.int32)


def check_choice(argument, value, choices):
    if value not in choices:
        raise ValueError(f"{argument} must be one of {choices}, but {value!r} was given.")
