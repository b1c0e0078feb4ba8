"""Preprocessing inside the model: from the pixels people have to the features people want."""

from collections.abc import Sequence

import keras
import numpy as np


def with_preprocessing(
    encoder: keras.Model,
    mean: Sequence[float] | float,
    std: Sequence[float] | float,
    size: int | Sequence[int] | None = None,
    antialias: bool = False,
    name: str | None = None,
) -> keras.Model:
    """Puts resizing and normalisation in front of an encoder.

    The result computes ``encoder((images / 255 - mean) / std)``. It is made of Keras's own layers alone, so
    its ``.keras`` file loads, and its exports run, where keras_sslhsic is not installed.

    Args:
        encoder: keras.Model from normalised float images [B, H, W, C] to features [B, F]; its weights are
            shared.
        mean: mean of each channel, of pixels in [0, 1]; one number or C of them.
        std: standard deviation of each channel, of pixels in [0, 1]; positive.
        size: side, or (height, width), that images are resized to (bilinear, aspect ratio not kept). None
            leaves them as they are.
        antialias: whether shrinking averages over all the pixels it covers. Off by default, as in the
            preprocessing that the released networks were trained and evaluated with; LiteRT and ONNX cannot
            express it.
        name: name of the model; by default the encoder's.

    Returns:
        keras.Model from images [B, H, W, C], uint8 or float in [0, 255], to float32 features [B, F]. With
        `size`, H and W are free.

    Raises:
        ValueError: if `encoder` does not read images, or `mean` and `std` do not fit its channels.

    Example:
        >>> model = with_preprocessing(encoder, mean=0.286, std=0.353)
        >>> features = model(images_uint8)
    """
    shape = encoder.input_shape
    if not isinstance(shape, tuple) or len(shape) != 4:
        raise ValueError(f"The encoder must read images [B, H, W, C], found input shape {shape}.")
    channels = shape[-1]
    means, stds = _per_channel(mean, channels, "mean"), _per_channel(std, channels, "std")
    if not np.all(stds > 0):
        raise ValueError(f"std must be positive, found {stds.tolist()}.")

    images = keras.Input(shape[1:] if size is None else (None, None, channels), dtype="float32", name="image")
    # Normalised first: resizing rounds integer images to integers. float32 throughout: a half-precision
    # policy must not round the pixels.
    x = keras.layers.Rescaling(
        (1 / (255 * stds)).tolist(), (-means / stds).tolist(), dtype="float32", name="normalize"
    )(images)
    if size is not None:
        size = (size, size) if isinstance(size, int) else tuple(size)
        # Not keras.layers.Resizing: its default training=True reaches the layers after it (Keras 3.15), and
        # BatchNormalization would normalise by the batch.
        x = keras.ops.image.resize(x, size, interpolation="bilinear", antialias=antialias)
    features = keras.layers.Identity(dtype="float32", name="float32")(encoder(x))
    return keras.Model(images, features, name=name or encoder.name)


def _per_channel(value, channels: int, what: str) -> np.ndarray:
    value = np.asarray(value, np.float64)
    if value.ndim > 1 or value.size not in (1, channels):
        raise ValueError(
            f"{what} must have 1 or {channels} values for {channels} channels, found {value.tolist()}."
        )
    return np.broadcast_to(value, (channels,))
