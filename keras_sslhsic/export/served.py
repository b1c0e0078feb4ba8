"""What all formats write and are held against: the function that is served."""

from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.data.central import traced_square
from keras_sslhsic.encoders import Encoder, EncoderSpec
from keras_sslhsic.encoders.folding import fold_batch_norm
from keras_sslhsic.words import warn


def image_spec(spec: EncoderSpec, size: int | None, dtype: tf.DType = tf.uint8) -> tf.TensorSpec:
    """Images as `serve` takes them, in batches of any size."""
    shape = (None, None, spec.channels) if size else spec.shape
    return tf.TensorSpec((None, *shape), dtype, name="image")


def serve(
    model: Callable[..., tf.Tensor], spec: EncoderSpec, size: int | None, training: bool = False
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """The function of images, uint8 or float in [0, 255], that is served.

    Args:
        model: an encoder with this spec, or what computes as one.
        spec: what it reads and gives.
        size: side of the central squares that it sees of images of any size; None: it sees all of images as it takes them.
        training: whether it trains.
    """

    def features(image: tf.Tensor) -> dict[str, tf.Tensor]:
        image = tf.cast(image, tf.float32)
        seen = traced_square(image, size, spec.short_side_for(size)) if size else image
        return {"features": model(seen, training=training)}

    return features


def folded(encoder: Encoder) -> keras.Model:
    """The encoder with its batch normalisation folded; itself, with a warning, where a layer cannot be copied."""
    try:
        return fold_batch_norm(encoder)
    except Exception as error:  # of copying layers: Lambda, or some without get_config
        warn(
            "Batch normalisation is not folded, which is a tenth slower, as a layer cannot be copied: "
            + str(error).split(". ")[0],
        )
        return encoder


def check_answer(
    encoder: Encoder, size: int | None, answer: Callable[[np.ndarray], np.ndarray], target: str
) -> None:
    """Raises ValueError unless a converted encoder answers as what is served does, for one image of noise."""
    sides = (side or 256 for side in encoder.spec.shape[:2])
    image = np.random.default_rng(0).integers(0, 256, (1, *sides, encoder.spec.channels), np.uint8)
    expected = np.asarray(serve(encoder, encoder.spec, size)(tf.constant(image))["features"])
    try:
        difference = np.abs(answer(image) - expected).max() / max(1.0, np.abs(expected).max())
    except Exception as error:  # of the runtime
        raise ValueError(f"{target} cannot run this encoder: {error}") from error
    if not difference <= 1e-3:
        raise ValueError(f"{target} does not compute this encoder: its features are off by {difference:.2g}.")


def check_precision(encoder: Encoder, target: str) -> None:
    """Raises ValueError for an encoder that computes in another precision than float32."""
    others = compat.precisions(encoder) & {"float16", "bfloat16", "float64"}
    if others:
        raise ValueError(
            f"{target} files are written in float32, and this encoder computes in {others.pop()}: build it in float32 and "
            "give it the weights with set_weights; or export a SavedModel."
        )
