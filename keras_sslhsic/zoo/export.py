"""Encoders for serving: SavedModel, LiteRT and ONNX files that run without this package."""

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.networks.folding import fold_batch_norm
from keras_sslhsic.zoo import files
from keras_sslhsic.zoo.encoder import encoder_of, sides_seen


def export(model: keras.Model, path: str | os.PathLike, keep_batch_norm: bool = False) -> None:
    """Exports an encoder, as the path's ending says: ``.tflite``, ``.onnx``, or a folder for a SavedModel.

    Raises:
        ValueError: for other endings, but versions (``v1.2``) and ``.savedmodel``; or if `keep_batch_norm` goes
            with a file, which cannot be trained on.
    """
    suffix = Path(path).suffix.lower()
    if suffix[1:2].isalpha() and suffix not in (".tflite", ".onnx", ".savedmodel"):
        raise ValueError(
            f"{path}: nothing is written to {suffix} files. Give NAME.tflite, NAME.onnx, or for a SavedModel the name "
            "of a folder without an ending."
        )
    if keep_batch_norm and suffix in (".tflite", ".onnx"):
        raise ValueError(f"keep_batch_norm is for SavedModels; {suffix} files are not trained on.")
    if suffix == ".tflite":
        export_litert(model, path)
    elif suffix == ".onnx":
        export_onnx(model, path)
    else:
        export_saved_model(model, path, keep_batch_norm)


