"""Folded networks against the ones they come from."""

import keras
import numpy as np
import pytest

from keras_sslhsic.encoders import Architecture, with_preprocessing
from keras_sslhsic.encoders.folding import fold_batch_norm
from keras_sslhsic.encoders.resnet import resnet


def randomised(network):
    """Gives every weight random values; gamma and variance positive and away from one."""
    rng = np.random.default_rng(0)
    for variable in network.weights:
        low, high = (0.3, 2.0) if variable.path.endswith(("gamma", "moving_variance")) else (-0.5, 0.5)
        variable.assign(rng.uniform(low, high, variable.shape))
    return network


def count(network, kind):
    return sum(isinstance(layer, kind) for layer in network._flatten_layers())


IMAGES = np.random.default_rng(1).normal(size=(3, 40, 36, 3)).astype(np.float32)


@pytest.mark.parametrize("bottleneck", [True, False])
def test_a_residual_network_gives_the_same_features(bottleneck):
    architecture = Architecture((1, 2), (8, 12), bottleneck, stem_channels=4)
    network = with_preprocessing(randomised(resnet(architecture)), 0.4, 0.2, size=33)
    before = network.get_weights()
    folded = fold_batch_norm(network)
    images = np.clip(60 * (IMAGES + 2), 0, 255)
    expected = network(images)
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(folded(images), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert count(network, keras.layers.BatchNormalization) > 0
    assert count(folded, keras.layers.BatchNormalization) == 0
    convolutions = count(network, keras.layers.Conv2D)
    assert count(folded, keras.layers.Conv2D) == convolutions
    assert len(folded.trainable_variables) == 2 * convolutions
    for new, old in zip(network.get_weights(), before, strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_equation_in_float64(scale, center, bias):
    images = keras.Input((None, None, 3))
    convolution = keras.layers.Conv2D(5, 1, use_bias=bias)
    bn = keras.layers.BatchNormalization(scale=scale, center=center, epsilon=0.01)
    network = randomised(keras.Model(images, bn(convolution(images))))
    kernel, *b = (w.astype(np.float64) for w in convolution.get_weights())
    y = IMAGES.astype(np.float64) @ kernel[0, 0] + (b[0] if b else 0.0)
    y = (y - bn.moving_mean.numpy()) / np.sqrt(bn.moving_variance.numpy() + 0.01)
    y = (bn.gamma.numpy() if scale else 1.0) * y + (bn.beta.numpy() if center else 0.0)
    folded = fold_batch_norm(network)
    assert count(folded, keras.layers.BatchNormalization) == 0
    np.testing.assert_allclose(folded(IMAGES), y, rtol=1e-5, atol=1e-5)


def kept(images, name):
    """A network whose batch normalisation cannot be folded, for the reason of its name."""
    layers = keras.layers
    if name == "activation":
        return keras.Model(
            images, layers.BatchNormalization()(layers.Conv2D(4, 3, activation="relu")(images))
        )
    if name == "depthwise":
        return keras.Model(images, layers.BatchNormalization()(layers.DepthwiseConv2D(3)(images)))
    if name == "another axis":
        return keras.Model(images, layers.BatchNormalization(axis=1)(layers.Conv2D(4, 3)(images)))
    if name == "first":
        return keras.Model(images, layers.Conv2D(4, 3)(layers.BatchNormalization()(images)))
    if name == "half precision":
        map_ = layers.Conv2D(4, 3, dtype="mixed_bfloat16")(images)
        return keras.Model(images, layers.BatchNormalization(dtype="mixed_bfloat16")(map_))
    map_ = layers.Conv2D(4, 3)(images)
    if name == "another reader":
        return keras.Model(images, layers.Add()([layers.BatchNormalization()(map_), map_]))
    if name == "output":
        return keras.Model(images, [layers.BatchNormalization()(map_), map_])
    convolution, bn = layers.Conv2D(3, 3), layers.BatchNormalization()  # shared
    return keras.Model(images, bn(convolution(bn(convolution(images)))))


@pytest.mark.parametrize(
    "name",
    [
        "activation",
        "depthwise",
        "another axis",
        "first",
        "another reader",
        "output",
        "shared",
        "half precision",
    ],
)
def test_what_cannot_be_folded_is_copied(name):
    network = randomised(kept(keras.Input((40, 36, 3)), name))
    folded = fold_batch_norm(network)
    assert folded is not network and count(folded, keras.layers.BatchNormalization) == 1
    found, expected = folded(IMAGES), network(IMAGES)
    if name == "output":
        found, expected = found[0], expected[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_model_without_a_graph_is_returned():
    class Own(keras.Model):
        def call(self, images):
            return images

    model = Own()
    assert fold_batch_norm(model) is model
