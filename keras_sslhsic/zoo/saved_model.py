"""What is in a SavedModel of an encoder: its functions, signatures and variables."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.zoo.encoder import resizer, sides_seen


def image_spec(model: keras.Model, dtype=tf.uint8) -> tf.TensorSpec:
    """Images as a model takes them, in batches of any size."""
    return tf.TensorSpec((None, *model.input_shape[1:]), dtype, name="image")


def serve(model: keras.Model) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """The function of images, uint8 or float in [0, 255], that is served."""

    def features(image):
        return {"features": model(tf.cast(image, tf.float32), training=False)}

    return features


class _Served(tf.Module):
    """What a SavedModel holds. Keras's own export archive would write every weight twice."""

    variables: Any = ()
    trainable_variables: Any = ()


def write(model: keras.Model, path: str) -> None:
    """Writes a SavedModel with the signatures of `export_saved_model`."""

    def train(image):
        return model(image, training=True)

    sides, fit = sides_seen(model), resizer(model)

    def image_of(data):
        return fit(_pixels(data, sides[-1]))

    def encoded_one(data):
        return tf.cast(model(image_of(data)[tf.newaxis], training=False)[0], tf.float32)

    def encoded(data):
        if None in sides:  # images of different sizes make no batch
            features = tf.TensorSpec(model.output_shape[1:], tf.float32)
            return {"features": tf.map_fn(encoded_one, data, fn_output_signature=features)}
        images = tf.map_fn(image_of, data, fn_output_signature=tf.TensorSpec(sides, tf.float32))
        return {"features": model(images, training=False)}

    def traced(function, spec):
        return tf.function(function, input_signature=[spec], autograph=False)

    with _for_fine_tuning(model):
        served = _Served()
        served.variables = [compat.tensor(v) for v in model.variables]
        served.trainable_variables = [compat.tensor(v) for v in model.trainable_variables]
        served.train = traced(train, image_spec(model, tf.float32))
        signatures = {"serving_default": traced(serve(model), image_spec(model))}
        if model.input_shape[-1] in (1, 3, 4):
            signatures["encoded"] = traced(encoded, tf.TensorSpec([None], tf.string, name="bytes"))
        tf.saved_model.save(served, path, signatures)


def _pixels(data: tf.Tensor, channels: int) -> tf.Tensor:
    """Decodes a file to uint8 [H, W, channels]."""
    # By default TensorFlow takes another cosine transform than Pillow. Every format can be asked for the channels that
    # the file has, and not every one for others.
    with tf.control_dependencies([_check_still(data)]):
        data = tf.identity(data)
    image = tf.cond(
        tf.io.is_jpeg(data),
        lambda: tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE"),
        lambda: tf.io.decode_image(data, expand_animations=False),
    )
    found = tf.shape(image)[-1]
    colours = image[..., : found - 1 + found % 2]
    bitmap = tf.strings.substr(data, 0, 2) == b"BM"  # its fourth byte fills up, and is no transparency
    transparent = (found % 2 == 0) & ~bitmap
    if channels == 1:
        image = tf.cond(found > 2, lambda: _luma(colours), lambda: colours)
    else:
        alpha = tf.cond(transparent, lambda: image[..., -1:], lambda: tf.ones_like(image[..., :1]) * 255)
        colours = tf.broadcast_to(colours, [*tf.unstack(tf.shape(image)[:2]), 3])
        image = colours if channels == 3 else tf.concat([colours, alpha], -1)
    image.set_shape([None, None, channels])
    return image


def _luma(colours: tf.Tensor) -> tf.Tensor:
    """ITU-R 601, in whole numbers as Pillow rounds it."""
    weighted = tf.cast(colours, tf.int32) * [19595, 38470, 7471]
    return tf.cast((tf.reduce_sum(weighted, -1, keepdims=True) + 32768) // 65536, tf.uint8)


def _check_still(data: tf.Tensor) -> tf.Operation:
    """Animated WebP files, which TensorFlow 2.20 dies of, are errors; the file's head has a bit for them."""
    head = tf.strings.join([data, "\0" * 21])  # of any length
    extended = (tf.strings.substr(head, 0, 4) == b"RIFF") & (tf.strings.substr(head, 8, 8) == b"WEBPVP8X")
    flags = tf.io.decode_raw(tf.strings.substr(head, 20, 1), tf.uint8)[0]
    animated = extended & (tf.bitwise.bitwise_and(flags, tf.constant(2, tf.uint8)) > 0)
    return tf.debugging.Assert(~animated, ["Animated WebP files cannot be decoded: send their first frame."])


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
