"""Spectral distributions of the Gaussian and the inverse multiquadric kernel, of TensorFlow Probability.

By Bochner's theorem a translation-invariant kernel with k(z, z) = 1 is k(z, z') = E_w cos(w'(z - z')), and
random features need samples of w in R^n. For the inverse multiquadric c / sqrt(c^2 + s), Li et al. 2021
(appendix C.2) tabulate the density of the amplitude |w|, proportional to K_{(n-1)/2}(c |w|) |w|^{(n-1)/2}, on a
grid, with K the modified Bessel function. That is not needed:

    c / sqrt(c^2 + s) = E_x exp(-x^2 s / (2 c^2)),   x ~ N(0, 1)

since x^2 is chi-square(1) with E exp(-t x^2) = 1 / sqrt(1 + 2 t). The kernel is a mixture of Gaussian kernels
of scale c / |x|, and

    w = |x| g / c,   x ~ N(0, 1),   g ~ N(0, I_n)

is an exact sample in every dimension; |w| = |x| chi_n / c. docs/method.md derives both densities.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow_probability import bijectors as tfb
from tensorflow_probability import distributions as tfd
from tensorflow_probability.python.internal import samplers

from keras_sslhsic.hsic import sampling

_LOG_2PI = math.log(2.0 * math.pi)


class _Spectral(tfd.Distribution):
    """What the spectral distributions share: a dimension n, a scale, and exact, reparameterised samples.

    Args:
        dim: number n of dimensions, at least 1.
        scale: positive scale c of the kernel, float; its shape is the batch shape.
        dtype: dtype of the samples when `scale` has none.
        validate_args: whether to check a scale that is a tensor when the graph runs.
        allow_nan_stats: as in `tfd.Distribution`.
        name: name of the distribution.

    Raises:
        ValueError: if `dim` is below 1, or `scale` is a number that is not positive.
    """

    def __init__(
        self,
        dim: int,
        scale: Any = 1.0,
        dtype: Any = tf.float32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str | None = None,
    ):
        parameters = dict(locals())
        if dim < 1:
            raise ValueError(f"The number of dimensions must be at least 1, found {dim}.")
        if isinstance(scale, (int, float)) and not scale > 0:
            raise ValueError(f"The scale must be positive, found {scale}.")
        self._dim = int(dim)
        self._scale = tf.convert_to_tensor(scale, dtype_hint=dtype)
        super().__init__(
            dtype=self._scale.dtype,
            reparameterization_type=tfd.FULLY_REPARAMETERIZED,
            validate_args=validate_args,
            allow_nan_stats=allow_nan_stats,
            parameters=parameters,
            name=name or type(self).__name__,
        )

    @classmethod
    def _parameter_properties(cls, dtype: Any, num_classes: Any = None) -> dict[str, Any]:
        return {
            "dim": tfp.util.ParameterProperties(event_ndims=None),
            "scale": tfp.util.ParameterProperties(
                default_constraining_bijector_fn=lambda: tfb.Softplus(low=np.finfo(np.float32).eps)
            ),
        }

    @property
    def dim(self) -> int:
        """Number n of dimensions."""
        return self._dim

    @property
    def scale(self) -> tf.Tensor:
        """Scale c of the kernel."""
        return self._scale

    def _samples_shape(self, n: Any) -> tf.Tensor:
        return tf.concat([[n], tf.shape(self._scale)], axis=0)

    def _parameter_control_dependencies(self, is_init: bool) -> list[tf.Operation]:
        if not self.validate_args:
            return []
        return [tf.debugging.assert_positive(self._scale, message="The scale must be positive.")]


class _Frequencies(_Spectral):
    """A spectral distribution of vectors w [n]."""

    def _event_shape(self) -> tf.TensorShape:
        return tf.TensorShape([self._dim])

    def _mean(self) -> tf.Tensor:
        return tf.zeros(tf.concat([tf.shape(self._scale), [self._dim]], axis=0), self.dtype)

    def _variance(self) -> tf.Tensor:
        # E[x^2] = 1, so both kernels have the covariance I / c^2.
        return self._mean() + 1.0 / self._scale[..., None] ** 2

    def _covariance(self) -> tf.Tensor:
        return tf.linalg.diag(self._variance())

    def stratified_sample(self, num_samples: int, seed: Any) -> tf.Tensor:
        """Samples [num_samples, ..., n] that cover the distribution more evenly than independent ones.

        Each sample on its own, at a random place of the set, has this distribution; together they estimate
        expectations with less variance. Where there is nothing to stratify, they are independent.

        Args:
            num_samples: their number.
            seed: int32 [2], stateless.
        """
        return self.sample(num_samples, seed=seed)

    def _normal(self, num_samples: Any, seed: tf.Tensor) -> tf.Tensor:
        shape = tf.concat([self._samples_shape(num_samples), [self._dim]], axis=0)
        return sampling.normal(shape, seed, self.dtype)


class GaussianFrequencies(_Frequencies):
    """Spectral distribution N(0, I_n / sigma^2) of the Gaussian kernel exp(-s / (2 sigma^2)).

    Samples are w [n]. See `_Spectral` for the arguments.

    Example:
        >>> GaussianFrequencies(256, scale=0.5).sample(512, seed=[1, 2]).shape
        TensorShape([512, 256])
    """

    def _sample_n(self, n: Any, seed: Any = None) -> tf.Tensor:
        return self._normal(n, samplers.sanitize_seed(seed)) / self._scale[..., None]

    def _log_prob(self, w: tf.Tensor) -> tf.Tensor:
        norm = tf.reduce_sum(tf.square(w * self._scale[..., None]), axis=-1)
        return self._dim * (tf.math.log(self._scale) - 0.5 * _LOG_2PI) - 0.5 * norm

    def _mode(self) -> tf.Tensor:
        return self._mean()

    def _entropy(self) -> tf.Tensor:
        return self._dim * (0.5 * (1.0 + _LOG_2PI) - tf.math.log(self._scale))


class IMQFrequencies(_Frequencies):
    """Spectral distribution of the inverse multiquadric kernel c / sqrt(c^2 + s): w = |x| g / c.

    Its density, with r = c |w| and nu = (n - 1) / 2, is

        p(w) = 2 c^n (2 pi)^{-(n + 1) / 2} r^{-nu} K_nu(r)

    which is infinite at w = 0 for n > 1.

    Example:
        >>> IMQFrequencies(256, scale=0.5).sample(512, seed=[1, 2]).shape
        TensorShape([512, 256])
    """

    def _sample_n(self, n: Any, seed: Any = None) -> tf.Tensor:
        scale_seed, direction_seed = _split(seed)
        x = sampling.normal(self._samples_shape(n), scale_seed, self.dtype)
        # The sign of x makes no difference to x g.
        return (x / self._scale)[..., None] * self._normal(n, direction_seed)

    def stratified_sample(self, num_samples: int, seed: Any) -> tf.Tensor:
        scale_seed, direction_seed = _split(seed)
        shape = [num_samples] + [1] * self._scale.shape.rank
        stratum = tf.reshape(tf.range(num_samples, dtype=self.dtype), shape)
        # One |x| from each of as many equally likely intervals.
        u = sampling.uniform(self._samples_shape(num_samples), scale_seed, self.dtype)
        u = (stratum + u) / num_samples
        x = tf.math.ndtri(0.5 + 0.5 * tf.minimum(u, 1.0 - 1e-6))
        return (x / self._scale)[..., None] * self._normal(num_samples, direction_seed)

    def _log_prob(self, w: tf.Tensor) -> tf.Tensor:
        scale = tf.cast(self._scale, tf.float64)
        r = scale * tf.norm(tf.cast(w, tf.float64), axis=-1)
        nu = 0.5 * (self._dim - 1)
        log_prob = (
            math.log(2.0)
            - 0.5 * (self._dim + 1) * _LOG_2PI
            + self._dim * tf.math.log(scale)
            - nu * tf.math.log(r)
            + _log_bessel_k(nu, r)
        )
        return tf.cast(log_prob, self.dtype)


class IMQAmplitude(_Spectral):
    """Distribution of the amplitude |w| of `IMQFrequencies`: |x| chi_n / c, a positive scalar.

    Its density, with r = c a and nu = (n - 1) / 2, is

        p(a) = c 2^{1 - nu} / (sqrt(pi) Gamma(n / 2)) r^nu K_nu(r),   a > 0

    Example:
        >>> IMQAmplitude(4096, scale=0.5).sample(512, seed=[1, 2]).shape
        TensorShape([512])
    """

    def _event_shape(self) -> tf.TensorShape:
        return tf.TensorShape([])

    def _default_event_space_bijector(self) -> tfb.Bijector:
        return tfb.Softplus(validate_args=self.validate_args)

    def _sample_n(self, n: Any, seed: Any = None) -> tf.Tensor:
        scale_seed, chi_seed = _split(seed)
        shape = self._samples_shape(n)
        x = sampling.normal(shape, scale_seed, self.dtype)
        # In float64: the quantile of a chi-square is off by 1e-4 in float32 at n = 16384.
        uniform = sampling.uniform(shape, chi_seed, tf.float64)
        chi_square = 2.0 * tfp.math.igammainv(tf.constant(0.5 * self._dim, tf.float64), uniform)
        return tf.abs(x) * tf.cast(tf.sqrt(chi_square), self.dtype) / self._scale

    def _log_prob(self, a: tf.Tensor) -> tf.Tensor:
        scale = tf.cast(self._scale, tf.float64)
        r = scale * tf.cast(a, tf.float64)
        nu = 0.5 * (self._dim - 1)
        log_prob = (
            tf.math.log(scale)
            + (1.0 - nu) * math.log(2.0)
            - 0.5 * math.log(math.pi)
            - math.lgamma(0.5 * self._dim)
            + nu * tf.math.log(r)
            + _log_bessel_k(nu, r)
        )
        return tf.cast(log_prob, self.dtype)

    def _mean(self) -> tf.Tensor:
        ratio = math.exp(math.lgamma(0.5 * self._dim + 0.5) - math.lgamma(0.5 * self._dim))
        return 2.0 / math.sqrt(math.pi) * ratio / self._scale

    def _variance(self) -> tf.Tensor:
        return self._dim / self._scale**2 - self._mean() ** 2


def _log_bessel_k(order: float, r: tf.Tensor) -> tf.Tensor:
    # In float64: the terms of a log density reach 1e5 at n = 16384 and cancel.
    return tfp.math.log_bessel_kve(tf.constant(order, tf.float64), r) - r


def _split(seed: Any) -> list[tf.Tensor]:
    return tf.unstack(tf.random.split(samplers.sanitize_seed(seed), 2, alg="philox"))
