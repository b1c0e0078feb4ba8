"""Operations of one's own among those of a view: Keras layers, and functions that are registered with Keras."""

import contextlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import compat

_REGISTER = '@keras.saving.register_keras_serializable(package="mine")'

# Layers by their JSON.
_LAYERS: dict[str, keras.Layer] = {}


def named(operations: Iterable[Any]) -> tuple[str, ...]:
    """What stands for operations in configs and files: the JSON of a layer, the registered name of a function.

    Text is kept as it is, whatever it names: features of a saved model need none of its operations.

    Raises:
        ValueError: for what is neither a Keras layer nor a function, nor the text of one; for a class or a function that
            is not registered; for a layer with weights.
    """
    if isinstance(operations, str) or not isinstance(operations, Iterable):
        raise ValueError(f"own must be a list of layers and functions, found {operations!r:.80}.")
    return tuple(map(_named, operations))


def _named(operation: Any) -> str:
    if hasattr(operation, "items"):  # what a config makes of a layer
        operation = json.dumps(json.loads(json.dumps(dict(operation), default=dict)), sort_keys=True)
    if isinstance(operation, str):
        with contextlib.suppress(ValueError):  # which `apply` raises
            _function(operation)
        return operation
    if isinstance(operation, keras.Layer):
        _check_stateless(operation)
        name = _text_of(operation)
    else:
        known = keras.saving.get_registered_name(operation) if callable(operation) else ""
        name = known if keras.saving.get_registered_object(known) is operation else None
    if not name:
        raise ValueError(
            "An operation of views must be a Keras layer, or a function f(images, seed), that files can name, found "
            f"{operation!r:.80}: put {_REGISTER} above the function or the class; a Lambda has no name."
        )
    return name


def _text_of(layer: keras.Layer) -> str | None:
    """The JSON that a layer is kept by; None where Keras could not make the layer of it again."""
    try:
        found = keras.saving.serialize_keras_object(layer)
        # Neither does anything here, and Keras makes up others in every process.
        found["config"] = {k: 0 if k == "seed" else v for k, v in found["config"].items() if k != "name"}
        if isinstance(layer, keras.Model):
            found["config"]["name"] = "own"  # of which Keras wants one
        text = json.dumps(found, sort_keys=True)
        keras.saving.deserialize_keras_object(json.loads(text))
    except Exception:  # of a class of one's own, almost anything
        return None
    _LAYERS[text] = layer
    return text


def _check_stateless(layer: keras.Layer) -> None:
    if weights := layer.weights:  # which generators of random numbers are none of
        raise ValueError(
            f"Operations of views keep no state, and the layer {layer.name} has the weights "
            f"{', '.join(weight.name for weight in weights)}, which no file would hold: give a function f(images, seed) with "
            f"these numbers in it, and {_REGISTER} above it."
        )


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
        ValueError: for a name that is not registered, where an operation gives another shape, and for a layer with weights.
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
    if operation.startswith("{"):
        layer = _layer(operation)
        return lambda images, seed: _call(layer, images, seed)
    function = keras.saving.get_registered_object(operation)
    if function is None:
        raise ValueError(
            f"The views have an operation {operation!r}, which is not registered: import the module that registers it."
        )
    return function


def _layer(text: str) -> keras.Layer:
    if text not in _LAYERS:
        try:
            with tf.init_scope():  # its variables are none of the program that uses it
                _LAYERS[text] = keras.saving.deserialize_keras_object(json.loads(text))
        except Exception as error:  # of a class of one's own, almost anything
            raise ValueError(
                f"The views have a layer that Keras cannot make here, {text:.80}...: import the module that registers its "
                "class."
            ) from error
    return _LAYERS[text]


def _call(layer: keras.Layer, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """What a layer gives from a state of its generators that is the seed, and stays as it was."""
    generators = [state for _, state in compat.seeds(layer)]
    states = [
        (state, tf.bitcast(tf.random.fold_in(seed, place, alg="philox"), tf.uint32))
        for place, state in enumerate(generators)
    ]
    with keras.StatelessScope(state_mapping=states):
        changed = layer(images, training=True)
    _check_stateless(layer)  # which it may have made at that
    return changed
