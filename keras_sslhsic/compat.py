"""What reaches below the public interfaces of Keras and TensorFlow, and so may change with their versions, in one place.

The rest of the library is written for `tf` mathematics and plain `keras` layers.
"""

import atexit
import collections
import contextlib
import functools
import gc
import io
import json
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import h5py
import keras
import tensorflow as tf
from keras.src import api_export
from keras.src.backend.common import global_state
from keras.src.models.functional import Functional
from keras.src.saving import saving_lib
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.utils.naming import to_snake_case
from tensorflow.python.data.ops import iterator_ops, multi_device_iterator_ops


def warn_of_tensorflow(version: str = tf.__version__) -> None:
    """Warns of a TensorFlow under which XLA computes wrong values, which other packages' requirements may bring."""
    if [int(number) for number in version.split(".")[:2]] > [2, 20]:
        warnings.warn(
            f"This is TensorFlow {version}, whose XLA computes wrong values on CPU for the views of training: pip install "
            "'tensorflow>=2.20,<2.21'. keras_sslhsic is tested with TensorFlow 2.20.",
            RuntimeWarning,
            stacklevel=3,
        )


def every_layer(network: keras.Layer) -> Iterator[keras.Layer]:
    """The network and all layers in it, at any depth."""
    yield from network._flatten_layers()


def precisions(network: keras.Layer) -> set[str]:
    """The types that the layers of a network compute in, such as {"float32", "bfloat16"}.

    Inputs and networks of layers compute nothing themselves; Keras loads them with the policy of the moment.
    """
    silent = keras.layers.InputLayer | Functional | keras.Sequential
    return {layer.compute_dtype for layer in every_layer(network) if not isinstance(layer, silent)}


def automatic_names(network: keras.Layer) -> set[str]:
    """The names that Keras gives such layers as a network has, before it numbers them: {"conv2d", ...}."""
    return {to_snake_case(type(layer).__name__) for layer in every_layer(network)}


def seeds(network: keras.Layer) -> list[tuple[keras.Layer, keras.Variable]]:
    """The states of the random generators in a network's layers, such as Dropout, each with its layer."""
    return [(layer, seed.state) for layer in every_layer(network) for seed in layer._seed_generators]


def beside(store: Any, path: str) -> list[Any]:
    """The arrays under another path of the file that Keras loads a model's variables from, in their order."""
    group = store.h5_file.get(path, {})
    return [group[name][()] for name in sorted(group, key=int)]


def freeze_but_keep_batch_statistics(model: keras.Model) -> None:
    """Takes a model's variables out of training while its BatchNorm layers go on using the batch's statistics.

    `model.trainable = False` would switch BatchNormalization to inference mode, which a target network must not do.
    """
    for variable in model.weights:
        variable.trainable = False


def copy_trainable(source: keras.Model, twin: keras.Model) -> None:
    """Has the layers of a frozen twin use what those of the source use: statistics of the batch, or those they keep."""
    for layer, original in zip(every_layer(twin), every_layer(source), strict=True):
        layer.trainable = original.trainable
    freeze_but_keep_batch_statistics(twin)


