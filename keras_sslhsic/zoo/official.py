"""Reading the official JAX checkpoints.

SSL-HSIC's ``checkpoint.npy`` (parameters: their moving average in ``ema_state``, statistics: those of
``experiment_state``) and BYOL's ``.pkl`` (``experiment_state``'s online parameters and statistics), whose
networks have the same shape. Neither JAX nor Haiku is needed.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_sslhsic.files import display
from keras_sslhsic.zoo import unpickle

Arrays = dict[str, dict[str, np.ndarray]]  # Haiku: module name -> parameter name -> array


class Checkpoint(NamedTuple):
    """The online network in a checkpoint, by Haiku's names, and the kernel's scale (None in BYOL's)."""

    params: Arrays
    state: Arrays
    kernel_scale: float | None
    method: str


def read_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Reads the online network of an official checkpoint.

    Raises:
        OSError: if there is no such file, or it is a folder or no regular file.
        unpickle.UnsafePickleError: if the pickle asks for anything outside the allow-list.
        unpickle.BrokenPickleError: if the file is damaged or no pickle.
        ValueError: if it is neither of the two layouts, or what should be an array of finite numbers is none.
    """
    if Path(path).is_dir():
        raise IsADirectoryError(f"{display(path)} is a folder: expected checkpoint.npy, or a .pkl of BYOL.")
    tree = unpickle.load(path)
    path = display(path)
    experiment = _named(_named(tree).get("experiment_state"))
    if not {"online_params", "online_state"} <= experiment.keys():
        found = listed(_named(tree)) or type(tree).__name__
        raise ValueError(
            f"{path} is not an SSL-HSIC or BYOL checkpoint: expected experiment_state with online_params and "
            f"online_state, found {found}."
        )

    def arrays(part: str, parts: Mapping[str, Any], name: str) -> Arrays:
        if name not in parts:
            raise ValueError(f"{path} has no {name} in its {part}.")
        return _arrays(parts[name], f"{path}: {part}.{name}")

    state = arrays("experiment_state", experiment, "online_state")
    if "ema_state" not in _named(tree):
        if "kernel_params" in experiment:
            raise ValueError(
                f"{path} has a kernel, as SSL-HSIC's checkpoints do, and no ema_state, whose averages are the weights to "
                "convert: give the checkpoint as it was written."
            )
        return Checkpoint(arrays("experiment_state", experiment, "online_params"), state, None, "BYOL")
    average = _named(_named(tree)["ema_state"])
    kernel = arrays("ema_state", average, "kernel_params")
    scales = [array for module in kernel.values() for array in module.values()]
    if len(scales) != 1 or scales[0].size != 1:
        shapes = listed(array.shape for array in scales) or "none"
        raise ValueError(f"{path}: expected one kernel parameter, a number, found arrays of shape {shapes}.")
    return Checkpoint(arrays("ema_state", average, "online_params"), state, scales[0].item(), "SSL-HSIC")


def listed(names: Iterable[Any], most: int = 10) -> str:
    """Names for a message, in order, the first ones if there are many."""
    texts = sorted(map(str, names))
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _named(value: Any) -> Mapping[str, Any]:
    """The parts of a mapping or a record by name; empty for anything else."""
    if isinstance(value, unpickle.Record):
        return value.as_dict()
    return value if isinstance(value, Mapping) else {}


def _arrays(tree: Any, where: str) -> Arrays:
    """Checks that a tree is Haiku's, module names to parameter names to arrays; returns it in float32."""
    if not isinstance(tree, Mapping) or not all(isinstance(module, Mapping) for module in tree.values()):
        raise ValueError(
            f"{where}: expected Haiku parameters, a mapping of mappings of arrays, found {type(tree).__name__}."
        )
    return {m: {n: _finite(a, f"{where}: {m}/{n}") for n, a in module.items()} for m, module in tree.items()}


def _finite(array: Any, name: str) -> np.ndarray:
    """Checks that a value is an array of numbers that are finite in float32; returns it so."""
    if not isinstance(array, (np.ndarray, np.generic, int, float)):
        raise ValueError(f"{name} is a {type(array).__name__}, expected an array of numbers.")
    array = np.asarray(array)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} has dtype {array.dtype}, expected numbers.")
    if array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}, expected an array that holds numbers.")
    with np.errstate(over="ignore"):
        array = array.astype(np.float32, copy=False)
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} holds NaN, Inf or numbers too large for float32.")
    return array
