"""Batch normalisation folded into the convolutions before it, for inference."""

from typing import Any

import keras
import numpy as np

from keras_sslhsic import compat
from keras_sslhsic.encoders import copying


def fold_batch_norm(network: keras.Model) -> keras.Model:
    """Copies a network for inference, with one convolution for every convolution and its batch normalisation.

    For y = gamma (conv(x, K) + b - mean) / sqrt(variance + epsilon) + beta the copy has, of each output channel,

        K' = K gamma / sqrt(variance + epsilon),    b' = beta + (b - mean) gamma / sqrt(variance + epsilon)

    which saves two passes over every map and lets TensorFlow join convolution, bias and ReLU.

    Args:
        network: functional keras.Model; networks inside of it are folded too.

    Returns:
        A network with weights of its own, all trainable. Batch normalisations that do not follow a plain float32
        ``Conv2D``, or whose convolution has other readers or an activation, are copied as they are; a model that
        is not functional is returned itself.
    """
    if not compat.is_functional(network):
        return network
    results = [compat.layer_before(tensor) for tensor in network.outputs]
    folded = {
        bn.name: conv
        for bn in network.layers
        if (conv := _convolution_before(bn)) is not None and conv not in results
    }
    biased = {conv.name for conv in folded.values()}
    twins = {}

    def copy(layer: Any) -> Any:
        if isinstance(layer, keras.Model):
            return fold_batch_norm(layer)
        if layer.name in folded:
            return layer  # never called
        if not isinstance(layer, keras.layers.Layer):
            return layer  # an operation without weights
        config = layer.get_config()
        changed = {"trainable": True} if "trainable" in config else {}
        if layer.name in biased:
            changed["use_bias"] = True
        twins[layer.name] = twin = type(layer).from_config(config | changed)
        return twin

    def call(layer: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return inputs if layer.name in folded else layer(inputs, *args, **kwargs)

    clone = keras.models.clone_model(network, clone_function=copy, call_function=call)
    for layer in network.layers:
        if layer.name in folded:
            twins[folded[layer.name].name].set_weights(_folded(folded[layer.name], layer))
        elif layer.name in twins and layer.name not in biased:
            copying.copy_state(layer, twins[layer.name])
    return clone


def _convolution_before(layer: Any) -> keras.layers.Conv2D | None:
    """The convolution that a layer can be folded into, or None."""
    if type(layer) is not keras.layers.BatchNormalization or compat.uses(layer)[0] != 1:
        return None
    before = compat.layer_before(layer.input)
    if type(before) is not keras.layers.Conv2D or compat.uses(before) != (1, 1):
        return None
    last = before.data_format == "channels_last" and layer.axis in (-1, 3)
    # Keras normalises in float32 after a convolution in half precision; folded, all of it would be rounded.
    exact = before.compute_dtype == "float32" and before.activation is keras.activations.linear
    return before if last and exact else None


def _folded(convolution: keras.layers.Conv2D, bn: keras.layers.BatchNormalization) -> list[np.ndarray]:
    """[kernel, bias] of both layers together, computed in float64."""
    kernel, *bias = (np.asarray(weight, np.float64) for weight in convolution.get_weights())
    mean, variance = (np.asarray(v, np.float64) for v in (bn.moving_mean, bn.moving_variance))
    gamma = np.asarray(bn.gamma, np.float64) if bn.scale else 1.0
    beta = np.asarray(bn.beta, np.float64) if bn.center else 0.0
    scale = gamma / np.sqrt(variance + bn.epsilon)
    return [kernel * scale, beta + (sum(bias) - mean) * scale]
