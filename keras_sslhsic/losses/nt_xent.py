"""NT-Xent: the contrastive loss of SimCLR."""

from typing import Any

import tensorflow as tf

from keras_sslhsic.losses.base import register
from keras_sslhsic.losses.info_nce import InfoNCELoss


@register("nt_xent")
class NTXentLoss(InfoNCELoss):
    """The normalised, temperature-scaled cross entropy of SimCLR (Chen et al. 2020, equation 1).

    For unit vectors a, b that are views of one image, and t the temperature,

        loss = -mean over positive pairs (a, b) of  log( e^{a'b / t} / sum_{c != a} e^{a'c / t} )

    The sum is over all other views of the batch, other positives among them, where `InfoNCELoss` has b and the views of
    other images alone; for two views the two are equal.

    Args:
        temperature: t, positive.
        name: name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`.

    Raises:
        ValueError: if the temperature is not positive.
    """

    def __init__(self, temperature: float = 0.1, name: str = "nt_xent", **kwargs: Any):
        super().__init__(temperature, name, **kwargs)

    def _pairwise(self, logits: tf.Tensor, same: tf.Tensor, itself: tf.Tensor) -> tf.Tensor:
        return tf.reduce_logsumexp(tf.where(itself, -1e9, logits), axis=1, keepdims=True) - logits