def export_saved_model(model: keras.Model, path: str | os.PathLike, keep_batch_norm: bool = False) -> None:
    """Exports an encoder as a SavedModel, which needs TensorFlow alone.

    Signatures, for any batch size:

    - ``serving_default``: ``image`` uint8 [B, H, W, C] -> ``features`` float32 [B, F];
    - ``encoded``, for 1, 3 or 4 channels: ``bytes`` string [B], each a JPEG, PNG, WebP, BMP or GIF (its first
      frame) file -> ``features``. EXIF orientation is not applied.

    For fine-tuning, the loaded object has ``trainable_variables`` and ``train``, the function of float images
    in [0, 255]. What is served follows the variables.

    Args:
        model: an encoder of pixels (`load_pretrained`, `networks.with_preprocessing`), or a trained SSLHSIC.
        path: folder to make. It must not hold anything but an earlier export.
        keep_batch_norm: by default batch normalisation is folded into the convolutions (`fold_batch_norm`),
            which answers a tenth faster; fine-tuning then trains kernels and biases. If true, ``train`` normalises
            by the batch and updates the moving statistics.

    Raises:
        ValueError: if `model` does not read images, or `path` is taken.

    Example:
        >>> export_saved_model(encoder, "served/1")
        >>> served = tf.saved_model.load("served/1").signatures["serving_default"]
        >>> features = served(image=tf.constant(images_uint8))["features"]
    """
    model = encoder_of(model)
    target = Path(path)
    if target.is_file() or (target.is_dir() and any(target.iterdir()) and not _is_saved_model(target)):
        raise ValueError(f"{target} is taken by something that is no SavedModel: choose another path.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        _write_saved_model(model if keep_batch_norm else _fold(model), f"{folder}/model")
        if target.exists():
            shutil.rmtree(target)
        os.replace(f"{folder}/model", target)


def export_litert(model: keras.Model, path: str | os.PathLike) -> None:
    """Exports an encoder as a LiteRT (TensorFlow Lite) file: ``image`` uint8 [B, H, W, C] -> ``features``.

    Every size that is free in the model is free in the file: set it with ``resize_tensor_input``.

    Raises:
        ValueError: if `model` does not read images, computes in half precision, or LiteRT lacks one of its
            operations (antialiasing) or answers otherwise than the model.
    """
    model = encoder_of(model)
    _check_precision(model, "LiteRT")
    with tempfile.TemporaryDirectory() as folder:
        _write_saved_model(_fold(model), folder)
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
    with files.written_whole(path) as temporary:
        temporary.write_bytes(content)


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
    model = encoder_of(model)
    _check_precision(model, "ONNX")
    serve = tf.function(_serve(_fold(model)))
    try:
        proto, _ = tf2onnx.convert.from_function(serve, input_signature=[_image_spec(model)], opset=opset)
        content = proto.SerializeToString()
        # tf2onnx also writes operations that ONNX does not have, and only logs them.
        session = onnxruntime.InferenceSession(content)
    except Exception as error:  # both raise many types
        raise ValueError(f"ONNX cannot express this encoder: {error}") from error
    _check_answer(model, lambda image: session.run(["features"], {"image": image})[0], "ONNX")
    with files.written_whole(path) as temporary:
        temporary.write_bytes(content)


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
    sides = (side or 64 for side in model.input_shape[1:3])
    image = np.random.default_rng(0).integers(0, 256, (1, *sides, model.input_shape[-1]), np.uint8)
    expected = np.asarray(_serve(model)(tf.constant(image))["features"])
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


def _is_saved_model(folder: Path) -> bool:
    return (folder / "saved_model.pb").exists()


def _image_spec(model: keras.Model, dtype=tf.uint8) -> tf.TensorSpec:
    return tf.TensorSpec((None, *model.input_shape[1:]), dtype, name="image")


def _serve(model: keras.Model):
    def serve(image):
        return {"features": model(tf.cast(image, tf.float32), training=False)}

    return serve


class _Served(tf.Module):
    """What a SavedModel holds. Keras's own export archive would write every weight twice."""

    variables: Any = ()
    trainable_variables: Any = ()


def _write_saved_model(model: keras.Model, path: str) -> None:
    def train(image):
        return model(image, training=True)

    def encoded_one(data):
        return tf.cast(model(_decoder(model)(data)[tf.newaxis], training=False)[0], tf.float32)

    def encoded(data):
        if None in sides_seen(model)[:2]:  # images of different sizes make no batch
            features = tf.TensorSpec(model.output_shape[1:], tf.float32)
            return {"features": tf.map_fn(encoded_one, data, fn_output_signature=features)}
        images = tf.map_fn(
            _decoder(model), data, fn_output_signature=tf.TensorSpec(sides_seen(model), tf.float32)
        )
        return {"features": model(images, training=False)}

    def traced(function, spec):
        return tf.function(function, input_signature=[spec], autograph=False)

    with _for_fine_tuning(model):
        served = _Served()
        served.variables = [compat.tensor(v) for v in model.variables]
        served.trainable_variables = [compat.tensor(v) for v in model.trainable_variables]
        served.train = traced(train, _image_spec(model, tf.float32))
        signatures = {
            "serving_default": traced(_serve(model), _image_spec(model)),
        }
        if model.input_shape[-1] in (1, 3, 4):
            signatures["encoded"] = traced(encoded, tf.TensorSpec([None], tf.string, name="bytes"))
        tf.saved_model.save(served, path, signatures)


def _decoder(model: keras.Model):
    height, width, channels = sides_seen(model)

    def decode(data):
        image = tf.cast(_pixels(data, channels), tf.float32)
        image.set_shape([None, None, channels])
        return image if height is None or width is None else tf.image.resize(image, (height, width))

    return decode


def _pixels(data: tf.Tensor, channels: int) -> tf.Tensor:
    if channels == 3:
        return tf.io.decode_image(data, 3, expand_animations=False)
    # Every format can be asked for the channels that the file has, and not every one for others.
    image = tf.io.decode_image(data, 0, expand_animations=False)
    found = tf.shape(image)[-1]
    colours, transparent = image[..., : found - 1 + found % 2], found % 2 == 0
    if channels == 1:
        return tf.cond(found > 2, lambda: tf.image.rgb_to_grayscale(colours), lambda: colours)
    alpha = tf.cond(transparent, lambda: image[..., -1:], lambda: tf.ones_like(image[..., :1]) * 255)
    return tf.concat([tf.broadcast_to(colours, [*tf.unstack(tf.shape(image)[:2]), 3]), alpha], -1)


@contextlib.contextmanager
def _for_fine_tuning(model: keras.Model) -> Iterator[None]:
    """Unfreezes a model for the time of an export, and keeps its statistics to one device.

    A synchronised sum has a gradient of its own, which a SavedModel cannot restore without complaint.
    """
    layers = list(model._flatten_layers())
    trainable = [layer.trainable for layer in layers]
    synchronized = [layer for layer in layers if getattr(layer, "synchronized", False)]
    compat.set_trainable(model, True)
    for layer in synchronized:
        layer.synchronized = False
    try:
        yield
    finally:
        for layer in synchronized:
            layer.synchronized = True
        for layer, flag in zip(reversed(layers), reversed(trainable), strict=True):
            layer.trainable = flag
