"""Operations of one's own among the views: Keras layers and functions, from Python, dicts and configs."""

import dataclasses
import json

import keras
import ml_collections
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC, export_saved_model, load_pretrained, losses, views
from keras_sslhsic.views import own

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


def inverted(images):
    return 1 - images


class Unregistered(keras.Layer):
    def call(self, images):
        return images


class WithoutConfig(keras.Layer):
    def __init__(self, factor):
        super().__init__()


@keras.saving.register_keras_serializable(package="mine")
class Brighter(keras.Layer):
    def call(self, images):
        return 2.0 * images


def filtering(built=True):
    layer = keras.layers.DepthwiseConv2D(3, padding="same", name="filter")
    if built:
        layer.build([None, 20, 20, 5])
    return layer


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
        ((Unregistered(),), r"found <Unregistered .* above the function or the class"),
        ((WithoutConfig(2.0),), r"found <WithoutConfig .* above the function or the class"),
        ((keras.Sequential([keras.layers.Rescaling(0.5), Unregistered()]),), "found <Sequential"),
        ((keras.layers.Activation(inverted),), "found <Activation"),
        ((keras.layers.Lambda(inverted),), "found <Lambda .*: put .* a Lambda has no name"),
        ((filtering(),), "the layer filter has the weights kernel, bias, .*: give a function"),
        ((keras.Sequential([keras.Input([20, 20, 5]), filtering()]),), "has the weights kernel, bias"),
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


@pytest.mark.parametrize("nested", [False, True])
def test_a_layer_that_makes_weights_when_it_is_called_is_refused_at_every_call(nested):
    layer = keras.Sequential([filtering(built=False)]) if nested else filtering(built=False)
    chosen = policy(layer)
    in_graph = tf.function(lambda: views.make_views(IMAGES, chosen, [0, 1]), autograph=False)
    for call in (in_graph, lambda: views.make_views(IMAGES, chosen, [0, 1])):
        with pytest.raises(ValueError, match="has the weights kernel, bias, which no file would hold"):
            call()
    # Nor is one taken that a file of before names.
    text = json.dumps(keras.saving.serialize_keras_object(filtering()))
    with pytest.raises(ValueError, match="has the weights kernel, bias"):
        views.make_views(IMAGES, policy(text), [0, 1])


def test_layers_draw_whether_nested_or_not():
    """The states of random generators are no weights."""
    nested = keras.Sequential([keras.layers.RandomFlip(), keras.layers.RandomTranslation(0.3, 0.3)])
    first, again, other = (views.make_views(IMAGES, policy(nested), [0, seed])[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1


@pytest.mark.parametrize("operation", [speckle, Brighter()], ids=["function", "layer"])
def test_features_need_no_operation_and_training_does(operation, tmp_path, monkeypatch):
    """A model is saved, and opened where what it names is not registered."""
    pixels = keras.Input((20, 20, 5))
    network = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(pixels))
    model = SSLHSIC(network, 8, 4, views=policy(operation), target=False)
    expected = model.predict(IMAGES, verbose=0)
    model.save(tmp_path / "model.keras")
    registered = keras.saving.get_custom_objects()
    known = {name: registered.pop(name) for name in ("mine>speckle", "mine>Brighter")}
    monkeypatch.setattr(own, "_LAYERS", {})
    try:
        loaded = keras.models.load_model(tmp_path / "model.keras")
        np.testing.assert_allclose(loaded.predict(IMAGES, verbose=0), expected, rtol=1e-5)
        np.testing.assert_allclose(load_pretrained(tmp_path / "model.keras")(IMAGES), expected, rtol=1e-5)
        export_saved_model(loaded, tmp_path / "exported")
        loaded.compile(keras.optimizers.SGD(0.1), losses.SSLHSICLoss(gamma=1.0))
        with pytest.raises(ValueError, match="import the module that registers"):
            loaded.fit(IMAGES, batch_size=6, verbose=0)
    finally:
        registered.update(known)
    # Imported later, it is found.
    loaded.compile(keras.optimizers.SGD(0.1), losses.SSLHSICLoss(gamma=1.0))
    assert np.isfinite(loaded.fit(IMAGES, batch_size=6, verbose=0).history["loss"][0])


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
