"""Maps of networks for dense prediction, against the encoder's own and against operations of TensorFlow by hand."""

import copy
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_sslhsic
from keras_sslhsic.encoders import Architecture, encoder_hash, with_preprocessing
from keras_sslhsic.encoders.folding import fold_batch_norm
from keras_sslhsic.encoders.resnet import resnet

TINY = Architecture((1, 1, 1, 2), (16, 16, 16, 20), bottleneck=True, stem_channels=4)
CONVERTED = Path(__file__).parents[1] / "data" / "checkpoint_tiny.npy"


def draw_statistics(model):
    rng = np.random.default_rng(0)
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])


@pytest.fixture(scope="module")
def built():
    network = resnet(TINY, (None, None, 3), name="tiny")
    draw_statistics(network)
    return with_preprocessing(network, 0.4, 0.2)


def by_hand(network, block, x):
    """A bottleneck block at dilation 2 and stride 1, by TensorFlow's operations and the network's weights."""

    def layer(x, name, bn, rate=1):
        kernel = network.get_layer(f"{block}_{name}").kernel
        x = tf.nn.atrous_conv2d(x, kernel, rate, "SAME") if rate > 1 else tf.nn.conv2d(x, kernel, 1, "SAME")
        gamma, beta, mean, variance = network.get_layer(f"{block}_{bn}").get_weights()
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)

    own = layer(x, "shortcut_conv", "shortcut_bn") if block.endswith("0") else x
    inner = tf.nn.relu(layer(x, "conv0", "bn0"))
    inner = tf.nn.relu(layer(inner, "conv1", "bn1", rate=2))
    return tf.nn.relu(layer(inner, "conv2", "bn2") + own)


def test_at_full_stride_maps_are_the_encoders(built, tmp_path):
    built.save(tmp_path / "saved.keras")
    saved = keras_sslhsic.load_pretrained(tmp_path / "saved.keras")
    converted = keras_sslhsic.load_pretrained(CONVERTED)
    fixed = with_preprocessing(resnet(TINY, (64, 64, 3), "imagenet", "fixed"), 0.4, 0.2)
    images = np.random.default_rng(1).integers(0, 256, (2, 224, 224, 3), np.uint8)
    for encoder in (built, saved, converted, fixed):
        given = images[:, :64, :64] if encoder is fixed else images
        stride = max(stage.stride for stage in encoder.spec.stages.values())
        dense, plain = encoder.dense_maps(stride)(given), encoder.maps()(given)
        assert dense.keys() == plain.keys()
        for name in plain:
            np.testing.assert_allclose(dense[name], plain[name], rtol=1e-6, atol=1e-6)


def test_half_the_stride_is_the_last_stage_dilated(built):
    images = np.random.default_rng(2).integers(0, 256, (2, 65, 97, 3), np.uint8)
    dense, plain = built.dense_maps(16)(images), built.maps()(images)
    network = built.get_layer(built.spec.network)
    expected = plain["P4"]
    for block in ("group3_block0", "group3_block1"):
        expected = by_hand(network, block, expected)
    np.testing.assert_array_equal(dense["P4"], plain["P4"])
    assert dense["P5"].shape == (2, 5, 7, 20) and plain["P5"].shape == (2, 3, 4, 20)
    np.testing.assert_allclose(dense["P5"], expected, rtol=1e-5, atol=1e-5)


def test_a_stage_of_single_taps_is_the_plain_one_between_its_pixels(built):
    """Where 3x3 kernels have their middle alone, and sides are odd, every second pixel is that of the full stride."""
    network = keras.models.clone_model(built.get_layer(built.spec.network))
    network.set_weights(built.get_layer(built.spec.network).get_weights())
    for layer in network.layers:
        if layer.name.startswith("group3") and layer.name.endswith("conv1"):
            kernel = np.zeros_like(layer.kernel)
            kernel[1, 1] = np.asarray(layer.kernel)[1, 1]
            layer.kernel.assign(kernel)
    encoder = with_preprocessing(network, 0.4, 0.2)
    images = np.random.default_rng(3).integers(0, 256, (1, 80, 112, 3), np.uint8)
    dense, plain = (encoder.dense_maps(stride)(images)["P5"] for stride in (16, 32))
    assert dense.shape[1:3] == (5, 7)
    np.testing.assert_allclose(dense[:, ::2, ::2], plain, rtol=1e-5, atol=1e-5)


def test_its_weights_are_its_own_and_can_be_trained(built):
    before = built.get_weights()
    model = built.dense_maps(16)
    for variable in model.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    for one, other in zip(built.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_sequential_network_has_the_maps_of_the_functional_one(tmp_path):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Conv2D(4, 3, 2, padding="same", activation="relu") for _ in range(3)]
    network = keras.Sequential(
        [keras.Input((None, None, 3)), *layers, keras.layers.GlobalAveragePooling2D()], name="own"
    )
    same = keras.Model(network.inputs, network.outputs, name="own")
    images = np.random.default_rng(4).integers(0, 256, (2, 32, 48, 3), np.uint8)
    encoder, expected = (with_preprocessing(each, 0.4, 0.2) for each in (network, same))
    encoder.save(tmp_path / "own.keras")
    for one in (encoder, keras_sslhsic.load_pretrained(tmp_path / "own.keras")):
        assert list(one.spec.stages) == ["P1", "P2", "P3"]
        for found, others in (
            (one.maps(), expected.maps()),
            (one.dense_maps(8), expected.dense_maps(8)),
            (one.dense_maps(4), expected.dense_maps(4)),
        ):
            found, others = found(images), others(images)
            assert found.keys() == others.keys()
            for name in found:
                np.testing.assert_array_equal(found[name], others[name])


