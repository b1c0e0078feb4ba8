"""Callbacks that measure the features while they are learnt."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.evaluation.extraction import as_encoder
from keras_sslhsic.evaluation.images import ENCODING_BATCH, Labelled
from keras_sslhsic.evaluation.protocol import PROTOCOLS

Arrays = tuple[np.ndarray, np.ndarray]


class Evaluate(keras.callbacks.Callback):
    """Every n epochs, runs a protocol on the encoder, and adds what it measures to the epoch's logs.

    Callbacks that come later in the list (TensorBoard, CSVLogger), the history and the progress bar show it, as
    NAME_METRIC: `knn_top1`.

    Args:
        protocol: a key of `evaluation.PROTOCOLS`.
        splits: "train", "test" and perhaps "validation", as `Protocol.run` takes them. Test on held-out training images, not on
            the test split, to choose a recipe.
        every: number of epochs from one measurement to the next.
        name: what the logs call it; None: the protocol's name.
        encoding_batch: images that the encoder sees at once, for features.
        **settings: of the protocol.

    Raises:
        ValueError: if `every` or `encoding_batch` is below 1, the protocol is unknown, or as `Protocol.check`.

    Example:
        >>> splits = {"train": (x[:150], y[:150]), "test": (x[150:], y[150:])}
        >>> callbacks = [Evaluate("knn", splits, every=2, k=5), keras.callbacks.TensorBoard(log_dir)]
        >>> history = model.fit(dataset, epochs=2, callbacks=callbacks, verbose=0)
        >>> len(history.history["knn_top1"])
        1
    """

    def __init__(
        self,
        protocol: str,
        splits: Mapping[str, Labelled],
        *,
        every: int = 1,
        name: str | None = None,
        encoding_batch: int = ENCODING_BATCH,
        **settings: Any,
    ):
        super().__init__()
        checks.integer("every", every, 1)
        checks.integer("encoding_batch", encoding_batch, 1)
        self.protocol, self.splits, self.every = PROTOCOLS[protocol], splits, every
        self.name, self.encoding_batch, self.settings = name or protocol, encoding_batch, settings
        self.protocol.check(splits, **settings)
        self._encoder: Any = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        encoder: Any = as_encoder(self.model)
        # Compiled once, not anew for every measurement.
        self._encoder = (
            encoder
            if self.protocol.network
            else tf.function(lambda images: encoder(images, training=False), reduce_retracing=True)
        )

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if (epoch + 1) % self.every == 0 and logs is not None:
            result = self.protocol.run(
                self._encoder, self.splits, encoding_batch=self.encoding_batch, **self.settings
            )
            logs[f"{self.name}_{result.metric}"] = result.value


class KNNProbe(Evaluate):
    """Logs `knn_top1`: accuracy of weighted nearest neighbours (see `evaluation.knn`) every n epochs.

    Args:
        train: (images uint8 [N, H, W, C], labels int [N]), the neighbours.
        test: the same, to classify.
        **settings: `every`, and `k`, `temperature` and `batch_size` of the protocol.
    """

    def __init__(self, train: Arrays, test: Arrays, **settings: Any):
        super().__init__("knn", {"train": train, "test": test}, **settings)


class LinearProbe(Evaluate):
    """Logs `linear_top1`: accuracy of a linear classifier (see `evaluation.linear_features`) every n epochs.

    Args:
        train: (images uint8 [N, H, W, C], labels int [N]) to learn from.
        test: the same, to measure on.
        epochs: passes over the features; fewer than in the final evaluation, since this is for watching.
        every: number of epochs from one measurement to the next.
        batch_size: images that the encoder sees at once.
    """

    def __init__(
        self,
        train: Arrays,
        test: Arrays,
        *,
        epochs: int = 10,
        every: int = 1,
        batch_size: int = ENCODING_BATCH,
    ):
        recipe = {"epochs": epochs, "learning_rates": (0.01, 0.03), "weight_decays": 0.0}
        splits: dict[str, Labelled] = {"train": train, "test": test}
        super().__init__(
            "linear_features", splits, every=every, name="linear", encoding_batch=batch_size, **recipe
        )
