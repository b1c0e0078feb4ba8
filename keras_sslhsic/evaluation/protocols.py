"""Every protocol by its name, on images: what a command line needs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from keras_sslhsic import checks
from keras_sslhsic.evaluation.extraction import AnyEncoder
from keras_sslhsic.evaluation.finetune import SEMI_SUPERVISED, TRANSFER, finetune, recipes
from keras_sslhsic.evaluation.knn import knn
from keras_sslhsic.evaluation.linear import (
    FAST_CANDIDATES,
    FAST_RECIPE,
    PAPER_RECIPE,
    default_candidates,
    linear,
    linear_features,
    settings,
)
from keras_sslhsic.evaluation.logistic import logistic_regression
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.streams import (
    ENCODING_BATCH,
    Labelled,
    count_classes,
    describe,
    features_and_labels,
)
from keras_sslhsic.evaluation.sweep import Candidate, Recipe, grid

# These train on images; the others on features, extracted once.
_ON_IMAGES: dict[str, Callable] = {"linear": linear, "finetune": finetune}
_ON_FEATURES: dict[str, Callable] = {
    "knn": knn,
    "linear_features": linear_features,
    "logistic": lambda x, y, xt, yt, **options: logistic_regression((x, y), (xt, yt), **options),
}
PROTOCOLS = (*_ON_FEATURES, *_ON_IMAGES)


def _plan(recipe: Recipe, candidates: Sequence[Candidate]) -> dict[str, Any]:
    """The settings of a command that make these candidates and this recipe."""
    found = settings(candidates)
    return {
        "epochs": (recipe.epochs,),
        "batch_size": recipe.batch_size,
        "learning_rates": tuple(dict.fromkeys(found["learning_rate"])),
        "weight_decays": tuple(dict.fromkeys(found["weight_decay"])),
    }


_TRAINING = frozenset({"batch_size", "epochs", "learning_rates", "weight_decays", "seed"})

# What a command line or a config file can set of each protocol.
SETTINGS: dict[str, frozenset[str]] = {
    "knn": frozenset({"k", "temperature", "batch_size"}),
    "linear_features": _TRAINING,
    "logistic": frozenset({"batch_size", "seed"}),
    "linear": _TRAINING | {"num_classes"},
    "finetune": _TRAINING | {"num_classes", "steps", "fraction"},
    "transfer": frozenset({"batch_size", "seed"}),
    "transfer_finetune": _TRAINING | {"steps"},
}

# How the protocols that train do so where nothing else is given.
_PLANS: dict[str, Mapping[str, Any]] = {
    "linear": _plan(PAPER_RECIPE, default_candidates(PAPER_RECIPE.batch_size)),
    "linear_features": _plan(FAST_RECIPE, FAST_CANDIDATES),
    "finetune": SEMI_SUPERVISED,
    "transfer_finetune": TRANSFER,
}

_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "k": partial(checks.integer, least=1),
    "batch_size": partial(checks.integer, least=1),
    "epochs": partial(checks.integer, least=1),
    "steps": partial(checks.integer, least=1),
    "num_classes": partial(checks.integer, least=2),
    "seed": partial(checks.integer, least=0),
    "temperature": partial(checks.number, above=True),
    "fraction": partial(checks.number, above=True),
    "learning_rates": partial(checks.number, above=True),
    "weight_decays": checks.number,
}
_SEVERAL = ("epochs", "learning_rates", "weight_decays")


def arguments(protocol: str, /, **given: Any) -> dict[str, Any]:
    """The arguments of a protocol's function that make these settings; its own defaults fill in what is not given.

    Args:
        protocol: a key of `SETTINGS`.
        **given: some of `SETTINGS[protocol]`; None for the default. `learning_rates`, `weight_decays` and `epochs` are
            values to choose from, or one. Learning rates are for batches of `batch_size`; those that are not given
            follow it.

    Raises:
        ValueError: for a setting that the protocol has not, or a value of another type or out of range.
    """
    unknown = sorted(set(given) - SETTINGS[protocol])
    if unknown:
        raise ValueError(f"{protocol} has no {flags(unknown)}; it has {flags(SETTINGS[protocol])}.")
    given = {name: _checked(name, value) for name, value in given.items() if value is not None}
    if protocol not in _PLANS:
        if "batch_size" in given:
            given["encoding_batch"] = given.pop("batch_size")
        return given
    own = {name: given.pop(name) for name in ("steps", *_PLANS["linear"]) if name in given}
    if not own:
        return given
    lengths = {"steps", "epochs"}
    plan = {k: v for k, v in _PLANS[protocol].items() if k not in lengths or not lengths & set(own)} | own
    if "learning_rates" not in own:
        factor = plan["batch_size"] / _PLANS[protocol]["batch_size"]
        plan["learning_rates"] = tuple(rate * factor for rate in plan["learning_rates"])
    if "finetune" in protocol:
        return {"recipe": recipes(**plan), **given}
    if len(plan["epochs"]) != 1:
        raise ValueError(f"{protocol} has one number of epochs, found {', '.join(map(str, plan['epochs']))}.")
    candidates = grid(plan["learning_rates"], plan["weight_decays"])
    size = {"epochs": plan["epochs"][0], "batch_size": plan["batch_size"]}
    return {
        "candidates": candidates,
        **({"recipe": replace(PAPER_RECIPE, **size)} if protocol == "linear" else size),
        **given,
    }


def flags(names: Iterable[str]) -> str:
    """Settings as a command line has them: "--batch-size, --k"."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def _checked(name, value):
    if name not in _SEVERAL:
        _CHECKS[name](name, value)
        return value
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values:
        raise ValueError(f"{name} is empty: give at least one.")
    for one in values:
        _CHECKS[name](name, one)
    return values


def evaluate(
    protocol: str,
    encoder: AnyEncoder,
    train: Labelled,
    test: Labelled,
    *,
    encoding_batch: int = ENCODING_BATCH,
    verbose: bool = False,
    **options: Any,
) -> Result:
    """Runs one protocol on an encoder.

    Args:
        protocol: one of `PROTOCOLS`.
        encoder: keras.Model, or function, from images [B, H, W, C] in [0, 255] to features.
        train: (images uint8 [N, H, W, C], labels int [N]); or `Images`; or a finite dataset of batches (images,
            labels) or {"image", "label"}.
        test: the same.
        encoding_batch: images that the encoder sees at once, for the protocols on features; datasets bring their own
            batches.
        verbose: whether to show progress bars.
        **options: those of the protocol's function.

    Returns:
        The protocol's result.

    Raises:
        ValueError: for an unknown protocol, and as the protocol's function.
    """
    if protocol in _ON_IMAGES:
        return _ON_IMAGES[protocol](encoder, train, test, verbose=verbose, **options)
    if protocol not in _ON_FEATURES:
        raise ValueError(f"Unknown protocol {protocol!r}; there are {', '.join(PROTOCOLS)}.")
    count_classes(train=train, test=test)
    splits = (
        features_and_labels(encoder, data, name, verbose, encoding_batch)
        for data, name in ((train, "train"), (test, "test"))
    )
    (features, labels), (test_features, test_labels) = splits
    result = _ON_FEATURES[protocol](features, labels, test_features, test_labels, **options)
    return replace(result, recipe={**result.recipe, **describe(test)})
