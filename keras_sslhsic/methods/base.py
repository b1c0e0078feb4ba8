"""What all methods share: an encoder, a projector, and where a method has them, a predictor and a target network."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from keras_sslhsic import checks, compat, losses
from keras_sslhsic.encoders import copying, heads, small_maps
from keras_sslhsic.losses.base import registered
from keras_sslhsic.registries import Registry
from keras_sslhsic.training import ema
from keras_sslhsic.training.callbacks import TargetEMA
from keras_sslhsic.training.schedules import TargetDecay
from keras_sslhsic.training.trainer import Trainer


class Method(Trainer):
    """A trainer with a projector behind the encoder, and two switches: a predictor behind that, and a target network.

    The target is a moving average of encoder and projector, updated with the weights; it keeps its own BatchNorm statistics.

        target  predictor   the loss compares                                                    as in
        no      no          projections of all views                                             SimCLR
        no      yes         predictions with the projections themselves, gradients stopped       SimSiam
        yes     no          projections with the target's projections                            MoCo
        yes     yes         predictions with the target's projections                            BYOL, SSL-HSIC

    A method is a subclass with a `default_loss`, which also says what is on by default. What else its authors chose stands in
    its `default_head`, `target_ema` and `target_ema_rises`; arguments come before them.

        @methods.register("mine")
        class Mine(methods.Method):
            '''What it does, in a line.'''

            reference = "Who 2021, arXiv:2101.00000"
            default_loss = MyLoss

    Args:
        encoder: keras.Model from normalised float images [B, S, S, C] to features [B, F]; or an encoder of
            `load_pretrained`, to train on.
        projector_hidden: hidden size of projector and predictor; None as the method has it.
        projection_dim: Q, the size of the outputs that the loss sees; None as the method has it.
        target: whether to train with a target network; None as the loss needs it.
        views: as in `Trainer`.
        num_classes: classes of the online linear classifier, which is trained on stopped gradients when batches hold
            labels, for watching only. None: no classifier.
        batch_norm_output: normalise the outputs of projector and predictor over the batch; None as the method has it.
        weight_ema: decay of the evaluation weights' moving average, in [0, 1); None keeps none.
            `callbacks.WeightEMA` sets it too.
        seed: any integer; it counts modulo 2^32.
        predictor: whether a predictor follows the projector; None as the loss needs it.
        **kwargs: of `keras.Model`.

    Attributes:
        reference: who described the method, and where.
        default_head: the projector of the method's authors.
        target_ema: the decay of the target's average at the first update.
        target_ema_rises: whether the decay then rises to 1 on a cosine; else it stays.

    Raises:
        ValueError: for values outside of these ranges, or of another type.
    """

    latest = ("learning_rate", "tau")
    reference = ""
    default_head = heads.Head()
    target_ema = 0.99
    target_ema_rises = True

    def __init__(
        self,
        encoder: keras.Model,
        projector_hidden: int | None = None,
        projection_dim: int | None = None,
        target: bool | None = None,
        views: Any = "byol",
        num_classes: int | None = None,
        batch_norm_output: bool | None = None,
        weight_ema: float | None = None,
        seed: int = 0,
        predictor: bool | None = None,
        **kwargs: Any,
    ):
        given: dict[str, Any] = {
            "hidden": projector_hidden,
            "output": projection_dim,
            "batch_norm_output": batch_norm_output,
        }
        head = self.default_head._replace(**{k: v for k, v in given.items() if v is not None})
        checks.integer("projector_hidden", head.hidden, 1)
        checks.integer("projection_dim", head.output, 1)
        head = head._replace(hidden=int(head.hidden), output=int(head.output))
        checks.flag("target", target, optional=True)
        checks.flag("predictor", predictor, optional=True)
        checks.flag("batch_norm_output", batch_norm_output, optional=True)
        super().__init__(encoder, views, seed, **kwargs)
        encoder = self.encoder
        self.projector_hidden = head.hidden
        self.projection_dim = head.output
        self.batch_norm_output = head.batch_norm_output
        self.target = bool(self.default_loss.needs_target if target is None else target)
        predicts = bool(self.default_loss.needs_predictor if predictor is None else predictor)
        self.projector = heads.build_head(encoder.output_shape[-1], head, "projector")
        self.predictor = (
            heads.build_head(head.output, self.predictor_head(head), "predictor") if predicts else None
        )
        # Made in this order, a seed gives the first weights that it always gave.
        self.add_classifier(num_classes)
        self.target_encoder: Any = None
        self.target_projector: Any = None
        if self.target:
            self.target_encoder = copying.copy_of(encoder, "target_encoder")
            self.target_projector = copying.copy_of(self.projector, "target_projector")
            for network in (self.target_encoder, self.target_projector):
                compat.freeze_but_keep_batch_statistics(network)
            small_maps.multiply_on_small_maps(self.target_encoder)
        self.target_decay = TargetDecay(self.target_ema)
        # The step that the decay counts from: `callbacks.TargetEMA` sets it in every `fit`, so no file needs it.
        self.target_begin = tf.Variable(
            0, False, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        if weight_ema is not None:
            self.keep_weight_ema(weight_ema)

    def predictor_head(self, head: heads.Head) -> heads.Head:
        """What the predictor is made of, where the projector is made of `head`."""
        return head

    def default_callbacks(self) -> list[keras.callbacks.Callback]:
        """Those of the trainer, and the schedule of the target."""
        return super().default_callbacks() + ([TargetEMA()] if self.target else [])

    @property
    def online_networks(self) -> list[keras.Model]:
        """Encoder, projector, and predictor if there is one."""
        return [x for x in (self.encoder, self.projector, self.predictor) if x is not None]

    def hiddens(self, views: Sequence[tf.Tensor], training: bool) -> tuple[losses.Hiddens, tf.Tensor]:
        """See `Trainer.hiddens`; one pass a view keeps its batch statistics apart, and local views share one."""
        encoder = self.encoder if training else self.evaluation_encoder
        first, local = views[: self.policy.num_global], views[self.policy.num_global :]
        batches = [*first, tf.concat(local, axis=0)] if local else first
        features = [encoder(x, training=training) for x in batches]
        online = projections = [self.projector(x, training=training) for x in features]
        target = None
        if self.predictor is not None:
            online = [self.predictor(x, training=training) for x in projections]
            target = projections[: len(first)]
        if self.target:
            seen = [self.target_encoder(x, training=training) for x in first]
            target = [self.target_projector(x, training=training) for x in seen]
        if local:
            online = [*online[:-1], *tf.split(online[-1], len(local))]
        stopped = None if target is None else tf.stop_gradient(_stack(target))
        return losses.Hiddens(_stack(online), stopped, len(first)), features[0]

    def prepare(self) -> None:
        """Has the target's layers do what those of the online networks do, frozen or not."""
        if self.target:
            compat.copy_trainable(self.encoder, self.target_encoder)
            compat.copy_trainable(self.projector, self.target_projector)

    def copies(self) -> list[tuple[keras.Model, keras.Model]]:
        """Those of the trainer, and the target's networks."""
        targets = [(self.encoder, self.target_encoder), (self.projector, self.target_projector)]
        return super().copies() + (targets if self.target else [])

    def set_target_decay(self, decay: TargetDecay) -> None:
        """Chooses the schedule of the target's average, before the step is traced."""
        if decay.get_config() != self.target_decay.get_config():
            self.target_decay, self.train_function = decay, None

    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        """See `Trainer.train_on_batch`. The end of such a training is not known: the target's decay stays at its base."""
        self.set_target_decay(TargetDecay(self.target_decay.base))
        return super().train_on_batch(*args, **kwargs)

    def follow(self, moved: tf.Tensor) -> dict[str, tf.Tensor]:
        """Moves the target towards the online networks; returns the decay of its average, "tau"."""
        if not self.target:
            return {}
        tau = self.target_decay(self.updates)
        ema.update(self.target_variables, self.target_sources, tf.where(moved, tau, 1.0))
        return {"tau": tau}

    @property
    def updates(self) -> tf.Tensor:
        """Updates of the weights since the decay of the target began, int64 []."""
        return (self.step.value - self.target_begin) // compat.accumulated(self.optimizer)

    @property
    def target_variables(self) -> list[keras.Variable]:
        """Variables of the target that follow the online network; its batch statistics are its own."""
        return ema.parameters(self.target_encoder) + ema.parameters(self.target_projector)

    @property
    def target_sources(self) -> list[keras.Variable]:
        """Variables that `target_variables` follow, in the same order."""
        return ema.parameters(self.encoder) + ema.parameters(self.projector)

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return super().get_config() | {
            "projector_hidden": self.projector_hidden,
            "projection_dim": self.projection_dim,
            "target": self.target,
            "batch_norm_output": self.batch_norm_output,
            "predictor": self.predictor is not None,
        }


METHODS: Registry[type[Method]] = Registry("method")

Class = TypeVar("Class", bound=type)


def register(name: str) -> Callable[[Class], Class]:
    """A decorator for a subclass of `Method`: `method` in a config names it, and Keras saves and loads it."""
    return registered(METHODS, name)


def _stack(outputs: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.stack([tf.cast(x, tf.float32) for x in outputs], axis=1)
