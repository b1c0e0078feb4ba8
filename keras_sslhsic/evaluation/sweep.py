"""Candidates of a sweep: which there are, which is best, and many linear classifiers that are trained at once."""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.evaluation.settings import SEED, Setting, flags, natural, positive
from keras_sslhsic.words import warn

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Candidate:
    """A learning rate (the peak) and an l2 weight decay."""

    learning_rate: float
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        checks.number("learning_rate", self.learning_rate)
        checks.number("weight_decay", self.weight_decay)


@dataclass(frozen=True)
class Recipe:
    """How every candidate is trained.

    Attributes:
        epochs: passes over the training images.
        batch_size: images a step.
        warmup_steps: steps of linear warm-up, before the cosine to 0.
        momentum: of SGD.
        nesterov: whether the momentum is Nesterov's.
    """

    epochs: int
    batch_size: int
    warmup_steps: int = 0
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        checks.integer("epochs", self.epochs, 1)
        checks.integer("batch_size", self.batch_size, 1)


def several_of(kind: type[Kind], given: Any, name: str) -> list[Kind]:
    """One of a kind, or several, as a list; raises ValueError, with their name, for none and for others."""
    found = [given] if isinstance(given, kind) else list(given) if isinstance(given, Iterable) else []
    if not found or not all(isinstance(one, kind) for one in found):
        raise ValueError(
            f"{name} must be a {kind.__name__}, or several, found {given!r:.200}: make one with {kind.__name__}(...)."
        )
    return found


def grid(learning_rates: Sequence[float], weight_decays: Sequence[float]) -> tuple[Candidate, ...]:
    """All pairs of a learning rate and a weight decay."""
    return tuple(itertools.starmap(Candidate, itertools.product(learning_rates, weight_decays)))


def scale_rates(candidates: Sequence[Candidate], asked: int, ran: int) -> tuple[Candidate, ...]:
    """Candidates whose learning rates follow the batch size from the one they were given for to the one that runs."""
    return tuple(replace(c, learning_rate=c.learning_rate * (ran / asked)) for c in candidates)


def warn_of_batch(asked: int, ran: int) -> None:
    """Warns if the batch is another one than was asked for."""
    if ran != asked:
        warn(
            f"Batches have {ran} images, where {asked} were asked for: the learning rates are scaled by "
            f"{ran / asked:g}.",
        )


@dataclass(frozen=True)
class Choice:
    """The best candidate of a sweep.

    Attributes:
        index: of the candidate; the first of equals.
        value: its score on the held-out images.
        at_edge: the settings that have at least three positive values of which it has the smallest or the largest,
            and no candidate as good has another. A better value may lie beyond.
    """

    index: int
    value: float
    at_edge: tuple[str, ...]


def choose(values: Sequence[float] | np.ndarray, **settings: Sequence[float]) -> Choice:
    """The best of several candidates, with a warning if it lies at the edge of the sweep.

    Args:
        values: a score for each candidate; NaN for one that diverged, which is never chosen.
        **settings: a value for each candidate.

    Raises:
        ValueError: if all candidates diverged.

    Example:
        >>> choose([0.1, 0.3, 0.2], learning_rate=[0.1, 0.2, 0.4])
        Choice(index=1, value=0.3, at_edge=())
    """
    if np.isnan(values).all():
        tried = ", ".join(f"{name} {min(given):g} to {max(given):g}" for name, given in settings.items())
        raise ValueError(f"All {len(values)} candidates diverged ({tried}): lower the learning rates.")
    best = int(np.nanargmax(values))
    at_edge = []
    for name, given in settings.items():
        rounded = [float(f"{value:.6g}") for value in given]  # equal but for rounding are equal
        distinct = sorted({value for value in rounded if value > 0})
        as_good = {rounded[i] for i in np.flatnonzero(np.asarray(values) == values[best])}
        if len(distinct) >= 3 and as_good <= {distinct[0], distinct[-1]}:
            at_edge.append(name)
            flag = flags([name if name == "l2" else f"{name}s"])
            warn(
                f"The best {name} of the sweep, {rounded[best]:g}, is at its edge ({distinct[0]:g} to "
                f"{distinct[-1]:g}): a better one may lie beyond. Widen the sweep (`evaluate PROTOCOL {flag}`).",
            )
    return Choice(best, float(values[best]), tuple(at_edge))


