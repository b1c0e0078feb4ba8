"""Logistic regression on features by L-BFGS, its l2 penalty chosen on a validation split."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_sslhsic import checks
from keras_sslhsic.data.subsets import stratified_split
from keras_sslhsic.evaluation.checks import (
    check_classes,
    check_features,
    check_labels,
    check_several,
    index_classes,
)
from keras_sslhsic.evaluation.linear_evaluation import standardise
from keras_sslhsic.evaluation.metrics import METRICS, check_metric, measure
from keras_sslhsic.evaluation.protocol import encoding, register
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.settings import ENCODING, SEED, Setting, natural, positive, share
from keras_sslhsic.evaluation.sweep import choose, default_text, tried
from keras_sslhsic.words import counted, warn

MAX_ITER = 1000
_UNLIKE = 300  # times a median feature: of the bundled encoder the largest is 1.5 times it
L2_GRID = tuple(np.logspace(-6, 5, 45).tolist())


def logistic_regression(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    validation: tuple[np.ndarray, np.ndarray] | float = 0.2,
    *,
    metric: str = "top1",
    l2_grid: Sequence[float] = L2_GRID,
    max_iter: int = MAX_ITER,
    standardised: bool = False,
    seed: int = 0,
) -> Result:
    """The paper's linear transfer: multinomial logistic regression, l2 chosen on a validation split.

    Minimises sum_n cross-entropy_n + l2 / 2 |W|^2 (scikit-learn's LogisticRegression with C = 1 / l2; the
    bias is not penalised) on the training split for every l2 of the grid, takes the best on the validation
    split, the largest of equals, and fits again on both splits (Kornblith et al. 2019, "Do Better ImageNet
    Models Transfer Better?"). Features are used as they are, unless they are to be `standardised`.

    With metric "map11" labels are bool [N, C], each class has a regression of its own against the rest, and
    the metric is VOC2007's 11-point mean average precision.

    Args:
        train: features float [N, F] and labels int [N].
        test: the same for the test split.
        validation: the same for the validation split; or the share of each training class to hold out.
        metric: "top1", "mean_per_class" or "map11".
        l2_grid: penalties to choose from; by default 45, evenly spaced in the logarithm from 1e-6 to 1e5.
        max_iter: limit of L-BFGS iterations for each fit.
        standardised: whether features are standardised by the training split.
        seed: of the split and the interval's resampling.

    Returns:
        Result with `l2`, the chosen penalty; `validation_value`, the metric on the validation split with it; `at_edge`,
        ("l2",) if it is the smallest or the largest of the grid and the best alone; and `converged`, whether the final fit
        did within `max_iter`: with next to no penalty on separable classes there is no optimum. The interval is Wilson's for
        top-1, bootstrapped for the others.

    Warns:
        UserWarning: if the final fit did not converge within 1,000 iterations, or features are of very different sizes.

    Raises:
        ValueError: if features or labels are unusable (see `checks`), a class is in one split only, or the
            metric is unknown.

    Example:
        >>> labels = np.arange(100) % 2
        >>> features = np.stack([labels, 1.0 - labels], axis=1)
        >>> logistic_regression((features, labels), (features, labels), l2_grid=[0.1, 1.0]).top1
        1.0
    """
    check_metric(metric)
    if standardised:
        parts = [train, test] if isinstance(validation, float) else [train, test, validation]
        scaled = standardise(*(np.asarray(features, np.float32) for features, _ in parts))
        train, test, *own = [(x, labels) for x, (_, labels) in zip(scaled, parts, strict=True)]
        validation = own[0] if own else validation
    train, test = _check(train, "train", metric), _check(test, "test", metric)
    if isinstance(validation, float):
        if metric == "map11":
            raise ValueError("With several classes an image, give the validation split itself, not a share.")
        fit, held_out = stratified_split(train[1], validation, seed)
        train, validation = (train[0][fit], train[1][fit]), (train[0][held_out], train[1][held_out])
    held = _check(validation, "validation", metric)
    if metric != "map11":
        for (_, labels), name in ((held, "validation"), (test, "test")):
            check_classes(train[1], labels, ("train", name))
        absent = np.setdiff1d(train[1], held[1])
        if len(absent):
            raise ValueError(
                f"The validation labels lack the classes {absent[:10].tolist()} of the training labels, "
                "so l2 cannot be chosen for them: use a stratified validation split."
            )
        indexed = index_classes(train[1], held[1], test[1])
        train, held, test = ((x, labels) for (x, _), labels in zip((train, held, test), indexed, strict=True))

    # The squares of float32 may be too large or too small for float32.
    sizes = np.sqrt(np.einsum("nf,nf->f", train[0], train[0], dtype=np.float64))
    if sizes.max() > _UNLIKE * np.median(sizes[sizes > 0]):
        warn(
            f"Some features are {sizes.max() / np.median(sizes[sizes > 0]):.0g} times as large as most: L-BFGS may stop far "
            "from the optimum; standardise them (standardised)."
        )
    # Fitted at one scale, so that where L-BFGS stops does not depend on the features' own; the penalty follows.
    scale = float(np.linalg.norm(sizes)) / train[0].size ** 0.5
    train, held, test = ((x / np.float32(scale), labels) for x, labels in (train, held, test))

    # From the largest penalty down, so that each fit starts near its solution and ties go to the largest.
    penalties = sorted(map(float, l2_grid), reverse=True)
    model, values = _model(metric, max_iter), []
    for l2 in penalties:
        _fit(model, l2 / scale**2, *train)
        values.append(METRICS[metric](_scores(model, held[0]), held[1]))
    chosen = choose(values, l2=penalties)
    l2 = penalties[chosen.index]

    final = _model(metric, max_iter)
    fitted = tuple(np.concatenate(pair) for pair in zip(train, held, strict=True))
    converged = _fit(final, l2 / scale**2, *fitted)
    # Who gives fewer iterations limits the time.
    if not converged and max_iter >= MAX_ITER:
        warn(
            f"The regression with l2={l2:g} did not converge within {counted(max_iter, 'iteration')}: what is measured is "
            "where it stopped. Give more (max_iter), or standardise the features (standardised)."
        )
    value, interval = measure(metric, _scores(final, test[0]), test[1], seed)
    given = {"standardised": True} if standardised else {}
    return Result(
        protocol="logistic",
        value=value,
        interval=interval,
        num_test=len(test[1]),
        metric=metric,
        seed=seed,
        num_train=len(fitted[1]),
        recipe={**tried(l2=penalties), "max_iter": max_iter, "held_out": len(held[1]), **given},
        details={
            "l2": l2,
            "validation_value": chosen.value,
            "at_edge": chosen.at_edge,
            "converged": converged,
        },
    )


def _ahead(
    train_labels: np.ndarray, test_labels: np.ndarray, validation: float = 0.2, seed: int = 0, **_: Any
) -> None:
    check_classes(train_labels, test_labels)
    stratified_split(train_labels, validation, seed)


_ARGUMENTS = {"l2": "l2_grid", "holdout": "validation"}
register(
    "logistic",
    {
        "l2": Setting(positive, "penalties to choose from", default_text(L2_GRID), several=True),
        "max_iter": Setting(natural, "limit of L-BFGS iterations for each fit", f"{MAX_ITER}"),
        "holdout": Setting(share, "share of each class that is held out to choose on", "0.2"),
        "standardised": Setting(checks.flag, "whether features are standardised", "False"),
        **ENCODING,
        **SEED,
    },
    arguments=lambda given: {_ARGUMENTS.get(name, name): value for name, value in encoding(given).items()},
    ahead=_ahead,
)(lambda x, y, xt, yt, **arguments: logistic_regression((x, y), (xt, yt), **arguments))


def _check(split: Any, name: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(split, tuple | list) or len(split) != 2:
        raise ValueError(
            f"{name} must be (features, labels), found a {type(split).__name__}; features are those of "
            "keras_sslhsic.evaluation.extract_features(encoder, images)."
        )
    features, labels = check_features(split[0], f"{name} features"), split[1]
    if metric != "map11":
        return features, check_labels(labels, len(features), f"{name} labels")
    labels = check_several(labels, len(features), f"{name} labels")
    if not (labels.any(axis=0).all() and (~labels).any(axis=0).all()):
        raise ValueError(f"Every class must have images with it and without it in the {name} split.")
    return features, labels


def _model(metric: str, max_iter: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    model = LogisticRegression(max_iter=max_iter, warm_start=True)
    return OneVsRestClassifier(model) if metric == "map11" else model


def _fit(model: Any, l2: float, features: np.ndarray, labels: np.ndarray) -> bool:
    """Fits a model, and returns whether it came to its end."""
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    model.set_params(**{"estimator__C" if labels.ndim == 2 else "C": 1.0 / l2})
    # Products with so few columns take several times longer on several threads than on one.
    small = features.size * (int(labels.max()) + 1) < 1e9
    with warnings.catch_warnings(record=True) as said, threadpool_limits(1 if small else None, "blas"):
        warnings.simplefilter("always")
        model.fit(features, labels.astype(int))
    for one in said:
        if not issubclass(one.category, ConvergenceWarning):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return not any(issubclass(one.category, ConvergenceWarning) for one in said)


def _scores(model: Any, features: np.ndarray) -> np.ndarray:
    """Scores [N, C]."""
    scores = model.decision_function(features)
    return scores if scores.ndim == 2 else np.stack([-scores, scores], axis=1)  # two classes share one score
