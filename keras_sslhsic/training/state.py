"""The whole state of training, as arrays by name: what a checkpoint holds."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_sslhsic import compat

OBJECTIVE = "objective."  # begins the names of a loss's state in a model file


def variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Every variable of a compiled trainer: of its networks, itself, its loss and its optimizer.

    Names are the same in every process: ``model/encoder/stem_conv/kernel``, ``model/step``, ``objective/kernel_scale``,
    ``optimizer/lars/encoder/stem_conv/kernel/momentum``. Where Keras named a layer and numbered it over the process
    (conv2d_7), the number is its place among such layers of the network.
    """
    model_names = _model_names(model)
    named = {f"model/{model_names[id(v)]}": v for v in model.variables}
    named.update(("objective/" + name, v) for name, v in _named_of_objective(model).items())
    slots = model.optimizer.variables
    slot_names = _slot_names(
        [v.path for v in slots], [(v, name.removeprefix("model/")) for name, v in named.items()]
    )
    named.update((f"optimizer/{name}", v) for name, v in zip(slot_names, slots, strict=True))
    return named


def own(model: keras.Model) -> dict[str, keras.Variable]:
    """What a trainer holds beside networks and optimizer: its counters, and, if it is compiled, the state of its loss."""
    counters = {"step": model.step, "first_faults": model.first_faults}
    return counters | {OBJECTIVE + name: v for name, v in _named_of_objective(model).items()}


def arrays(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The values of variables."""
    return {name: variable.numpy() for name, variable in state.items()}


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


def of_objective(model: keras.Model) -> list[keras.Variable]:
    """The state of a trainer's loss, in one order; empty before it is compiled."""
    objective = getattr(model, "objective", None)
    return [] if objective is None else objective.variables


def _named_of_objective(model: keras.Model) -> dict[str, keras.Variable]:
    held = of_objective(model)
    return dict(zip(_unique(v.name for v in held), held, strict=True))


def _model_names(model: keras.Model) -> dict[int, str]:
    """{id of a variable: its name} of a model's variables, by the attribute that holds their network."""
    named: dict[int, str] = {}
    for attribute, network in vars(model).items():
        if isinstance(network, keras.Layer):
            # A seed's own path is a number that counts over the process.
            owners = {id(v): layer.name for layer, v in compat.seeds(network)}
            paths = [f"{owners[id(v)]}/{v.name}" if id(v) in owners else v.path for v in network.variables]
            unique = _unique(f"{attribute}/{path}" for path in _uncounted(paths, network))
            named.update(zip(map(id, network.variables), unique, strict=True))
    rest = [v for v in model.variables if id(v) not in named]
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
        owners[variable.path.replace("/", "_")].append(name)
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
        elif _split_count(slot)[0] == "variable":  # without a name of its own, counted over the process
            slot = "variable"
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
