"""Positive definite kernels that depend on the squared distance, and the objective that learns their scale.

A new kernel is a subclass of `Kernel` with `value`; with `frequencies` too if its spectral distribution is known, and random
features work; with `derivative` if the closed form is faster than automatic differentiation.

Every kernel has k(z, z) = 1 for unit-norm z.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from keras_sslhsic.hsic import replicas

if TYPE_CHECKING:
    from tensorflow_probability import distributions as tfd

# Of unit vectors, float32 knows squared distances to some 2^-23 = 1.2e-7. This scale is the best one for a squared
# distance of 2e-6 (c = sqrt(s / 2)); a smaller one would follow rounding errors, and 0 has no kernel.
MIN_SCALE = 1e-3


class Kernel(abc.ABC):
    """A kernel k(z, z') = f(s) of the squared distance s = |z - z'|^2.

    Args:
        scale: positive length scale: a number, or a scalar tensor or variable when it is learnt, which is then
            held at `MIN_SCALE` at least.

    Attributes:
        learnable_scale: whether `scale_entropy` has a maximum, so that the scale can be learnt.

    Raises:
        ValueError: if `scale` is a number, Python's or NumPy's, that is not positive and finite.
    """

    learnable_scale: bool = True

    def __init__(self, scale: Any = 1.0):
        known = isinstance(scale, (int, float, np.number, np.ndarray))
        if not (known or hasattr(scale, "dtype")) or (known and not 0 < float(scale) < math.inf):
            raise ValueError(
                f"The scale of a kernel must be positive and finite, found {scale if known else repr(scale)}."
            )
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

    Its features are the vectors themselves, so it has no spectral distribution. Its slope -1/(2 c^2) is the same
    at every distance and rises for ever as c falls: no scale is the best one, and none is learnt.
    """

    learnable_scale = False

    def value(self, s: tf.Tensor) -> tf.Tensor:
        return 1.0 - 0.5 * s / self.scale_as(s.dtype) ** 2

    def derivative(self, s: tf.Tensor) -> tf.Tensor:
        return tf.zeros_like(s) - 0.5 / self.scale_as(s.dtype) ** 2


class Gaussian(Kernel):
    """The Gaussian kernel exp(-s / (2 sigma^2)), with scale sigma."""

    def value(self, s: tf.Tensor) -> tf.Tensor:
        return tf.exp(-0.5 * s / self.scale_as(s.dtype) ** 2)

    def derivative(self, s: tf.Tensor) -> tf.Tensor:
        return -0.5 / self.scale_as(s.dtype) ** 2 * self.value(s)

    def frequencies(self, dim: int) -> tfd.Distribution:
        from keras_sslhsic.hsic.spectral import GaussianFrequencies

        return GaussianFrequencies(dim, self.scale)


class InverseMultiquadric(Kernel):
    """The inverse multiquadric kernel c / sqrt(c^2 + s), with scale c (Li et al. 2021, section 4.1)."""

    def value(self, s: tf.Tensor) -> tf.Tensor:
        return tf.math.rsqrt(1.0 + s / self.scale_as(s.dtype) ** 2)

    def derivative(self, s: tf.Tensor) -> tf.Tensor:
        value = self.value(s)
        return -0.5 / self.scale_as(s.dtype) ** 2 * value * value * value

    def frequencies(self, dim: int) -> tfd.Distribution:
        from keras_sslhsic.hsic.spectral import IMQFrequencies

        return IMQFrequencies(dim, self.scale)


_KERNELS: dict[str, type[Kernel]] = {"linear": Linear, "gaussian": Gaussian, "imq": InverseMultiquadric}


def get(identifier: str | Kernel | dict[str, Any]) -> Kernel:
    """Returns the kernel that an identifier stands for.

    Args:
        identifier: "linear", "gaussian" or "imq" (scale 1), a `Kernel`, or a dictionary with one of these names or the
            name of a subclass of `Kernel` under "class_name" and the arguments under "config" (see `serialize`).

    Raises:
        ValueError: if there is no such kernel.
    """
    if isinstance(identifier, Kernel):
        return identifier
    if not isinstance(identifier, Mapping):
        identifier = {"class_name": identifier, "config": {}}
    name, config = identifier.get("class_name"), identifier.get("config", {})
    classes = _KERNELS | {cls.__name__: cls for cls in _subclasses(Kernel)}
    if not isinstance(name, str) or name not in classes:
        raise ValueError(f"Unknown kernel {name!r}: give one of {sorted(classes)}, a Kernel, or its config.")
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
    """Objective that learns the kernel's scale: how steep the kernel is where the representations are (Li et al.
    2021, section 4.1 and appendix D.1.2).

        mean over pairs of 0.5 log max(1e-14, f'(s)^2),   s = |z_i - z_j|^2 under stop-gradient

    It is to be maximised over `kernel.scale`. For one constant distance the inverse multiquadric has its
    maximum at c = sqrt(s / 2), the Gaussian at sigma = sqrt(s / 2). A kernel without `learnable_scale` has none.

    Args:
        kernel: the kernel, its scale a tensor or variable.
        z: representations [n, Q] or [B, M, Q], float.
        max_rows: at most this many rows of the global batch enter the pairs, as `evenly_spread_rows` picks them
            (or M of each replica, if that is more), so that neither the cost nor the communication grows with
            the batch. The released code draws as many at random, equally many of each view.

    Returns:
        Scalar, float32 or the dtype of z if that is wider; under `tf.distribute` that of the global batch,
        equal on all replicas.
    """
    z = tf.stop_gradient(tf.convert_to_tensor(z))
    z = tf.cast(z, tf.float64 if z.dtype == tf.float64 else tf.float32)
    z = z if z.shape.rank == 3 else z[:, None, :]
    rows = replicas.all_gather(evenly_spread_rows(z, max_rows // replicas.num_replicas()))
    slope = kernel.derivative(squared_distances(rows, rows))
    return 0.5 * tf.reduce_mean(tf.math.log(tf.maximum(tf.square(slope), 1e-14)))


def evenly_spread_rows(z: tf.Tensor, max_rows: int) -> tf.Tensor:
    """Picks rows of z [B, M, Q] that stand for all of them: each view gives equally many, each image about as many.

    Every view gives m = max_rows // M of its B rows, or all of them if it has no more; row j of the n = m M picked
    is that of image floor(j B / n) and view j mod M: [n, Q], n <= max_rows for max_rows >= M. So the views take turns along
    the images, and no image gives two rows more than another. The picks of R replicas together are those of the whole batch,
    if R divides m.
    """
    static, views, size = z.shape
    images = tf.shape(z)[0] if static is None else static
    least = tf.minimum if static is None else min
    count = views * least(images, max(max_rows // views, 1))
    picked = tf.range(count)
    return tf.gather(tf.reshape(z, [-1, size]), picked * images // count * views + picked % views)
