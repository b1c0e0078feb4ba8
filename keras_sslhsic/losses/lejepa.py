"""The loss of LeJEPA: a prediction, and an isotropic Gaussian for what it predicts."""

import math
from typing import Any

import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import kernels, replicas, sampling
from keras_sslhsic.hsic.checks import check_views
from keras_sslhsic.losses.base import Hiddens, Objective, register, unit_norm


@register("lejepa")
class LeJEPALoss(Objective):
    """Views predict their mean, and are spread as N(0, I) (Balestriero and LeCun 2025, section 5).

        loss = (1 - weight) prediction + weight sigreg
        prediction = mean over images, views and dimensions of (z^p - mean over global views of z)^2
        sigreg     = mean over views of  B sum_f v_f |mean over images of e^{i w_f'z} - e^{-|w_f|^2 / 2}|^2

    with B images, over the global batch, and frequencies w_f drawn anew at each step. In `sketch`, "slices" is the authors':
    w = t a for random directions a and the points t of a quadrature, which integrates the squared distance of characteristic
    functions with the weight e^{-t^2 / 2} (the statistic of Epps and Pulley 1983) over [-limit, limit]. "imq" draws w from the
    spectrum of the inverse multiquadric kernel with c^2 = 2 Q, the mean squared distance of two points of N(0, I), and
    v_f = 1 / `num_slices`: sigreg is then, in expectation, B times the squared MMD between the outputs and N(0, I), for an
    eighth of the frequencies.

    Args:
        weight: lambda, in [0, 1].
        num_slices: number of directions, or of frequencies of "imq".
        knots: points of the quadrature, odd.
        limit: where it ends, positive.
        sketch: "slices" or "imq".
        name: name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`.

    Raises:
        ValueError: for values outside of these ranges.
    """

    arguments = ("weight", "num_slices", "knots", "limit", "sketch")

    def __init__(
        self,
        weight: float = 0.05,
        num_slices: int = 1024,
        knots: int = 17,
        limit: float = 5.0,
        sketch: str = "slices",
        name: str = "lejepa",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        checks.number("weight", weight)
        checks.integer("num_slices", num_slices, 1)
        checks.integer("knots", knots, 3)
        checks.number("limit", limit, above=True)
        if weight > 1 or knots % 2 == 0 or sketch not in ("slices", "imq"):
            raise ValueError(
                "Expected a weight in [0, 1], an odd number of knots, and a sketch of 'slices' or 'imq', found "
                f"weight={weight}, knots={knots}, sketch={sketch!r}."
            )
        self.weight = float(weight)
        self.num_slices, self.knots = num_slices, knots
        self.limit, self.sketch = float(limit), sketch

    def terms(self, hiddens: Hiddens, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """The "loss", and its terms "prediction" and "sigreg"; see `Objective.terms`."""
        check_views(hiddens.online)
        z = tf.cast(hiddens.online, tf.float32)
        _, views, size = z.shape
        images = tf.cast(tf.shape(z)[0] * replicas.num_replicas(), tf.float32)
        centre = tf.reduce_mean(z[:, : hiddens.num_global], axis=1, keepdims=True)
        apart = tf.reduce_sum(tf.square(z - centre))
        prediction = replicas.all_sum(apart) / (images * views * size)

        frequencies, weights = self.frequencies(size, seed)
        angles = tf.einsum("bpq,fq->bpf", z, frequencies)
        sums = tf.stack([tf.reduce_sum(wave, axis=0) for wave in (tf.cos(angles), tf.sin(angles))])
        real, imaginary = tf.unstack(replicas.all_sum(sums) / images)
        gaussian = tf.exp(-0.5 * tf.reduce_sum(tf.square(frequencies), axis=-1))
        distances = tf.square(real - gaussian) + tf.square(imaginary)
        sigreg = images * tf.reduce_sum(weights * distances) / views
        loss = (1.0 - self.weight) * prediction + self.weight * sigreg
        return {"loss": loss, "prediction": prediction, "sigreg": sigreg}

    def frequencies(self, size: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The frequencies w [F, size] of a step and their weights v [F], float32."""
        if self.sketch == "imq":
            kernel = kernels.InverseMultiquadric(math.sqrt(2.0 * size))
            frequencies = kernel.frequencies(size).sample(self.num_slices, seed=seed)
            return frequencies, tf.fill([self.num_slices], 1.0 / self.num_slices)
        # The distance is even in t, and 0 at t = 0.
        half = (self.knots - 1) // 2
        points = tf.range(1, half + 1, dtype=tf.float32) * (self.limit / half)
        lengths = tf.concat([tf.fill([half - 1], 2.0), [1.0]], axis=0) * (self.limit / half)
        weights = lengths * tf.exp(-0.5 * tf.square(points)) / self.num_slices
        frequencies = points[:, None, None] * self.draw_directions(size, seed)
        return tf.reshape(frequencies, [-1, size]), tf.repeat(weights, self.num_slices)

    def draw_directions(self, size: int, seed: tf.Tensor) -> tf.Tensor:
        """Random unit vectors float32 [num_slices, size]. A subclass that overrides this fixes them."""
        return unit_norm(sampling.normal([self.num_slices, size], seed))
