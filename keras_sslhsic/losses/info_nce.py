"""InfoNCE: the contrastive loss of the paper's ablation."""

from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic.hsic import replicas
from keras_sslhsic.hsic.checks import check_views
from keras_sslhsic.losses.base import LOSSES, identities, unit_norm


@LOSSES.register("info_nce")
@keras.saving.register_keras_serializable(package="keras_sslhsic")
class InfoNCELoss(keras.losses.Loss):
    """InfoNCE (van den Oord et al. 2018), in the form of the paper's ablation.

    For each view, every other view of the same image is a positive, and all views of all other images are
    the negatives:

        -mean over positive pairs (a, b) of  log( e^{a'b / t} / (e^{a'b / t} + sum_{negatives c} e^{a'c / t})
        )

    Args:
        temperature: t, positive.
        name: name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`.

    Raises:
        ValueError: if the temperature is not positive.
    """

    def __init__(self, temperature: float = 0.1, name: str = "info_nce", **kwargs):
        super().__init__(name=name, **kwargs)
        if not temperature > 0:
            raise ValueError(f"The temperature must be positive, but {temperature} was given.")
        self.temperature = float(temperature)

    def terms(self, z: tf.Tensor, seed: tf.Tensor | None = None, scale: Any = None) -> dict[str, tf.Tensor]:
        """The loss for the views of a batch of images, global as in `SSLHSICLoss.terms`.

        Args:
            z: representations [B, M, Q] of unit norm, float.
            seed: not used: nothing is drawn.
            scale: not used: there is no kernel.

        Returns:
            Dictionary with the float32 scalar "loss".

        Raises:
            ValueError: if z is not [B, M, Q] or M is below 2.
        """
        z = tf.convert_to_tensor(z)
        check_views(z)
        image = replicas.own_rows(tf.range(tf.shape(z)[0] * replicas.num_replicas()))
        rows = tf.reshape(tf.cast(z, tf.float32), [-1, z.shape[2]])
        return {"loss": self._loss(rows, tf.repeat(image, z.shape[1]))}

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Returns the loss of the whole batch, repeated for each row; y_true and y_pred are as in
        `SSLHSICLoss`."""
        loss = self._loss(unit_norm(tf.cast(y_pred, tf.float32)), identities(y_true))
        return tf.fill(tf.shape(y_pred)[:1], loss)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`."""
        return {**super().get_config(), "temperature": self.temperature}

    def _loss(self, rows, labels):
        every, every_label = replicas.all_gather(rows), replicas.all_gather(labels)
        logits = tf.matmul(rows, every, transpose_b=True) / self.temperature
        same = labels[:, None] == every_label
        index = tf.range(tf.shape(every)[0])
        positive = tf.cast(same & (replicas.own_rows(index)[:, None] != index), tf.float32)
        # Finite, so that an image without negatives has loss and gradient 0.
        negatives = tf.reduce_logsumexp(tf.where(same, -1e9, logits), axis=1, keepdims=True)
        losses = positive * tf.nn.softplus(negatives - logits)
        loss, pairs = tf.unstack(replicas.all_sum(tf.stack([tf.reduce_sum(losses), tf.reduce_sum(positive)])))
        return tf.math.divide_no_nan(loss, pairs)
