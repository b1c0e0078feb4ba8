"""Views drawn beside their images."""

import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import views


def random_images(batch=4, channels=3):
    return np.random.default_rng(0).integers(0, 256, (batch, 20, 20, channels), dtype=np.uint8)


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


@pytest.mark.parametrize("channels, drawn", [(2, 1), (4, 3), (5, 3)])
def test_of_other_numbers_of_channels_those_that_make_a_picture_are_drawn(channels, drawn):
    policy = views.ViewPolicy(
        size=16,
        jitter=views.ColorJitter(saturation=0.0, hue=0.0),
        grayscale=0.0,
        mean=(0.5,) * channels,
        std=(0.2,) * channels,
    )
    images = random_images(2, channels)
    figure = views.show(images, policy)
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(np.squeeze(shown), np.squeeze(images[0, ..., :drawn]))
