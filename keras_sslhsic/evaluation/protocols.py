"""Every protocol by its name, on images: what a command line needs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from keras_sslhsic.evaluation.features import Encoder
from keras_sslhsic.evaluation.finetune import SEMI_SUPERVISED, TRANSFER, finetune, recipes
from keras_sslhsic.evaluation.knn import knn
from keras_sslhsic.evaluation.linear import (
    FAST_CANDIDATES,
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
from keras_sslhsic.evaluation.sweep import grid

# These train on images; the others on features, extracted once.
_ON_IMAGES: dict[str, Callable] = {"linear": linear, "finetune": finetune}
_ON_FEATURES: dict[str, Callable] = {
    "knn": knn,
    "linear_features": linear_features,
    "logistic": lambda x, y, xt, yt, **options: logistic_regression((x, y), (xt, yt), **options),
}
PROTOCOLS = (*_ON_FEATURES, *_ON_IMAGES)

_TRAINING = frozenset({"batch_size", "epochs", "learning_rates", "weight_decays", "seed"})

# What a command line can set of each protocol.
SETTINGS: dict[str, frozenset[str]] = {
    "knn": frozenset({"k", "temperature", "encoding_batch"}),
    "linear_features": _TRAINING,
    "logistic": frozenset({"encoding_batch", "seed"}),
    "linear": _TRAINING | {"num_classes"},
    "finetune": _TRAINING | {"num_classes", "steps", "fraction"},
    "transfer": frozenset({"encoding_batch", "seed"}),
    "transfer_finetune": _TRAINING | {"steps"},
}


def arguments(protocol: str, **given: Any) -> dict[str, Any]:
    """The arguments of a protocol's function that make these settings; its own defaults fill in what is not given.

    Args:
        protocol: a key of `SETTINGS`.
        **given: some of `SETTINGS[protocol]`. `learning_rates` and `weight_decays` are sequences to choose from, the
            rates for batches of `batch_size`; `epochs` is one, the lengths to choose from.

    Raises:
        ValueError: for a setting that the protocol has not, or a value out of range.
    """
    unknown = sorted(set(given) - SETTINGS[protocol])
    if unknown:
        raise ValueError(
            f"{protocol} has no {', '.join(unknown)}; it has {', '.join(sorted(SETTINGS[protocol]))}."
        )
    for name, least in (("learning_rates", "positive"), ("weight_decays", "at least 0")):
        for value in given.get(name, ()):
            if not (value > 0 or (value == 0 and name == "weight_decays")):
                raise ValueError(f"{name} must be {least}, found {value:g}.")
    names = ("batch_size", "epochs", "steps", "learning_rates", "weight_decays")
    plan = {name: given.pop(name) for name in names if name in given}
    if not plan:
        return given
    if "finetune" in protocol:
        defaults = TRANSFER if protocol == "transfer_finetune" else SEMI_SUPERVISED
        lengths = {"steps", "epochs"}
        kept = {
            key: value for key, value in defaults.items() if key not in lengths or not lengths & set(plan)
        }
        return {"recipe": recipes(**{**kept, **plan}), **given}
    epochs = plan.pop("epochs", None)
    if epochs is not None and len(epochs) != 1:
        raise ValueError(f"{protocol} has one number of epochs, found {', '.join(map(str, epochs))}.")
    length = {} if epochs is None else {"epochs": epochs[0]}
    size = {"batch_size": plan["batch_size"]} if "batch_size" in plan else {}
    recipe = replace(PAPER_RECIPE, **length, **size)
    of_own = FAST_CANDIDATES if protocol == "linear_features" else default_candidates(recipe.batch_size)
    values = settings(of_own)
    candidates = grid(
        plan.get("learning_rates", dict.fromkeys(values["learning_rate"])),
        plan.get("weight_decays", dict.fromkeys(values["weight_decay"])),
    )
    if protocol == "linear":
        return {"candidates": candidates, "recipe": recipe, **given}
    return {"candidates": candidates, **length, **size, **given}


def evaluate(
    protocol: str,
    encoder: Encoder,
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
