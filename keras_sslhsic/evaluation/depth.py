"""Depth of each pixel by up-projections on the encoder, as the paper transfers to NYUv2.

Four fast up-projection blocks (Laina et al. 2016, arXiv:1606.00373) of 512, 256, 128 and 64 channels on the last map, reverse
Huber loss; images of half their size, the central 228 x 304; mirroring and other colours; 7,500 steps (appendix D).
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic.encoders.resnet import BATCH_NORM
from keras_sslhsic.evaluation import dense, dense_protocol
from keras_sslhsic.evaluation.dense_sets import FOR_DEPTH
from keras_sslhsic.evaluation.protocol import register
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.hsic import replicas
from keras_sslhsic.views import ops
from keras_sslhsic.views.draws import uniform

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULTS: Mapping[str, Any] = {
    "learning_rates": (0.05,),
    "weight_decays": (1e-3,),
    "steps": 7500,
    "batch_size": 256,
}
LEAST = 1e-3  # metres, of a prediction
_CHANNELS = (512, 256, 128, 64)


def up_convolution(x: Any, channels: int, seed: int, name: str) -> Any:
    """Doubles a map by zeros after each pixel, to the right and below, and convolves it by 5x5.

    A transposed convolution computes the same without the products by zero, which is what makes an up-projection a fast one.
    """
    taps = 25 / 4  # of a kernel that meet pixels, on average
    x = keras.layers.Conv2DTranspose(
        channels, 5, strides=2, padding="valid", use_bias=False, name=f"{name}_conv",
        kernel_initializer=dense.initial(taps * x.shape[-1], seed),
    )(x)  # fmt: skip
    x = keras.layers.Cropping2D(((2, 1), (2, 1)), name=f"{name}_crop")(x)
    return keras.layers.BatchNormalization(name=f"{name}_bn", **BATCH_NORM)(x)


def up_projection(x: Any, channels: int, seed: int, name: str) -> Any:
    """A map of twice the height and width: relu(conv3x3(relu(up(x))) + up(x)), each with batch normalisation."""
    inner = keras.layers.ReLU(name=f"{name}_relu0")(up_convolution(x, channels, seed, f"{name}_up0"))
    inner = dense.conv_bn(inner, channels, seed + 1, f"{name}_inner", relu=False)
    way_around = up_convolution(x, channels, seed + 2, f"{name}_up1")
    return keras.layers.ReLU(name=f"{name}_relu1")(keras.layers.Add(name=f"{name}_add")([inner, way_around]))


def head(x: Any, stride: int, num_classes: int | None, width: float, seed: int) -> Any:
    """Depth [B, h, w, 1] of a map, in metres; as many of the four blocks as lead to stride 2."""
    for number, channels in enumerate(_CHANNELS):
        if stride > 2:
            x = up_projection(x, max(1, round(channels * width)), seed + 3 * number, f"up{number}")
            stride //= 2
    return keras.layers.Conv2D(
        1, 3, padding="same", kernel_initializer=dense.initial(9 * x.shape[-1], seed + 12), dtype="float32", name="depth"
    )(x)  # fmt: skip


def is_known(depths: Any) -> Any:
    """Whether a depth was measured: it is finite and above 0."""
    return (depths > 0) & (depths < np.inf)


def reverse_huber(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """Mean over the known pixels of |r| up to c, and (r^2 + c^2) / (2 c) beyond, c a fifth of the largest |r| of the batch.

    Args:
        targets: float32 [B, H, W], metres.
        predictions: float32 [B, H, W, 1].
    """
    known = is_known(targets)
    residuals = tf.abs(tf.where(known, predictions[..., 0] - targets, 0.0))
    largest = tf.reduce_max(replicas.all_gather(tf.stop_gradient(tf.reduce_max(residuals))[None]))
    limit = tf.maximum(largest / 5.0, 1e-6)
    each = tf.where(residuals <= limit, residuals, (residuals**2 + limit**2) / (2.0 * limit))
    return dense.mean_where(known, each)


def errors(target: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Sums over the known pixels of a map, float64 [6]: their number, those within 1.25, 1.25^2 and 1.25^3 times, squared and
    relative errors."""
    known = is_known(target)
    d, e = target[known].astype(np.float64), predicted[known].astype(np.float64)
    ratio = np.maximum(d / e, e / d)
    within = [np.sum(ratio < 1.25**k) for k in (1, 2, 3)]
    return np.array([d.size, *within, np.sum((e - d) ** 2), np.sum(np.abs(e - d) / d)], np.float64)


def _measures(sums: np.ndarray) -> dict[str, float]:
    _, *within, squared, relative = sums / max(sums[0], 1.0)
    names = ("pct1.25", "pct1.25^2", "pct1.25^3")
    return dict(zip(names, map(float, within), strict=True)) | {
        "rms": float(squared**0.5),
        "rel": float(relative),
    }


def recolour(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Gray with probability 0.3, brightness +-0.1255, saturation 0.5 to 1.5, hue +-0.2 turns: of [B, H, W, C] in [0, 255]."""
    draws = tf.unstack(uniform([tf.shape(images)[0], 4], seed), axis=1)
    pixels = ops.adjust_brightness(images / 255.0, 0.1255 * (2.0 * draws[0] - 1.0))
    if images.shape[-1] == 3:
        pixels = ops.adjust_hue_and_saturation(pixels, 0.2 * (2.0 * draws[1] - 1.0), 0.5 + draws[2])
        pixels = tf.where(ops.per_image(draws[3] < 0.3), ops.to_grayscale(pixels), pixels)
    return 255.0 * pixels


def _show(axes: "Axes", depths: np.ndarray, _: int | None) -> None:
    axes.imshow(np.ma.masked_array(depths, ~is_known(depths)), "viridis")


TASK = dense.Task(
    name="depth",
    kind="depth",
    metric="pct1.25",
    units={"rms": "m", "rel": "ratio"},
    dilated=False,
    head=head,
    loss=reverse_huber,
    decode=lambda predictions: tf.maximum(predictions[..., 0], LEAST),
    statistics=lambda target, predicted, _: errors(target, predicted),
    measures=_measures,
    show=_show,
    recolour=recolour,
)


@register(
    "depth",
    dense_protocol.settings(DEFAULTS),
    on_features=False,
    network=True,
    needs=FOR_DEPTH,
    arguments=partial(dense_protocol.arguments, DEFAULTS),
)
def estimate_depth(encoder: keras.Model, splits: Mapping[str, Any], **options: Any) -> Result:
    """The errors of depth that a network which starts from the encoder predicts.

    Args:
        encoder: what `encoders.encoder_of` takes; it stays as it is.
        splits: `maps.MapSplit`s of depth, "train", "test" and perhaps "validation"; see `dense_sets`.
        **options: those of `dense_protocol.evaluate`.

    Returns:
        Result, over all known pixels: "pct1.25", the share with max(d / e, e / d) < 1.25; "pct1.25^2" and "pct1.25^3"; "rms",
        the root mean square error in metres; "rel", the mean of |d - e| / d.
    """
    options = {"recipe": dense_protocol.recipes(**DEFAULTS), **options}
    return dense_protocol.evaluate(TASK, encoder, splits, **options)
