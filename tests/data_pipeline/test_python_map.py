"""Python functions in pipelines, and how long they live."""

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.data import from_arrays
from keras_sslhsic.data.python_map import map_python


class Images(np.ndarray):
    """An array that can be watched."""


def test_arrays_end_with_their_data_set():
    images = np.zeros((8, 2, 2, 1), np.uint8).view(Images)
    watched = weakref.ref(images)
    dataset = from_arrays(images, batch_size=4).batches(epochs=1)
    del images
    gc.collect()
    assert len(list(dataset)) == 2 and watched() is not None
    iterator = iter(dataset.take(1))
    del dataset
    gc.collect()
    assert len(list(iterator)) == 1
    del iterator
    gc.collect()
    assert watched() is None


def test_replicas_keep_it():
    strategy = tf.distribute.MirroredStrategy(["cpu:0"])
    images = from_arrays(np.arange(8, dtype=np.uint8).reshape(8, 1, 1, 1), batch_size=4, shuffle=False)
    dataset = images.batches(epochs=1)
    iterator = iter(strategy.experimental_distribute_dataset(dataset))
    del images, dataset
    gc.collect()
    assert [batch["image"].numpy().ravel().tolist() for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_function_that_is_gone_is_said():
    specs = {"a": tf.TensorSpec([], tf.int64)}
    dataset = map_python(tf.data.Dataset.range(2).map(lambda i: (i,)), lambda i: {"a": i + 1}, specs)
    assert [int(one["a"]) for one in dataset] == [1, 2]
    dataset._input_dataset.function = None
    gc.collect()
    with pytest.raises(tf.errors.OpError, match="The data set is gone"):
        list(dataset)


# A script that an error stops while functions run, and wait for each other: several streams, since one alone may be lucky.
READING = """
import numpy as np
import tensorflow as tf
from keras_sslhsic.data.python_map import map_python

def slow(number):
    for _ in range(10_000):
        pass
    return {"x": np.float32(number)}

def ahead():
    numbers = tf.data.Dataset.range(10**6).map(lambda number: (number,))
    return map_python(numbers, slow, {"x": tf.TensorSpec([], tf.float32)}).batch(2).prefetch(10**5)
"""
OF_ONE = "iterators = [iter(ahead()) for _ in range(8)]"
OF_REPLICAS = """
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
iterators = [iter(strategy.experimental_distribute_dataset(ahead())) for _ in range(3)]
"""


@pytest.mark.parametrize("iterate", [OF_ONE, OF_REPLICAS], ids=["one", "replicas"])
def test_a_script_ends_while_its_data_are_read_ahead(iterate):
    script = f"{READING}\n{iterate}\nfor iterator in iterators:\n    next(iterator)\nraise SystemExit(3)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stderr