def of_operations(images):
    """Stages that end in operations, which are no layers."""
    x = keras.layers.Conv2D(6, 3, strides=2, padding="same")(images)
    first = keras.ops.relu(x + keras.layers.Conv2D(6, 3, padding="same")(x))
    x = keras.layers.Conv2D(8, 3, strides=2, padding="same")(first)
    return first, x * keras.ops.sigmoid(x) + 1.0


def of_a_shared_layer(images):
    """Stages that end in one layer, called again and again."""
    relu = keras.layers.ReLU()
    x = relu(keras.layers.Conv2D(6, 3, strides=2, padding="same")(images))
    first = relu(x + keras.layers.Conv2D(6, 3, padding="same")(x))
    x = relu(keras.layers.Conv2D(8, 3, strides=2, padding="same")(first))
    return first, relu(x + keras.layers.Conv2D(8, 3, padding="same")(x))


@pytest.mark.parametrize("stages", [of_operations, of_a_shared_layer])
def test_a_stage_may_end_in_whatever_a_network_is_made_of(stages, tmp_path):
    inputs = keras.Input((None, None, 3))
    first, last = stages(inputs)
    network = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(last), name="own")
    encoder = with_preprocessing(network, 0.4, 0.2)
    encoder.save(tmp_path / "own.keras")
    loaded = keras_sslhsic.load_pretrained(tmp_path / "own.keras")
    assert loaded.spec == encoder.spec
    images = np.random.default_rng(5).integers(0, 256, (2, 32, 48, 3), np.uint8)
    expected = keras.Model(inputs, {"P1": first, "P2": last})((images / np.float32(255) - 0.4) / 0.2)
    dilated = encoder.dense_maps(2)(images)
    assert dilated["P2"].shape == (2, 16, 24, 8)
    np.testing.assert_allclose(dilated["P1"], expected["P1"], rtol=1e-5, atol=1e-5)
    for maps in (encoder.maps(), loaded.maps(), encoder.dense_maps(4)):
        found = maps(images)
        assert list(found) == ["P1", "P2"]
        for name in found:  # of some 50 terms of a few units
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)


@keras.saving.register_keras_serializable(package="test_dilation")
class Scaled(keras.layers.Layer):
    """A layer without a get_config: Keras records its arguments, and no name."""

    def __init__(self, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def build(self, _):
        self.offset = self.add_weight(shape=(), initializer="zeros")

    def call(self, inputs):
        return self.factor * (inputs + self.offset)


def test_layers_may_have_other_names_when_they_are_made_again(tmp_path):
    images = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, strides=2, padding="same", use_bias=False)(images)
    x = Scaled(2.0)(keras.layers.BatchNormalization()(x))
    x = Scaled(3.0)(keras.layers.Conv2D(4, 3, padding="same")(x))
    x = Scaled(5.0)(keras.layers.Conv2D(6, 3, strides=2, padding="same")(x))
    network = keras.Model(images, keras.layers.GlobalAveragePooling2D()(x), name="own")
    for number, layer in enumerate(layer for layer in network.layers if isinstance(layer, Scaled)):
        layer.offset.assign(number + 1.0)
    encoder = with_preprocessing(network, 0.4, 0.2)
    given = np.random.default_rng(6).integers(0, 256, (2, 16, 16, 3), np.uint8)
    features, maps = encoder(given), encoder.maps()(given)
    encoder.save(tmp_path / "own.keras")
    keras.backend.clear_session()
    Scaled(1.0)  # takes the first name
    again = keras_sslhsic.load_pretrained(tmp_path / "own.keras")
    normalised = (given / np.float32(255) - 0.4) / 0.2
    np.testing.assert_allclose(fold_batch_norm(network)(normalised), features, rtol=1e-5)
    for made in (again, copy.deepcopy(encoder)):
        np.testing.assert_array_equal(made(given), features)
        assert encoder_hash(made) == encoder_hash(encoder)
        for found in (made.maps()(given), made.dense_maps(4)(given)):
            assert list(found) == ["P1", "P2"]
            for name in found:
                np.testing.assert_array_equal(found[name], maps[name])


def test_what_cannot_be_dilated(built):
    with pytest.raises(ValueError, match="has stride 32, found the output stride 8: give 32 or 16"):
        built.dense_maps(8)
    network = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            keras.layers.Conv2D(4, 3, strides=2, padding="same"),
            keras.layers.Reshape((8, 8, 16)),
            keras.layers.Conv2D(4, 3, padding="same"),
            keras.layers.GlobalAveragePooling2D(),
        ]
    )
    encoder = with_preprocessing(keras.Model(network.inputs, network.outputs, name="odd"), 0.4, 0.2)
    with pytest.raises(ValueError, match="stages of 'odd' are not known"):
        encoder.dense_maps(4)
