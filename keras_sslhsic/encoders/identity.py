"""What identifies an encoder: a hash of all that computes its features."""

import hashlib
import inspect
import types
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.encoders import copying

_PREFIX = "2-"
# Of a config: names, which Keras numbers anew in every process, and what does not compute. Precision is looked at by itself.
_UNUSED = {"name", "trainable", "dtype", "build_config", "module", "registered_name", "batch_shape", "layers"}
_UNUSED_ENDINGS = ("_initializer", "_regularizer", "_constraint", "_layers")
_LIBRARIES = ("keras", "tensorflow")  # whose functions are known by their names; this package too


def encoder_hash(encoder: Any) -> str:
    """``2-`` and 16 hexadecimal digits that identify what computes an encoder's features.

    That is the graph, its operations with their arguments, and the weights; names, the size of images that it is built for
    and what matters in training alone are no part of it. Of layers that are not Keras's own, the code of `call` is; what that
    calls is not. The same encoder has the same hash in other processes and other versions of Keras.

    Raises:
        ValueError: for a plain function, whose weights cannot be seen.
    """
    if not isinstance(encoder, keras.Model):
        raise ValueError(
            f"Only a keras.Model can be identified by its weights, found {type(encoder).__name__}."
        )
    return _PREFIX + _operation(encoder)[:16]


def tells_operations(digest: str) -> bool:
    """Whether a hash is of `encoder_hash` as it is: earlier ones, 16 digits alone, were of layers and weights alone."""
    return digest.startswith(_PREFIX)


def _operation(operation: Any) -> str:
    """The digest of a layer, a model or an operation without weights."""
    code = _function(type(operation).call)
    calls = compat.calls(operation)
    if calls is not None:
        return _digest([code, _graph(operation, calls)])
    inner = compat.layers_within(operation)
    below = {id(weight) for layer in inner for weight in layer.weights}
    own = [weight for weight in getattr(operation, "weights", ()) if id(weight) not in below]
    held = {name: _function(value) for name, value in vars(operation).items() if hasattr(value, "__code__")}
    parts = [
        type(operation).__name__,
        getattr(operation, "compute_dtype", None),
        _settings(operation),
        [code, {name: function for name, function in held.items() if function is not None}],
        [_plain(keras.ops.convert_to_numpy(weight)) for weight in own],
        [_operation(layer) for layer in inner],
    ]
    state = copying.own_state(operation)
    return _digest([*parts, _plain(state)] if state else parts)


def _graph(model: Any, calls: list[compat.Call]) -> list[str]:
    """The digests of a model's outputs. That of a tensor is of the operation and of the tensors that it is computed from."""
    tensors = {id(tensor): f"input {i} {tensor.dtype}" for i, tensor in enumerate(model.inputs)}
    operations: dict[int, str] = {}
    for operation, arguments, outputs in calls:
        if id(outputs[0]) in tensors:
            continue
        if id(operation) not in operations:
            operations[id(operation)] = _operation(operation)
        given = [_plain(value, tensors) for value in arguments[0]]
        named = {name: _plain(value, tensors) for name, value in arguments[1].items() if value is not None}
        digest = _digest([operations[id(operation)], given, named])
        tensors |= {id(tensor): f"{digest} {i}" for i, tensor in enumerate(outputs)}
    return [tensors[id(tensor)] for tensor in model.outputs]


def _settings(operation: Any) -> dict[str, Any]:
    """What an operation was made with, where it is not the default: versions of Keras add settings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a lambda is not safe to save
            config = operation.get_config()
    except NotImplementedError:  # of others' layers
        config = {
            name: value
            for name, value in vars(operation).items()
            if not name.startswith("_")
            and all(isinstance(v, (int, float, str)) for v in tf.nest.flatten(value))
        }
    parameters = inspect.signature(type(operation).__init__).parameters
    return {
        name: value
        for name, value in _plain(config).items()
        if name not in parameters or value != _plain(parameters[name].default)
    }


def _function(function: Any) -> Any:
    """The code of a function, and what it holds; None of one of `_LIBRARIES`."""
    function = inspect.unwrap(function)
    # Keras makes the lambdas of a file in a module of its own.
    if (function.__module__ or "").startswith(_LIBRARIES) and function.__name__ != "<lambda>":
        return None
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return [_plain(part) for part in (function.__code__, function.__defaults__, held)]


def _plain(value: Any, tensors: dict[int, str] | None = None) -> Any:
    """A value as lists, mappings with sorted names, numbers and text, with the digests of symbolic tensors."""
    match value:
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return [_plain(item, tensors) for item in value]
        case {
            "class_name": "__lambda__"
        }:  # its code is looked at by itself: Python writes it differently each time
            return None
        case dict():
            used = {
                name: item
                for name, item in value.items()
                if name not in _UNUSED and not str(name).endswith(_UNUSED_ENDINGS)
            }
            return {str(name): _plain(used[name], tensors) for name in sorted(used, key=str)}
        case slice():
            return ["slice", value.start, value.stop, value.step]
        case np.ndarray() | tf.Tensor() | keras.Variable():
            array = np.ascontiguousarray(keras.ops.convert_to_numpy(value))
            return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]
        case types.CodeType():
            return [value.co_code.hex(), list(value.co_names), _plain(value.co_consts)]
        case keras.KerasTensor():
            return (tensors or {})[id(value)]
        case types.FunctionType() | types.MethodType():
            return _function(value) or value.__name__
    return str(value) if isinstance(value, (type, tf.DType)) or value is Ellipsis else type(value).__name__


def _digest(content: Any) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()
