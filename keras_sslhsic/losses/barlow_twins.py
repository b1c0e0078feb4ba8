"""The loss of Barlow Twins."""

from itertools import combinations
from typing import Any

import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import replicas
from keras_sslhsic.hsic.checks import check_views
from keras_sslhsic.losses.base import Hiddens, Objective, register
from keras_sslhsic.losses.statistics import centred, scatter, without_diagonal


@register("barlow_twins")
class BarlowTwinsLoss(Objective):
    """Redundancy reduction (Zbontar et al. 2021, equations 1 and 2).

    With C the correlations [Q, Q] of the outputs' dimensions between two views, over the images of the global batch,

        loss = mean over pairs of views of  sum_i (1 - C_ii)^2 + redundancy sum_{i != j} C_ij^2

    Variances have 1e-5 added, as batch normalisation has, which the authors correlate through.

    Args:
        redundancy: weight of the second term, at least 0.
        name: name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`.

    Raises:
        ValueError: for a negative weight.
    """

    arguments = ("redundancy",)

    def __init__(self, redundancy: float = 0.0051, name: str = "barlow_twins", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        checks.number("redundancy", redundancy)
        self.redundancy = float(redundancy)

    def terms(self, hiddens: Hiddens, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The "loss", and its terms "invariance" and "redundancy", the latter without its weight; see `Objective.terms`."""
        check_views(hiddens.online)
        z, count = centred(hiddens.online)
        variance = replicas.all_sum(tf.reduce_sum(tf.square(z), axis=0)) / count
        views = tf.unstack(z * tf.math.rsqrt(variance + 1e-5), axis=1)
        found = [scatter(a, b) / count for a, b in combinations(views, 2)]
        invariance = tf.add_n([tf.reduce_sum(tf.square(1.0 - tf.linalg.diag_part(c))) for c in found])
        redundancy = tf.add_n([tf.reduce_sum(tf.square(without_diagonal(c))) for c in found])
        invariance, redundancy = invariance / len(found), redundancy / len(found)
        loss = invariance + self.redundancy * redundancy
        return {"loss": loss, "invariance": invariance, "redundancy": redundancy}
