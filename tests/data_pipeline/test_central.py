"""The square that features are of: one in evaluations, `extract` and exports."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from keras_sslhsic.data import decode
from keras_sslhsic.data.central import central_square, resize_then_crop, traced_square

# The weights of a bicubic pixel are below 1.3 in sum of their sizes, along each axis.
ROUNDED = 0.5 * 1.3**2  # of means that OpenCV rounds to integers
# TensorFlow's kernel knows 1024 positions between two pixels; the sizes of the slopes of four weights sum to less than 3.
PLACED = 2 * 255 * 3 / 2048


def ramp(height, width):
    """A smooth picture, on which all bicubic filters agree."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    return (255 * np.stack([y, x, 0.5 * (x + y)], axis=-1) * 0.9 + 5).astype(np.uint8)


def noise(height, width, channels=3):
    return np.random.default_rng(height * 1000 + width).integers(0, 256, (height, width, channels), np.uint8)


def traced(pixels, size, short_side=None):
    return traced_square(tf.constant(pixels[np.newaxis], tf.float32), size, short_side)[0].numpy()


def interpolated(values, target, size):
    """The middle `size` of `target` bicubic pixels of the first axis, in float64."""
    rows, first = [], (target - size + 1) // 2
    for i in range(first, first + size):
        x = (i + 0.5) * len(values) / target - 0.5
        near = [k for k in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3) if 0 <= k < len(values)]
        d = np.abs(x - np.array(near))
        weights = np.where(d < 1, 1.5 * d**3 - 2.5 * d**2 + 1, -0.5 * d**3 + 2.5 * d**2 - 4 * d + 2)
        rows.append(np.tensordot(weights / weights.sum(), values[near], 1))
    return np.stack(rows)


@pytest.mark.parametrize("height, width", [(60, 40), (40, 60), (48, 48)])
def test_the_test_crop_is_that_of_pillow(height, width):
    image = ramp(height, width)
    short = min(height, width)
    scale = 32 / short
    size = round(width * scale), round(height * scale)
    resized = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR), np.float32)
    top, left = (resized.shape[0] - 28 + 1) // 2, (resized.shape[1] - 28 + 1) // 2
    expected = resized[top : top + 28, left : left + 28]
    assert np.abs(resize_then_crop(image, 28, 32) - expected).max() < 4


def test_an_odd_rest_is_cut_from_above_and_from_the_left():
    # Of 47 rows 12 are left over, of 40 columns 5, of which 3 come before the square.
    image = np.random.default_rng(0).integers(0, 256, (47, 40, 3)).astype(np.float32)
    for found in (resize_then_crop(image, 35, 40), traced(image, 35, 40)):
        np.testing.assert_allclose(found, image[6:41, 3:38], atol=1e-3)


def test_a_batch_is_its_images():
    images = np.stack([ramp(40, 50), ramp(40, 50)[::-1]])
    crops = resize_then_crop(images, 28, 32)
    np.testing.assert_array_equal(crops[1], resize_then_crop(images[1], 28, 32))
    assert crops.shape == (2, 28, 28, 3)
    free = tf.function(resize_then_crop, input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8)])
    np.testing.assert_allclose(free(images), resize_then_crop(images), atol=1e-4)
    both = traced_square(tf.constant(images, tf.float32), 28)
    np.testing.assert_allclose(both[1], traced(images[1], 28), atol=1e-3)


def test_short_side_must_hold_the_crop():
    with pytest.raises(ValueError, match="found 20 and 28"):
        resize_then_crop(ramp(40, 40), 28, 20)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 24), st.integers(0, 4), st.sampled_from([1, 3]))
def test_what_is_served_is_what_is_measured(height, width, size, more, channels):
    pixels = noise(height, width, channels)
    found = traced(pixels, size, size + more)
    assert found.shape == (size, size, channels) and found.min() >= 0 and found.max() <= 255
    np.testing.assert_allclose(found, central_square(pixels, size, size + more), atol=ROUNDED + PLACED)


@pytest.mark.parametrize(
    "height, width, size, short_side", [(23, 31, 16, 18), (9, 13, 12, 12), (14, 14, 9, 13)]
)
def test_what_is_not_far_too_large_is_bicubic(height, width, size, short_side):
    pixels, short = noise(height, width), min(height, width)
    targets = [(2 * short_side * side + short) // (2 * short) for side in (height, width)]
    columns = interpolated(pixels.astype(np.float64), targets[0], size).swapaxes(0, 1)
    expected = interpolated(columns, targets[1], size).swapaxes(0, 1).clip(0, 255)
    np.testing.assert_allclose(traced(pixels, size, short_side), expected, atol=5e-3)
    np.testing.assert_allclose(central_square(pixels, size, short_side), expected, atol=PLACED)


@pytest.mark.parametrize("side, blocks", [(40, 2), (64, 4), (31, 1)])
def test_of_images_that_are_far_too_large_whole_blocks_are_averaged(side, blocks):
    pixels = noise(side, side + 8)
    height, width = side // blocks, (side + 8) // blocks
    means = pixels.reshape(height, blocks, width, blocks, 3).mean(axis=(1, 3))
    expected = resize_then_crop(means, 16, 16)
    np.testing.assert_allclose(central_square(pixels, 16), expected, atol=ROUNDED + 1e-3)
    np.testing.assert_allclose(traced(pixels, 16), expected, atol=PLACED)


def test_of_blocks_that_do_not_go_in_shares_of_pixels_are_averaged():
    pixels = noise(17, 35)
    means = decode.averaged(pixels.astype(np.float32), (4, 4))
    assert means.shape == (4, 8, 3)
    np.testing.assert_allclose(traced(pixels, 4), resize_then_crop(means, 4, 4), atol=PLACED)


def test_an_image_of_that_size_stays_as_it_is():
    pixels = noise(20, 20)
    for found in (central_square(pixels, 20), traced(pixels, 20)):
        np.testing.assert_array_equal(found, pixels)


@pytest.mark.parametrize("shape", [(1, 100_000), (100_000, 2)])
def test_of_a_strip_what_is_cut_away_takes_no_memory(shape):
    pixels = noise(*shape, channels=1)
    middle = pixels.reshape(-1, min(shape))[49_999:50_001].astype(float)
    found = central_square(pixels, 32)
    assert found.shape == (32, 32, 1)
    # All of them lie between the middle pixels, or overshoot by what a bicubic kernel does.
    assert middle.min() - 40 <= found.min() and found.max() <= middle.max() + 40
