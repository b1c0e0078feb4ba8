"""Losses that the layers of an encoder bring along: regularizers of weights and outputs, `add_loss`."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_sslhsic.hsic import replicas


def added(networks: Sequence[keras.Model | None]) -> tf.Tensor | float:
    """What the layers of networks add to the loss of a step, float32 []; 0 if there are none that do.

    A regularizer of weights that are trained counts once, over replicas as on one device. What a layer adds when it is called
    counts once a call, so once a view; over replicas, that is the mean of what their calls add.

    Args:
        networks: those that were called within `compat.losses_of_layers`; None is passed over.
    """
    called = [network for network in networks if network is not None]
    regularized = sum(v.regularizer is not None for network in called for v in network.trainable_weights)
    # Keras keeps them in one list, in which the replicas, traced by turns, find those of each other: the device tells.
    here = tf.zeros([]).device
    losses = [loss for network in called for loss in network.losses if loss.device == here]
    if not losses:
        return 0.0
    total = tf.add_n([tf.cast(loss, tf.float32) for loss in losses])
    # The sum also has all replicas look before one of them empties the list.
    return replicas.all_sum(total) / replicas.num_replicas() if len(losses) > regularized else total
