"""InfoNCE: the contrastive loss of the paper's ablation."""

from typing import Any

import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import replicas
from keras_sslhsic.losses.base import Hiddens, Objective, identified, register, unit_views


@register("info_nce")
class InfoNCELoss(Objective):
    """InfoNCE (van den Oord et al. 2018), in the form of the paper's ablation.

    For each view, every other view of the same image is a positive, and all views of all other images are the negatives:

        -mean over positive pairs (a, b) of  log( e^{a'b / t} / (e^{a'b / t} + sum_{negatives c} e^{a'c / t}) )

    Args:
        temperature: t, positive.
        name: name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`.

    Raises:
        ValueError: if the temperature is not positive.
    """

    needs_target = None
    needs_predictor = None
    arguments = ("temperature",)

    def __init__(self, temperature: float = 0.1, name: str = "info_nce", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        checks.number("temperature", temperature, above=True)
        self.temperature = float(temperature)

    def terms(self, hiddens: Hiddens, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The "loss" of all outputs of each image, those of the target among them; see `Objective.terms`."""
        z = unit_views(hiddens)
        image = replicas.own_rows(tf.range(tf.shape(z)[0] * replicas.num_replicas()))
        return {"loss": self._loss(tf.reshape(z, [-1, z.shape[2]]), tf.repeat(image, z.shape[1]))}

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of the whole batch, repeated for each row; y_true and y_pred are as in `SSLHSICLoss`."""
        rows, labels = identified(y_true, y_pred)
        return tf.fill(tf.shape(rows)[:1], self._loss(rows, labels))

    def _loss(self, rows: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        every, every_label = replicas.all_gather(rows), replicas.all_gather(labels)
        logits = tf.matmul(rows, every, transpose_b=True) / self.temperature
        same = labels[:, None] == every_label
        index = tf.range(tf.shape(every)[0])
        itself = replicas.own_rows(index)[:, None] == index
        positive = tf.cast(same & ~itself, tf.float32)
        losses = positive * self._pairwise(logits, same, itself)
        loss, pairs = tf.unstack(replicas.all_sum(tf.stack([tf.reduce_sum(losses), tf.reduce_sum(positive)])))
        return tf.math.divide_no_nan(loss, pairs)

    def _pairwise(self, logits: tf.Tensor, same: tf.Tensor, itself: tf.Tensor) -> tf.Tensor:
        """The loss [n, N] of each pair, as if it were positive; `same` says which are of one image."""
        # Finite, so that an image without negatives has loss and gradient 0.
        negatives = tf.reduce_logsumexp(tf.where(same, -1e9, logits), axis=1, keepdims=True)
        return tf.nn.softplus(negatives - logits)
