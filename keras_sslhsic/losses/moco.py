"""The loss of MoCo: a contrast with a queue of earlier keys."""

from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import replicas, sampling
from keras_sslhsic.losses.base import Hiddens, Objective, of_target, pairs, register, unit_norm


@register("moco")
class MoCoLoss(Objective):
    """Momentum contrast (He et al. 2020, equation 1): the key of another view, among keys of earlier images.

    For unit vectors q of the online network and k of the target network, and t the temperature,

        loss = -mean over images and pairs of different views p, l of
                   log( e^{q^p'k^l / t} / (e^{q^p'k^l / t} + sum over the queue of e^{q^p'k / t}) )

    The queue holds the last keys of all views, of the batches before this one; it begins with random unit vectors. The
    authors take one of the two pairs, (q^1, k^2), and queue k^2 alone.

    Args:
        temperature: t, positive.
        queue_size: number of keys that the queue holds.
        name: name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`.

    Raises:
        ValueError: for values outside of these ranges.
    """

    needs_target = True
    arguments = ("temperature", "queue_size")

    def __init__(self, temperature: float = 0.2, queue_size: int = 65536, name: str = "moco", **kwargs: Any):
        super().__init__(name=name, **kwargs)
        checks.number("temperature", temperature, above=True)
        checks.integer("queue_size", queue_size, 1)
        self.temperature = float(temperature)
        self.queue_size = queue_size
        self.queue: keras.Variable | None = None

    def build(self, size: int) -> None:
        """Makes the queue."""
        first = unit_norm(sampling.normal([self.queue_size, size], tf.constant([0, 0])))
        self.queue = keras.Variable(
            first, trainable=False, dtype="float32", aggregation="only_first_replica", name="queue"
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """The queue, the newest keys first."""
        return [] if self.queue is None else [self.queue]

    def terms(self, hiddens: Hiddens, seed: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """The "loss", and the "accuracy" with which the positive key is nearer than the queue; see `Objective.terms`."""
        if self.queue is None:
            raise ValueError(
                "MoCoLoss has no queue yet: compile a model with it, or call build(size) with the size of the outputs."
            )
        queries, keys = unit_norm(tf.cast(hiddens.online, tf.float32)), unit_norm(of_target(hiddens))
        weights = pairs(queries.shape[1], keys.shape[1])
        positive = tf.einsum("bpq,blq->bpl", queries, keys) / self.temperature
        negative = tf.einsum("bpq,kq->bpk", queries, self.queue.value) / self.temperature
        others = tf.reduce_logsumexp(negative, axis=-1, keepdims=True)
        nearer = tf.cast(positive > tf.reduce_max(negative, axis=-1, keepdims=True), tf.float32)
        losses = tf.nn.softplus(others - positive)
        sums = tf.stack([tf.reduce_sum(weights * x) for x in (losses, nearer)])
        loss, accuracy = tf.unstack(replicas.mean_of_sums(sums, tf.shape(queries)[0]))
        return {"loss": loss, "accuracy": accuracy}

    def update(self, hiddens: Hiddens) -> dict[str, tf.Tensor]:
        """Puts the keys of the batch, of all replicas, in front of the queue, whose oldest ones leave it."""
        assert self.queue is not None
        keys = tf.reshape(unit_norm(of_target(hiddens)), [-1, self.queue.shape[1]])
        queue = tf.concat([replicas.all_gather(keys), self.queue.value], axis=0)
        self.queue.assign(queue[: self.queue_size])
        return {}
