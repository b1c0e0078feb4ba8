"""Callbacks that measure the features while they are learnt."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic.evaluation import extract_features, knn, linear_features
from keras_sslhsic.evaluation.sweep import grid
from keras_sslhsic.views import policy

Arrays = tuple[np.ndarray, np.ndarray]


class _Probe(keras.callbacks.Callback):
    """Every n epochs, adds what `measure` finds on the encoder's features to the epoch's logs.

    Callbacks that come later in the list (TensorBoard, CSVLogger), the history and the progress bar show it.

    Args:
        train: (images uint8 [N, H, W, C], labels int [N]) to learn from.
        test: the same, to measure on. Take held-out training images, not the test split, to choose a recipe.
        every: number of epochs from one measurement to the next.
        batch_size: images a step.

    Raises:
        ValueError: if `every` is below 1.
    """

    def __init__(self, train: Arrays, test: Arrays, *, every: int = 1, batch_size: int = 256):
        super().__init__()
        if every < 1:
            raise ValueError(f"every must be at least 1, found {every}.")
        self.train, self.test = train, test
        self.every, self.batch_size = every, batch_size
        self._encoder: Callable | None = None

    def measure(self, *features_and_labels: np.ndarray) -> dict[str, float]:
        """Values by name from train features, train labels, test features, test labels."""
        raise NotImplementedError

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        # Compiled once, not anew for every measurement.
        self._encoder = tf.function(_encoder_of(self.model), reduce_retracing=True)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if (epoch + 1) % self.every == 0 and logs is not None:
            train, test = (
                extract_features(self._encoder, images, batch_size=self.batch_size)
                for images, _ in (self.train, self.test)
            )
            logs.update(self.measure(train, self.train[1], test, self.test[1]))


class KNNProbe(_Probe):
    """Logs `knn_top1`: accuracy of weighted nearest neighbours (see `evaluation.knn`) every n epochs.

    Args:
        train: (images uint8 [N, H, W, C], labels int [N]), the neighbours.
        test: the same, to classify.
        k: number of neighbours; None as in `evaluation.knn`.
        temperature: of the vote.
        every: number of epochs from one measurement to the next.
        batch_size: images a step.

    Example:
        >>> probe = KNNProbe((x[:150], y[:150]), (x[150:], y[150:]), every=2)
        >>> callbacks = [probe, keras.callbacks.TensorBoard(log_dir)]
        >>> history = model.fit(dataset, epochs=2, callbacks=callbacks, verbose=0)
        >>> len(history.history["knn_top1"])
        1
    """

    def __init__(
        self, train: Arrays, test: Arrays, *, k: int | None = None, temperature: float = 0.07, **options: Any
    ):
        super().__init__(train, test, **options)
        self.k, self.temperature = k, temperature

    def measure(self, *features_and_labels):
        result = knn(*features_and_labels, k=self.k, temperature=self.temperature)
        return {"knn_top1": result.top1}


class LinearProbe(_Probe):
    """Logs `linear_top1`: accuracy of a linear classifier (see `evaluation.linear_features`) every n epochs.

    Args:
        train: (images uint8 [N, H, W, C], labels int [N]) to learn from.
        test: the same, to measure on.
        epochs: passes over the features; fewer than in the final evaluation, since this is for watching.
        every: number of epochs from one measurement to the next.
        batch_size: images a step.
    """

    def __init__(self, train: Arrays, test: Arrays, *, epochs: int = 10, **options: Any):
        super().__init__(train, test, **options)
        self.epochs = epochs

    def measure(self, *features_and_labels):
        candidates = grid((0.01, 0.03), (0.0,))
        result = linear_features(*features_and_labels, candidates=candidates, epochs=self.epochs)
        return {"linear_top1": result.top1}


def _encoder_of(model: keras.Model) -> Callable:
    """The trainer's evaluation encoder on pixels in [0, 255]; any other model is an encoder itself."""
    if hasattr(model, "evaluation_encoder"):
        return lambda images: model.evaluation_encoder(policy.prepare(images, model.policy), training=False)
    return lambda images: model(images, training=False)
