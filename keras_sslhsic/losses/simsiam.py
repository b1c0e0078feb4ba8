"""The loss of SimSiam."""

import tensorflow as tf

from keras_sslhsic.losses.base import Hiddens, Objective, mean_cosine, register


@register("simsiam")
class SimSiamLoss(Objective):
    """Less the cosine of predictions with projections of other views (Chen and He 2021, equations 1 and 4).

    For unit vectors p of the predictor and z of the projector, the latter under stop-gradient,

        loss = -mean over images and pairs of different views i, j of p^i'z^j
    """

    needs_predictor = True

    def terms(self, hiddens: Hiddens, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The "loss"; see `Objective.terms`."""
        return {"loss": -mean_cosine(hiddens)}
