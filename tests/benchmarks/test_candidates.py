"""The candidates of the benchmark on a GPU compute what the step computes."""

import collections
import contextlib
import sys
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import candidates


@pytest.mark.parametrize("size", [(8, 8), (20, 12), (2, 2)])
def test_stem_on_blocks_is_the_convolution(size):
    images = tf.random.stateless_normal([3, *size, 3], [0, 1], alg="philox")
    kernel = tf.random.stateless_normal([7, 7, 3, 5], [0, 2], alg="philox")
    results = []
    for convolve in (candidates.convolve_blocks, lambda x, k: tf.nn.conv2d(x, k, 2, "SAME")):
        with tf.GradientTape() as tape:
            tape.watch([images, kernel])
            outputs = convolve(images, kernel)
            loss = tf.reduce_sum(tf.sin(outputs))
        results.append([outputs, *tape.gradient(loss, [images, kernel])])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(8, 8), (20, 12), (2, 2)])
@pytest.mark.parametrize("ties", [False, True])
def test_pooling_by_place_is_the_pooling(size, ties):
    images = tf.random.stateless_normal([3, *size, 3], [0, 1], alg="philox")
    images = tf.round(images) if ties else images
    results = []
    for pool in (candidates.max_pool, lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME")):
        with tf.GradientTape() as tape:
            tape.watch(images)
            outputs = pool(images)
            loss = tf.reduce_sum(outputs * tf.random.stateless_normal(outputs.shape, [0, 2], alg="philox"))
        results.append([outputs, tape.gradient(loss, images)])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 6, 4, 3, 5), (1, 7, 5)])
def test_normalization_by_complex_sums_is_the_normalization(shape):
    views, weights = (tf.random.stateless_normal(shape, [0, seed], 1.0, 2.0, alg="philox") for seed in (1, 2))
    gamma, beta = (tf.random.stateless_normal(shape[-1:], [0, seed], alg="philox") for seed in (3, 4))

    def plain(views, gamma, beta, epsilon):
        mean, variance = tf.nn.moments(views, range(1, len(shape) - 1), keepdims=True)
        output = tf.nn.batch_normalization(views, mean, variance, beta, gamma, epsilon)
        return output, *(tf.reshape(moment, [shape[0], -1]) for moment in (mean, variance))

    results = []
    for normalize in (candidates.normalize, plain):
        with tf.GradientTape() as tape:
            tape.watch([views, gamma, beta])
            output, *moments = normalize(views, gamma, beta, 1e-3)
            loss = tf.reduce_sum(weights * tf.sin(output))
        results.append([output, *moments, *tape.gradient(loss, [views, gamma, beta])])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 6, 4, 3, 5), (1, 7, 2, 2, 3)])
def test_expansion_is_the_convolution_and_its_normalization(shape):
    views = tf.random.stateless_normal(shape, [0, 1], 1.0, 2.0, alg="philox")
    kernel = tf.random.stateless_normal([shape[-1], 12], [0, 2], alg="philox")
    weights = tf.random.stateless_normal([*shape[:-1], 12], [0, 3], alg="philox")
    gamma, beta = (tf.random.stateless_normal([12], [0, seed], alg="philox") for seed in (4, 5))

    def plain(views, kernel, gamma, beta, epsilon):
        y = tf.einsum("vbhwc,cd->vbhwd", views, kernel)
        mean, variance = tf.nn.moments(y, [1, 2, 3], keepdims=True)
        output = tf.nn.batch_normalization(y, mean, variance, beta, gamma, epsilon)
        return output, *(tf.reshape(moment, [shape[0], -1]) for moment in (mean, variance))

    results = []
    for normalized in (candidates.expand, plain):
        with tf.GradientTape() as tape:
            tape.watch([views, kernel, gamma, beta])
            output, *moments = normalized(views, kernel, gamma, beta, 1e-3)
            loss = tf.reduce_sum(weights * tf.sin(output))
        results.append([output, *moments, *tape.gradient(loss, [views, kernel, gamma, beta])])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_relu_by_output_is_the_relu():
    x = tf.constant([-1.0, -0.0, 0.0, 1e-30, 2.0])
    results = []
    for relu in (candidates.relu, tf.nn.relu):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = relu(x)
        results.append([output, tape.gradient(output, x, tf.constant([3.0, 4.0, 5.0, 6.0, 7.0]))])
    np.testing.assert_array_equal(*results)


def test_norms_of_one_size_are_one_reduction():
    first, second = (
        [tf.random.stateless_normal([size], [0, seed], alg="philox") for size in (12, 5, 12)]
        for seed in (1, 2)
    )
    function = tf.function(candidates.pairs_of_norms).get_concrete_function(first, second)
    expected = [[np.linalg.norm(x), np.linalg.norm(y)] for x, y in zip(first, second, strict=True)]
    np.testing.assert_allclose(function(first, second), expected, rtol=1e-6)
    assert sum(operation.type == "Sum" for operation in function.graph.get_operations()) == 2