def differing(candidates: Sequence[Candidate]) -> dict[str, list[float]]:
    """What differs among candidates, by name."""
    names = [field.name for field in fields(Candidate)]
    return {name: [getattr(candidate, name) for candidate in candidates] for name in names}


def tried(**settings: Sequence[float]) -> dict[str, Any]:
    """The distinct values of each setting of a sweep, in order, for a record."""
    return {f"{name}s": sorted(set(values)) for name, values in settings.items()}


def training_settings(defaults: Mapping[str, Any], *more: str) -> dict[str, Setting]:
    """What can be set of a protocol that trains as `defaults` says where nothing else is given.

    Args:
        defaults: setting -> its value.
        *more: what else than a batch, epochs, learning rates and weight decays can be set: "steps", "head_learning_rate",
            "crops", "num_classes".
    """
    kinds = {
        "batch_size": Setting(natural, "images a step"),
        "epochs": Setting(
            natural,
            "passes over the training images, one or several to choose from",
            several=True,
            replaces="steps",
        ),
        "steps": Setting(natural, "updates, instead of epochs", replaces="epochs"),
        "learning_rates": Setting(
            positive,
            "to choose from on held-out images, for the batch size, as 0.1,0.2; one alone is taken as it is (the default ones "
            "follow the batch size; all do where there are fewer images than a batch)",
            several=True,
            replaces="learning_rate",
        ),
        "learning_rate": Setting(positive, "the only one, instead of several", replaces="learning_rates"),
        "weight_decays": Setting(
            checks.number,
            "to choose from, as 0,1e-6 (in fine-tuning each is divided by the learning rate)",
            several=True,
        ),
        "head_learning_rate": Setting(checks.number, "of the new layer", "as the encoder's"),
        "crops": Setting(checks.flag, "whether images are cropped and mirrored at random", "True"),
        "num_classes": Setting(
            partial(checks.integer, least=2), "classes of a TFDS set that does not name them"
        ),
    }
    names = ("batch_size", "epochs", "learning_rate", "learning_rates", "weight_decays", *more)
    return SEED | {
        name: replace(kinds[name], default=default_text(defaults[name])) if name in defaults else kinds[name]
        for name in names
    }


def default_text(value: Any) -> str:
    """One or several values as text, many by their ends."""
    shown = [f"{one:g}" for one in (value if isinstance(value, tuple) else (value,))]
    return ", ".join(shown) if len(shown) < 4 else f"{len(shown)} values, {shown[0]} to {shown[-1]}"


