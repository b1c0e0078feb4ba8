"""All protocols on the bundled images: a pretrained encoder beside an untrained one and raw pixels."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic.data import bundled
from keras_sslhsic.evaluation.features import encoder_hash, extract_features
from keras_sslhsic.evaluation.finetune import FinetuneRecipe, finetune
from keras_sslhsic.evaluation.knn import knn
from keras_sslhsic.evaluation.linear import linear_features, standardise
from keras_sslhsic.evaluation.logistic import logistic_regression

DATA = "fashion_mnist_subset"

# Share of the labels -> training that fits the images and the table's ten minutes; chosen on held-out training images,
# where crops and mirroring cost two points.
RECIPES: Mapping[float, FinetuneRecipe] = {
    0.01: FinetuneRecipe(100, 32, head_learning_rate=0.03, encoder_learning_rate=0.003, crop_area=None),
    0.1: FinetuneRecipe(200, 64, head_learning_rate=0.03, encoder_learning_rate=0.003, crop_area=None),
    1.0: FinetuneRecipe(313, 128, head_learning_rate=0.1, encoder_learning_rate=0.03, crop_area=None),
}

# Features are standardised for the logistic regression, which narrows the range of useful penalties.
L2_GRID = tuple(np.logspace(0, 3.5, 8).tolist())


def benchmark_bundled(
    encoder: keras.Model,
    untrained: keras.Model | None = None,
    *,
    recipes: Mapping[float, FinetuneRecipe] = RECIPES,
    seed: int = 0,
    verbose: bool = False,
) -> Iterator[dict[str, Any]]:
    """Runs kNN, linear, logistic regression and fine-tuning on the bundled Fashion-MNIST subset.

    Args:
        encoder: pretrained keras.Model from images [B, 28, 28, 1] in [0, 255] to features [B, F].
        untrained: the same with the weights it started from.
        recipes: fine-tuning for each share of the labels. Raw pixels have no encoder to fine-tune.
        seed: of all protocols.
        verbose: whether to show progress bars.

    Yields:
        Records (see `Result.record`) with "encoder": "pretrained", "untrained" or "raw pixels", as they are
        ready.
    """
    train, test = bundled.load()
    encoders: dict[str, Any] = {"pretrained": encoder, "untrained": untrained, "raw pixels": _pixels}
    for name, current in encoders.items():
        if current is None:
            continue
        context = {"encoder": name, "data": DATA}
        if isinstance(current, keras.Model):
            context["encoder_hash"] = encoder_hash(current)
        features = [extract_features(current, images, verbose=verbose) for images, _ in (train, test)]
        yield knn(features[0], train[1], features[1], test[1], k=20).record(**context)
        yield linear_features(features[0], train[1], features[1], test[1], seed=seed).record(**context)
        scaled = standardise(*features)
        yield logistic_regression(
            (scaled[0], train[1]), (scaled[1], test[1]), 0.1, l2_grid=L2_GRID, max_iter=100, seed=seed
        ).record(**context)
        if isinstance(current, keras.Model):
            for fraction, recipe in recipes.items():
                yield finetune(
                    current, train, test, fraction=fraction, recipe=recipe, seed=seed, verbose=verbose
                ).record(**context)


def _pixels(images):
    return tf.cast(images, tf.float32) / 255.0
