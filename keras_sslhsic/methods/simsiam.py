"""SimSiam (Chen and He 2021)."""

from keras_sslhsic import losses
from keras_sslhsic.encoders import Head
from keras_sslhsic.methods.base import Method, register


@register("simsiam")
class SimSiam(Method):
    """A predictor with a narrow hidden layer follows the projections of other views, gradients stopped."""

    reference = "Chen and He 2021, arXiv:2011.10566"
    default_loss = losses.SimSiamLoss
    default_head = Head(2048, 2048, batch_norm_output=True, layers=3, affine_output=False)

    def predictor_head(self, head: Head) -> Head:
        """Two layers, the hidden one a quarter as wide as the projections."""
        return Head(max(head.output // 4, 1), head.output, output_bias=True)
