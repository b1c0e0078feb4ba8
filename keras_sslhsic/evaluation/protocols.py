"""Every protocol by its name, on images: what a command line needs."""

from collections.abc import Callable
from typing import Any

from keras_sslhsic.evaluation.features import Encoder
from keras_sslhsic.evaluation.finetune import finetune
from keras_sslhsic.evaluation.knn import knn
from keras_sslhsic.evaluation.linear import linear, linear_features
from keras_sslhsic.evaluation.logistic import logistic_regression
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.streams import Labelled, count_classes, features_and_labels

# These train on images; the others on features, extracted once.
_ON_IMAGES: dict[str, Callable] = {"linear": linear, "finetune": finetune}
_ON_FEATURES: dict[str, Callable] = {
    "knn": knn,
    "linear_features": linear_features,
    "logistic": lambda x, y, xt, yt, **options: logistic_regression((x, y), (xt, yt), **options),
}
PROTOCOLS = (*_ON_FEATURES, *_ON_IMAGES)


def evaluate(
    protocol: str, encoder: Encoder, train: Labelled, test: Labelled, *, verbose: bool = False, **options: Any
) -> Result:
    """Runs one protocol on an encoder.

    Args:
        protocol: one of `PROTOCOLS`.
        encoder: keras.Model, or function, from images [B, H, W, C] in [0, 255] to features.
        train: (images uint8 [N, H, W, C], labels int [N]); or a finite dataset of batches (images, labels) or
            {"image", "label"}.
        test: the same.
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
        features_and_labels(encoder, data, name, verbose) for data, name in ((train, "train"), (test, "test"))
    )
    (features, labels), (test_features, test_labels) = splits
    return _ON_FEATURES[protocol](features, labels, test_features, test_labels, **options)
