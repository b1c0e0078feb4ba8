"""Copies of networks whose layers hold more than weights: `Normalization` has its mean and variance twice."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_sslhsic
from keras_sslhsic import callbacks, views
from keras_sslhsic.encoders import copying, encoder_hash, with_preprocessing
from keras_sslhsic.encoders.folding import fold_batch_norm
from keras_sslhsic.training import ema

PIXELS = dataclasses.replace(views.small_image(16), mean=(0.0,) * 3, std=(1 / 255,) * 3)


def network(adapted=True):
    normalisation = keras.layers.Normalization()
    images = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, strides=2, padding="same", name="map")(normalisation(images))
    x = keras.layers.BatchNormalization()(x)
    found = keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU(name="last")(x)))
    if adapted:
        normalisation.adapt(pixels(20))
    return found


@keras.saving.register_keras_serializable(package="test_copies")
class Doubled(keras.layers.Layer):
    """Computes with twice its weight, which it calculates once, and with a number that is no weight."""

    def build(self, _):
        self.scale = self.add_weight(shape=(), initializer="ones")
        self.twice, self.offset = 2.0, 0.0

    def call(self, inputs):
        return inputs * self.twice + self.offset

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["offset"] = np.float32(self.offset)

    def load_own_variables(self, store):
        self.scale.assign(store["0"])
        self.twice, self.offset = 2.0 * float(self.scale.numpy()), float(np.asarray(store["offset"]))


def of_ones_own():
    own, images = Doubled(), keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, strides=2, padding="same")(own(images))
    x = keras.layers.ReLU(name="last")(keras.layers.BatchNormalization()(x))
    found = keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))
    own.load_own_variables({"0": 0.01, "offset": -1.0})
    return found


def pixels(seed):
    return np.random.default_rng(seed).integers(0, 256, (8, 16, 16, 3), np.uint8)


def test_what_a_layer_of_ones_own_holds_is_part_of_the_hash():
    source = of_ones_own()
    twin = copying.copy_of(source, "twin")
    assert encoder_hash(twin) == encoder_hash(source)
    next(layer for layer in twin.layers if isinstance(layer, Doubled)).offset = 1.0
    assert encoder_hash(twin) != encoder_hash(source)


@pytest.mark.parametrize("make", [network, lambda: network(adapted=False), of_ones_own])
def test_a_copy_computes_as_its_network(make):
    source, images = make(), pixels(0).astype(np.float32)
    expected = np.asarray(source(images))
    np.testing.assert_array_equal(copying.copy_of(source, "twin")(images), expected)
    scale = np.abs(expected).max()  # float32, 27 terms
    np.testing.assert_allclose(fold_batch_norm(source)(images), expected, atol=1e-5 * scale)
    encoder = with_preprocessing(source, 0.0, 1 / 255)
    for found in (encoder.dense_maps(2)(images), encoder.maps()(images)):
        np.testing.assert_allclose(np.mean(found["P1"], axis=(1, 2)), expected, atol=1e-5 * scale)


def change(source):
    """Gives a network other weights, as `load_weights` does, and adapts it."""
    rng = np.random.default_rng(7)
    given = [rng.uniform(0.5, 1.0, weight.shape).astype(weight.dtype) for weight in source.get_weights()]
    source.set_weights(given)
    normalisation_of(source).adapt(pixels(20))


def normalisation_of(source):
    return next(layer for layer in source.layers if isinstance(layer, keras.layers.Normalization))


def trainer():
    return keras_sslhsic.SSLHSIC(network(adapted=False), 8, 4, views=PIXELS, weight_ema=0.5)


@pytest.mark.parametrize("train", ["fit", "train_on_batch"])
@pytest.mark.parametrize("early", [True, False])
def test_copies_begin_with_the_weights_at_the_first_step(train, early):
    model = trainer()
    if early:
        change(model.encoder)
    model.compile(keras.optimizers.SGD(0.0))
    assert len(model.copies()) == 3
    if early:
        for source, copy in model.copies():
            for found, expected in zip(copy.get_weights(), source.get_weights(), strict=True):
                np.testing.assert_array_equal(found, expected)
    else:
        change(model.encoder)
    model.projector.set_weights([weight + 1 for weight in model.projector.get_weights()])
    getattr(model, train)(pixels(0), **({"batch_size": 8, "verbose": 0} if train == "fit" else {}))
    for source, copy in model.copies():
        for found, expected in zip(ema.parameters(copy), ema.parameters(source), strict=True):
            np.testing.assert_array_equal(found, expected)
    for copy in (model.target_encoder, model.ema_encoder):
        np.testing.assert_array_equal(normalisation_of(copy).mean, normalisation_of(model.encoder).mean)


def test_copies_keep_weights_of_their_own():
    model = trainer()
    own = [np.full_like(weight, 0.5) for weight in model.target_encoder.get_weights()]
    model.target_encoder.set_weights(own)
    change(model.encoder)
    model.compile(keras.optimizers.SGD(0.0))
    for found, expected in zip(model.target_encoder.get_weights(), own, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_copies_of_a_training_are_not_made_anew():
    model = trainer()
    model.compile(keras.optimizers.SGD(0.0))
    model.train_on_batch(pixels(0))
    before = [weight.numpy() for weight in ema.parameters(model.target_encoder)]
    change(model.encoder)
    model.compile(keras.optimizers.SGD(0.0))
    for found, expected in zip(ema.parameters(model.target_encoder), before, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.filterwarnings("ignore:.* is done, at epoch")
def test_a_target_and_what_is_restored_normalise_as_the_network(tmp_path):
    images = pixels(0)

    def trainer(adapted):
        keras.utils.set_random_seed(1)
        made = keras_sslhsic.SSLHSIC(network(adapted), 8, 4, views=PIXELS)
        made.compile(keras_sslhsic.LARS(0.1))
        return made

    model = trainer(adapted=True)
    floats = images.astype(np.float32)
    np.testing.assert_array_equal(model.target_encoder(floats), model.encoder(floats))
    model.fit(images, batch_size=8, verbose=0, callbacks=[callbacks.Checkpoint(tmp_path)])
    resumed = trainer(adapted=False)
    callbacks.Checkpoint(tmp_path).restore(resumed)
    for name in ("encoder", "target_encoder"):
        np.testing.assert_array_equal(getattr(resumed, name)(floats), getattr(model, name)(floats))
