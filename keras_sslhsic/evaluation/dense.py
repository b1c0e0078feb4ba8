"""Dense transfer: an encoder and a new head trained together to predict a map of each image; several seeds, one record."""

import dataclasses
import hashlib
import io
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_sslhsic import checks, compat, files, pictures
from keras_sslhsic.encoders import Encoder, encoder_hash, encoder_of
from keras_sslhsic.encoders.resnet import BATCH_NORM
from keras_sslhsic.evaluation import metrics
from keras_sslhsic.evaluation.maps import MapSplit
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.settings import Setting, natural, positive, text
from keras_sslhsic.evaluation.streams import select
from keras_sslhsic.evaluation.sweep import Candidate, differing, planned, training_settings, warn_of_batch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEPT_EVERY = 500  # steps, after which the state of a training is on the disk
_SHOWN = 4  # test images in the picture


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseRecipe(Candidate):
    """How a network is trained: SGD with momentum 0.9, the learning rate divided by 10 after 70 % and 90 % of the steps.

    Attributes:
        learning_rate: of encoder and head.
        weight_decay: of the l2 penalty weight_decay / 2 |W|^2 on all kernels (not on biases and BatchNormalization).
        steps: updates.
        batch_size: images a step.
        head_width: factor on the channels of the head.
    """

    steps: int
    batch_size: int
    head_width: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("steps", self.steps, 1)
        checks.integer("batch_size", self.batch_size, 1)
        checks.number("head_width", self.head_width, above=True)


@dataclasses.dataclass(frozen=True)
class Task:
    """What a dense protocol predicts, and how well.

    Attributes:
        name: of the protocol.
        metric: the one of `measures` that recipes are chosen by; higher is better.
        units: of the other metrics where they are no shares; a lower value of those is better.
        dilated: whether the last stage of the encoder keeps the resolution of the one before.
        head: (map of the last stage, its stride, the split's number of classes, width, seed) -> prediction [B, h, w, K].
        loss: (maps [B, H, W], predictions [B, H, W, K]) -> scalar.
        decode: predictions [B, H, W, K] -> maps [B, H, W].
        statistics: (map of an image, its predicted map, number of classes) -> float64 [S], whose sum over images is enough
            for all metrics.
        measures: statistics summed over images, [S] -> metrics by name.
        show: (axes, map, number of classes) -> None; draws it.
        scales: range of the random scale in training, None for central crops.
        recolour: (images float32 [B, H, W, C] in [0, 255], seed) -> images of other colours, in training; or None.
        held_out: training images to choose on, at most a fifth.
    """

    name: str
    metric: str
    units: Mapping[str, str]
    dilated: bool
    head: Callable[[Any, int, int | None, float, int], Any]
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    decode: Callable[[tf.Tensor], tf.Tensor]
    statistics: Callable[[np.ndarray, np.ndarray, int | None], np.ndarray]
    measures: Callable[[np.ndarray], dict[str, float]]
    show: Callable[["Axes", np.ndarray, int | None], None]
    scales: tuple[float, float] | None = None
    recolour: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None
    held_out: int = 10_000


def conv_bn(x: Any, channels: int, seed: int, name: str, dilation: int = 1, relu: bool = True) -> Any:
    """A 3x3 convolution without bias and its batch normalisation."""
    x = keras.layers.Conv2D(
        channels, 3, padding="same", dilation_rate=dilation, use_bias=False, name=f"{name}_conv",
        kernel_initializer=initial(9 * x.shape[-1], seed),
    )(x)  # fmt: skip
    x = keras.layers.BatchNormalization(name=f"{name}_bn", **BATCH_NORM)(x)
    return keras.layers.ReLU(name=f"{name}_relu")(x) if relu else x


def initial(fan_in: float, seed: int) -> keras.initializers.Initializer:
    """Normal of standard deviation 1/sqrt(fan_in), cut at two of them."""
    return keras.initializers.TruncatedNormal(stddev=fan_in**-0.5, seed=seed)


class DenseNetwork(keras.Model):
    """A functional model from images [B, H, W, C] in [0, 255] to predictions [B, H, W, K], trained with an l2 penalty."""

    def prepare(
        self,
        loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        weight_decay: float,
        learning_rate: keras.optimizers.schedules.LearningRateSchedule,
    ) -> None:
        """Sets what it is trained with: SGD with momentum 0.9 on the loss, and the penalty weight_decay / 2 |W|^2."""
        self.compile(keras.optimizers.SGD(learning_rate, momentum=0.9), jit_compile=False)
        self.optimizer.build(self.trainable_variables)
        self.loss_of, self.weight_decay = loss, weight_decay

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        images, targets = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(targets, self(images, training=True))
        variables = self.trainable_variables
        replicas = tf.distribute.get_strategy().num_replicas_in_sync

        def decayed(variable: keras.Variable, gradient: tf.Tensor) -> tf.Tensor:
            if len(variable.shape) > 1:
                gradient += self.weight_decay * tf.cast(variable, gradient.dtype)
            return gradient / replicas

        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients((decayed(v, g), v) for v, g in zip(variables, gradients, strict=True))
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


