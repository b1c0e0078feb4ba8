"""What a loss is to the trainer, and what the losses share."""

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import keras
import tensorflow as tf

from keras_sslhsic.hsic import replicas
from keras_sslhsic.hsic.checks import check_labels, check_views
from keras_sslhsic.registries import Registry


class Hiddens(NamedTuple):
    """What the networks make of the views of a batch, float32, **not** of unit norm.

    Attributes:
        online: outputs [B, M, Q] of the online network for M views of each of B images; gradients flow through them.
        target: [B, M', Q], what they are compared with, under stop-gradient: projections of the target network, or, where
            there is a predictor alone, of the online network itself. None where there is neither. M' < M where views are
            local (`views.Local`): the target sees the first ones alone.
        num_global: how many of the M views are not local, the first ones; None: all.
    """

    online: tf.Tensor
    target: tf.Tensor | None = None
    num_global: int | None = None


class Objective(keras.losses.Loss):
    """Base of all losses: what a trainer descends, and what state the loss keeps for it.

    A loss needs `terms`, and `call(y_true, y_pred)` only if it is to be a plain Keras loss too. One with a state (a learnt
    scale, a queue, prototypes) makes it in `build` and moves it in `update`. Its state belongs to one trainer.

    Attributes:
        needs_target: whether it compares with a target network; None where it takes both.
        needs_predictor: whether the online network has to end in a predictor; None where it takes both.
        latest: names among its terms that are shown as they are at a step, not as means over the epoch.
        arguments: of `__init__`, kept as attributes of these names, for `get_config`.
        owner: the trainer that it keeps its state for.
    """

    needs_target: bool | None = False
    needs_predictor: bool | None = False
    latest: Sequence[str] = ()
    arguments: Sequence[str] = ()
    owner: "weakref.ref[keras.Model] | None" = None

    def terms(self, hiddens: Hiddens, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """The loss of a training step, and whatever else is worth a line in the logs.

        Under `tf.distribute`, `hiddens` are those of this replica's images, and every result is the global one, equal on all
        replicas. The gradient is that of the sum over replicas: the trainer divides the loss by their number.

        Args:
            hiddens: of the batch. A loss that wants unit vectors makes them (see `unit_views`).
            seed: int32 [2], the same on all replicas, new at every step.

        Returns:
            Float32 scalars by name, among them "loss".

        Raises:
            ValueError: if the outputs are not [B, M, Q], M is below 2, or the loss lacks a target or what `build` makes.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method terms(hiddens, seed).")

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Refuses, unless it is defined: what a loss is in Keras sees neither views nor targets."""
        raise NotImplementedError(
            f"{type(self).__name__} compares views, and is no loss of (y_true, y_pred): compile a model of "
            "keras_sslhsic.methods with it, or call its terms(losses.Hiddens(...), seed)."
        )

    def build(self, size: int) -> None:
        """Makes the loss's own variables; called once, by `compile`, in the scope of the strategy.

        Those with `trainable=True` are trained with the networks, by their optimizer.

        Args:
            size: Q of the hiddens.
        """

    def build_for(self, trainer: keras.Model, size: int) -> None:
        """`build`, once and for one trainer.

        Raises:
            ValueError: if the trainer has not the networks that the loss needs, or the loss keeps the state of another one, or
                has a variable that would not be saved.
        """
        for part, has in (("target", bool(trainer.target)), ("predictor", trainer.predictor is not None)):
            if (needs := getattr(self, f"needs_{part}")) not in (None, has):
                raise ValueError(
                    f"{type(self).__name__} {'needs a' if needs else 'is for models without a'} {part} network, and this "
                    f"{type(trainer).__name__} has {'one' if has else 'none'}: give the model {part}={needs}, or compile it "
                    "with another loss."
                )
        if self.owner is None:
            self.build(size)
        elif self.owner() is not trainer and self.variables:
            raise ValueError(
                f"This {type(self).__name__} keeps the state of another model: give each model a loss of its own."
            )
        self.owner = weakref.ref(trainer)
        kept = {id(v) for v in self.variables}
        for name, value in vars(self).items():
            if isinstance(value, keras.Variable) and id(value) not in kept:
                raise ValueError(
                    f"Expected the variable {name} of {type(self).__name__} among its `variables`, found it nowhere there: "
                    "neither files nor checkpoints would hold it. Return it there."
                )

    def update(self, hiddens: Hiddens) -> dict[str, tf.Tensor]:
        """One step of the loss's own state, after that of the optimizer; returns float32 scalars for the logs."""
        return {}

    @property
    def variables(self) -> list[keras.Variable]:
        """The state, for files and checkpoints, in one order; names are told apart by it where they are equal."""
        return []

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return super().get_config() | {name: getattr(self, name) for name in self.arguments}

    def warning(self, images: int, views: int, target: bool) -> str | None:
        """What speaks against training on such batches, as a message; None if nothing does.

        Args:
            images: in a global batch.
            views: of each image.
            target: whether there is a target network.
        """
        return None

    def advice_on_collapse(self, means: Mapping[str, float]) -> str | None:
        """What to add to the warning that the outputs have collapsed; None where they are on their way out of it.

        Args:
            means: of the terms and the trainer's other metrics, over the last steps.
        """
        return ""


LOSSES: Registry[type[Objective]] = Registry("loss")

Class = TypeVar("Class", bound=type)


def registered(registry: Registry, name: str) -> Callable[[Class], Class]:
    """A decorator that adds a class to a registry, and to those that Keras saves, under its module's package."""

    def register(cls: Class) -> Class:
        keras.saving.register_keras_serializable(package=cls.__module__.partition(".")[0])(cls)
        return registry.add(name, cls)

    return register


def register(name: str) -> Callable[[Class], Class]:
    """A decorator for a subclass of `Objective`: configs find it by this name, and Keras saves and loads it.

    Example:
        >>> @register("spread")
        ... class Spread(Objective):
        ...     def terms(self, hiddens, seed):
        ...         return {"loss": -tf.reduce_mean(tf.math.reduce_std(hiddens.online, axis=0))}
    """
    return registered(LOSSES, name)


def get(settings: Mapping[str, Any]) -> Objective:
    """The loss of a config: {"name": "ssl_hsic", and its arguments}.

    Raises:
        ValueError: for what names no loss, an unknown name, or an argument that the loss does not take.
    """
    if not hasattr(settings, "items") or "name" not in settings:
        raise ValueError(
            f'Expected the name of a loss in a mapping, {{"name": "ssl_hsic"}}, found {settings!r}.'
        )
    arguments = dict(settings)
    name = arguments.pop("name")
    loss = LOSSES[name]
    foreign = set(arguments) - set(inspect.signature(loss).parameters)
    if foreign:
        raise ValueError(
            f"The loss {name!r} takes no {', '.join(sorted(foreign))}: give the whole `loss` of another kind in a config file."
        )
    return loss(**arguments)


def unit_norm(z: tf.Tensor) -> tf.Tensor:
    """Divides vectors [..., Q] by their norm, without overflow, underflow or an infinite gradient.

    Vectors shorter than 1e-6 are divided by 1e-6 instead, so that zero stays zero.
    """
    largest = tf.maximum(tf.reduce_max(tf.abs(z), axis=-1, keepdims=True), 1e-6)
    # The norm cancels a constant factor, so this one needs no gradient.
    z = z / tf.stop_gradient(largest)
    return z * tf.math.rsqrt(tf.maximum(tf.reduce_sum(tf.square(z), axis=-1, keepdims=True), 1.0))


def unit_views(hiddens: Hiddens) -> tf.Tensor:
    """All outputs of each image, online and target, as unit vectors: float32 [B, M + M', Q].

    Raises:
        ValueError: for another shape, or a single output of each image.
    """
    z = tf.concat([tf.cast(h, tf.float32) for h in hiddens[:2] if h is not None], axis=1)
    check_views(z)
    return unit_norm(z)


def pairs(online: int, target: int) -> tf.Tensor:
    """1 / (their number) for each pair of different views, 0 for a view with itself: float32 [M, M'], M' first of the M.

    Raises:
        ValueError: if there is no pair.
    """
    count = target * (online - 1)
    if online < 2 or not 1 <= target <= online:
        raise ValueError(
            f"Expected M >= 2 views of each image and from 1 to M of the target, found M = {online} and {target}."
        )
    return (1.0 - tf.eye(online, target)) / count


def mean_cosine(hiddens: Hiddens) -> tf.Tensor:
    """The cosine between an online output and the target's for another view, its mean over pairs and images, float32 [].

    Raises:
        ValueError: without a target, or for a single view.
    """
    online, target = unit_norm(tf.cast(hiddens.online, tf.float32)), unit_norm(of_target(hiddens))
    cosines = tf.einsum("bpq,blq->pl", online, target)
    total = tf.reduce_sum(cosines * pairs(online.shape[1], target.shape[1]))
    return replicas.mean_of_sums(total, tf.shape(online)[0])


def of_target(hiddens: Hiddens) -> tf.Tensor:
    """The target's outputs, float32 [B, M', Q], under stop-gradient.

    Raises:
        ValueError: if there are none.
    """
    if hiddens.target is None:
        raise ValueError(
            "Expected the outputs of a target, found none: a model with a target or a predictor has them."
        )
    return tf.stop_gradient(tf.cast(hiddens.target, tf.float32))


def identified(y_true: tf.Tensor, y_pred: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Unit rows, float32 [n, Q], and their integer identities [n], of what a Keras loss is called with.

    Args:
        y_true: identities [n] or [n, 1].
        y_pred: rows [n, Q].

    Raises:
        ValueError: for other shapes.
    """
    y_true, z = tf.convert_to_tensor(y_true), unit_norm(tf.cast(y_pred, tf.float32))
    if y_true.shape.rank not in (1, 2) or (y_true.shape.rank == 2 and y_true.shape[1] != 1):
        raise ValueError(f"Expected y_true, identities [n] or [n, 1], found the shape {y_true.shape}.")
    labels = tf.cast(tf.reshape(y_true, [-1]), tf.int32)
    check_labels(z, labels)
    return z, labels
