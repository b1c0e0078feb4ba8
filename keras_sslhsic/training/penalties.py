"""Losses that the layers of an encoder bring along: regularizers of weights and outputs, `add_loss`."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from keras_sslhsic.hsic import replicas


def added(networks: Sequence[keras.Model | None]) -> tf.Tensor | float:
    """What the layers of networks add to the loss of a step, float32 []; 0 if there are none that do.

    A regularizer of weights that are trained counts once, over replicas as on one device: the trainer divides the loss by
    the number of replicas, and their gradients are summed. What a layer adds when it is called counts once a call, so once
    a view.

    Args:
        networks: those that were called within `compat.losses_of_layers`; None is passed over.

    Raises:
        ValueError: for what layers add when they are called, over several replicas.
    """
    called = [network for network in networks if network is not None]
    losses = [tf.cast(loss, tf.float32) for network in called for loss in network.losses]
    regularized = sum(v.regularizer is not None for network in called for v in network.trainable_weights)
    if replicas.num_replicas() > 1 and len(losses) > regularized:
        # Keras keeps them in one list, which the replicas, traced by turns, would find those of each other in.
        raise ValueError(
            "Layers that add to the loss when they are called (add_loss, activity_regularizer) cannot be told apart over "
            f"{replicas.num_replicas()} replicas: train on one device, or regularize weights alone (kernel_regularizer)."
        )
    return tf.add_n(losses) if losses else 0.0
