"""Semantic segmentation by a fully convolutional network on the encoder, as the paper transfers to VOC2012.

Two 3x3 convolutions of 256 channels at dilation 6 and one of 1x1 on the last map, whose stage is dilated (output stride 16);
random scales of 0.5 to 2, crops of 513 x 513, mirroring; 30,000 steps (appendix D of the paper, and of BYOL, arXiv:2006.07733).
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic.evaluation import dense, dense_protocol
from keras_sslhsic.evaluation.dense_sets import FOR_SEGMENTATION
from keras_sslhsic.evaluation.maps import VOID
from keras_sslhsic.evaluation.protocol import register
from keras_sslhsic.evaluation.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULTS: Mapping[str, Any] = {
    "learning_rates": tuple(np.logspace(-3, -1, 5).tolist()),
    "weight_decays": (1e-4,),
    "steps": 30_000,
    "batch_size": 16,
}


def head(x: Any, stride: int, num_classes: int | None, width: float, seed: int) -> Any:
    """Logits [B, h, w, num_classes] of a map."""
    channels = max(1, round(256 * width))
    for number in range(2):
        x = dense.conv_bn(x, channels, seed + number, f"head{number}", dilation=6)
    return keras.layers.Conv2D(
        num_classes, 1, kernel_initializer=dense.initial(channels, seed + 2), dtype="float32", name="logits"
    )(x)


def cross_entropy(targets: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Mean cross-entropy of the pixels that are not void.

    Args:
        targets: uint8 [B, H, W], classes or `VOID`.
        logits: float32 [B, H, W, K].
    """
    targets = tf.cast(targets, tf.int32)
    counts = tf.not_equal(targets, VOID)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.where(counts, targets, 0), logits)
    return dense.mean_where(counts, each)


def confusion(target: np.ndarray, predicted: np.ndarray, num_classes: int) -> np.ndarray:
    """Pixels of each class (rows) that are predicted as each class, without void: float64 [K * K].

    Raises:
        ValueError: for a class that is none of the K, where it counts.
    """
    counts = target != VOID
    for name, classes in (("target", target[counts]), ("predicted", predicted[counts])):
        if classes.size and not 0 <= classes.min() <= classes.max() < num_classes:
            raise ValueError(
                f"Expected {name} classes below {num_classes}, found {classes.min()} to {classes.max()}."
            )
    pairs = num_classes * target[counts].astype(np.int64) + predicted[counts]
    return np.bincount(pairs, minlength=num_classes**2).astype(np.float64)


def intersection_over_union(confusions: np.ndarray) -> np.ndarray:
    """Of each class, float [K]; NaN for one that is neither in the maps nor predicted.

    Args:
        confusions: [K * K], see `confusion`, summed over images.
    """
    matrix = confusions.reshape(2 * [round(confusions.size**0.5)])
    both = np.diag(matrix)
    either = matrix.sum(axis=0) + matrix.sum(axis=1) - both
    return np.divide(both, either, out=np.full_like(both, np.nan), where=either > 0)


def _measures(confusions: np.ndarray) -> dict[str, float]:
    if np.isnan(confusions).any():  # of a training that diverged
        return {"miou": np.nan}
    return {"miou": float(np.nanmean(intersection_over_union(confusions)))}


def _show(axes: "Axes", classes: np.ndarray, num_classes: int | None) -> None:
    masked = np.ma.masked_equal(classes, VOID)
    axes.imshow(masked, "tab20", vmin=0, vmax=max(20, num_classes or 0), interpolation="nearest")


TASK = dense.Task(
    name="segmentation",
    kind="classes",
    metric="miou",
    units={},
    dilated=True,
    head=head,
    loss=cross_entropy,
    decode=lambda logits: tf.cast(tf.argmax(logits, axis=-1), tf.uint8),
    statistics=lambda target, predicted, num_classes: confusion(target, predicted, num_classes or 0),
    measures=_measures,
    show=_show,
    scales=(0.5, 2.0),
    held_out=2119,
)


@register(
    "segmentation",
    dense_protocol.settings(DEFAULTS),
    on_features=False,
    network=True,
    needs=FOR_SEGMENTATION,
    arguments=partial(dense_protocol.arguments, DEFAULTS),
)
def segment(encoder: keras.Model, splits: Mapping[str, Any], **options: Any) -> Result:
    """The mean intersection over union of a fully convolutional network that starts from the encoder.

    Args:
        encoder: what `encoders.encoder_of` takes; it stays as it is.
        splits: `maps.MapSplit`s of classes, "train", "test" and perhaps "validation"; see `dense_sets`.
        **options: those of `dense_protocol.evaluate`.

    Returns:
        Result: "miou", without void pixels and classes that are neither there nor predicted.
    """
    options = {"recipe": dense_protocol.recipes(**DEFAULTS), **options}
    return dense_protocol.evaluate(TASK, encoder, splits, **options)
