"""LeJEPA (Balestriero and LeCun 2025)."""

from keras_sslhsic import losses
from keras_sslhsic.encoders import Head
from keras_sslhsic.methods.base import Method, register


@register("lejepa")
class LeJEPA(Method):
    """Views predict their mean, and are spread as an isotropic Gaussian, by random slices of them."""

    reference = "Balestriero and LeCun 2025, arXiv:2511.08544"
    default_loss = losses.LeJEPALoss
    default_head = Head(2048, 64, layers=3, output_bias=True)
