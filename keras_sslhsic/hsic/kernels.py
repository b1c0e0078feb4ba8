"""Positive definite kernels that depend on the squared distance, and the objective that learns their scale.

A new kernel is one class: subclass `Kernel` and give it `value`. Give it `frequencies` too if its spectral
distribution is known, and random features work; give it `derivative` if the closed form is faster than
automatic differentiation.

Every kernel has k(z, z) = 1 for unit-norm z.
"""

from __future__ import annotations

import abc
from typing import Any

import tensorflow as tf
from tensorflow_probability import distributions as tfd

from keras_sslhsic.hsic import replicas
from keras_sslhsic.hsic.spectral import GaussianFrequencies, IMQFrequencies


class Kernel(abc.ABC):
    """A kernel k(z, z') = f(s) of the squared distance s = |z - z'|^2.

    Args:
        scale: positive length scale: a number, or a scalar tensor or variable when it is learnt.

    Raises:
        ValueError: if `scale` is a number that is not positive.
    """

    def __init__(self, scale: Any = 1.0):
        if isinstance(scale, (int, float)) and not scale > 0:
            raise ValueError(f"The scale of a kernel must be positive, but {scale} was given.")
        self.scale = scale

    @abc.abstractmethod
    def value(self, s: tf.Tensor) -> tf.Tensor:
        """Returns f(s), elementwise, for squared distances s >= 0 of any shape."""

    def derivative(self, s: tf.Tensor) -> tf.Tensor:
        """Returns f'(s), elementwise, for squared distances s >= 0 of any shape."""
        with tf.GradientTape() as tape:
            tape.watch(s)
            value = self.value(s)
        return tape.gradient(value, s)

    def frequencies(self, dim: int) -> tfd.Distribution:
        """Returns the spectral distribution of the kernel on R^dim: k(z, z') = E_w cos(w'(z - z')) (Bochner).

        Args:
            dim: number of dimensions of z.

        Raises:
            ValueError: if the kernel has no spectral distribution.
        """
        raise ValueError(f"{type(self).__name__} has no spectral distribution: use the exact estimators.")

    def with_scale(self, scale: Any) -> Kernel:
        """Returns the same kernel with another scale (a number, tensor or variable)."""
        return type(self)(**{**self.get_config(), "scale": scale})

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments of `__init__`."""
        return {"scale": self.scale}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Kernel:
        """Builds the kernel that `get_config` describes."""
        return cls(**config)

    def scale_as(self, dtype: tf.DType) -> tf.Tensor:
        """Returns the scale as a tensor of a dtype."""
        if isinstance(self.scale, (int, float)):
            return tf.constant(self.scale, dtype)
        return tf.cast(tf.convert_to_tensor(self.scale), dtype)


class Linear(Kernel):
    """The linear kernel 1 - s / (2 c^2), which is z'z' for unit-norm vectors and c = 1.

    Its features are the vectors themselves, so it has no spectral distribution.
    """

    def value(self, s):
        return 1.0 - 0.5 * s / self.scale_as(s.dtype) ** 2

    def derivative(self, s):
        return tf.zeros_like(s) - 0.5 / self.scale_as(s.dtype) ** 2


class Gaussian(Kernel):
    """The Gaussian kernel exp(-s / (2 sigma^2)), with scale sigma."""

    def value(self, s):
        return tf.exp(-0.5 * s / self.scale_as(s.dtype) ** 2)

    def derivative(self, s):
        return -0.5 / self.scale_as(s.dtype) ** 2 * self.value(s)

    def frequencies(self, dim):
        return GaussianFrequencies(dim, self.scale)


class InverseMultiquadric(Kernel):
    """The inverse multiquadric kernel c / sqrt(c^2 + s), with scale c (Li et al. 2021, section 4.1)."""

    def value(self, s):
        return tf.math.rsqrt(1.0 + s / self.scale_as(s.dtype) ** 2)

    def derivative(self, s):
        value = self.value(s)
        return -0.5 / self.scale_as(s.dtype) ** 2 * value * value * value

    def frequencies(self, dim):
        return IMQFrequencies(dim, self.scale)


_KERNELS: dict[str, type[Kernel]] = {"linear": Linear, "gaussian": Gaussian, "imq": InverseMultiquadric}


def get(identifier: str | Kernel | dict[str, Any]) -> Kernel:
    """Returns the kernel that an identifier stands for.

    Args:
        identifier: "linear", "gaussian" or "imq" (scale 1), a `Kernel`, or a dictionary with one of these
            names or the name of a subclass of `Kernel` under "class_name" and the arguments under "config"
            (see `serialize`).

    Raises:
        ValueError: if there is no such kernel.
    """
    if isinstance(identifier, Kernel):
        return identifier
    if isinstance(identifier, str):
        identifier = {"class_name": identifier, "config": {}}
    name, config = identifier.get("class_name"), identifier.get("config", {})
    classes = _KERNELS | {cls.__name__: cls for cls in _subclasses(Kernel)}
    if name not in classes:
        raise ValueError(
            f"Unknown kernel {name!r}: expected one of {sorted(classes)}, a Kernel, or its config."
        )
    return classes[name].from_config(config)


def serialize(kernel: Kernel) -> dict[str, Any]:
    """Returns a JSON-compatible dictionary from which `get` builds the kernel again.

    A scale that is a variable is stored as its present value.
    """
    config = kernel.get_config()
    return {"class_name": type(kernel).__name__, "config": config | {"scale": float(config["scale"])}}


def _subclasses(cls: type) -> list[type]:
    direct: list[type] = cls.__subclasses__()
    return direct + [indirect for sub in direct for indirect in _subclasses(sub)]


def squared_distances(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Returns the squared distances [n, m] between the rows of x [n, Q] and of y [m, Q]."""
    x_norm = tf.reduce_sum(x * x, axis=-1)[:, None]
    y_norm = tf.reduce_sum(y * y, axis=-1)
    return tf.maximum(x_norm + y_norm - 2.0 * tf.matmul(x, y, transpose_b=True), 0.0)


def scale_entropy(kernel: Kernel, z: tf.Tensor, max_rows: int = 1024) -> tf.Tensor:
    """Objective that learns the kernel's scale: how steep the kernel is where the representations are.

        mean over pairs of 0.5 log max(1e-14, f'(s)^2),   s = |z_i - z_j|^2 under stop-gradient

    It is to be maximised over `kernel.scale`. For one constant distance the inverse multiquadric has its
    maximum at c = sqrt(s / 2), the Gaussian at sigma = sqrt(s / 2).

    Args:
        kernel: the kernel, its scale a tensor or variable.
        z: representations [n, Q] or [B, M, Q], float.
        max_rows: at most about this many rows of the global batch, evenly spaced, enter the pairs (all of
            them if there are no more), so that neither the cost nor the communication grows with the batch.

    Returns:
        Scalar, float32 or the dtype of z if that is wider; under `tf.distribute` that of the global batch,
        equal on all replicas.
    """
    z = tf.stop_gradient(tf.convert_to_tensor(z))
    z = tf.cast(z, tf.float64 if z.dtype == tf.float64 else tf.float32)
    rows = tf.reshape(z, [-1, z.shape[-1]])
    size = tf.shape(rows)[0] if rows.shape[0] is None else rows.shape[0]
    rows = replicas.all_gather(rows[:: -(-size * replicas.num_replicas() // max_rows)])
    slope = kernel.derivative(squared_distances(rows, rows))
    return 0.5 * tf.reduce_mean(tf.math.log(tf.maximum(tf.square(slope), 1e-14)))
