"""Several encoders beside each other, by several evaluations of the same images."""

import dataclasses
import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic.encoders import encoder_hash
from keras_sslhsic.evaluation.extraction import AnyEncoder, as_encoder
from keras_sslhsic.evaluation.images import Labelled, shape_of
from keras_sslhsic.evaluation.protocol import PROTOCOLS, Features
from keras_sslhsic.evaluation.results import Result

# What a run is measured by where its config says nothing else.
QUICK: Mapping[str, Mapping[str, Any]] = {"knn": {"k": 20}, "linear": {"protocol": "linear_features"}}

# The table of the bundled images: training that fits them and ten minutes, chosen on held-out training images, where crops and
# mirroring cost two points. Standardised features narrow the range of useful penalties.
BUNDLED: Mapping[str, Mapping[str, Any]] = {
    **QUICK,
    "logistic": {
        "l2": tuple(np.logspace(0, 3.5, 8).tolist()),
        "max_iter": 100,
        "holdout": 0.1,
        "standardised": True,
    },
    **{
        f"finetune {100 * fraction:g} %": {
            "protocol": "finetune",
            "fraction": fraction,
            "steps": steps,
            "batch_size": batch_size,
            "head_learning_rate": head_learning_rate,
            "learning_rates": learning_rate,
            "crops": False,
        }
        for fraction, steps, batch_size, head_learning_rate, learning_rate in (
            (0.01, 100, 32, 0.03, 0.003),
            (0.1, 200, 64, 0.03, 0.003),
            (1.0, 313, 128, 0.1, 0.03),
        )
    },
}


def raw_pixels(images: tf.Tensor) -> tf.Tensor:
    """The encoder that any other should beat: pixels as features, float32 in [0, 1]."""
    return tf.cast(images, tf.float32) / 255.0


def compare(
    encoders: Mapping[str, AnyEncoder],
    evals: Mapping[str, Mapping[str, Any]],
    splits: Mapping[str, Labelled],
    *,
    data: str,
    seed: int = 0,
    verbose: bool = False,
) -> Iterator[Result]:
    """Measures every encoder by every evaluation. The features of an encoder are extracted once.

    Args:
        encoders: name -> keras.Model or function from images [B, H, W, C] in [0, 255] to features. Protocols that need a
            network pass over functions.
        evals: label -> settings, and as "protocol" a key of `PROTOCOLS` where that is not the label itself.
        splits: as `Protocol.run` takes them.
        data: name of the images, for the results.
        seed: of every evaluation that draws something and sets no seed of its own.
        verbose: whether to show progress bars.

    Yields:
        One result an encoder and evaluation, as they are ready: with the encoder's name and hash, the data and the label.

    Raises:
        ValueError: for an unknown protocol; as `Protocol.run`.
    """
    for label, given in evals.items():
        settings = dict(given)
        PROTOCOLS[settings.pop("protocol", label)].check(splits, **settings)
    for name, given_encoder in encoders.items():
        encoder = as_encoder(given_encoder)
        is_network = isinstance(encoder, keras.Model)
        digest = encoder_hash(encoder) if is_network else None
        features: Features = {}
        for label, given in evals.items():
            settings = dict(given)
            protocol = PROTOCOLS[settings.pop("protocol", label)]
            if protocol.network and not is_network:
                continue
            if "seed" in protocol.settings:
                settings.setdefault("seed", seed)
            result = protocol.run(encoder, splits, features=features, verbose=verbose, **settings)
            if not is_network:
                # A function has no hash that would tell those of gray and of colour images apart.
                channels = shape_of(splits["test"])[-1]
                result = dataclasses.replace(result, details={**result.details, "channels": channels})
            now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
            yield dataclasses.replace(
                result, label=label, encoder=name, encoder_hash=digest, data=data, time=now
            )
