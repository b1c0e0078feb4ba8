import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_sslhsic.encoders import build_encoder
from keras_sslhsic.encoders.small_maps import multiply_on_small_maps, placement


def network(size, kernel, stride, **arguments):
    images = keras.Input((*size, 2))
    outputs = keras.layers.Conv2D(3, kernel, strides=stride, padding="same", **arguments)(images)
    return keras.Model(images, outputs)


def run(model, images):
    """(outputs, gradient of the kernel, gradient of the images) in a graph."""

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            tape.watch(images)
            outputs = model(images)
            loss = tf.reduce_sum(
                tf.sin(tf.range(1.0, tf.size(outputs, tf.int32) + 1)) * tf.reshape(outputs, [-1])
            )
        return outputs, *tape.gradient(loss, [model.trainable_variables[0].value, images])

    return [value.numpy() for value in step(images)]


def operations(model, images):
    graph = tf.function(model).get_concrete_function(tf.TensorSpec(images)).graph
    return {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 2), (2, 1)])
def test_it_is_the_convolution(size, kernel, stride):
    model = network(size, kernel, stride)
    images = tf.random.stateless_normal([4, *size, 2], [0, 1], alg="philox")
    convolved = run(model, images)
    multiply_on_small_maps(model)
    assert "Conv2D" not in operations(model, images.shape)
    for found, expected in zip(run(model, images), convolved, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@given(size=st.integers(1, 12), kernel=st.integers(1, 7), stride=st.integers(1, 3))
def test_placement_is_same_padding(size, kernel, stride):
    line, taps = np.random.default_rng(0).normal(size=[2, 12]).astype(np.float32)
    line, taps = line[:size], taps[:kernel]
    found = np.einsum("i,aip,a->p", line, placement(size, kernel, stride), taps)
    expected = tf.nn.conv1d(line[None, :, None], taps[:, None, None], stride, "SAME")[0, :, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_dilated_convolutions_are_left_alone():
    model = network((2, 2), 3, 1, dilation_rate=2)
    x = tf.random.stateless_normal([4, 2, 2, 2], [0, 1], alg="philox")
    expected = model(x)
    multiply_on_small_maps(model)
    np.testing.assert_array_equal(model(x), expected)


def test_maps_as_large_as_the_kernel_are_convolved():
    model = network((3, 3), 3, 1)
    multiply_on_small_maps(model)
    assert "Conv2D" in operations(model, [4, 3, 3, 2])


def test_an_encoder_and_its_copies_keep_what_they_are(tmp_path):
    encoder = build_encoder("r18_1x", input_shape=(None, None, 1), stem="imagenet", width=0.05)
    images = tf.random.stateless_normal([3, 28, 28, 1], [0, 1], alg="philox")
    expected, before = encoder(images), encoder.to_json()
    multiply_on_small_maps(encoder)
    np.testing.assert_allclose(encoder(images), expected, rtol=1e-4, atol=1e-5)
    assert encoder.to_json() == before
    assert '"registered_name": "' not in before.replace(
        '"registered_name": "Functional"', ""
    )  # Keras's classes alone
    encoder.save(tmp_path / "encoder.keras")
    cloned = keras.models.clone_model(encoder)
    cloned.set_weights(encoder.get_weights())
    copies = keras.models.load_model(tmp_path / "encoder.keras"), cloned, copy.deepcopy(encoder)
    for twin in copies:
        np.testing.assert_array_equal(twin(images), expected)
        multiply_on_small_maps(twin)
        np.testing.assert_array_equal(twin(images), encoder(images))


def test_a_layer_is_changed_once():
    model = network((2, 2), 3, 1)
    multiply_on_small_maps(model)
    changed = model.layers[1].convolution_op
    multiply_on_small_maps(model)
    assert model.layers[1].convolution_op is changed


def test_layers_that_convolve_in_their_own_way_keep_it():
    class Own(keras.layers.Conv2D):
        def convolution_op(self, inputs, kernel):
            return 2.0 * super().convolution_op(inputs, kernel)

    images = keras.Input((2, 2, 2))
    plain = keras.layers.Conv2D(3, 3, padding="same")
    plain.convolution_op = lambda inputs, kernel: 3.0 * tf.nn.conv2d(inputs, kernel, 1, "SAME")
    other = network((2, 2), 3, 1)
    model = keras.Model(images, plain(Own(2, 3, padding="same")(images)))
    x = tf.random.stateless_normal([4, 2, 2, 2], [0, 1], alg="philox")
    expected = model(x)
    multiply_on_small_maps(model)
    np.testing.assert_array_equal(model(x), expected)
    assert "Conv2D" in operations(other, [4, 2, 2, 2])


def test_maps_of_unknown_size_are_convolved():
    model = network((None, None), 3, 1)
    multiply_on_small_maps(model)
    assert "Conv2D" in operations(model, [None, None, None, 2])


def test_half_precision_is_kept():
    policy = keras.DTypePolicy("mixed_bfloat16")
    model = network((2, 2), 3, 1, dtype=policy)
    images = tf.random.stateless_normal([4, 2, 2, 2], [0, 1], alg="philox")
    expected = model(images)
    multiply_on_small_maps(model)
    found = tf.function(model)(images)
    assert found.dtype == tf.bfloat16
    np.testing.assert_allclose(
        tf.cast(found, tf.float32), tf.cast(expected, tf.float32), rtol=2e-2, atol=2e-2
    )
