"""SSL-HSIC (Li et al. 2021): the method of this library's name."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_sslhsic import losses
from keras_sslhsic.methods.base import Method, register
from keras_sslhsic.training import older_files


@register("ssl_hsic")
class SSLHSIC(Method):
    """Self-supervised learning with the Hilbert-Schmidt independence criterion.

    One training step draws augmented views of every image, encodes and projects them to unit vectors z, and descends

        loss = -HSIC(Z, Y) + gamma sqrt(HSIC(Z, Z)),        Y the identity of the image

    (SSL-HSIC, equation 4; the loss is `losses.SSLHSICLoss` unless `compile` is given another). With a target network,
    z holds the online predictions of every view and the target's projections of every view, the latter under
    stop-gradient, and the target follows the online network as a moving average (section 4.1).

    Without a target network the outputs may collapse into one point: they do as long as hsic_zy / sqrt(hsic_zz), which
    the logs have as `dependence_ratio`, is below gamma. docs/method.md says how to choose gamma then.

    What `fit`, `predict` and calling it take, and which of its two encoders they use, is said in `training.trainer.Trainer`.

    Args:
        encoder: keras.Model from normalised float images [B, S, S, C] to features [B, F].
        projector_hidden: hidden size of projector and predictor.
        projection_dim: Q, the size of z.
        target: whether to train with a target network; without one, the paper has no predictor either.
        views: "byol", "simclr", a `views.ViewPolicy` or its config; None takes the given views as they are and only
            normalises them.
        num_classes: classes of the online linear classifier, which is trained on stopped gradients when batches hold
            labels, for watching only. None: no classifier.
        **options: `batch_norm_output` (the paper's section 4.1 says so, the released code does not), `weight_ema`, `seed`,
            and the rest of `Method`.

    Raises:
        ValueError: for values outside of their ranges, or of another type.

    Example:
        >>> import keras_sslhsic
        >>> encoder = keras_sslhsic.build_encoder("r18_1x", input_shape=(28, 28, 1), width=0.25)
        >>> model = keras_sslhsic.SSLHSIC(encoder, 512, 64, views="grayscale")
        >>> model.compile(keras_sslhsic.LARS(0.4))
    """

    reference = "Li et al. 2021, arXiv:2106.08320"
    default_loss = losses.SSLHSICLoss

    def __init__(
        self,
        encoder: keras.Model,
        projector_hidden: int = 4096,
        projection_dim: int = 256,
        target: bool = True,
        views: Any = "byol",
        num_classes: int | None = None,
        **options: Any,
    ):
        options = {"predictor": target} | options
        super().__init__(encoder, projector_hidden, projection_dim, target, views, num_classes, **options)
        self._kernel_before: dict[str, Any] = {}

    # For model files of before, see older_files.

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SSLHSIC":
        """The model of a config; see `Trainer.from_config`."""
        cls.check_config(config)
        config, kernel = older_files.without_kernel(config)
        model = super().from_config(config)
        model._kernel_before = kernel
        return model

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compiles as the model of the config was."""
        super().compile_from_config(older_files.kernel_in_loss(config, self._kernel_before))
