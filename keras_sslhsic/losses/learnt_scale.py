"""The scale of a kernel, learnt beside the networks."""

from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.hsic import kernels, replicas


class LearntScale:
    """A kernel's scale as a variable that an optimizer of its own moves (Li et al. 2021, sections 4.1 and D.1.2).

    It maximises `hsic.kernels.scale_entropy`, and stays at `hsic.kernels.MIN_SCALE` or above. No Keras object: the loss that
    owns it says what is saved.

    Args:
        kernel: whose scale is where to begin.
        optimizer: config of a Keras optimizer; None is Adam with the released code's 3e-4.

    Raises:
        ValueError: for a scale below `MIN_SCALE`.
    """

    def __init__(self, kernel: kernels.Kernel, optimizer: dict[str, Any] | None = None):
        scale = float(kernel.scale)
        if scale < kernels.MIN_SCALE:
            raise ValueError(
                f"The scale of a kernel must be at least {kernels.MIN_SCALE} to be learnt, found {scale:g}: float32 does not "
                "tell the distances apart that a smaller one is for. Give a larger one, or learn_kernel_scale=False."
            )
        # The same on all replicas: the sum of their gradients moves it.
        self.variable = keras.Variable(
            scale, trainable=False, dtype="float32", aggregation="only_first_replica", name="kernel_scale"
        )
        self.variable.constraint = _AtLeast()
        self.optimizer = keras.optimizers.deserialize(optimizer) if optimizer else keras.optimizers.Adam(3e-4)
        compat.prepare_optimizer(self.optimizer, [self.variable])

    @property
    def variables(self) -> list[keras.Variable]:
        """The scale and what its optimizer holds."""
        return [self.variable, *self.optimizer.variables]

    def update(self, kernel: kernels.Kernel, z: tf.Tensor) -> None:
        """One step of the optimizer for unit vectors z [B, M, Q] of this replica's images."""
        scale = tf.convert_to_tensor(self.variable.value)
        with tf.GradientTape() as tape:
            tape.watch(scale)
            entropy = kernels.scale_entropy(kernel.with_scale(scale), z)
        gradients = compat.sum_over_replicas([-tape.gradient(entropy, scale) / replicas.num_replicas()])
        self.optimizer.apply(gradients)


class _AtLeast(keras.constraints.Constraint):
    """Keras before 3.14 takes no function."""

    def __call__(self, w: tf.Tensor) -> tf.Tensor:
        return tf.maximum(w, kernels.MIN_SCALE)
