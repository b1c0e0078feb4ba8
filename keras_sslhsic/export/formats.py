"""The format of an export, by the ending of its name."""

import os
import re
from pathlib import Path

import keras

from keras_sslhsic import files
from keras_sslhsic.encoders import encoder_of
from keras_sslhsic.export.litert import export_litert
from keras_sslhsic.export.onnx import export_onnx
from keras_sslhsic.export.saved_model import export_saved_model


def write(
    model: keras.Model, path: str | os.PathLike, keep_batch_norm: bool = False, image_size: int | None = None
) -> None:
    """Exports an encoder, as the path's ending says: ``.tflite``, ``.onnx``, or a folder for a SavedModel.

    Other than `export_saved_model`, `export_litert` and `export_onnx` by themselves, it has arrays of any size made the squares
    that `extract` makes of files.

    Args:
        model: what `encoders.encoder_of` takes.
        path: to write to.
        keep_batch_norm: see `export_saved_model`.
        image_size: side of the central squares that the encoder sees of images of any size; None: that of `extract`.

    Raises:
        ValueError: for other endings, but versions (``v1.2``) and ``.savedmodel``; or if `keep_batch_norm` goes
            with a file, which cannot be trained on; for a size that the encoder cannot be given.
    """
    suffix = Path(path).suffix.lower()
    if not re.fullmatch(r"|\.(v?\d.*|tflite|onnx|savedmodel)", suffix):
        raise ValueError(
            f"{files.display(path)}: nothing is written to {files.display(suffix)} files. Give NAME.tflite, NAME.onnx, or "
            "for a SavedModel the name of a folder without an ending."
        )
    if keep_batch_norm and suffix in (".tflite", ".onnx"):
        raise ValueError(f"keep_batch_norm is for SavedModels; {suffix} files are not trained on.")
    encoder = encoder_of(model)
    size = encoder.spec.size_for(image_size)
    if suffix == ".tflite":
        export_litert(encoder, path, size)
    elif suffix == ".onnx":
        export_onnx(encoder, path, image_size=size)
    else:
        export_saved_model(encoder, path, keep_batch_norm, image_size=size)
