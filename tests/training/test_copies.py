"""Copies of networks of which a layer holds more than weights: `Normalization` has its mean and variance twice."""

import dataclasses

import keras
import numpy as np
import pytest

import keras_sslhsic
from keras_sslhsic import callbacks, views
from keras_sslhsic.encoders import with_preprocessing
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


def pixels(seed):
    return np.random.default_rng(seed).integers(0, 256, (8, 16, 16, 3), np.uint8)


@pytest.mark.parametrize("adapted", [True, False])
def test_a_copy_normalises_as_its_network(adapted):
    source, images = network(adapted), pixels(0).astype(np.float32)
    expected = np.asarray(source(images))
    np.testing.assert_array_equal(ema.copy_of(source, "twin")(images), expected)
    # 27 terms of at most a few units with an adapted mean, of 255 without.
    scale = 1.0 if adapted else 255.0
    np.testing.assert_allclose(fold_batch_norm(source)(images), expected, atol=1e-5 * scale)
    encoder = with_preprocessing(source, 0.0, 1 / 255)
    for found in (encoder.dense_maps(2)(images), encoder.maps()(images)):
        np.testing.assert_allclose(np.mean(found["P1"], axis=(1, 2)), expected, atol=1e-5 * scale)


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
