"""The format of an export, by the ending of its name."""

import os
import re
from pathlib import Path

import keras

from keras_sslhsic import files
from keras_sslhsic.export.litert import export_litert
from keras_sslhsic.export.onnx import export_onnx
from keras_sslhsic.export.saved_model import export_saved_model


def write(
    model: keras.Model, path: str | os.PathLike, keep_batch_norm: bool = False, image_size: int | None = None
) -> None:
    """Exports an encoder, as the path's ending says: ``.tflite``, ``.onnx``, or a folder for a SavedModel.

    Args:
        model: what `encoders.encoder_of` takes.
        path: to write to.
        keep_batch_norm: see `export_saved_model`.
        image_size: see `export_saved_model`.

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
    if suffix == ".tflite":
        export_litert(model, path, image_size)
    elif suffix == ".onnx":
        export_onnx(model, path, image_size=image_size)
    else:
        export_saved_model(model, path, keep_batch_norm, image_size=image_size)
