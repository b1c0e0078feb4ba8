"""MoCo v2 (Chen, Fan, Girshick and He 2020; MoCo: He et al. 2020)."""

from keras_sslhsic import losses
from keras_sslhsic.encoders import Head
from keras_sslhsic.methods.base import Method, register


@register("moco")
class MoCo(Method):
    """Views of an image are nearer to each other than to a queue of what a moving average of the network made of others.

    Batch normalisation is over all replicas here, so that its statistics do not tell which keys go with which queries: the
    authors shuffle examples between replicas for that.
    """

    reference = "Chen et al. 2020, arXiv:2003.04297"
    default_loss = losses.MoCoLoss
    default_head = Head(2048, 128, batch_norm_hidden=False, output_bias=True)
    target_ema = 0.999
    target_ema_rises = False
