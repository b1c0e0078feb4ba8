"""The whole state of training, as arrays by name: what a checkpoint holds."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_sslhsic import compat


def variables(model: keras.Model) -> dict[str, Any]:
    """Every variable of a compiled trainer: of its networks, itself, and its optimizers.

    Names are the same in every process: ``model/encoder/stem_conv/kernel``, ``model/step``,
    ``optimizer/lars/encoder/stem_conv/kernel/momentum``. Where Keras named a layer and numbered it over the process
    (conv2d_7), the number is its place among such layers of the network.
    """
    names = _model_names(model)
    trained = [(v, names[id(v)]) for v in [*model.online_variables, model.kernel_scale]]
    state = {f"model/{names[id(v)]}": v for v in model.weights}
    for group in ("optimizer", "kernel_optimizer"):
        slots = getattr(model, group).variables
        slot_names = _slot_names([compat.path(v) for v in slots], trained)
        state.update({f"{group}/{name}": v for name, v in zip(slot_names, slots, strict=True)})
    return state


def by_position(model: keras.Model) -> dict[str, Any]:
    """The same variables by their places, ``optimizer/0003``, as checkpoints of format 1 have them."""
    groups = {
        "model": model.weights,
        "optimizer": model.optimizer.variables,
        "kernel_optimizer": model.kernel_optimizer.variables,
    }
    return {f"{group}/{i:04d}": v for group, vs in groups.items() for i, v in enumerate(vs)}


def arrays(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The values of variables."""
    return {name: compat.tensor(variable).numpy() for name, variable in state.items()}


def not_finite(values: Mapping[str, np.ndarray]) -> str | None:
    """The name of the first array that holds NaN or an infinity; None if all are finite."""
    return next((name for name, value in values.items() if not np.isfinite(value).all()), None)


def assign(state: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> None:
    """Gives all variables the values of their names; none if one does not fit.

    Raises:
        ValueError: if a name is missing on either side, or a shape differs.
    """
    for name in sorted(values.keys() ^ state.keys()):
        if name in values:
            raise ValueError(f"it holds {name}, which the model has not")
        raise ValueError(f"it lacks {name}, which the model has")
    for name, value in values.items():
        if tuple(state[name].shape) != value.shape:
            raise ValueError(
                f"it holds {name} with the shape {value.shape}, but the model's has {tuple(state[name].shape)}"
            )
    for name, value in values.items():
        state[name].assign(value)


def _model_names(model) -> dict[int, str]:
    """{id of a variable: its name} of a model's weights, by the attribute that holds their network."""
    named: dict[int, str] = {}
    for attribute, network in vars(model).items():
        if isinstance(network, keras.Layer):
            paths = _uncounted([compat.path(v) for v in network.weights], network)
            unique = _unique(f"{attribute}/{path}" for path in paths)
            named.update(zip(map(id, network.weights), unique, strict=True))
    rest = [v for v in model.weights if id(v) not in named]
    named.update(zip(map(id, rest), _unique(v.name for v in rest), strict=True))
    return named


def _uncounted(paths: list[str], network: keras.Layer) -> list[str]:
    """Paths of a network's variables, their automatic names numbered in it alone: conv2d, conv2d#1, conv2d#2."""
    automatic = compat.automatic_names(network)
    counts: dict[str, set[int]] = defaultdict(set)
    for part in {part for path in paths for part in path.split("/")}:
        name, count = _split_count(part)
        if name in automatic:
            counts[name].add(count)
    ranks = {name: {count: rank for rank, count in enumerate(sorted(of))} for name, of in counts.items()}

    def renamed(part: str) -> str:
        name, count = _split_count(part)
        if name not in automatic:
            return part
        return f"{name}#{ranks[name][count]}" if ranks[name][count] else name

    return ["/".join(map(renamed, path.split("/"))) for path in paths]


def _split_count(part: str) -> tuple[str, int]:
    """("conv2d", 7) of conv2d_7, ("conv2d", 0) of conv2d."""
    found = re.fullmatch(r"(.+)_([1-9]\d*)", part)
    return (found[1], int(found[2])) if found else (part, 0)


def _slot_names(paths: list[str], trained: list[tuple[Any, str]]) -> list[str]:
    """Names of an optimizer's variables; slots by the variable that they belong to.

    Keras makes the path ``adam_1/encoder_kernel_momentum`` of a slot from that of its variable, ``encoder/kernel``, and
    keeps the order of the variables where their paths are equal.
    """
    owners = defaultdict(list)
    for variable, name in trained:
        owners[compat.path(variable).replace("/", "_")].append(name)
    seen: Counter = Counter()
    names = []
    for path in paths:
        optimizer, _, slot = path.rpartition("/")
        optimizer, _ = _split_count(optimizer)
        owner = max((o for o in owners if slot.startswith(f"{o}_")), key=len, default=None)
        if owner is not None:
            kind = slot.removeprefix(f"{owner}_")
            of_same = owners[owner]
            slot = f"{of_same[seen[path] % len(of_same)]}/{kind}"
            seen[path] += 1
        names.append(f"{optimizer}/{slot}")
    return _unique(names)


def _unique(names: Iterable[str]) -> list[str]:
    """The names, those that occur again numbered: a, a#1."""
    seen: Counter = Counter()
    unique = []
    for name in names:
        unique.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return unique
