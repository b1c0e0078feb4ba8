"""Encoders as LiteRT (TensorFlow Lite) files."""

import os
import re
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import files, lock
from keras_sslhsic.encoders import encoder_of
from keras_sslhsic.export.saved_model import Served, traced
from keras_sslhsic.export.served import check_answer, check_precision, folded, image_spec, serve


def export_litert(model: keras.Model, path: str | os.PathLike, image_size: int | None = None) -> None:
    """Exports an encoder as a LiteRT (TensorFlow Lite) file: ``image`` uint8 [B, H, W, C] -> ``features``.

    Every size that is free in the model is free in the file, but for that at least one image is wanted: set it with
    ``resize_tensor_input``.

    Args:
        model: what `encoders.encoder_of` takes.
        path: the file to write.
        image_size: side of the central squares that it sees of images of any size; None: it sees all of them, as the model.

    Raises:
        ValueError: if `model` does not read images, or those of another size alone, computes in half precision, or LiteRT lacks
            one of its operations (antialiasing) or answers otherwise than the model.
        OSError: if it cannot be written, nor the SavedModel that it is made of where temporary files go.
    """
    files.check_writable(path)
    encoder = encoder_of(model)
    encoder.spec.size_for(image_size)
    check_precision(encoder, "LiteRT")
    with tempfile.TemporaryDirectory() as folder:
        with files.named(folder):
            # Not that of `export_saved_model`, which adds an image where there is none: XNNPACK spoils memory then.
            network = folded(encoder)
            answered = traced(serve(network, encoder.spec, image_size), image_spec(encoder.spec, image_size))
            Served(network).write(folder, {"serving_default": answered})
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["serving_default"])
        try:
            content = converter.convert()
        except Exception as error:  # the converter raises several private types
            # Among pages of the converter's own language.
            lacking = re.search(r"'tf\.(\w+)' op is", str(error))
            why = f"it has no operation {lacking[1]}." if lacking else str(error)[:300]
            raise ValueError(f"LiteRT cannot express this encoder: {why}") from error

    def answer(image: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that TensorFlow 2.20 were to lose it
            interpreter = tf.lite.Interpreter(model_content=content)
        return interpreter.get_signature_runner("serving_default")(image=image)["features"]

    check_answer(encoder, image_size, answer, "LiteRT")
    with lock.held(path):
        files.write_bytes(path, content)