class _LossesOfThread:
    """The list in which a layer keeps what it adds to the loss, one for each thread.

    Replicas are traced by turns, each in a thread of its own, and would find the losses of each other in one list.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def _found(self) -> list[Any]:
        return self._local.__dict__.setdefault("found", [])

    def extend(self, losses: Iterable[Any]) -> None:
        self._found.extend(losses)

    def clear(self) -> None:
        self._found.clear()

    def __getitem__(self, place: Any) -> Any:
        return self._found[place]


@contextlib.contextmanager
def losses_of_layers(model: keras.Model) -> Iterator[None]:
    """Has layers of a model keep what they add to the loss in all calls within; each call would begin anew otherwise."""
    for layer in every_layer(model):
        if not isinstance(layer._losses, _LossesOfThread):
            layer._losses = _LossesOfThread()
    model._get_call_context()
    try:
        yield
    finally:
        model._maybe_reset_call_context()
        model._clear_losses()


def prepare_optimizer(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> None:
    """Creates the slots of an optimizer and makes it take gradients that are summed over the replicas already.

    Keras would sum them over the replicas once more. Gradients that are summed once give their global norm for free,
    and let `clipnorm` act on the global gradient. The optimizer then belongs to the model that called this.
    """
    if not optimizer.built:
        optimizer.build(list(variables))
    inner = _inner(optimizer)
    inner._all_reduce_sum_gradients = list
    if inner.gradient_accumulation_steps and inner._distribution_strategy.num_replicas_in_sync > 1:
        inner._backend_apply_gradients = functools.partial(_accumulate, inner)


def _inner(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that moves the weights: the one within that of a loss scale, or itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _accumulate(optimizer: Any, gradients: Sequence[tf.Tensor], variables: Sequence[Any]) -> None:
    """The step of an optimizer that accumulates gradients, of several replicas.

    Keras decides in each replica whether this is a step that moves the weights, and TensorFlow moves none from within such
    a decision. So all of them decide together.
    """
    steps = optimizer.gradient_accumulation_steps
    sums = [optimizer._accumulated_gradients[optimizer._get_variable_index(v)] for v in variables]

    def move(gradients: Sequence[tf.Tensor]) -> None:
        means = [(gradient + before) / steps for gradient, before in zip(gradients, sums, strict=True)]
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(optimizer._clip_gradients(means), variables, optimizer.learning_rate)
        if optimizer.use_ema:
            optimizer._update_model_variables_moving_average(optimizer._trainable_variables)

    def add(gradients: Sequence[tf.Tensor]) -> None:
        optimizer._backend_increment_gradient_accumulators(gradients, sums)

    def decide(strategy: tf.distribute.Strategy, gradients: Any) -> None:
        def moves() -> None:
            strategy.extended.call_for_each_replica(move, args=(gradients,))
            for total in sums:
                strategy.extended.update(total.value, lambda v: v.assign(tf.zeros_like(v)), group=False)

        def adds() -> None:
            strategy.extended.call_for_each_replica(add, args=(gradients,))

        keras.ops.cond((optimizer._iterations + 1) % steps == 0, moves, adds)

    tf.distribute.get_replica_context().merge_call(decide, args=(list(gradients),))


def accumulated(optimizer: keras.optimizers.Optimizer) -> int:
    """How many steps an optimizer takes the gradients of together, to move the weights once."""
    return _inner(optimizer).gradient_accumulation_steps or 1


def updates(optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """How often an optimizer has moved the weights, int64 []: not while it accumulates, or skips a step that overflows."""
    return tf.convert_to_tensor(_inner(optimizer).iterations)


def schedule(optimizer: keras.optimizers.Optimizer) -> Any:
    """What an optimizer takes its learning rate from: a schedule, a function, or a variable."""
    return _inner(optimizer)._learning_rate


def sum_over_replicas(gradients: list) -> list:
    """Sums each gradient over the replicas, all of them in one collective call."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return gradients
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, gradients))