@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (1000,)])
@pytest.mark.parametrize("seed", [(1, 2), (-5, 7), (2**31 - 1, -(2**31))])
def test_bits_are_those_of_tensorflow(seed, shape):
    seed, full = tf.constant(seed), {"minval": None, "maxval": None, "alg": "philox"}
    for dtype in (tf.int32, tf.uint32):
        expected = tf.random.stateless_uniform(shape, seed, dtype=dtype, **full)
        np.testing.assert_array_equal(candidates.bits(shape, seed, dtype=dtype), expected)
    with candidates.use("philox", None):
        found = [tf.random.split(seed, 3), tf.random.fold_in(seed, 4)]
    expected = [tf.random.split(seed, 3, alg="philox"), tf.random.fold_in(seed, 4, alg="philox")]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def model():
    """A little of ResNet-50, with few ReLUs: gradients jump where rounding turns one on or off."""
    keras.utils.set_random_seed(0)
    images = keras.Input((8, 8, 3))

    def convolved(x, size, strides, name, channels=6):
        x = keras.layers.Conv2D(channels, size, strides=strides, padding="same", use_bias=False, name=name)(x)
        return keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x)

    x = keras.layers.ReLU()(convolved(images, 7, 2, "stem_conv"))
    x = keras.layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")(x)
    x = keras.layers.ReLU()(keras.layers.Add()([x, convolved(x, 3, 1, "conv")]))
    x = convolved(x, 1, 1, "expand", 12)
    encoder = keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))
    model = SSLHSIC(encoder, 12, 8, views=None)
    model.compile(LARS(0.4, eta=0.1))
    return model


@pytest.fixture(scope="module")
def trained(model):
    """What `train` returns for the plain step (None) and for each option."""
    return {name: train(model, name) for name in (None, *candidates.OPTIONS)}


def train(model, name=None):
    """Two steps: outputs, [(path, value before, value after)] of all variables, traced operations.

    The model is left as it was.
    """
    variables = [*model.variables, *model.optimizer.variables, *model.objective.variables]
    before = [v.numpy() for v in variables]
    rng = np.random.default_rng(0)
    batch = {f"view{i}": tf.constant(rng.integers(0, 256, (6, 8, 8, 3), np.uint8)) for i in (1, 2)}
    small = mock.patch.object(candidates, "PIXELS", 1)  # as the maps here are
    with small, candidates.use(name, model) if name else contextlib.nullcontext():
        step = tf.function(model.train_step, autograph=False).get_concrete_function(batch)
    outputs = [step(batch) for _ in range(2)][-1]
    changes = [(v.path, start, v.numpy()) for v, start in zip(variables, before, strict=True)]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)
    return outputs, changes, collections.Counter(operation.type for operation in step.graph.get_operations())


@pytest.mark.slow
@pytest.mark.parametrize("name", candidates.OPTIONS)
def test_results_are_those_of_the_plain_step(name, trained):
    (expected_outputs, expected_changes, _), (outputs, changes, _) = trained[None], trained[name]
    for key, expected in expected_outputs.items():
        np.testing.assert_allclose(outputs[key], expected, rtol=1e-4, atol=1e-6, err_msg=key)
    for (path, before, expected), (_, _, found) in zip(expected_changes, changes, strict=True):
        update = np.linalg.norm(np.float64(expected) - before)
        difference = np.linalg.norm(np.float64(found) - expected)
        # A bias before a batch normalisation is moved by rounding alone.
        assert difference <= 1e-4 * update + 1e-6 * expected.size**0.5, path


@pytest.mark.slow
def test_options_change_the_program(trained):
    operations = {name: kinds for name, (_, _, kinds) in trained.items()}
    assert operations["space_to_depth"]["SpaceToDepth"] == 4
    assert operations["pool_by_place"]["MaxPoolGrad"] == 0 < operations[None]["MaxPoolGrad"]
    assert operations["complex_sums"]["Complex"] > 0 == operations[None]["Complex"]
    gradients = "Conv2DBackpropInput"
    assert operations["expansions"][gradients] == operations["complex_sums"][gradients] - 2
    assert operations["relu_by_output"]["ReluGrad"] == operations[None]["ReluGrad"] - 2
    assert operations["one_pass"]["Conv2D"] == operations[None]["Conv2D"] / 2
    assert operations["grouped_norms"]["L2Loss"] == 0 < operations[None]["L2Loss"]


def test_unusable_options_are_refused(model):
    with pytest.raises(ValueError, match="found 'two_pass'"), candidates.use("two_pass", model):
        pass
    with (
        mock.patch.object(model.encoder.get_layer("stem_conv"), "kernel_size", (3, 3)),
        pytest.raises(ValueError, match="7x7"),
        candidates.use("space_to_depth", model),
    ):
        pass
