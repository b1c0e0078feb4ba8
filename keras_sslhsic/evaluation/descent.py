"""The step of training that evaluations share: gradient descent on a loss and an l2 penalty, with rates of its own."""

from collections.abc import Callable

import keras
import tensorflow as tf

from keras_sslhsic import compat


def compile_for(model: keras.Model, network: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
    """Compiles a model for `descend`, which trains a network with an optimizer."""
    model.compile(compat.loss_scaled(optimizer, [network]), jit_compile=False, auto_scale_loss=False)


def descend(
    model: keras.Model,
    loss: Callable[[], tf.Tensor],
    weight_decay: float,
    rate: Callable[[keras.Variable], float] = lambda variable: 1.0,
) -> tf.Tensor:
    """Moves a model's trainable variables by one step of its optimizer on loss + weight_decay / 2 |W|^2.

    Over several replicas it is the step of their mean loss.

    Args:
        model: compiled by `compile_for`; its optimizer is linear in the gradient where `rate` is not 1.
        loss: gives that of this replica, float32 [].
        weight_decay: of variables of more than one axis; biases and BatchNorm have none.
        rate: factor on the learning rate of a variable.

    Returns:
        The loss without the penalty, float32 [].
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    with tf.GradientTape() as tape:
        found = loss()
        # Some are made by the first call.
        variables = model.trainable_variables
        penalties = [tf.nn.l2_loss(tf.cast(v, tf.float32)) for v in variables if len(v.shape) > 1]
        scaled = model.optimizer.scale_loss((found + weight_decay * tf.add_n(penalties)) / replicas)
    gradients = zip(variables, tape.gradient(scaled, variables), strict=True)
    model.optimizer.apply_gradients((rate(v) * g, v) for v, g in gradients if g is not None)
    return found
