import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import load_pretrained
from keras_sslhsic.encoders import Architecture, EncoderSpec, with_preprocessing
from keras_sslhsic.encoders.base import preprocessed
from keras_sslhsic.encoders.resnet import resnet

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.fixture(scope="module")
def encoder():
    return resnet(Architecture((1, 1, 1, 1), (8, 8, 8, 8), bottleneck=False, stem_channels=8))


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (3, 50, 70, 3), np.uint8)


def test_it_normalises_and_resizes(encoder, images):
    normalised = ((images / 255 - MEAN) / STD).astype(np.float32)
    np.testing.assert_allclose(with_preprocessing(encoder, MEAN, STD)(images), encoder(normalised), atol=1e-4)
    # Of 50 x 70 the central 50 x 62 have the aspect ratio of 32 x 40 but for a part of a pixel, and 40 x 70 of 16 x 28.
    for size, central in (
        ((32, 40), np.s_[:, :, 4:66]),
        ((16, 28), np.s_[:, 5:45]),
        (32, np.s_[:, :, 10:60]),
    ):
        for antialias in (False, True):
            model = with_preprocessing(encoder, MEAN, STD, size, antialias)
            expected = encoder(tf.image.resize(normalised[central], model.spec.resize, antialias=antialias))
            np.testing.assert_allclose(model(images), expected, atol=1e-4)


def test_of_earlier_versions_images_are_stretched(encoder, images, tmp_path):
    normalised = ((images / 255 - MEAN) / STD).astype(np.float32)
    spec = dataclasses.replace(with_preprocessing(encoder, MEAN, STD, 32).spec, crop=False)
    earlier = preprocessed(encoder, spec)
    expected = encoder(tf.image.resize(normalised, (32, 32)))
    np.testing.assert_allclose(earlier(images), expected, atol=1e-4)
    fields = spec.to_dict()
    del fields["crop"]
    assert EncoderSpec.from_dict(fields) == spec
    earlier.save(tmp_path / "earlier.keras")
    found = load_pretrained(tmp_path / "earlier.keras")
    assert found.spec == spec
    np.testing.assert_allclose(found(images), expected, atol=1e-4)


def test_every_way_of_calling_gives_the_same(encoder, images):
    model = with_preprocessing(encoder, MEAN, STD, 32)
    expected = model(images)
    # keras.layers.Resizing would make the plain call use batch statistics.
    for features in (
        model(images, training=False),
        model.predict(images, verbose=0),
        model(images.astype(np.float32)),
        tf.function(model)(images),
        model(np.concatenate([images, images]))[:3],
    ):
        np.testing.assert_allclose(features, expected, atol=1e-5)


def test_weights_are_shared_and_trainable(encoder, images):
    model = with_preprocessing(encoder, MEAN, STD, 32)
    assert [w.path for w in model.trainable_variables] == [w.path for w in encoder.trainable_variables]
    moving = np.array(encoder.get_layer("stem_bn").moving_mean)
    model(images, training=True)
    assert np.abs(moving - encoder.get_layer("stem_bn").moving_mean).max() > 0


def test_it_loads_without_custom_objects(encoder, images, tmp_path):
    model = with_preprocessing(encoder, MEAN, STD, 32, name="e")
    model.save(tmp_path / "e.keras")
    loaded = keras.models.load_model(tmp_path / "e.keras", custom_objects={})
    assert type(loaded).__module__.startswith("keras.")
    np.testing.assert_allclose(loaded(images), model(images), atol=1e-6)


def test_pixels_stay_exact_under_mixed_precision():
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        identity = keras.Sequential(
            [keras.Input((None, None, 1)), keras.layers.GlobalMaxPooling2D(dtype="float32")]
        )
        model = with_preprocessing(identity, 0.0, 1 / 255)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    pixels = np.full((1, 2, 2, 1), 201.123, np.float32)
    np.testing.assert_allclose(model(pixels), [[201.123]], rtol=1e-6)


@pytest.mark.parametrize("size", [(16, 16), [16, 16], np.array([16, 16]), np.int64(16)])
def test_sizes_in_any_form_are_saved(encoder, tmp_path, size):
    with_preprocessing(encoder, MEAN, STD, size, trained_at=np.int64(16)).save(tmp_path / "model.keras")
    spec = load_pretrained(tmp_path / "model.keras").spec
    assert (spec.resize, spec.trained_at) == ((16, 16), 16)


def test_bad_arguments_are_named(encoder):
    for size in (16.0, 0, (16, 16, 3), (16, None), "16"):
        with pytest.raises(ValueError, match="size must be"):
            with_preprocessing(encoder, MEAN, STD, size)
    with pytest.raises(ValueError, match=r"mean must have 1 or 3 values.*\[0.5, 0.5\]"):
        with_preprocessing(encoder, [0.5, 0.5], STD)
    with pytest.raises(ValueError, match=r"std must be positive, found"):
        with_preprocessing(encoder, MEAN, 0.0)
    with pytest.raises(ValueError, match=r"images \[B, H, W, C\] to features.*found \[None, 4\]"):
        with_preprocessing(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), 0.0, 1.0)
