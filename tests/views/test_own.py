"""Operations of one's own among the views: Keras layers and functions, from Python, dicts and configs."""

import dataclasses
import json

import keras
import ml_collections
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC, losses, views

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 20, 20, 5), np.uint8)
PLAIN = views.ViewPolicy(
    size=20,
    crop=views.Crop(area=(1.0, 1.0), aspect=(1.0, 1.0)),
    flip=0.0,
    jitter=views.ColorJitter(probability=0.0),
    grayscale=0.0,
    blur=views.Blur(probability=(0.0, 0.0)),
    solarize=views.Solarize(probability=(0.0, 0.0)),
    mean=(0.0,) * 5,
    std=(1.0,) * 5,
)


@keras.saving.register_keras_serializable(package="mine")
def speckle(images, seed):
    return images + tf.random.stateless_normal(tf.shape(images), seed, stddev=0.5, alg="philox")


@keras.saving.register_keras_serializable(package="mine")
def halved(images, seed):
    return images[:, ::2]


def layers():
    return keras.layers.RandomTranslation(0.3, 0.3, seed=3), keras.layers.Dropout(0.5)


def policy(*operations):
    return dataclasses.replace(PLAIN, own=operations)


def test_operations_are_applied_in_their_order_before_the_normalisation():
    seeds = []

    @keras.saving.register_keras_serializable(package="mine")
    def brighter(images, seed):
        seeds.append(seed.numpy().tolist())
        return images * 2.0

    made = views.make_views(IMAGES, dataclasses.replace(policy(brighter), std=(0.5,) * 5), [0, 1])
    expected = 2.0 * np.clip(2.0 * (IMAGES / np.float32(255)), 0, 1)
    for view in made:
        np.testing.assert_allclose(view, expected, rtol=0, atol=1e-5)
    assert len(np.unique(seeds, axis=0)) == 2
    dark = views.make_views(IMAGES, policy(keras.layers.Rescaling(0.25), brighter), [0, 1])[0]
    np.testing.assert_allclose(dark, IMAGES / np.float32(510), rtol=0, atol=1e-5)


def test_what_is_random_depends_on_the_seed_alone():
    """Layers keep the state of their generators, whatever mode they run in."""
    shift, drop = layers()
    chosen = policy(shift, drop, speckle)
    first, again, other = (views.make_views(IMAGES, chosen, seed) for seed in ([7, 1], [7, 1], [7, 2]))
    compiled = tf.function(lambda seed: views.make_views(IMAGES, chosen, seed), autograph=False)
    for view, same, in_graph, different in zip(
        first, again, compiled(tf.constant([7, 1])), other, strict=True
    ):
        np.testing.assert_array_equal(view, same)
        np.testing.assert_allclose(view, in_graph, rtol=0, atol=1e-4)
        assert (np.abs(view - different).max(axis=(1, 2, 3)) > 0.1).all()
    assert np.abs(first[0] - first[1]).max() > 0.1
    np.testing.assert_array_equal(shift.generator.state, layers()[0].generator.state)


def test_policies_with_operations_are_data():
    chosen = policy(*layers(), speckle)
    assert chosen.own[2] == "mine>speckle"
    config = chosen.to_dict()
    assert views.get(json.loads(json.dumps(config))) == chosen and hash(chosen)
    assert views.get(ml_collections.ConfigDict(config)) == chosen
    assert policy(*layers()) == policy(*layers())
    layer = keras.saving.serialize_keras_object(keras.layers.Rescaling(0.5))
    halved = views.get(PLAIN.to_dict() | {"own": [layer]})
    dark = views.make_views(IMAGES, halved, [0, 1])[0]
    np.testing.assert_allclose(dark, IMAGES / np.float32(510), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ((lambda images, seed: images,), r"put @keras\.saving\.register_keras_serializable"),
        ((3,), "must be a Keras layer, or a function"),
        ("mine>speckle", "own must be a list of layers and functions"),
    ],
)
def test_what_files_cannot_name_is_refused(operations, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PLAIN, own=operations)


def test_what_is_not_registered_or_changes_the_shape_is_said_when_views_are_made():
    absent = policy("mine>gone")
    np.testing.assert_array_equal(views.prepare(IMAGES, absent), IMAGES / np.float32(255))
    with pytest.raises(ValueError, match="'mine>gone', which is not registered: import the module"):
        views.make_views(IMAGES, absent, [0, 1])
    with pytest.raises(ValueError, match=r"of the shape that it is given.*mine>halved"):
        views.make_views(IMAGES, policy(halved), [0, 1])


def test_images_of_any_channels_train_with_operations_of_ones_own(tmp_path):
    pixels = keras.Input((20, 20, 5))
    pooled = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(pixels))
    chosen = dataclasses.replace(views.multispectral(20, 5), own=(*layers(), speckle))
    model = SSLHSIC(keras.Model(pixels, pooled), 8, 4, views=chosen, target=False)
    model.compile(LARS(0.1), losses.SSLHSICLoss(gamma=1.0), run_eagerly=True)
    assert np.isfinite(model.fit(IMAGES, batch_size=6, verbose=0).history["loss"][0])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.policy == chosen
    np.testing.assert_allclose(loaded.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0), rtol=1e-5)
