"""Networks that predict a map of each image: an encoder's stages and a new head, trained together."""

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import checks, files
from keras_sslhsic.encoders import Encoder, check_images, encoder_of
from keras_sslhsic.encoders.resnet import BATCH_NORM
from keras_sslhsic.evaluation.descent import compile_for, descend
from keras_sslhsic.evaluation.maps import MapSplit
from keras_sslhsic.evaluation.sweep import Candidate
from keras_sslhsic.hsic import replicas
from keras_sslhsic.training.strategy import warn_of_own_statistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEPT_EVERY = 500  # steps, after which the state of a training is on the disk


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
        kind: of maps, as `MapSplit.kind` has it.
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
    kind: str
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

    def check(self, name: str, images: Any) -> None:
        """Raises ValueError for what are no images with maps of this kind; names them."""
        if not isinstance(images, MapSplit) or images.kind != self.kind:
            found = f"maps of {images.kind}" if isinstance(images, MapSplit) else f"a {type(images).__name__}"
            raise ValueError(
                f"{self.name} needs images with a map of {self.kind} each, found {name} with {found}: load them by "
                f"evaluation.dense_sets.{'load_masks' if self.kind == 'classes' else 'load_depths'}."
            )


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


def mean_where(known: tf.Tensor, each: tf.Tensor) -> tf.Tensor:
    """The mean over the pixels that are known, float32 []; over several replicas the mean of theirs is that of the whole batch.

    Args:
        known: bool [B, H, W].
        each: float32 [B, H, W].
    """
    counts = tf.cast(known, tf.float32)
    number = replicas.all_sum(tf.reduce_sum(counts)) / replicas.num_replicas()
    return tf.reduce_sum(counts * each) / tf.maximum(number, 1.0 / replicas.num_replicas())


class _Training(keras.Model):
    """Trains a network from images [B, H, W, C] in [0, 255] to predictions [B, H, W, K], with an l2 penalty.

    The network itself stays one of Keras's own, whose file loads where keras_sslhsic is not installed.
    """

    def prepare(
        self,
        loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        weight_decay: float,
        learning_rate: keras.optimizers.schedules.LearningRateSchedule,
    ) -> None:
        """Sets what it is trained with: SGD with momentum 0.9 on the loss, and the penalty weight_decay / 2 |W|^2."""
        compile_for(self, self, keras.optimizers.SGD(learning_rate, momentum=0.9))
        self.optimizer.build(self.trainable_variables)
        self.loss_of, self.weight_decay = loss, weight_decay

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        images, targets = data
        loss = descend(self, lambda: self.loss_of(targets, self(images, training=True)), self.weight_decay)
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


def build(
    task: Task, encoder: Encoder, images: MapSplit, head_width: float = 1.0, seed: int = 0
) -> keras.Model:
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
    # A plain model, where the maps are one of this package's.
    last_map = keras.Model(maps.inputs[0], maps.output[last], name=maps.name)
    pixels = keras.Input(images.shape, name="image")
    found = task.head(last_map(pixels), stride, images.num_classes, head_width, seed)
    found = keras.ops.image.resize(found, images.shape[:2], interpolation="bilinear")
    return keras.Model(pixels, keras.layers.Identity(dtype="float32")(found), name=task.name)


def train(
    task: Task,
    encoder: keras.Model,
    images: MapSplit,
    recipe: DenseRecipe,
    *,
    seed: int = 0,
    state: Path | None = None,
    verbose: bool = False,
) -> keras.Model:
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
        The network, from images of the crop's size in [0, 255] to predictions of that size: a functional model of Keras's own,
        whose ``.keras`` file loads without this package.

    Raises:
        ValueError: for images with maps of another kind; as `build`.
    """
    task.check("images", images)
    encoder = encoder_of(encoder)
    shares = encoder.distribute_strategy.num_replicas_in_sync
    batch_size = min(recipe.batch_size, len(images)) // shares * shares
    rate = recipe.learning_rate * batch_size / recipe.batch_size
    steps = [max(1, round(share * recipe.steps)) for share in (0.7, 0.9)]
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay(steps, [rate, rate / 10, rate / 100])
    with encoder.distribute_strategy.scope():
        network = build(task, encoder, images, recipe.head_width, seed)
        warn_of_own_statistics([network], encoder.distribute_strategy)
        training = _Training(network.inputs[0], network.outputs[0], name=task.name)
        training.prepare(task.loss, recipe.weight_decay, schedule)
    variables = [*network.variables, *training.optimizer.variables]
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
        training.fit(batches, shuffle=False, verbose=1 if verbose else 0, callbacks=[keep])
    return network


def predict(task: Task, network: keras.Model, images: np.ndarray | tf.Tensor) -> np.ndarray:
    """Maps [B, H, W] of images [B, H, W, C] in [0, 255] of the size that the network reads.

    Raises:
        ValueError: for other images; see `encoders.check_images`.
    """
    check_images(images, network.input_shape[1:])
    return task.decode(network(tf.cast(images, tf.float32), training=False)).numpy()


def _restore(state: Path | None, variables: Sequence[Any]) -> int:
    """Gives variables the values of a file, if it is there; returns the steps that it has behind it."""
    if state is None or not state.exists():
        return 0
    with np.load(state) as found:
        for number, variable in enumerate(variables):
            variable.assign(found[f"{number}"])
        return int(found["step"])


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as NAME.npz, all or nothing; the folder is made."""
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
            write(self.state, values | {"step": np.array(self.step)})