def build(
    task: Task, encoder: Encoder, images: MapSplit, head_width: float = 1.0, seed: int = 0
) -> DenseNetwork:
    """The network that a task trains: a copy of the encoder up to its last map, the head, and resizing to the crop.

    Args:
        task: what is predicted.
        encoder: whose weights it starts from.
        images: for the size of the crop and the number of classes.
        head_width: factor on the channels of the head.
        seed: of the head's weights.

    Raises:
        ValueError: if the encoder cannot be given such images, or its stages are not known.
    """
    if encoder.spec.channels != images.shape[2]:
        raise ValueError(
            f"Expected images of {encoder.spec.channels} channels, as {encoder.name!r} reads them, found {images.shape[2]}."
        )
    stages = encoder.spec.stages
    last = max(stages, key=lambda name: stages[name].stride, default="")
    stride = stages[last].stride if stages else 1
    if task.dilated and stride // 2 in {stage.stride for stage in stages.values()}:
        stride //= 2
    maps = encoder.dense_maps(stride)
    compat.set_trainable(maps, True)
    pixels = keras.Input(images.shape, name="image")
    found = task.head(maps(pixels)[last], stride, images.num_classes, head_width, seed)
    found = keras.ops.image.resize(found, images.shape[:2], interpolation="bilinear")
    return DenseNetwork(pixels, keras.layers.Identity(dtype="float32")(found), name=task.name)


def train(
    task: Task,
    encoder: keras.Model,
    images: MapSplit,
    recipe: DenseRecipe,
    *,
    seed: int = 0,
    state: Path | None = None,
    verbose: bool = False,
) -> DenseNetwork:
    """Trains a copy of an encoder, and a new head on it.

    Under a tf.distribute strategy (build or load the encoder in its scope) each batch is split over the replicas.

    Args:
        task: what is predicted.
        encoder: what `encoder_of` takes.
        images: to train on. If there are fewer than a batch, batches have all of them, and the learning rate follows.
        recipe: how.
        seed: of the head's weights, the order and the transforms.
        state: file that keeps the training every `KEPT_EVERY` steps, from which it goes on.
        verbose: whether to show a progress bar.

    Returns:
        The network, from images of the crop's size to predictions of that size.
    """
    encoder = encoder_of(encoder)
    replicas = encoder.distribute_strategy.num_replicas_in_sync
    batch_size = min(recipe.batch_size, len(images)) // replicas * replicas
    rate = recipe.learning_rate * batch_size / recipe.batch_size
    steps = [max(1, round(share * recipe.steps)) for share in (0.7, 0.9)]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(steps, [rate, rate / 10, rate / 100])
    with encoder.distribute_strategy.scope():
        network = build(task, encoder, images, recipe.head_width, seed)
        network.prepare(task.loss, recipe.weight_decay, schedule)
    variables = [*network.variables, *network.optimizer.variables]
    done = _restore(state, variables)
    batches = images.training_batches(batch_size, seed, task.scales, done)
    if task.recolour is not None:
        recolour = task.recolour
        batches = batches.enumerate(done).map(
            lambda step, batch: (
                recolour(tf.cast(batch[0], tf.float32), tf.stack([tf.cast(seed, tf.int64), step])),
                batch[1],
            )
        )
    if done < recipe.steps:
        keep = _Keep(state, variables, done)
        batches = batches.take(recipe.steps - done).prefetch(2)
        network.fit(batches, shuffle=False, verbose=1 if verbose else 0, callbacks=[keep])
    return network


def predict(task: Task, network: keras.Model, images: np.ndarray | tf.Tensor) -> np.ndarray:
    """Maps [B, H, W] of images [B, H, W, C] in [0, 255] of the size that the network reads."""
    return task.decode(network(tf.cast(images, tf.float32), training=False)).numpy()


