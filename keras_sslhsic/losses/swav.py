"""The loss of SwAV: predicting the cluster of one view from another."""

from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import replicas
from keras_sslhsic.hsic.checks import check_views
from keras_sslhsic.losses.base import Hiddens, Objective, pairs, register, unit_norm


@register("swav")
class SwAVLoss(Objective):
    """Swapped prediction of balanced assignments to prototypes (Caron et al. 2020, equations 1 to 4).

    For unit vectors z of the online network and unit prototypes c_k, t the temperature, and codes q^l of view l,

        loss = -mean over images and pairs of different views p, l of  sum_k q_k^l log softmax_k(z^p'c / t)

    where l is no local view: those have no codes, and predict the others'.
    The codes are under stop-gradient: of exp(z'c / epsilon), each prototype's sum over the images of the global batch and each
    image's over prototypes are made equal in turn, so that prototypes share the images equally. The authors' queue, for batches
    too small for that, is left out.

    The prototypes are trained with the networks, and divided by their norms after each step; in the first steps they stay.

    Args:
        temperature: t, positive.
        epsilon: entropy of the codes, positive.
        iterations: of the balancing, at least 1.
        num_prototypes: at least 2.
        frozen_steps: in which the prototypes stay, at least 0. The authors take one epoch.
        name: name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`.

    Raises:
        ValueError: for values outside of these ranges.
    """

    arguments = ("temperature", "epsilon", "iterations", "num_prototypes", "frozen_steps")

    def __init__(
        self,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        num_prototypes: int = 3000,
        frozen_steps: int = 313,
        name: str = "swav",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        checks.number("temperature", temperature, above=True)
        checks.number("epsilon", epsilon, above=True)
        checks.integer("iterations", iterations, 1)
        checks.integer("num_prototypes", num_prototypes, 2)
        checks.integer("frozen_steps", frozen_steps, 0)
        self.temperature, self.epsilon, self.iterations = float(temperature), float(epsilon), iterations
        self.num_prototypes, self.frozen_steps = num_prototypes, frozen_steps
        self._state: list[keras.Variable] = []

    def build(self, size: int) -> None:
        """Makes the prototypes and the count of steps."""
        # An initializer follows set_random_seed in every Keras; the stream of keras.random goes on after it in older ones.
        first = unit_norm(keras.initializers.RandomNormal(stddev=1.0)([self.num_prototypes, size]))
        self._state = [
            keras.Variable(first, dtype="float32", aggregation="only_first_replica", name="prototypes"),
            keras.Variable(
                0, trainable=False, dtype="int64", aggregation="only_first_replica", name="prototype_steps"
            ),
        ]

    @property
    def variables(self) -> list[keras.Variable]:
        """The prototypes [K, Q], which are trainable, and the number of steps made."""
        return self._state

    def terms(self, hiddens: Hiddens, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The "loss"; see `Objective.terms`."""
        if not self._state:
            raise ValueError(
                "SwAVLoss has no prototypes yet: compile a model with it, or call build(size) with the size of the outputs."
            )
        check_views(hiddens.online)
        prototypes, steps = [tf.convert_to_tensor(v.value) for v in self._state]
        prototypes = tf.where(steps < self.frozen_steps, tf.stop_gradient(prototypes), prototypes)
        scores = tf.einsum("bpq,kq->bpk", unit_norm(tf.cast(hiddens.online, tf.float32)), prototypes)
        codes = scores[:, : hiddens.num_global]
        codes = tf.stop_gradient(balanced(codes, self.epsilon, self.iterations))
        swapped = tf.einsum("bpk,blk->pl", tf.nn.log_softmax(scores / self.temperature), codes)
        total = tf.reduce_sum(swapped * pairs(scores.shape[1], codes.shape[1]))
        return {"loss": -replicas.mean_of_sums(total, tf.shape(scores)[0])}

    def update(self, hiddens: Hiddens) -> dict[str, tf.Tensor]:
        """Divides the prototypes by their norms, and counts the step."""
        prototypes, steps = self._state
        prototypes.assign(unit_norm(prototypes.value))
        steps.assign_add(1)
        return {}


def balanced(scores: tf.Tensor, epsilon: float, iterations: int) -> tf.Tensor:
    """Assigns the images of a batch to prototypes, as many to each (Sinkhorn and Knopp; Cuturi 2013).

    Of cosines float32 [B, M, K] with prototypes it makes codes, proportional to exp(scores / epsilon) before they are balanced,
    each view by itself: they sum to 1 over prototypes, and nearly to B / K over the images of all replicas.
    """
    # The constant cancels: no cosine is above 1, and nothing overflows.
    codes = tf.exp((scores - 1.0) / epsilon)
    for _ in range(iterations):
        codes = tf.math.divide_no_nan(codes, replicas.all_sum(tf.reduce_sum(codes, axis=0)))
        codes = tf.math.divide_no_nan(codes, tf.reduce_sum(codes, axis=-1, keepdims=True))
    return codes
