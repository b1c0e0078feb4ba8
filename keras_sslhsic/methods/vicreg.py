"""VICReg (Bardes, Ponce and LeCun 2022)."""

from keras_sslhsic import losses
from keras_sslhsic.encoders import Head
from keras_sslhsic.methods.base import Method, register


@register("vicreg")
class VICReg(Method):
    """Outputs of views are near, and their dimensions keep a standard deviation of 1 and do not covary."""

    reference = "Bardes et al. 2022, arXiv:2105.04906"
    default_loss = losses.VICRegLoss
    default_head = Head(8192, 8192, layers=3)
