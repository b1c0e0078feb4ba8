"""Encoders as SavedModels, which need TensorFlow alone."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import checks, compat, files, lock
from keras_sslhsic.data import decode
from keras_sslhsic.data.central import traced_square
from keras_sslhsic.encoders import EncoderSpec, encoder_of
from keras_sslhsic.encoders.preprocess import resizer
from keras_sslhsic.export import decoding
from keras_sslhsic.export.served import folded, image_spec, serve
from keras_sslhsic.version import __version__

NOTE_FILE = f"{compat.NOTE}.json"  # by which an export is known
EXPORTED = {
    *(NOTE_FILE, "saved_model.pb", "fingerprint.pb", "assets"),
    *("variables", "variables/variables.index", "variables/variables.data-00000-of-00001"),
}


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    keep_batch_norm: bool = False,
    max_pixels: int = decode.MAX_PIXELS,
    image_size: int | None = None,
) -> None:
    """Exports an encoder as a SavedModel, which needs TensorFlow alone.

    Signatures, for any batch size:

    - ``serving_default``: ``image`` uint8 [B, H, W, C] -> ``features`` float32 [B, F], as the model gives them;
    - ``encoded``, for 1, 3 or 4 channels: ``bytes`` string [B], each a JPEG, PNG, WebP, BMP or GIF (its first
      frame) file -> ``features``, as `extract` gives them, of the same square of the image, but that EXIF orientation is not
      applied; kinds of BMP, GIF and PNG files that TensorFlow reads otherwise are errors.

    For fine-tuning, the loaded object has ``trainable_variables`` and ``train``, the function of float images
    in [0, 255]. What is served follows the variables.

    Args:
        model: what `encoders.encoder_of` takes: an encoder, or a model that trains one.
        path: folder to make. It may hold an earlier export, which is replaced, and nothing else.
        keep_batch_norm: by default batch normalisation is folded into the convolutions (`fold_batch_norm`),
            which answers a tenth faster; fine-tuning then trains kernels and biases. If true, ``train`` normalises
            by the batch and updates the moving statistics.
        max_pixels: images of more are refused by ``encoded``, by their headers, before they are decoded.
        image_size: side of the central squares that the encoder sees of images of any size, by all signatures. None: it sees
            what `extract` takes of files, and all of ``image``.

    Raises:
        ValueError: if `model` does not read images, or those of another size alone; if `path` is taken or not UTF-8, or
            `max_pixels` is no positive integer.
        OSError: if it cannot be written.
        lock.InUseError: if another process is writing it.

    Example:
        >>> export_saved_model(encoder, "served/1")
        >>> served = tf.saved_model.load("served/1").signatures["serving_default"]
        >>> features = served(image=tf.constant(images_uint8))["features"]
    """
    checks.integer("max_pixels", max_pixels, 1)
    encoder = encoder_of(model)
    encoder.spec.size_for(image_size)
    target = Path(path).resolve()  # of a link, the folder that it leads to
    if not files.is_utf8(target):
        raise ValueError(
            f"{files.display(target)} is not UTF-8, as TensorFlow needs for a SavedModel: choose another path."
        )
    with lock.held(target):
        files.remove_leftovers(target)
        if target.exists():
            _check_replaceable(target)
        with files.replaced_folder(target) as folder:
            served = encoder if keep_batch_norm else folded(encoder)
            _write(served, encoder.spec, str(folder), image_size, max_pixels)
            files.write_json(folder / NOTE_FILE, {"version": __version__})


def _check_replaceable(target: Path) -> None:
    if target.is_file():
        raise ValueError(f"{files.display(target)} is a file: give the name of a folder for a SavedModel.")
    found = {str(file.relative_to(target)): file.is_symlink() for file in target.rglob("*")}
    others = sorted(name for name, is_link in found.items() if is_link or name not in EXPORTED)
    if not found or (NOTE_FILE in found and not others):
        return
    others = others or ["a SavedModel of something else"]
    listed = files.display(", ".join(others[:3])) + (" ..." if len(others) > 3 else "")
    raise ValueError(
        f"{files.display(target)} holds {listed}, and only an earlier export is replaced: choose another path, or "
        "move that away."
    )


class Served(tf.Module):
    """What a SavedModel holds. Keras's own export archive would write every weight twice."""

    variables: Any = ()
    trainable_variables: Any = ()

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.variables = [v.value for v in model.variables]
        self.trainable_variables = [v.value for v in model.trainable_variables]

    def write(self, path: str, signatures: Mapping[str, Callable]) -> None:
        """Writes the SavedModel.

        Raises:
            OSError: if it cannot be written.
        """
        try:
            tf.saved_model.save(self, path, signatures)
        except tf.errors.OpError as error:  # its operations on files have errors of their own
            raise OSError(str(error)) from error


