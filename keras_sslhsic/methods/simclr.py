"""SimCLR (Chen et al. 2020)."""

from keras_sslhsic import losses
from keras_sslhsic.encoders import Head
from keras_sslhsic.methods.base import Method, register


@register("simclr")
class SimCLR(Method):
    """Views of an image are nearer to each other than to all other views of the batch."""

    reference = "Chen et al. 2020, arXiv:2002.05709"
    default_loss = losses.NTXentLoss
    default_head = Head(2048, 128, batch_norm_output=True)
