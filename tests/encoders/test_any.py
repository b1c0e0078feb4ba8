"""Networks that are not this package's train and give features as its own do: with batch normalisation, and without."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC, evaluation, views, zoo

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 36, 36, 3), dtype=np.uint8)


def mobile_net():
    """Of keras.applications, on images as normalised as all of its networks here."""
    return keras.applications.MobileNetV2(
        (32, 32, 3), alpha=0.35, include_top=False, weights=None, pooling="avg"
    )


@keras.saving.register_keras_serializable("tests")
class Positions(keras.layers.Layer):
    """Adds a learnt vector to each patch."""

    def build(self, shape):
        self.position = self.add_weight(shape=shape[1:], initializer="random_normal", name="position")

    def call(self, patches):
        return patches + self.position


def vision_transformer(size=32, patch=8, width=16):
    """One block, of Keras's layers alone: no batch normalisation, so no statistics of it."""
    images = keras.Input((size, size, 3))
    x = keras.layers.Conv2D(width, patch, patch)(images)
    x = Positions()(keras.layers.Reshape((-1, width))(x))
    y = keras.layers.LayerNormalization()(x)
    x += keras.layers.MultiHeadAttention(2, width // 2)(y, y)
    y = keras.layers.Dense(2 * width, activation="gelu")(keras.layers.LayerNormalization()(x))
    x += keras.layers.Dense(width)(y)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
    return keras.Model(images, x)


def check(encoder, path):
    """Trains two steps, and has features from the trainer, its encoder, and the files of both."""
    model = SSLHSIC(encoder, 16, 8, views=views.byol(32), weight_ema=0.5)
    before = [value.copy() for value in encoder.get_weights()]
    model.compile(LARS(0.5))
    history = model.fit(IMAGES, batch_size=6, verbose=0).history
    assert np.isfinite(history["loss"]).all() and int(model.step.numpy()) == 2
    assert any(np.abs(a - b).max() > 0 for a, b in zip(before, encoder.get_weights(), strict=True))
    images = IMAGES[:, :32, :32]
    features = evaluation.extract_features(model, images, batch_size=6)
    # Two programs of one network differ by rounding; weights that are not the saved ones, or images that are normalised
    # otherwise, would change tenths.
    np.testing.assert_allclose(features, model.predict(images, verbose=0), rtol=1e-3, atol=1e-5)
    model.save(path / "model.keras")
    model.serving_encoder().save(path / "encoder.keras")
    for name in ("model", "encoder"):
        loaded = keras.models.load_model(path / f"{name}.keras")
        found = evaluation.extract_features(loaded, images, batch_size=6)
        np.testing.assert_allclose(found, features, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_networks_of_keras_applications(tmp_path):
    check(mobile_net(), tmp_path)


@pytest.mark.slow
def test_a_vision_transformer_has_no_batch_statistics(tmp_path):
    encoder = vision_transformer()
    assert not [layer for layer in encoder.layers if isinstance(layer, keras.layers.BatchNormalization)]
    check(encoder, tmp_path)


def test_networks_of_keras_hub(tmp_path):
    keras_hub = pytest.importorskip("keras_hub", reason="make test-hub runs it, in an environment of its own")
    residual = keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[1],
        block_type="basic_block",
        image_shape=(32, 32, 3),
    )
    pooled = keras.layers.GlobalAveragePooling2D()(residual.output)
    check(keras.Model(residual.input, pooled), tmp_path)


@pytest.mark.parametrize("last", ["Dense", "Softmax"])
def test_a_classifiers_top_is_warned_of(last):
    images = keras.Input((8, 8, 3))
    features = keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(images))
    top = keras.layers.Softmax if last == "Softmax" else lambda: keras.layers.Dense(4, activation="softmax")
    with pytest.warns(UserWarning, match="probabilities of 4 classes"):
        SSLHSIC(keras.Model(images, top()(features)), views=views.byol(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SSLHSIC(keras.Model(images, features), views=views.byol(8))


def test_random_layers_of_an_encoder_do_not_train_by_themselves(tmp_path):
    """Keras's own train unless they are told not to."""
    pixels = keras.Input((12, 12, 3))
    found = keras.layers.Conv2D(4, 3, strides=3)(keras.layers.RandomFlip(seed=0)(pixels))
    network = keras.Model(pixels, keras.layers.Flatten()(found))
    model = SSLHSIC(network, 8, 4, views=views.byol(12))
    images = np.random.default_rng(0).integers(0, 256, (16, 12, 12, 3), dtype=np.uint8)
    expected = model.predict(images, verbose=0)
    zoo.save_pretrained(model, tmp_path / "saved")
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    loaded = zoo.load_pretrained(tmp_path / "saved")
    outer_pixels = keras.Input((12, 12, 3))
    outer = keras.Model(outer_pixels, loaded(outer_pixels))
    doors = (model, model.serving_encoder(), loaded, outer, exported.serve)
    for door in doors:
        np.testing.assert_allclose(door(tf.constant(images, tf.float32)), expected, rtol=1e-4, atol=1e-4)
    assert np.abs(outer(images, training=True) - expected).max() > 0.1  # what contains it says what to do
