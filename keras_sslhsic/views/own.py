"""Operations of one's own among those of a view: Keras layers, and functions that are registered with Keras."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import compat

# Layers by their JSON. They are made outside of the programs that use them, since Keras gives them variables.
_LAYERS: dict[str, keras.Layer] = {}


def named(operations: Iterable[Any]) -> tuple[str, ...]:
    """What stands for operations in configs and files: the JSON of a layer, the registered name of a function.

    Raises:
        ValueError: for what is neither a Keras layer nor a function that is registered, nor the text of one.
    """
    if isinstance(operations, str) or not isinstance(operations, Iterable):
        raise ValueError(f"own must be a list of layers and functions, found {operations!r:.80}.")
    return tuple(map(_named, operations))


def _named(operation: Any) -> str:
    if hasattr(operation, "items"):  # what a config makes of a layer
        operation = json.dumps(json.loads(json.dumps(dict(operation), default=dict)), sort_keys=True)
    if isinstance(operation, str):
        if operation.startswith("{") and operation not in _LAYERS:
            _LAYERS[operation] = keras.saving.deserialize_keras_object(json.loads(operation))
        return operation
    if isinstance(operation, keras.Layer):
        found = keras.saving.serialize_keras_object(operation)
        # Neither does anything here, and Keras makes up others in every process.
        found["config"] = {k: 0 if k == "seed" else v for k, v in found["config"].items() if k != "name"}
        text = json.dumps(found, sort_keys=True)
        return _LAYERS.setdefault(text, operation) and text
    name = callable(operation) and keras.saving.get_registered_name(operation)
    if not name or keras.saving.get_registered_object(name) is not operation:
        raise ValueError(
            f"An operation of views must be a Keras layer, or a function f(images, seed) that files can name, found "
            f'{operation!r:.80}: put @keras.saving.register_keras_serializable(package="mine") above it.'
        )
    return name


def apply(images: tf.Tensor, operations: Iterable[str], seed: tf.Tensor) -> tf.Tensor:
    """Applies operations one after the other, and clips what they give to [0, 1].

    Args:
        images: float [B, H, W, C] in [0, 1].
        operations: what `named` gives.
        seed: int [2], from which each is given its own: a function as its second argument; a layer, which is called with
            training=True, as the state of its random generators.

    Returns:
        float of the same shape, in [0, 1].

    Raises:
        ValueError: for a name that is not registered, and where an operation gives another shape.
    """
    for number, operation in enumerate(operations):
        changed = tf.cast(
            _function(operation)(images, tf.random.fold_in(seed, 1 + number, alg="philox")), tf.float32
        )
        if not changed.shape.is_compatible_with(images.shape):
            raise ValueError(
                f"An operation of views must give images of the shape that it is given, {images.shape}, found "
                f"{changed.shape} of {operation:.80}."
            )
        images = tf.clip_by_value(tf.ensure_shape(changed, images.shape), 0.0, 1.0)
    return images


def _function(operation: str) -> Callable[[tf.Tensor, tf.Tensor], Any]:
    if operation in _LAYERS:
        return lambda images, seed: _call(_LAYERS[operation], images, seed)
    function = keras.saving.get_registered_object(operation)
    if function is None:
        raise ValueError(
            f"The views have an operation {operation!r}, which is not registered: import the module that registers it."
        )
    return function


def _call(layer: keras.Layer, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """What a layer gives from a state of its generators that is the seed, and stays as it was."""
    generators = [state for _, state in compat.seeds(layer)]
    states = [
        (state, tf.bitcast(tf.random.fold_in(seed, place, alg="philox"), tf.uint32))
        for place, state in enumerate(generators)
    ]
    with keras.StatelessScope(state_mapping=states):
        return layer(images, training=True)
