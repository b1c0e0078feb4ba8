"""Copies of networks: their weights, and what layers hold beside these, as `Normalization` does."""

import hashlib
from typing import Any

import keras

from keras_sslhsic import compat


def copy_of(network: keras.Model, name: str) -> keras.Model:
    """A second network of the same architecture, with the same values and its own variables.

    Raises:
        ValueError: if it has layers that cannot be made again of their configs.
    """
    try:
        twin = keras.models.clone_model(network)
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = " ".join(str(error).split()).split(". ")[0].rstrip(".")
        raise ValueError(
            f"The network {network.name!r} must be one that can be copied, and one of its layers cannot ({reason}): give "
            "layers of your own a get_config, and use operations of keras.ops in place of Lambda layers."
        ) from error
    twin.name = name
    copy_state(network, twin)
    twin.copied = _digest(twin)
    return twin


def copy_again(network: keras.Model, twin: keras.Model) -> None:
    """Copies a network once more into what `copy_of` made of it, if it has other weights by now, and the copy has not."""
    held = _digest(network)
    if held != twin.copied == _digest(twin):
        copy_state(network, twin)
        twin.copied = held


def _digest(network: keras.Model) -> str:
    digest = hashlib.sha256()
    for weight in network.get_weights():
        digest.update(weight.tobytes())
    return digest.hexdigest()


def copy_state(source: keras.Layer, twin: keras.Layer) -> None:
    """Gives a twin the weights of a layer or network, and what its layers hold beside these, as if it was saved and loaded."""
    twin.set_weights(source.get_weights())
    _load_state(source, twin)


def settle(network: keras.Layer) -> None:
    """Has layers make of their weights, which were assigned, what else they hold, as where Keras loads them."""
    _load_state(network, network)


def own_state(operation: Any) -> dict[str, Any]:
    """What a layer of one's own saves, if it does so in its own way: weights, and what it holds beside them; {} of others."""
    store: dict[str, Any] = {}
    if isinstance(operation, keras.Layer) and _loads_itself(operation):
        operation.save_own_variables(store)
    return store


def _load_state(source: keras.Layer, twin: keras.Layer) -> None:
    for original, layer in zip(compat.every_layer(source), compat.every_layer(twin), strict=True):
        # `Normalization` computes with a mean and a variance that it made of its weights.
        if hasattr(original, "finalize_state") or _loads_itself(original):
            store: dict[str, Any] = {}
            original.save_own_variables(store)
            layer.load_own_variables(store)


def _loads_itself(layer: keras.Layer) -> bool:
    """Whether it is no layer of Keras's, and reads files in its own way; Keras's others hold weights alone."""
    return not type(layer).load_own_variables.__module__.startswith("keras.")
