"""The loss of BYOL."""

import tensorflow as tf

from keras_sslhsic.losses.base import Hiddens, Objective, mean_cosine, register


@register("byol")
class BYOLLoss(Objective):
    """The distance of predictions from the target's projections of other views (Grill et al. 2020, equation 2).

    For unit vectors q of the predictor and z of the target network,

        loss = 2 mean over images and pairs of different views p, l of |q^p - z^l|^2

    which for two views is the paper's sum of both directions.
    """

    needs_target = True
    needs_predictor = True

    def terms(self, hiddens: Hiddens, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The "loss", and the mean "cosine" of a prediction and its target; see `Objective.terms`."""
        cosine = mean_cosine(hiddens)
        return {"loss": 4.0 - 4.0 * cosine, "cosine": cosine}
