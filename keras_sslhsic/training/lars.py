"""LARS, the optimizer of the paper (You, Gitman, Ginsburg 2017; SSL-HSIC section 4.1)."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import checks


def is_adapted(variable: keras.Variable | tf.Variable) -> bool:
    """Whether a variable is under weight decay and layer-wise adaptation: everything but biases and BatchNorm."""
    return len(variable.shape) > 1


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class LARS(keras.optimizers.Optimizer):
    """Layer-wise adaptive rate scaling with momentum.

    For a parameter p with gradient g, learning rate lr, weight decay wd, trust coefficient eta and momentum m:

        u  = g + wd * p
        u  = u * eta * |p| / |u|        (factor 1 where either norm is 0)
        mu = m * mu + u
        p  = p - lr * mu

    Biases and BatchNorm parameters (tensors of one dimension) take u = g: neither decay nor adaptation.

    Args:
        learning_rate: float, >= 0, or `keras.optimizers.schedules.LearningRateSchedule`.
        momentum: m, in [0, 1).
        weight_decay: wd, >= 0; part of the adapted update, not decoupled from it.
        eta: trust coefficient, > 0.
        name: name of the optimizer.
        **kwargs: passed on to `keras.optimizers.Optimizer` (`clipnorm`, `use_ema`, ...).

    Raises:
        ValueError: for values outside of these ranges.

    Example:
        >>> optimizer = LARS(learning_rate=0.4)
        >>> optimizer.get_config()["eta"]
        0.001
    """

    def __init__(
        self,
        learning_rate: Any = 0.4,
        momentum: float = 0.9,
        weight_decay: float = 1e-6,
        eta: float = 1e-3,
        name: str = "lars",
        **kwargs: Any,
    ):
        if isinstance(learning_rate, (int, float)):
            checks.number("learning_rate", learning_rate)
        if not 0.0 <= momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {momentum}.")
        checks.number("weight_decay", weight_decay)
        checks.number("eta", eta, above=True)
        # Keras' own weight_decay is decoupled from the update; the one of LARS is inside of the norm.
        super().__init__(learning_rate=learning_rate, weight_decay=None, name=name, **kwargs)
        self.momentum = momentum
        self.coupled_weight_decay = weight_decay
        self.eta = eta

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.momenta = [self.add_variable_from_reference(v, name="momentum") for v in variables]

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        momentum = self.momenta[self._get_variable_index(variable)]
        update = tf.cast(gradient, variable.dtype)
        if is_adapted(variable):
            update += self.coupled_weight_decay * variable
            parameter_norm, update_norm = tf.norm(variable), tf.norm(update)
            trust = tf.math.divide_no_nan(self.eta * parameter_norm, update_norm)
            update *= tf.where(trust > 0.0, trust, 1.0)
        new_momentum = self.momentum * momentum + update
        self.assign(momentum, new_momentum)
        self.assign_sub(variable, tf.cast(learning_rate, variable.dtype) * new_momentum)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.update(momentum=self.momentum, weight_decay=self.coupled_weight_decay, eta=self.eta)
        return config
