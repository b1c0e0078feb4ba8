"""Losses that the layers of an encoder bring along: regularizers of weights and outputs, `add_loss`."""

from collections.abc import Sequence

import keras
import tensorflow as tf


def added(networks: Sequence[keras.Model | None]) -> tf.Tensor | float:
    """What the layers of networks add to the loss of a step, float32 []; 0 if there are none that do.

    A regularizer of weights that are trained counts once, over replicas as on one device: the trainer divides the loss by
    the number of replicas, and their gradients are summed. What a layer adds when it is called counts once a call, so once
    a view, and over replicas as the mean of theirs.

    Args:
        networks: those that were called within `compat.losses_of_layers`; None is passed over.
    """
    called = [network for network in networks if network is not None]
    losses = [tf.cast(loss, tf.float32) for network in called for loss in network.losses]
    return tf.add_n(losses) if losses else 0.0
