"""One name for every machine: ready `tf.distribute` strategies."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterable

import keras
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.words import warn

_HELP = (
    "A TPU machine needs the TPU build of TensorFlow, installed last:\n"
    "    pip install --force-reinstall --no-deps tensorflow-tpu==2.20.0 libtpu==0.0.30"
)


def strategy(name: str = "auto", tpu: str | None = None) -> tf.distribute.Strategy:
    """Returns a strategy, ready to build a model in its `scope()`.

    Args:
        name: "auto": a TPU if this machine has one, all GPUs if it has several, else the one device there is.
            "tpu": a TPU, connected and initialised. "mirrored": all GPUs of this machine.
            "multiworker": several machines, described by the environment variable TF_CONFIG.
            "cpu:N": N logical CPU devices, to try out distributed training. "one": no distribution.
        tpu: address or name of the TPU; None takes the local one, or the one that the environment names.

    Returns:
        A `tf.distribute.Strategy`.

    Raises:
        ValueError: for an unknown name.
        RuntimeError: if the machine does not have what was asked for; the message says what was tried.

    Example:
        with keras_sslhsic.strategy("auto").scope():
            model = keras_sslhsic.SSLHSIC(keras_sslhsic.build_encoder("r50_1x"))
            model.compile(keras_sslhsic.LARS(0.4))
        model.fit(dataset)
    """
    if name == "auto":
        name = (
            "tpu"
            if tpu or _has_tpu()
            else "mirrored"
            if len(tf.config.list_physical_devices("GPU")) > 1
            else "one"
        )
    if cpus := re.fullmatch(r"cpu:([1-9]\d*)", str(name)):
        return _logical_cpus(int(cpus[1]))
    makers = {
        "one": tf.distribute.get_strategy,
        "tpu": lambda: _tpu(tpu),
        "mirrored": _mirrored,
        "multiworker": _workers,
    }
    if name not in makers:
        raise ValueError(
            f"Unknown strategy {name!r}; expected one of auto, {', '.join(makers)}, cpu:N (such as cpu:2)."
        )
    return makers[name]()


def check_scope(made_in: tf.distribute.Strategy | None, variables: Iterable[keras.Variable] = ()) -> None:
    """Raises a ValueError for a model in the scope of a strategy other than the one that it was made in, None for no one's;
    or if a variable of it was not made there."""
    if made_in is not None:
        for variable in variables:
            if not made_in.extended.variable_created_in_scope(variable.value):
                raise ValueError(
                    f"The model was made in the scope of a {type(made_in).__name__}, and its {variable.path} outside of it: "
                    "make the encoder in `with strategy.scope():` too."
                )
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not made_in:
        made = f"in that of a {type(made_in).__name__}" if made_in else "outside of it"
        raise ValueError(
            f"The model is in the scope of a {type(tf.distribute.get_strategy()).__name__}, and was made {made}: make its "
            "encoder, make it and compile it in `with strategy.scope():`, and call fit after that."
        )


def warn_of_own_statistics(networks: Iterable[keras.Model], strategy: tf.distribute.Strategy) -> None:
    """Warns of BatchNormalization that is not synchronised, where several replicas would each keep statistics of their own."""
    count, kind = strategy.num_replicas_in_sync, keras.layers.BatchNormalization
    layers = [layer for network in networks for layer in compat.every_layer(network)]
    own = [layer.name for layer in layers if isinstance(layer, kind) and not layer.synchronized]
    if count > 1 and own:
        warn(
            f"{len(own)} BatchNormalization layers, such as {own[0]}, are not synchronised over the {count} replicas: each "
            "keeps the statistics of its own share, so that the features of an image depend on the replica that computes "
            "them. Make the layers with synchronized=True.",
        )


def _has_tpu() -> bool:
    named = any(os.environ.get(key) for key in ("TPU_NAME", "COLAB_TPU_ADDR", "TPU_WORKER_ID"))
    return named or bool(tf.config.list_physical_devices("TPU"))


def _tpu(address: str | None) -> tf.distribute.Strategy:
    address = address or os.environ.get("TPU_NAME") or os.environ.get("COLAB_TPU_ADDR") or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, KeyError, tf.errors.OpError) as error:
        raise RuntimeError(
            f"No TPU could be started. Tried: TPUClusterResolver(tpu={address!r}), connecting, initialising.\n"
            f"TensorFlow says: {error}\n{_HELP}\nOn a machine without a TPU use strategy('auto')."
        ) from error


def _mirrored() -> tf.distribute.Strategy:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        raise RuntimeError(
            "strategy('mirrored') spreads over the GPUs of this machine, and TensorFlow sees none. Check the driver and "
            "`pip install tensorflow[and-cuda]`, or use strategy('auto'), or strategy('cpu:2') to try it on a CPU."
        )
    return tf.distribute.MirroredStrategy()


def _workers() -> tf.distribute.Strategy:
    config = os.environ.get("TF_CONFIG")
    if not config or "cluster" not in json.loads(config):
        raise RuntimeError(
            "strategy('multiworker') needs the environment variable TF_CONFIG on every machine, for example "
            """TF_CONFIG='{"cluster": {"worker": ["host0:12345", "host1:12345"]}, "task": {"type": "worker", "index": 0}}'."""
            f" It is {config!r}."
        )
    at_sigterm = signal.getsignal(signal.SIGTERM)
    workers = tf.distribute.MultiWorkerMirroredStrategy()
    # TensorFlow takes the signal for a notice that the machine will go, and the process would not end.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, at_sigterm)
    return workers


def _logical_cpus(count: int) -> tf.distribute.Strategy:
    if count == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        # A configuration with more of them stays.
        if len(tf.config.get_logical_device_configuration(cpu) or []) < count:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError as error:
        if len(tf.config.list_logical_devices("CPU")) < count:
            raise RuntimeError(
                f"strategy('cpu:{count}') must come before TensorFlow's first operation: {error}"
            ) from error
    names = [device.name for device in tf.config.list_logical_devices("CPU")[:count]]
    # The default collectives fail over CPUs when several steps run in one execution.
    return tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())
