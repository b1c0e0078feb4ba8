"""Training that goes on with an encoder that was kept: on its network, with the normalisation that it had."""

import contextlib
import dataclasses
import warnings

import keras
import numpy as np
import pytest

import keras_sslhsic
from keras_sslhsic import views
from keras_sslhsic.encoders import build_encoder, encoder_of, unlabelled, with_preprocessing
from keras_sslhsic.evaluation import extract_features, knn

VIEWS = views.grayscale(16)
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 1), np.uint8)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """An encoder's file and its features."""
    encoder = with_preprocessing(build_encoder("r18_1x", (16, 16, 1), width=0.02), VIEWS.mean, VIEWS.std)
    path = tmp_path_factory.mktemp("kept") / "encoder.keras"
    encoder.save(path)
    return path, encoder(IMAGES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "load", [keras_sslhsic.load_pretrained, keras.models.load_model], ids=["encoder", "plain model"]
)
def test_training_goes_on_where_it_was(kept, load):
    path, features = kept
    encoder = load(path)
    frozen = pytest.warns(UserWarning, match="was frozen, and is to be trained")
    with frozen if load is keras_sslhsic.load_pretrained else contextlib.nullcontext():
        model = keras_sslhsic.SSLHSIC(encoder, 8, 4, views=VIEWS)
    assert encoder.trainable
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), features, rtol=1e-5, atol=1e-5)
    assert len(model.encoder.trainable_variables) == 63
    model.compile(keras_sslhsic.LARS(1.0))
    model.fit(IMAGES, batch_size=8, epochs=1, verbose=0)
    learnt = model.predict(IMAGES, verbose=0)
    assert np.abs(learnt - features).max() > 1e-3 * np.abs(features).max()
    np.testing.assert_allclose(encoder(IMAGES), learnt, rtol=1e-4, atol=1e-5)


def test_what_is_frozen_in_part_stays_so(kept):
    encoder = keras_sslhsic.load_pretrained(kept[0], trainable=True, freeze_batch_norm=True)
    network = keras_sslhsic.SSLHSIC(encoder, 8, 4, views=VIEWS).encoder
    assert all(variable.path.endswith("kernel") for variable in network.trainable_variables)


def test_another_normalisation_is_refused_with_the_views_to_give(kept):
    encoder = keras_sslhsic.load_pretrained(kept[0])
    for other in (views.byol(16), dataclasses.replace(VIEWS, std=(0.3,))):
        with pytest.raises(
            ValueError, match=r"give views of its normalisation, .*mean=\(0\.286,\), std=\(0\.353,\)\)\.$"
        ):
            keras_sslhsic.SSLHSIC(encoder, 8, 4, views=other)
    model = keras_sslhsic.SSLHSIC(encoder, 8, 4, views=VIEWS)
    with pytest.raises(ValueError, match=r"trains an encoder: give the encoder alone, model\.encoder\.$"):
        keras_sslhsic.SSLHSIC(model, 8, 4, views=VIEWS)


def test_networks_that_normalise_inside_say_so():
    def network():
        return keras.Sequential(
            [
                keras.Input((16, 16, 1)),
                keras.layers.Rescaling(1 / 127.5, -1.0),
                keras.layers.Conv2D(4, 3),
                keras.layers.GlobalAveragePooling2D(),
            ]
        )

    with pytest.warns(UserWarning, match=r"normalises its images itself.*mean=\(0\.0,\), std=\(0\.0039"):
        keras_sslhsic.SSLHSIC(network(), 8, 4, views=VIEWS)
    raw = dataclasses.replace(VIEWS, mean=(0.0,), std=(1 / 255,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = network()
        for encoder in (inside, encoder_of(inside)):  # the second says that it reads pixels in [0, 255]
            model = keras_sslhsic.SSLHSIC(encoder, 8, 4, views=raw)
            np.testing.assert_allclose(model(IMAGES), inside(IMAGES), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="give views of its normalisation"):
        keras_sslhsic.SSLHSIC(encoder_of(inside), 8, 4, views=VIEWS)


def test_arithmetic_on_pixels_is_seen():
    pixels = keras.Input((16, 16, 3))
    cast = keras.ops.cast(pixels, "float32")
    caffe = keras.applications.resnet50.preprocess_input
    begins = {
        True: (pixels / 255.0, cast / 127.5 - 1.0, (pixels - 0.5) / 0.2, caffe(pixels)),
        False: (pixels, keras.layers.Conv2D(3, 1)(pixels) / 255.0),
    }
    for seen, tensors in begins.items():
        for tensor in tensors:
            pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(tensor))
            assert unlabelled.normalises(keras.Model(pixels, pooled)) is seen


@pytest.mark.slow
def test_going_on_with_the_bundled_encoder_keeps_its_neighbours():
    (train, labels), (test, test_labels) = keras_sslhsic.data.bundled.load()
    train, labels, test, test_labels = train[:2000], labels[:2000], test[:500], test_labels[:500]
    encoder = keras_sslhsic.load_pretrained("r18_fashion")

    def neighbours(model):
        return knn(extract_features(model, train), labels, extract_features(model, test), test_labels)

    before = neighbours(encoder)
    model = keras_sslhsic.SSLHSIC(encoder, 64, 32, views="grayscale")
    model.compile(keras_sslhsic.LARS(0.05))
    model.fit(train, batch_size=250, epochs=2, verbose=0)
    assert neighbours(model).value >= before.interval[0]
