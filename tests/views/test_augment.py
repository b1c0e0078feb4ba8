"""What follows the crop: distributions of the parameters, and the random order of the colour operations."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from matplotlib import colors
from scipy import stats

from keras_sslhsic import views
from keras_sslhsic.views.augment import Parameters, augment, jitter_colors, sample_parameters
from keras_sslhsic.views.draws import uniform

DRAWS = 20_000


def random_planes(*shape, seed=0):
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def assert_share(chosen, probability):
    assert stats.binomtest(int(np.sum(chosen)), np.size(chosen), probability).pvalue > 1e-4


def assert_uniform(values, low, high):
    assert stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue > 1e-4


@pytest.mark.parametrize("shape", [[7], [1000], [33, 14]])
def test_uniform_is_the_same_bit_for_bit_eager_and_compiled(shape):
    compiled = tf.function(lambda seed: uniform(shape, seed), jit_compile=True, autograph=False)
    np.testing.assert_array_equal(uniform(shape, [1, 2]), compiled(tf.constant([1, 2])))


def test_uniform_is_uniform():
    draws = uniform([100, 1000], [0, 1]).numpy()
    assert draws.min() >= 0 and draws.max() < 1
    assert_uniform(draws.ravel(), 0, 1)
    assert abs(np.corrcoef(draws[:, :-1].ravel(), draws[:, 1:].ravel())[0, 1]) < 4 / np.sqrt(1e5)


@pytest.mark.parametrize("preset", [views.byol(), views.simclr(), views.small_image(), views.multispectral()])
@pytest.mark.parametrize("view", [0, 1])
def test_parameters_have_the_distributions_of_the_policy(preset, view):
    drawn = Parameters(*(value.numpy() for value in sample_parameters(DRAWS, preset, view, [5, view])))
    assert_share(drawn.flip, preset.flip)
    assert_share(drawn.jitter, preset.jitter.probability)
    assert_share(drawn.grayscale, preset.grayscale)
    assert_share(drawn.blur, preset.blur.probability[view])
    assert_share(drawn.solarize, preset.solarize.probability[view])
    assert_uniform(drawn.sigma, *preset.blur.sigma)
    assert_share(drawn.flip_vertical, preset.flip_vertical)
    if preset.rotation:
        assert_uniform(drawn.angle, -math.radians(preset.rotation), math.radians(preset.rotation))
    for name, middle in (("brightness", 0), ("contrast", 1), ("saturation", 1), ("hue", 0)):
        strength = getattr(preset.jitter, name)
        if strength:
            assert_uniform(getattr(drawn, name), middle - strength, middle + strength)
        else:
            np.testing.assert_array_equal(getattr(drawn, name), middle)
    orders = np.argsort(drawn.ranks, axis=1) @ [64, 16, 4, 1]
    counts = np.unique(orders, return_counts=True)[1]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-4


def test_recipe_of_byol():
    policy = views.byol()
    assert (policy.size, policy.flip, policy.grayscale) == (224, 0.5, 0.2)
    assert (policy.crop.area, policy.crop.method, policy.crop.antialias) == ((0.08, 1.0), "bicubic", False)
    assert policy.crop.aspect == (3 / 4, 4 / 3)
    assert policy.jitter == views.ColorJitter(0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
    assert policy.blur == views.Blur((1.0, 0.1), sigma=(0.1, 2.0), kernel=0.1)
    assert 2 * int(policy.blur.kernel * policy.size / 2) + 1 == 23
    assert policy.solarize == views.Solarize((0.0, 0.2), threshold=0.5)


def jitter_in_order(image, order, brightness, contrast, saturation, hue):
    """Four operations, one after the other, clipped after each, on a float64 image [H, W, 3]."""

    def hsv(image, change):
        return colors.hsv_to_rgb(change(*np.moveaxis(colors.rgb_to_hsv(image), -1, 0)))

    operations = [
        lambda x: x + brightness,
        lambda x: x.mean(axis=(0, 1)) + contrast * (x - x.mean(axis=(0, 1))),
        lambda x: hsv(x, lambda h, s, v: np.stack([h, np.clip(s * saturation, 0, 1), v], -1)),
        lambda x: hsv(x, lambda h, s, v: np.stack([(h + hue) % 1.0, s, v], -1)),
    ]
    for index in order:
        image = np.clip(operations[index](image), 0, 1)
    return image


def test_jitter_is_the_four_operations_in_each_of_the_24_orders():
    orders = list(itertools.permutations(range(4)))
    rng = np.random.default_rng(0)
    images = rng.random((24, 8, 9, 3), dtype=np.float32)
    drawn = sample_parameters(24, views.simclr(), 0, [1, 2])
    ranks = np.argsort(orders, axis=1).astype(np.float32) / 4
    result = jitter_colors(images.transpose(0, 3, 1, 2), drawn._replace(ranks=tf.constant(ranks)))
    expected = [
        jitter_in_order(
            images[i].astype(np.float64),
            order,
            *(float(value[i]) for value in (drawn.brightness, drawn.contrast, drawn.saturation, drawn.hue)),
        )
        for i, order in enumerate(orders)
    ]
    np.testing.assert_allclose(result.numpy().transpose(0, 2, 3, 1), expected, atol=2e-5)
    # The orders matter: the test above would not see a program that ignored them otherwise.
    same = jitter_colors(
        np.repeat(images[:1].transpose(0, 3, 1, 2), 24, axis=0),
        Parameters(*(tf.repeat(value[:1], 24, axis=0) for value in drawn))._replace(ranks=tf.constant(ranks)),
    ).numpy()
    assert (
        len({tuple(image.ravel().round(4)) for image in same}) == 18
    )  # saturation and hue commute where adjacent


def test_only_chosen_images_change():
    images = random_planes(4, 3, 12, 12)
    policy = views.byol(12)
    drawn = sample_parameters(4, policy, 1, [0, 1])
    off, on = tf.zeros([4], tf.bool), tf.constant([True, False, False, True])
    off_all = drawn._replace(flip=off, jitter=off, grayscale=off, blur=off, solarize=off)
    np.testing.assert_array_equal(augment(images, off_all, policy, 1), images)
    for name in ("flip", "jitter", "grayscale", "solarize"):
        changed = augment(images, off_all._replace(**{name: on}), policy, 1).numpy()
        different = (changed != images).any(axis=(1, 2, 3))
        np.testing.assert_array_equal(different, on, err_msg=name)
    blurring = views.ViewPolicy(size=12, blur=views.Blur((1.0, 1.0), kernel=0.4))
    changed = augment(images, off_all._replace(blur=on, sigma=tf.fill([4], 1.0)), blurring, 1).numpy()
    np.testing.assert_array_equal((changed != images).any(axis=(1, 2, 3)), on)


def test_one_channel_skips_the_color_operations():
    images = random_planes(5, 1, 10, 10)
    policy = views.byol(10)
    drawn = sample_parameters(5, policy, 1, [0, 1])
    result = augment(images, drawn, policy, 1)
    assert result.shape == (5, 1, 10, 10)
    without = drawn._replace(hue=tf.zeros([5]), saturation=tf.ones([5]), grayscale=tf.zeros([5], tf.bool))
    three = augment(np.repeat(images, 3, axis=1), without, policy, 1)
    np.testing.assert_allclose(result, three[:, :1], atol=1e-6)


def test_more_channels_are_refused_unless_color_operations_are_left_out():
    images = random_planes(2, 5, 10, 10)
    policy = views.byol(10)
    drawn = sample_parameters(2, policy, 0, [0, 1])
    with pytest.raises(ValueError, match=r"have 5: set jitter.saturation=0, jitter.hue=0, grayscale=0"):
        augment(images, drawn, policy, 0)
    left_out = views.ViewPolicy(size=10, jitter=views.ColorJitter(saturation=0, hue=0), grayscale=0)
    assert augment(images, drawn, left_out, 0).shape == (2, 5, 10, 10)
