"""Protocols on labelled arrays: a pretrained encoder beside an untrained one and raw pixels."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic.data import bundled
from keras_sslhsic.encoders import encoder_hash
from keras_sslhsic.evaluation.extraction import AnyEncoder, extract_features
from keras_sslhsic.evaluation.finetune import FinetuneRecipe, finetune
from keras_sslhsic.evaluation.knn import knn
from keras_sslhsic.evaluation.linear import linear_features, standardise
from keras_sslhsic.evaluation.logistic import logistic_regression
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.streams import describe

# What every command and config calls these images.
DATA = "bundled"

# Share of the labels -> training that fits the images and the table's ten minutes; chosen on held-out training images,
# where crops and mirroring cost two points.
RECIPES: Mapping[float, FinetuneRecipe] = {
    0.01: FinetuneRecipe(100, 32, head_learning_rate=0.03, encoder_learning_rate=0.003, crop_area=None),
    0.1: FinetuneRecipe(200, 64, head_learning_rate=0.03, encoder_learning_rate=0.003, crop_area=None),
    1.0: FinetuneRecipe(313, 128, head_learning_rate=0.1, encoder_learning_rate=0.03, crop_area=None),
}

# Features are standardised for the logistic regression, which narrows the range of useful penalties.
L2_GRID = tuple(np.logspace(0, 3.5, 8).tolist())

Arrays = tuple[np.ndarray, np.ndarray]


def compare(
    encoder: keras.Model,
    untrained: keras.Model | None,
    train: Arrays,
    test: Arrays,
    *,
    data: str,
    name: str = "pretrained",
    seed: int = 0,
    verbose: bool = False,
) -> Iterator[dict[str, Any]]:
    """Runs kNN (k = 20) and the fast linear evaluation on labelled arrays.

    Args:
        encoder: pretrained keras.Model from images [B, H, W, C] in [0, 255] to features [B, F].
        untrained: the same with the weights it started from.
        train: (images uint8 [N, H, W, C], labels int [N]) to fit on.
        test: the same, to measure on.
        data: name of the images.
        name: of the encoder, such as its run folder.
        seed: of both protocols.
        verbose: whether to show progress bars.

    Yields:
        Records (see `Result.record`) with "encoder": name, "untrained" or "raw pixels", as they are ready.
    """
    for current, context in _encoders(encoder, untrained, name, data):
        features = [extract_features(current, images, verbose=verbose) for images, _ in (train, test)]
        for result in _on_features(features, train[1], test[1], seed):
            yield _of_images(result, test).record(**context)


def benchmark_bundled(
    encoder: keras.Model,
    untrained: keras.Model | None = None,
    *,
    name: str = "pretrained",
    recipes: Mapping[float, FinetuneRecipe] = RECIPES,
    seed: int = 0,
    verbose: bool = False,
) -> Iterator[dict[str, Any]]:
    """Runs kNN, linear, logistic regression and fine-tuning on the bundled Fashion-MNIST subset.

    Args:
        encoder: pretrained keras.Model from images [B, 28, 28, 1] in [0, 255] to features [B, F].
        untrained: the same with the weights it started from.
        name: of the encoder, such as its run folder.
        recipes: fine-tuning for each share of the labels. Raw pixels have no encoder to fine-tune.
        seed: of all protocols.
        verbose: whether to show progress bars.

    Yields:
        Records (see `Result.record`) with "encoder": name, "untrained" or "raw pixels", as they are ready.
    """
    train, test = bundled.load()
    for current, context in _encoders(encoder, untrained, name, DATA):
        features = [extract_features(current, images, verbose=verbose) for images, _ in (train, test)]
        for result in _on_features(features, train[1], test[1], seed):
            yield _of_images(result, test).record(**context)
        scaled = standardise(*features)
        logistic = logistic_regression(
            (scaled[0], train[1]), (scaled[1], test[1]), 0.1, l2_grid=L2_GRID, max_iter=100, seed=seed
        )
        yield _of_images(logistic, test).record(**context)
        if isinstance(current, keras.Model):
            for fraction, recipe in recipes.items():
                yield finetune(
                    current, train, test, fraction=fraction, recipe=recipe, seed=seed, verbose=verbose
                ).record(**context)


def _encoders(encoder, untrained, name, data) -> Iterator[tuple[AnyEncoder, dict[str, str]]]:
    """Each encoder with the context of its records."""
    for current, title in ((encoder, name), (untrained, "untrained")):
        if current is not None:
            yield current, {"encoder": title, "encoder_hash": encoder_hash(current), "data": data}
    yield _pixels, {"encoder": "raw pixels", "data": data}


def _on_features(features, train_labels, test_labels, seed) -> Iterator[Result]:
    yield knn(features[0], train_labels, features[1], test_labels, k=20)
    yield linear_features(features[0], train_labels, features[1], test_labels, seed=seed)


def _of_images(result: Result, test: Arrays) -> Result:
    """A result on features, its recipe that of `protocols.evaluate` on the images."""
    return replace(result, recipe={**result.recipe, **describe(test)})


def _pixels(images):
    return tf.cast(images, tf.float32) / 255.0
