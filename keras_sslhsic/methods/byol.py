"""BYOL (Grill et al. 2020)."""

from keras_sslhsic import losses
from keras_sslhsic.methods.base import Method, register


@register("byol")
class BYOL(Method):
    """A predictor follows the projections that a moving average of the network has of other views."""

    reference = "Grill et al. 2020, arXiv:2006.07733"
    default_loss = losses.BYOLLoss
    target_ema = 0.996
