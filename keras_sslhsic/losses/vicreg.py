"""The loss of VICReg."""

from typing import Any

import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import replicas
from keras_sslhsic.hsic.checks import check_views
from keras_sslhsic.losses.base import Hiddens, Objective, register
from keras_sslhsic.losses.statistics import centred, scatter, without_diagonal


@register("vicreg")
class VICRegLoss(Objective):
    """Variance, invariance and covariance (Bardes, Ponce and LeCun 2022, equations 1 to 6).

    With Z^p the outputs [B, Q] for view p, Cov their covariance over the images of the global batch (divided by B - 1),

        invariance = mean over pairs of views of |Z^p - Z^l|^2 / (B Q)
        variance   = mean over views and dimensions of max(0, 1 - sqrt(Var + 1e-4))
        covariance = mean over views of sum_{i != j} Cov_ij^2 / Q
        loss       = invariance_weight invariance + variance_weight variance + 2 covariance_weight covariance

    These are the means and sums of the authors' code, for which the weights are: the paper does not divide the invariance by Q,
    and adds the variance terms of the two views, of which the code takes the mean.

    Args:
        invariance_weight: at least 0.
        variance_weight: at least 0.
        covariance_weight: at least 0.
        name: name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`.

    Raises:
        ValueError: for a negative weight.
    """

    arguments = ("invariance_weight", "variance_weight", "covariance_weight")

    def __init__(
        self,
        invariance_weight: float = 25.0,
        variance_weight: float = 25.0,
        covariance_weight: float = 1.0,
        name: str = "vicreg",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.invariance_weight, self.variance_weight = invariance_weight, variance_weight
        self.covariance_weight = covariance_weight
        for weight in self.arguments:
            checks.number(weight, getattr(self, weight))

    def terms(self, hiddens: Hiddens, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The "loss", and its terms "invariance", "variance" and "covariance" without weights; see `Objective.terms`."""
        check_views(hiddens.online)
        z, count = centred(hiddens.online)
        views, size = z.shape[1], z.shape[2]
        # The sum over pairs of |a - b|^2 is M times that of the distances from the mean of the views.
        whole = tf.cast(hiddens.online, tf.float32)
        apart = tf.reduce_sum(tf.square(whole - tf.reduce_mean(whole, axis=1, keepdims=True)))
        invariance = 2.0 * replicas.all_sum(apart) / ((views - 1) * size * count)
        squares = replicas.all_sum(tf.reduce_sum(tf.square(z), axis=0))
        free = tf.maximum(count - 1.0, 1.0)
        variance = tf.reduce_mean(tf.nn.relu(1.0 - tf.sqrt(squares / free + 1e-4)))
        covariances = [without_diagonal(scatter(x, x) / free) for x in tf.unstack(z, axis=1)]
        covariance = tf.add_n([tf.reduce_sum(tf.square(c)) for c in covariances]) / (views * size)
        loss = self.invariance_weight * invariance + self.variance_weight * variance
        loss += 2.0 * self.covariance_weight * covariance
        return {"loss": loss, "invariance": invariance, "variance": variance, "covariance": covariance}
