"""TwoViews in models, in tf.data and under a strategy; show."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import views


def random_images(batch=4, channels=3):
    return np.random.default_rng(0).integers(0, 256, (batch, 20, 20, channels), dtype=np.uint8)


def test_draws_anew_at_every_call_and_repeats_from_its_seed():
    images = random_images()
    layer, again = views.TwoViews(views.byol(16), seed=5), views.TwoViews(views.byol(16), seed=5)
    first, second = layer(images)[0], layer(images)[0]
    assert np.abs(first - second).max() > 0.1
    np.testing.assert_array_equal(again(images)[0], first)
    assert np.abs(views.TwoViews(views.byol(16), seed=6)(images)[0] - first).max() > 0.1


def test_takes_a_seed():
    images, seed = random_images(), tf.constant([1, 2])
    policy = views.byol(16)
    for ours, expected in zip(
        views.TwoViews(policy)(images, seed=seed), views.make_views(images, policy, seed), strict=True
    ):
        np.testing.assert_array_equal(ours, expected)


def test_inside_tf_data_draws_anew_for_every_batch():
    layer = views.TwoViews(views.grayscale(16))
    dataset = tf.data.Dataset.from_tensors(random_images(channels=1)).repeat(2).map(layer)
    (first, _), (second, _) = dataset
    assert first.shape == (4, 16, 16, 1)
    assert np.abs(first - second).max() > 0.1


def test_inside_a_model_that_is_saved(tmp_path):
    inputs = keras.Input((20, 20, 1), dtype="uint8")
    model = keras.Model(inputs, views.TwoViews(views.grayscale(16), seed=3)(inputs))
    assert [output.shape for output in model.outputs] == [(None, 16, 16, 1)] * 2
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    layer = loaded.layers[-1]
    assert (layer.policy, layer.seed) == (views.grayscale(16), 3)
    images = random_images(channels=1)
    for ours, expected in zip(loaded(images), model(images), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_replicas_draw_for_themselves():
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        layer = views.TwoViews(views.byol(16), seed=0)
    (view, _) = strategy.run(layer, (tf.constant(random_images()),))
    first, second = strategy.experimental_local_results(view)
    assert (np.abs(first - second).max(axis=(1, 2, 3)) > 0.1).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_show_draws_images_and_views(tmp_path, channels):
    policy = views.grayscale(16) if channels == 1 else views.byol(16)
    images = random_images(3, channels)
    figure = views.show(images, policy)
    assert len(figure.axes) == 3 * 3
    drawn = [axes.images[0].get_array() for axes in figure.axes[:3]]
    np.testing.assert_array_equal(np.squeeze(drawn[0]), np.squeeze(images[0]))
    view = views.make_views(images, policy, tf.constant([0, 0]))[1][0] * policy.std + policy.mean
    np.testing.assert_allclose(drawn[2].reshape(view.shape), np.clip(view, 0, 1), atol=1e-6)
    figure.savefig(tmp_path / "views.png")
    assert (tmp_path / "views.png").stat().st_size > 1000


def test_show_refuses_other_channels():
    with pytest.raises(ValueError, match="1 or 3 channels can be drawn, found 2"):
        views.show(random_images(channels=2), "byol")
