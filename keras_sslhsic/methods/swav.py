"""SwAV (Caron et al. 2020)."""

from keras_sslhsic import losses
from keras_sslhsic.encoders import Head
from keras_sslhsic.methods.base import Method, register


@register("swav")
class SwAV(Method):
    """Each view predicts which of a few thousand prototypes the other views belong to, all of them equally large."""

    reference = "Caron et al. 2020, arXiv:2006.09882"
    default_loss = losses.SwAVLoss
    default_head = Head(2048, 128, output_bias=True)
