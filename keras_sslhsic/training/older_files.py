"""Everything that exists only for files of earlier versions: model files and checkpoints of 0.1.

There the scale of the kernel and its optimizer belonged to the model (`SSLHSIC(kernel_scale=..., learn_kernel_scale=...)`,
`compile(kernel_optimizer=...)`); now they belong to the loss.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from keras_sslhsic import compat
from keras_sslhsic.hsic import kernels
from keras_sslhsic.training import schedules, state

_KERNEL = ("kernel_scale", "learn_kernel_scale")


def without_kernel(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the config of a model into that of today and what it said of the kernel."""
    kernel = {name: config[name] for name in _KERNEL if name in config}
    return {name: value for name, value in config.items() if name not in _KERNEL}, kernel


def kernel_in_loss(config: Mapping[str, Any], kernel: Mapping[str, Any]) -> dict[str, Any]:
    """The config of `compile` of today: what model and compilation said of the kernel goes to the loss."""
    config = dict(config)
    if "kernel_optimizer" not in config:
        return config
    optimizer, loss = config.pop("kernel_optimizer"), config["loss"]["config"]
    if "kernel" in loss:
        # Even earlier versions took smaller initial scales; the scale that was reached is among the variables.
        scale = max(kernel.get("kernel_scale", 1.0), kernels.MIN_SCALE)
        settings = {
            "kernel": {**loss["kernel"], "config": {**loss["kernel"]["config"], "scale": scale}},
            "learn_kernel_scale": kernel.get("learn_kernel_scale", True),
            "kernel_optimizer": optimizer,
        }
        config["loss"] = {**config["loss"], "config": loss | settings}
    return config


def refuse_moved(arguments: Mapping[str, Any]) -> None:
    """Raises a ValueError for arguments of a method or its `compile` that are the loss's now."""
    for name in (*_KERNEL, "kernel_optimizer"):
        if name in arguments:
            loss = (
                "SSLHSICLoss(kernel=kernels.InverseMultiquadric(...))"
                if name == "kernel_scale"
                else f"SSLHSICLoss({name}=...)"
            )
            raise ValueError(
                f"{name} belongs to the loss now, found it in the model's arguments: compile(loss={loss})."
            )


def own_values(store: Any, wanted: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What a file holds of a trainer's own variables, by their names of today; `wanted` are those of the trainer."""
    names = store.keys()
    if "step" in names:
        return {name: store[name] for name in names}
    # By position: all that is trained, then these.
    scale, step, first_faults = (store[name] for name in sorted(names, key=int)[-3:])
    kernel = [scale, *compat.beside(store, "kernel_optimizer/vars")]
    of_loss = [name for name in wanted if name.startswith(state.OBJECTIVE)]
    return {"step": step, "first_faults": first_faults, **dict(zip(of_loss, kernel, strict=False))}


def checkpoint_values(
    values: Mapping[str, np.ndarray], number: int, model: keras.Model
) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint of format 1 or 2, by the names of format 3, for a compiled model."""
    variables = state.variables(model)
    names = {id(v): name for name, v in variables.items()}
    if number == 1:
        values = _named(values, model, names)
    kernel = ["model/kernel_scale", *(name for name in values if name.startswith("kernel_optimizer/"))]
    # A loss that learns no scale has no place for it.
    renamed = dict(zip(kernel, (names[id(v)] for v in model.objective.variables), strict=False))
    # Seeds were not kept.
    seeds = {name: v.numpy() for name, v in variables.items() if name.endswith("/seed_generator_state")}
    kept = {renamed.get(n, n): value for n, value in values.items() if n in renamed or n not in kernel}
    return seeds | kept


def _named(
    values: Mapping[str, np.ndarray], model: keras.Model, names: Mapping[int, str]
) -> dict[str, np.ndarray]:
    """Format 1 has model/0003/any_name: the places of variables in the lists of then."""
    parts = (
        "encoder",
        "projector",
        "predictor",
        "classifier",
        "target_encoder",
        "target_projector",
        "ema_encoder",
    )
    networks = [network for part in parts if (network := getattr(model, part)) is not None]
    online = [names[id(v)] for v in model.online_variables]
    rest = [names[id(v)] for network in networks for v in network.weights if names[id(v)] not in online]
    order = {
        "model": [*online, "model/kernel_scale", "model/step", "model/first_faults", *rest],
        "optimizer": [names[id(v)] for v in model.optimizer.variables],
    }
    found = {}
    for name, value in values.items():
        group, place = name.split("/")[:2]
        known = order.get(group, [])
        found[known[int(place)] if int(place) < len(known) else f"{group}/{place}"] = value
    return found


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class WarmupCosine(keras.optimizers.schedules.LearningRateSchedule):
    """The schedule of earlier versions in model files; it loads as that of Keras."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> keras.optimizers.schedules.LearningRateSchedule:
        """The same schedule today."""
        return schedules.warmup_cosine(**config)