def evaluate(
    task: Task,
    encoder: keras.Model,
    splits: Mapping[str, Any],
    recipe: Sequence[DenseRecipe],
    *,
    seed: int = 0,
    seeds: int = 5,
    work_dir: str | os.PathLike | None = None,
    verbose: bool = False,
) -> Result:
    """Trains on the training images with several seeds, and measures on the test images.

    Of several recipes the best on held-out training images is taken; one alone is taken as it is.

    Args:
        task: what is predicted.
        encoder: what `encoder_of` takes; it stays as it is.
        splits: `MapSplit`s "train", "test" and perhaps "validation", which the recipe is chosen on then.
        recipe: one or several.
        seed: of the hold-out and the first training; the next has the next one.
        seeds: trainings with the best recipe.
        work_dir: folder that keeps what was trained, and the picture TASK.png; the same call goes on with it.
        verbose: whether to show progress bars.

    Returns:
        Result: means over the seeds, with intervals over the drawing of the test images.

    Raises:
        ValueError: for images without maps, test maps of which nothing is known, or if the training diverges.
    """
    checks.integer("seeds", seeds, 1)
    encoder = encoder_of(encoder)
    for name, images in splits.items():
        if not isinstance(images, MapSplit):
            raise ValueError(
                f"{task.name} needs images with a map each, found {name} of a {type(images).__name__}."
            )
    run = partial(_trained, task, encoder, encoder_hash(encoder), work_dir=work_dir, verbose=verbose)

    def score(fit: MapSplit, held: MapSplit) -> tuple[list[float], int]:
        found = [
            run(fit, held, one, seed)["statistics"] for one in tqdm(recipe, task.name, disable=not verbose)
        ]
        return [task.measures(s.sum(axis=0))[task.metric] for s in found], len(held)

    train_images, test = splits["train"], splits["test"]
    validation = splits.get("validation", min(task.held_out, len(train_images) // 5))
    best, chosen, train_images, held_out = select(
        recipe, train_images, validation, seed, score, differing(recipe)
    )
    ran = [run(train_images, test, best, seed + i) for i in range(seeds)]
    statistics = np.stack([one["statistics"] for one in ran])
    if not np.isfinite(statistics).all():
        raise ValueError(f"The network diverged: lower the learning rate ({best.learning_rate:g}).")
    num_test = statistics.shape[1]
    statistics = statistics[:, statistics.any(axis=(0, 2))]  # the others have nothing to measure on
    if not statistics.size:
        raise ValueError("No pixel of the test maps is known: give maps with classes, or with depth.")
    warn_of_batch(best.batch_size, min(best.batch_size, len(train_images)))
    if work_dir is not None:
        _picture(task, test, ran[0]["shown"], Path(work_dir) / f"{task.name}.png")

    def mean(metric: str, rows: np.ndarray | slice = slice(None)) -> float:
        return float(np.mean([task.measures(one[rows].sum(axis=0))[metric] for one in statistics]))

    found: dict[str, dict[str, Any]] = {
        metric: {
            "value": mean(metric),
            "interval": metrics.bootstrap_interval(partial(mean, metric), statistics.shape[1], seed),
            **({"unit": task.units[metric], "lower_is_better": True} if metric in task.units else {}),
        }
        for metric in task.measures(statistics[0].sum(axis=0))
    }
    given = [dataclasses.asdict(one) for one in recipe]
    varied = {key: list(dict.fromkeys(one[key] for one in given)) for key in given[0]}
    return Result(
        protocol=task.name,
        metric=task.metric,
        **found.pop(task.metric),
        others=found,
        num_test=num_test,
        num_train=len(train_images),
        seed=seed,
        recipe={
            **{key: values[0] if len(values) == 1 else values for key, values in varied.items()},
            "momentum": 0.9, "seeds": seeds, "held_out": held_out, **test.recipe(),
        },
        details={
            "values": [task.measures(one.sum(axis=0))[task.metric] for one in statistics],
            **({} if test.num_classes is None else {"num_classes": test.num_classes}),
            "learning_rate": best.learning_rate, "weight_decay": best.weight_decay,
            "validation_value": chosen.value if chosen else None,
            "at_edge": chosen.at_edge if chosen else (),
        },
    )  # fmt: skip


def settings(defaults: Mapping[str, Any]) -> dict[str, Setting]:
    """What can be set of a dense protocol that trains as `defaults` says where nothing else is given."""
    found = training_settings(defaults, "steps")
    del found["epochs"]
    return found | {
        "seeds": Setting(natural, "trainings, over which the mean is taken", "5"),
        "head_width": Setting(positive, "factor on the channels of the new layers", "1"),
        "work_dir": Setting(text, "folder to go on from if it stops, which gets a picture too", parse=str),
    }


def arguments(defaults: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `evaluate` from checked settings."""
    rest = dict(given)
    width = {"head_width": rest.pop("head_width")} if "head_width" in rest else {}
    found = planned(defaults, lambda **plan: {"recipe": recipes(**plan, **width)}, rest)
    return {"recipe": recipes(**defaults, **width), **found}


def recipes(
    learning_rates: Sequence[float], weight_decays: Sequence[float] = (0.0,), **fixed: Any
) -> tuple[DenseRecipe, ...]:
    """Every combination; `fixed` are other fields of `DenseRecipe`."""
    pairs = itertools.product(learning_rates, weight_decays)
    return tuple(DenseRecipe(learning_rate=rate, weight_decay=decay, **fixed) for rate, decay in pairs)


def _trained(
    task: Task, encoder: Encoder, digest: str, train_images: MapSplit, test: MapSplit, recipe: DenseRecipe, seed: int,
    *, work_dir: str | os.PathLike | None, verbose: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """A training and its measurement, read back if it was made before: "statistics" [N, S], "shown", the first maps."""
    outcome = state = None
    if work_dir is not None:
        named = [
            task.name,
            digest,
            dataclasses.asdict(recipe),
            seed,
            _known_by(train_images),
            _known_by(test),
        ]
        name = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]
        outcome, state = (Path(work_dir) / f"{name}.{ending}.npz" for ending in ("measured", "training"))
        if outcome.exists():
            with np.load(outcome) as found:
                return dict(found)
    network = train(task, encoder, train_images, recipe, seed=seed, state=state, verbose=verbose)
    infer = tf.function(lambda images: task.decode(network(tf.cast(images, tf.float32), training=False)))
    rows: list[np.ndarray] = []
    shown: list[np.ndarray] = []
    batches = test.batches(recipe.batch_size)
    for images, targets in tqdm(batches, f"{task.name}, test", unit="batch", disable=not verbose):
        predicted = infer(images).numpy()
        rows += [
            task.statistics(t, p, test.num_classes) for t, p in zip(targets.numpy(), predicted, strict=True)
        ]
        shown += list(predicted[: _SHOWN - len(shown)])
    found = {"statistics": np.stack(rows), "shown": np.stack(shown)}
    if not all(np.isfinite(np.asarray(v)).all() for v in network.trainable_variables):
        found["statistics"] = np.full_like(found["statistics"], np.nan)
    if outcome is not None and state is not None:
        _write(outcome, found)
        state.unlink(missing_ok=True)
    return found


def _known_by(images: MapSplit) -> list[Any]:
    """What tells images from others: number, crop, classes, and the pixels of the first and the last."""
    digest = hashlib.sha256()
    for number in (0, len(images) - 1):
        for values in (images.read(number), images.target(number)):
            digest.update(b"" if values is None else np.ascontiguousarray(values).tobytes())
    return [len(images), images.shape, images.short_side, images.num_classes, digest.hexdigest()]


def _restore(state: Path | None, variables: Sequence[Any]) -> int:
    """Gives variables the values of a file, if it is there; returns the steps that it has behind it."""
    if state is None or not state.exists():
        return 0
    with np.load(state) as found:
        for number, variable in enumerate(variables):
            variable.assign(found[f"{number}"])
        return int(found["step"])


def _write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    content = io.BytesIO()
    np.savez(content, **dict(arrays))  # type: ignore[arg-type]
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, content.getvalue())


class _Keep(keras.callbacks.Callback):
    """Writes the state of a training every `KEPT_EVERY` steps."""

    def __init__(self, state: Path | None, variables: Sequence[Any], step: int) -> None:
        super().__init__()
        self.state, self.variables, self.step = state, variables, step

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self.step += 1
        if self.state is not None and self.step % KEPT_EVERY == 0:
            values = {f"{number}": np.asarray(v) for number, v in enumerate(self.variables)}
            _write(self.state, values | {"step": np.array(self.step)})


def _picture(task: Task, images: MapSplit, predicted: np.ndarray, path: Path) -> None:
    """Test images, their maps and the predicted ones beside each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3 * len(predicted)), layout="constrained")
    rows = figure.subplots(len(predicted), 3, squeeze=False)
    pairs = images.batches(1).unbatch().take(len(predicted)).as_numpy_iterator()
    for axes, (image, target), prediction in zip(rows, pairs, predicted, strict=True):
        axes[0].imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray")
        task.show(axes[1], target, images.num_classes)
        task.show(axes[2], prediction, images.num_classes)
    for axis, title in zip(rows[0], ("image", "target", "prediction"), strict=True):
        axis.set_title(title)
    for axis in rows.flat:
        axis.set_axis_off()
    pictures.save(figure, path)