def planned(
    defaults: Mapping[str, Any], make: Callable[..., dict[str, Any]], given: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a protocol that trains, from checked settings.

    Args:
        defaults: the settings of the training where nothing else is given. A length that is given replaces one in another
            unit; learning rates that are not given follow the batch size.
        make: the settings of the training -> arguments.
        given: what was set. What is no setting of the training is an argument as it is.
    """
    names = {
        "epochs",
        "steps",
        "batch_size",
        "learning_rate",
        "learning_rates",
        "weight_decays",
        "head_learning_rate",
        "crops",
    }
    own = {name: given[name] for name in names & given.keys()}
    rest = {name: value for name, value in given.items() if name not in names}
    if "learning_rate" in own:
        if "learning_rates" in own:
            raise ValueError("Give either learning_rate or learning_rates, found both.")
        own["learning_rates"] = (own.pop("learning_rate"),)
    if not own:
        return rest
    lengths = {"steps", "epochs"}
    plan = {name: v for name, v in defaults.items() if name not in lengths or not lengths & own.keys()} | own
    if "learning_rates" not in own:
        factor = plan["batch_size"] / defaults["batch_size"]
        plan["learning_rates"] = tuple(rate * factor for rate in plan["learning_rates"])
    if not plan.pop("crops", True):
        plan["crop_area"] = None
    return make(**plan) | rest


class WideClassifier(tf.Module):
    """K linear classifiers [F, C] side by side as one matrix [F, K C], each trained by SGD on its own loss.

    The loss of a candidate is the mean cross-entropy + weight_decay / 2 |W|^2 (biases are not decayed). Since
    no loss reads another candidate's weights, training together equals training alone; features are computed
    once for all.

    Args:
        dim: F.
        num_classes: C.
        candidates: K learning rates and weight decays.
    """

    def __init__(self, dim: int, num_classes: int, candidates: Sequence[Candidate]):
        super().__init__()
        self.shape = (len(candidates), num_classes)
        columns = len(candidates) * num_classes
        self.kernel = tf.Variable(tf.zeros([dim, columns]))
        self.bias = tf.Variable(tf.zeros([columns]))
        self.momenta = [tf.Variable(tf.zeros_like(v)) for v in (self.kernel, self.bias)]
        self.learning_rates = np.repeat([c.learning_rate for c in candidates], num_classes).astype(np.float32)
        self.weight_decays = np.repeat([c.weight_decay for c in candidates], num_classes).astype(np.float32)

    def logits(self, features: tf.Tensor) -> tf.Tensor:
        """float [B, F] -> [B, K, C]."""
        return tf.reshape(features @ self.kernel + self.bias, [-1, *self.shape])

    def step(self, features: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor, recipe: Recipe) -> None:
        """One step of SGD on every candidate.

        Args:
            features: float32 [B, F].
            labels: int [B].
            rate: the schedule's factor on the learning rates.
            recipe: for the momentum.
        """
        targets = tf.one_hot(labels, self.shape[1])[:, None]
        # The gradient of softmax cross-entropy by the logits.
        errors = (tf.nn.softmax(self.logits(features)) - targets) / tf.cast(tf.shape(features)[0], tf.float32)
        errors = tf.reshape(errors, [-1, self.bias.shape[0]])
        gradients = (
            tf.matmul(features, errors, transpose_a=True) + self.weight_decays * self.kernel,
            tf.reduce_sum(errors, axis=0),
        )
        for variable, momentum, gradient in zip(
            (self.kernel, self.bias), self.momenta, gradients, strict=True
        ):
            momentum.assign(recipe.momentum * momentum + gradient)
            update = gradient + recipe.momentum * momentum if recipe.nesterov else momentum
            variable.assign_sub(rate * self.learning_rates * update)

    def fit(self, features: np.ndarray, labels: np.ndarray, recipe: Recipe, seed: int) -> None:
        """Trains on features in memory, each epoch in an order of its own.

        Args:
            features: float32 [N, F].
            labels: int [N].
            recipe: with batch_size <= N. The last images of an epoch that fill no batch are left out.
            seed: of the order.
        """
        steps = len(labels) // recipe.batch_size
        features, labels = tf.constant(features), tf.constant(labels)

        @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
        def epoch(number: tf.Tensor) -> None:
            order = tf.random.experimental.stateless_shuffle(tf.range(len(labels)), seed=[seed, number])
            for i in tf.range(steps):
                rows = order[i * recipe.batch_size : (i + 1) * recipe.batch_size]
                rate = schedule(number * steps + i, recipe.epochs * steps, recipe.warmup_steps)
                self.step(tf.gather(features, rows), tf.gather(labels, rows), rate, recipe)

        # As it is, TensorFlow would warn of functions that are made anew for every encoder.
        run = epoch.get_concrete_function()
        for number in tf.range(recipe.epochs):
            run(number)

    def accuracies(self, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Share of features that each candidate classifies right, float [K]; NaN for one that diverged."""
        logits = self.logits(tf.constant(features)).numpy()
        shares = np.mean(logits.argmax(axis=-1) == labels[:, None], axis=0)
        return np.where(np.isfinite(logits).all(axis=(0, 2)), shares, np.nan)


def schedule(step: tf.Tensor, total_steps: int, warmup_steps: int) -> tf.Tensor:
    """Factor on the learning rate: t / w in the warm-up, then (1 + cos(pi (t - w) / (T - w))) / 2."""
    step = tf.cast(step, tf.float32)
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return tf.where(
        step < warmup_steps, step / max(warmup_steps, 1), 0.5 * (1.0 + tf.cos(math.pi * progress))
    )
