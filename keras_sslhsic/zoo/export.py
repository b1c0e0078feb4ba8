"""Encoders for serving: SavedModel, LiteRT and ONNX files that run without this package."""

import os
import re
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import files, lock
from keras_sslhsic.data import decode
from keras_sslhsic.encoders.base import encoder_of
from keras_sslhsic.encoders.folding import fold_batch_norm
from keras_sslhsic.version import __version__
from keras_sslhsic.zoo import model_files, saved_model

NOTE_FILE = f"{model_files.NOTE}.json"  # by which an export is known
EXPORTED = {
    NOTE_FILE,
    "saved_model.pb",
    "fingerprint.pb",
    "assets",
    "variables",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
}


def export(model: keras.Model, path: str | os.PathLike, keep_batch_norm: bool = False) -> None:
    """Exports an encoder, as the path's ending says: ``.tflite``, ``.onnx``, or a folder for a SavedModel.

    Raises:
        ValueError: for other endings, but versions (``v1.2``) and ``.savedmodel``; or if `keep_batch_norm` goes
            with a file, which cannot be trained on.
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
        export_litert(model, path)
    elif suffix == ".onnx":
        export_onnx(model, path)
    else:
        export_saved_model(model, path, keep_batch_norm)


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    keep_batch_norm: bool = False,
    max_pixels: int = decode.MAX_PIXELS,
) -> None:
    """Exports an encoder as a SavedModel, which needs TensorFlow alone.

    Signatures, for any batch size:

    - ``serving_default``: ``image`` uint8 [B, H, W, C] -> ``features`` float32 [B, F];
    - ``encoded``, for 1, 3 or 4 channels: ``bytes`` string [B], each a JPEG, PNG, WebP, BMP or GIF (its first
      frame) file -> ``features``. EXIF orientation is not applied.

    For fine-tuning, the loaded object has ``trainable_variables`` and ``train``, the function of float images
    in [0, 255]. What is served follows the variables.

    Args:
        model: an encoder of pixels (`load_pretrained`, `encoders.with_preprocessing`), or a trained SSLHSIC.
        path: folder to make. It may hold an earlier export, which is replaced, and nothing else.
        keep_batch_norm: by default batch normalisation is folded into the convolutions (`fold_batch_norm`),
            which answers a tenth faster; fine-tuning then trains kernels and biases. If true, ``train`` normalises
            by the batch and updates the moving statistics.
        max_pixels: images of more are refused by ``encoded``, by their headers, before they are decoded.

    Raises:
        ValueError: if `model` does not read images, or `path` is taken.
        OSError: if it cannot be written.
        lock.InUseError: if another process is writing it.

    Example:
        >>> export_saved_model(encoder, "served/1")
        >>> served = tf.saved_model.load("served/1").signatures["serving_default"]
        >>> features = served(image=tf.constant(images_uint8))["features"]
    """
    model = encoder_of(model)
    target = Path(path).resolve()  # of a link, the folder that it leads to
    with lock.held(target):
        files.remove_leftovers(target)
        if target.exists():
            _check_replaceable(target)
        with files.replaced_folder(target) as folder:
            try:
                saved_model.write(model if keep_batch_norm else _fold(model), str(folder), max_pixels)
            except tf.errors.OpError as error:  # its operations on files have errors of their own
                raise OSError(str(error)) from error
            files.write_json(folder / NOTE_FILE, {"version": __version__})


def export_litert(model: keras.Model, path: str | os.PathLike) -> None:
    """Exports an encoder as a LiteRT (TensorFlow Lite) file: ``image`` uint8 [B, H, W, C] -> ``features``.

    Every size that is free in the model is free in the file: set it with ``resize_tensor_input``.

    Raises:
        ValueError: if `model` does not read images, computes in half precision, or LiteRT lacks one of its
            operations (antialiasing) or answers otherwise than the model.
    """
    files.check_writable(path)
    model = encoder_of(model)
    _check_precision(model, "LiteRT")
    with tempfile.TemporaryDirectory() as folder:
        saved_model.write(_fold(model), folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=["serving_default"])
        try:
            content = converter.convert()
        except Exception as error:  # the converter raises several private types
            raise ValueError(f"LiteRT cannot express this encoder: {error}") from error

    def answer(image):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that TensorFlow 2.20 were to lose it
            interpreter = tf.lite.Interpreter(model_content=content)
        return interpreter.get_signature_runner("serving_default")(image=image)["features"]

    _check_answer(model, answer, "LiteRT")
    with lock.held(path):
        files.write_bytes(path, content)


def export_onnx(model: keras.Model, path: str | os.PathLike, opset: int = 17) -> None:
    """Exports an encoder as an ONNX file: ``image`` uint8 [B, H, W, C] -> ``features``.

    Args:
        model: an encoder of pixels.
        path: the file to write.
        opset: version of the ONNX operators.

    Raises:
        ImportError: without tf2onnx and onnxruntime (``pip install keras_sslhsic[onnx]``).
        ValueError: if `model` does not read images, computes in half precision, or ONNX lacks one of its
            operations (antialiasing) or ONNX Runtime answers otherwise than the model.
    """
    try:
        import onnxruntime
        import tf2onnx
    except ImportError as error:
        raise ImportError(
            "Exporting to ONNX needs tf2onnx and onnxruntime: pip install 'keras_sslhsic[onnx]'."
        ) from error
    files.check_writable(path)
    model = encoder_of(model)
    _check_precision(model, "ONNX")
    serve = tf.function(saved_model.serve(_fold(model)))
    try:
        proto, _ = tf2onnx.convert.from_function(
            serve, input_signature=[saved_model.image_spec(model)], opset=opset
        )
        content = proto.SerializeToString()
        # tf2onnx also writes operations that ONNX does not have, and only logs them.
        session = onnxruntime.InferenceSession(content)
    except Exception as error:  # both raise many types
        raise ValueError(f"ONNX cannot express this encoder: {error}") from error
    _check_answer(model, lambda image: session.run(["features"], {"image": image})[0], "ONNX")
    with lock.held(path):
        files.write_bytes(path, content)


def _fold(model: keras.Model) -> keras.Model:
    try:
        return fold_batch_norm(model)
    except Exception as error:  # of copying layers: Lambda, or some without get_config
        warnings.warn(
            "Batch normalisation is not folded, which is a tenth slower, as a layer cannot be copied: "
            + str(error).split(". ")[0],
            stacklevel=4,
        )
        return model


def _check_answer(model: keras.Model, answer: Callable[[np.ndarray], np.ndarray], target: str) -> None:
    """Raises ValueError unless a converted encoder answers as the model does, for one image of noise."""
    sides = (side or 256 for side in model.input_shape[1:3])
    image = np.random.default_rng(0).integers(0, 256, (1, *sides, model.input_shape[-1]), np.uint8)
    expected = np.asarray(saved_model.serve(model)(tf.constant(image))["features"])
    try:
        difference = np.abs(answer(image) - expected).max() / max(1.0, np.abs(expected).max())
    except Exception as error:  # of the runtime
        raise ValueError(f"{target} cannot run this encoder: {error}") from error
    if not difference <= 1e-3:
        raise ValueError(f"{target} does not compute this encoder: its features are off by {difference:.2g}.")


def _check_precision(model: keras.Model, target: str) -> None:
    half = {layer.compute_dtype for layer in model._flatten_layers()} & {"float16", "bfloat16"}
    if half:
        raise ValueError(
            f"{target} files are written in float32, and this encoder computes in {half.pop()}: build it in float32 and "
            "give it the weights, which are float32, with set_weights; or export a SavedModel."
        )


def _check_replaceable(target: Path) -> None:
    if target.is_file():
        raise ValueError(f"{files.display(target)} is a file: give the name of a folder for a SavedModel.")
    found = {str(file.relative_to(target)) for file in target.rglob("*")}
    links = {str(file.relative_to(target)) for file in target.rglob("*") if file.is_symlink()}
    if not found or (NOTE_FILE in found and found <= EXPORTED and not links):
        return
    others = sorted((found - EXPORTED) | links) or ["a SavedModel of something else"]
    listed = files.display(", ".join(others[:3])) + (" ..." if len(others) > 3 else "")
    raise ValueError(
        f"{files.display(target)} holds {listed}, and only an earlier export is replaced: choose another path, or "
        "move that away."
    )
