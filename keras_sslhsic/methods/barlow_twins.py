"""Barlow Twins (Zbontar et al. 2021)."""

from keras_sslhsic import losses
from keras_sslhsic.encoders import Head
from keras_sslhsic.methods.base import Method, register


@register("barlow_twins")
class BarlowTwins(Method):
    """The dimensions of the outputs agree between views, and do not correlate with each other."""

    reference = "Zbontar et al. 2021, arXiv:2103.03230"
    default_loss = losses.BarlowTwinsLoss
    default_head = Head(8192, 8192, layers=3)