def traced(function: Callable, given: tf.TensorSpec) -> Callable:
    """A function as a SavedModel takes it for a signature."""
    return tf.function(function, input_signature=[given], autograph=False)


def _write(model: keras.Model, spec: EncoderSpec, path: str, image_size: int | None, max_pixels: int) -> None:

    def train(image: tf.Tensor) -> tf.Tensor:
        return serve(model, spec, image_size, training=True)(image)["features"]

    size = spec.size_for(image_size)
    sides, stretched = (size, size, spec.channels) if size else spec.shape_seen, resizer(spec)

    def fit(image: tf.Tensor) -> tf.Tensor:
        if size is None:
            return stretched(image)
        return traced_square(tf.cast(image, tf.float32)[tf.newaxis], size, spec.short_side_for(size))[0]

    def of_any_number(image: tf.Tensor, size: int | None) -> dict[str, tf.Tensor]:
        count, *sides = tf.unstack(tf.shape(image))
        none = tf.cast(count == 0, tf.int32)  # oneDNN's convolutions fail on no images at all
        one_at_least = tf.concat([image, tf.zeros([none, *sides], image.dtype)], axis=0)
        return {"features": serve(model, spec, size)(one_at_least)["features"][:count]}

    def image_of(data: tf.Tensor) -> tf.Tensor:
        return fit(decoding.pixels(data, spec.channels, max_pixels))

    def encoded_one(data: tf.Tensor) -> tf.Tensor:
        return tf.cast(model(image_of(data)[tf.newaxis], training=False)[0], tf.float32)

    def encoded(data: tf.Tensor) -> dict[str, tf.Tensor]:
        def one_by_one(function: Callable, shape: Sequence[int | None], at_a_time: int) -> tf.Tensor:
            result = tf.TensorSpec(shape, tf.float32)
            return tf.map_fn(function, data, parallel_iterations=at_a_time, fn_output_signature=result)

        if None in sides:  # images of different sizes make no batch
            return {"features": one_by_one(encoded_one, [spec.feature_size], 1)}
        # Together they take no more memory than the largest one may.
        counts = tf.map_fn(decoding.count_pixels, data, fn_output_signature=tf.int64)
        images = tf.cond(
            tf.reduce_sum(tf.minimum(counts, max_pixels + 1)) <= max_pixels,
            lambda: one_by_one(image_of, sides, 10),
            lambda: one_by_one(image_of, sides, 1),
        )
        return of_any_number(images, None)

    with _for_fine_tuning(model):
        served = Served(model)
        served.train = traced(train, image_spec(spec, image_size, tf.float32))
        served_images = functools.partial(of_any_number, size=image_size)
        signatures = {"serving_default": traced(served_images, image_spec(spec, image_size))}
        if spec.channels in (1, 3, 4):
            signatures["encoded"] = traced(encoded, tf.TensorSpec([None], tf.string, name="bytes"))
        served.write(path, signatures)


@contextlib.contextmanager
def _for_fine_tuning(model: keras.Model) -> Iterator[None]:
    """Unfreezes a model for the time of an export, and keeps its statistics to one device.

    A synchronised sum has a gradient of its own, which a SavedModel cannot restore without complaint.
    """
    layers = list(compat.every_layer(model))
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