def learning_rate(optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """The learning rate that the next update uses, float32 []."""
    return tf.cast(_inner(optimizer).learning_rate, tf.float32)


def loss_scaled(
    optimizer: keras.optimizers.Optimizer, networks: Iterable[keras.Layer]
) -> keras.optimizers.Optimizer:
    """The optimizer, made to scale the loss if a layer of the networks computes in float16.

    By Keras's own rule the policy of the moment decides, which need not be that of a network that was loaded.
    """
    half = any("float16" in precisions(network) for network in networks)
    scaling = keras.optimizers.LossScaleOptimizer
    return scaling(optimizer) if half and not isinstance(optimizer, scaling) else optimizer


def loss_scale(optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """The factor that `optimizer.scale_loss` multiplies with, float32 []."""
    return tf.cast(optimizer.scale_loss(tf.ones([], tf.float32)), tf.float32)


def step_results(model: keras.Model, results: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Metrics as the training or test step of a model returns them: scalars, or [1] with several workers.

    With several workers, Keras averages what a step returns over the first axis, which a scalar does not have.
    """
    if has_workers(model.distribute_strategy):
        results = {name: value[None] for name, value in results.items()}
    return results


def has_workers(strategy: tf.distribute.Strategy) -> bool:
    """Whether a strategy spreads over several processes, each of which runs the whole program."""
    workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return workers and strategy.extended._in_multi_worker_mode()


def of_all_replicas(strategy: tf.distribute.Strategy, value: int) -> list[int]:
    """What each process calls this with, once a replica; returns when all have called. [value] in a single process."""
    if not has_workers(strategy):
        return [value]

    @tf.function
    def gather() -> tf.Tensor:
        context = tf.distribute.get_replica_context
        return strategy.run(lambda: context().all_gather(tf.identity([value]), axis=0))

    return strategy.experimental_local_results(gather())[0].numpy().tolist()


@atexit.register
def end_iterators() -> None:
    """Ends all iterators over data sets that there are, and what they read ahead.

    A thread of TensorFlow's that asks for Python while the interpreter ends never gets it, and what waits for the thread hangs.
    """
    kinds = (iterator_ops.OwnedIterator, multi_device_iterator_ops.OwnedMultiDeviceIterator)
    iterators = [thing for thing in gc.get_objects() if type(thing) in kinds]
    for iterator in iterators:
        vars(iterator).clear()
    if iterators:
        gc.collect()  # functions that hold them are in cycles


class Batches(DataAdapter):
    """What Keras makes of a `keras.utils.PyDataset` or a generator: `fit`, `evaluate` and `predict` of Keras take it too.

    It has the `source` that it is made of, the `first` batch, all of them as a `dataset`, and `num_batches`, or None.
    """

    def __init__(self, x: Any, first: Any) -> None:
        self._adapter = data_adapters.get_data_adapter(x)
        self.source, self.first, self.dataset = x, first, self._adapter.get_tf_dataset()
        self._num_batches = self._adapter.num_batches

    def become(self, dataset: tf.data.Dataset, num_batches: int | None = None) -> "Batches":
        """Has Keras read another dataset, which is made of this one."""
        self.dataset, self._num_batches = dataset, num_batches
        return self

    @property
    def element_spec(self) -> Any:
        return self.dataset.element_spec

    @property
    def num_batches(self) -> int | None:
        return self._num_batches

    def get_tf_dataset(self) -> tf.data.Dataset:
        return self.dataset

    def on_epoch_begin(self) -> None:
        self._adapter.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._adapter.on_epoch_end()


def is_saved_to_hdf5() -> bool:
    """Whether Keras is asking for the config of a model to write it to an HDF5 file."""
    return bool(global_state.get_global_attribute("use_legacy_config"))


def is_functional(model: Any) -> bool:
    """Whether a model is a graph of layers, which can be copied with other layers in it."""
    return isinstance(model, Functional)


def graph_of(model: Any) -> Any:
    """A functional model itself, and what a sequential one that has an input is inside; None for others."""
    graph = getattr(model, "_functional", None) or model
    return graph if is_functional(graph) else None


def output_of(model: Any) -> Any:
    """What a model gives, symbolic: one tensor or a structure of them; None unless it is a graph or sequence of layers."""
    graph = graph_of(model)
    if graph is None:
        return None
    found = graph._outputs_struct
    # As a call gives it: of a list of one output, the output.
    return found[0] if isinstance(found, list | tuple) and len(found) == 1 else found


def shapes_of(model: Any) -> tuple[Any, Any]:
    """(shape of the input, shape of the output) of a model; None for a function, or a model that was never called."""
    return getattr(model, "input_shape", None), getattr(model, "output_shape", None)


def layer_before(tensor: Any) -> Any:
    """The layer or operation that a symbolic tensor of a functional model comes from."""
    return tensor._keras_history.operation


class Call(NamedTuple):
    """A call of an operation within a model."""

    operation: Any
    arguments: tuple[tuple, dict[str, Any]]  # positional ones, and those by name
    outputs: list[Any]  # symbolic tensors


def calls(model: Any) -> list[Call] | None:
    """The calls that a functional or sequential model is made of, each after those whose results it reads; None of others."""
    network = graph_of(model)
    if network is None:
        return None
    return [
        Call(node.operation, (node.arguments.args, node.arguments.kwargs), node.output_tensors)
        for node in _nodes(network)
    ]


def results(model: Any, name: str) -> list[Any]:
    """What the operation of this name gives in a functional or sequential model: a symbolic tensor for each of its calls."""
    return [call.outputs[0] for call in calls(model) or [] if call.operation.name == name]


def layers_within(layer: Any) -> list[keras.Layer]:
    """The layers that a layer holds itself."""
    if not isinstance(layer, keras.Layer):
        return []
    return list(layer._flatten_layers(include_self=False, recursive=False))


def quantized_layer(networks: Iterable[keras.Model]) -> str | None:
    """The name of a layer, at any depth, whose weights are quantized; None if there is none."""
    layers = (layer for network in networks for layer in network._flatten_layers())
    return next((layer.name for layer in layers if layer.quantization_mode is not None), None)


def _nodes(network: keras.Model) -> list:
    depths = network._nodes_by_depth
    return [node for depth in sorted(depths, reverse=True) for node in depths[depth]]


def passages(network: keras.Model) -> list:
    """The symbolic tensors of a functional model that all after them is computed from, in order, without its input."""
    nodes = _nodes(network)
    unread = collections.Counter(id(tensor) for node in nodes for tensor in node.input_tensors)
    waiting: set[int] = set()
    found = []
    for node in nodes:
        unread.subtract(map(id, node.input_tensors))
        waiting.update(map(id, node.output_tensors))
        waiting = {tensor for tensor in waiting if unread[tensor]}
        if node.input_tensors and waiting == {id(node.output_tensors[0])}:
            found.append(node.output_tensors[0])
    return found


def shapes(network: keras.Model, tensors: Sequence[Any], images: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes that symbolic tensors of a network would have for images of this shape, whatever its input is."""
    graph = keras.Function(network.inputs, list(tensors))
    given = [keras.KerasTensor(images, "float32")]
    return [tensor.shape for tensor in graph._run_through_graph(given, lambda op: op.compute_output_spec)]


def is_joined(tensor: Any) -> bool:
    """Whether a symbolic tensor is computed from several others: where the ways around a block meet."""
    _, node_index, _ = tensor._keras_history
    return len(layer_before(tensor)._inbound_nodes[node_index].input_tensors) > 1


def uses(layer: keras.layers.Layer) -> tuple[int, int]:
    """(how often a layer is called, how often its results are read) in functional models."""
    return len(layer._inbound_nodes), len(layer._outbound_nodes)


def set_trainable(model: keras.Model, trainable: bool) -> None:
    """Sets `trainable` of a model and of every layer in it.

    `model.trainable = True` does nothing where the model's own flag is True already, though layers inside be frozen.
    """
    for layer in every_layer(model):
        layer.trainable = trainable


NOTE = "keras_sslhsic"  # attribute of a .weights.h5 file, member of a .keras file: JSON

# What layers save since Keras 3.14, with the values under which they compute what they did before. Older Keras takes no such
# keys, and every Keras takes their absence.
_SAVED_SINCE = {"BatchNormalization": {"renorm": False, "renorm_clipping": None, "renorm_momentum": 0.99}}


def for_older_keras(config: Any) -> Any:
    """The JSON of layers, as `keras.saving` makes it, without what older Keras would refuse and nobody needs."""
    if isinstance(config, list):
        return [for_older_keras(value) for value in config]
    if not isinstance(config, dict):
        return config
    config = {key: for_older_keras(value) for key, value in config.items()}
    later = _SAVED_SINCE.get(config.get("class_name", ""), {})
    if later and all(config["config"].get(key, value) == value for key, value in later.items()):
        config["config"] = {key: value for key, value in config["config"].items() if key not in later}
    return config


def write_as_functional(kind: type[keras.Model]) -> None:
    """Has Keras write models of a class as plain functional ones, which load where the class is not known.

    Their `get_config` must be that of a plain one.
    """
    kind.__name__ = Functional.__name__  # by which Keras names the weights of a layer
    api_export.REGISTERED_OBJS_TO_NAMES[kind] = f"{Functional.__module__}.{Functional.__name__}"


def archive(model: keras.Model, note: Mapping[str, Any] | None = None) -> bytes:
    """What `model.save("NAME.keras")` writes, as older Keras reads it too, with a note if one is given."""
    written, content = io.BytesIO(), io.BytesIO()
    saving_lib.save_model(model, written)
    with zipfile.ZipFile(written) as members, zipfile.ZipFile(content, "w") as kept:
        for member in members.infolist():
            value = members.read(member)
            if member.filename == "config.json":
                value = json.dumps(for_older_keras(json.loads(value))).encode()
            kept.writestr(member, value)
        if note is not None:
            kept.writestr(f"{NOTE}.json", json.dumps(note))
    return content.getvalue()


def weights_file(model: keras.Model, note: Mapping[str, Any]) -> bytes:
    """What `model.save_weights("NAME.weights.h5")` writes, with a note; HDF5 would end the process on a full disk."""
    content = io.BytesIO()
    store = saving_lib.H5IOStore(content, mode="w")
    saving_lib._save_state(model, store, assets_store=None, inner_path="", visited_saveables=set())
    store.close()
    with h5py.File(content, "r+") as file:
        file.attrs[NOTE] = json.dumps(note)
    return content.getvalue()


@contextlib.contextmanager
def variables_within(arrays: int, numbers: int) -> Iterator[None]:
    """Raises ValueError where more than so many variables would be made, or of more numbers, before they take memory."""
    left = [arrays, numbers]

    def create(next_creator: Callable, **settings: Any) -> Any:
        value = settings.get("initial_value")
        if callable(value):
            left[0] -= 1
            left[1] -= _shape_of(value).num_elements()
            if min(left) < 0:
                raise ValueError(
                    f"it asks for more than the {numbers:,} weights in {arrays:,} arrays that its size allows"
                )
        return next_creator(**settings)

    with tf.variable_creator_scope(create):
        yield


def _shape_of(initializer: Callable[[], tf.Tensor]) -> tf.TensorShape:
    try:
        with tf.Graph().as_default():
            return initializer().shape
    except RuntimeError:  # it draws from a generator with a state, which takes four times as long
        return tf.function(initializer, autograph=False).get_concrete_function().output_shapes
