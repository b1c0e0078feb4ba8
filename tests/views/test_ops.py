"""Image operations: the released implementation's numbers, HSV in float64, and properties."""

import colorsys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_sslhsic.views import ops

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "augment.npz")
OPERATIONS = {
    "brightness": ops.adjust_brightness,
    "contrast": ops.adjust_contrast,
    "saturation": ops.adjust_saturation,
    "hue": ops.adjust_hue,
}
# What float32 makes of a hue at most: in sixths of a turn, with a turn and the channel's offset added, it is below 32, where
# half the spacing is 2^-20. These two sums and all that comes before them are less than three such roundings.
HUE = 3 * 2**-20
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.split("_")[0] in OPERATIONS])
def test_adjustment_agrees_with_released_code(name):
    operation, value = name.split("_")
    result = OPERATIONS[operation](GOLDEN["images"], float(value))
    np.testing.assert_allclose(result, GOLDEN[name], atol=1e-5)


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("blur")])
def test_blur_agrees_with_released_code(name):
    _, sigma, kernel_size = name.split("_")
    sigma, kernel_size = float(sigma.removeprefix("sigma")), float(kernel_size.removeprefix("divsize"))
    result = ops.gaussian_blur(GOLDEN["images"], sigma, kernel_size)
    np.testing.assert_allclose(result, GOLDEN[name], atol=1e-5)


def test_others_agree_with_released_code():
    images = GOLDEN["images"]
    np.testing.assert_allclose(ops.to_grayscale(images), GOLDEN["grayscale"], atol=1e-5)
    np.testing.assert_allclose(ops.solarize(images, 0.5), GOLDEN["solarize"], atol=1e-5)
    np.testing.assert_allclose(ops.normalize(images, MEAN, STD), GOLDEN["normalized"], atol=1e-5)


def special_colors():
    """Every colour with channels among a few values: primaries, grays, black, white, ties of two channels."""
    levels = [0.0, 1e-6, 0.25, 0.5, 1.0]
    return np.stack(np.meshgrid(levels, levels, levels), -1).reshape(1, 25, 5, 3).astype(np.float32)


@pytest.mark.parametrize("delta", [-0.5, -0.1, 0.0, 0.07, 1 / 3, 1.0])
@pytest.mark.parametrize("factor", [0.0, 0.8, 1.0, 1.2, 5.0])
def test_hue_and_saturation_are_those_of_hsv_in_float64(delta, factor):
    images = np.concatenate([special_colors(), random_images(1, 25, 5, 3)])

    def reference(rgb):
        hue, saturation, value = colorsys.rgb_to_hsv(*rgb)
        return colorsys.hsv_to_rgb((hue + delta) % 1.0, min(max(saturation * factor, 0.0), 1.0), value)

    expected = np.apply_along_axis(reference, -1, images.astype(np.float64))
    result = ops.adjust_hue_and_saturation(images, delta, factor)
    np.testing.assert_allclose(result, expected, atol=HUE)
    one_by_one = ops.adjust_hue(ops.adjust_saturation(images, factor), delta)
    np.testing.assert_allclose(one_by_one, expected, atol=2 * HUE)
    other_order = ops.adjust_saturation(ops.adjust_hue(images, delta), factor)
    np.testing.assert_allclose(other_order, expected, atol=2 * HUE)


def test_contrast_is_about_the_mean_of_each_channel_of_each_image():
    images = random_images(3, 6, 7, 3)
    factor = np.array([0.0, 0.6, 3.0], np.float32)
    mean = images.astype(np.float64).mean(axis=(1, 2), keepdims=True)
    expected = np.clip(mean + factor[:, None, None, None] * (images - mean), 0, 1)
    np.testing.assert_allclose(ops.adjust_contrast(images, factor), expected, atol=1e-6)


@pytest.mark.parametrize("side", [1, 9, 30])
def test_blur_of_an_impulse_is_the_normalised_gaussian_of_each_image(side):
    sigma = np.array([0.1, 0.7, 2.0], np.float32)
    images = np.zeros((3, side, 30, 1), np.float32)
    images[:, side // 2, 15] = 1.0
    radius = 4
    x = np.arange(-radius, radius + 1)
    taps = np.exp(-(x**2) / (2 * sigma[:, None].astype(np.float64) ** 2))
    taps /= taps.sum(axis=1, keepdims=True)
    expected = np.zeros((3, side, 30))
    rows = [i for i in x if 0 <= side // 2 + i < side]
    for i in rows:
        expected[:, side // 2 + i, 15 + x] = taps[:, [radius + i]] * taps
    np.testing.assert_allclose(ops.gaussian_blur(images, sigma, 8.9)[..., 0], expected, atol=1e-6)


def test_blur_takes_what_lies_outside_of_the_image_as_zero():
    result = ops.gaussian_blur(np.ones((1, 20, 20, 1), np.float32), 2.0, 5)
    x = np.arange(-2, 3)
    taps = np.exp(-(x**2) / 8.0) / np.exp(-(x**2) / 8.0).sum()
    np.testing.assert_allclose(result[0, 10, 10, 0], 1.0, atol=1e-6)
    np.testing.assert_allclose(result[0, 0, 10, 0], taps[2:].sum(), atol=1e-6)
    np.testing.assert_allclose(result[0, 0, 0, 0], taps[2:].sum() ** 2, atol=1e-6)


def test_flip_mirrors_the_chosen_images():
    images = random_images(2, 3, 5, 3)
    result = ops.flip_left_right(images, [True, False]).numpy()
    np.testing.assert_array_equal(result[0], images[0, :, ::-1])
    np.testing.assert_array_equal(result[1], images[1])


def test_flip_turns_the_chosen_images_upside_down():
    images = random_images(2, 3, 5, 3)
    np.testing.assert_array_equal(ops.flip_up_down(images, [False, True]), [images[0], images[1, ::-1]])


def test_rotation_by_quarters_moves_pixels():
    images = random_images(4, 6, 6, 3)
    turned = ops.rotate(images, np.arange(4, dtype=np.float32) * np.float32(np.pi / 2))
    # The angle is rounded to float32, and so a pixel's place is by less than 6 pixels x 3 pi / 2 x 2^-23.
    np.testing.assert_allclose(turned, [np.rot90(x, k) for k, x in enumerate(images)], rtol=0, atol=1e-5)


def test_rotation_of_a_slope_is_a_slope():
    """Bilinear interpolation is exact where the values are linear in the place."""
    y, x = np.mgrid[:20, :30].astype(np.float32)
    angle = np.float32(0.3)
    slope = (0.3 + 0.01 * x + 0.02 * y)[None, ..., None]
    columns = np.cos(angle) * (x - 14.5) - np.sin(angle) * (y - 9.5) + 14.5
    rows = np.sin(angle) * (x - 14.5) + np.cos(angle) * (y - 9.5) + 9.5
    expected = 0.3 + 0.01 * np.clip(columns, 0, 29) + 0.02 * np.clip(rows, 0, 19)
    np.testing.assert_allclose(ops.rotate(slope, angle)[0, ..., 0], expected, rtol=0, atol=1e-5)


def test_solarize_inverts_from_the_threshold_on():
    images = np.array([0.0, 0.3, 0.5, 0.7, 1.0], np.float32).reshape(1, 1, 5, 1)
    np.testing.assert_allclose(ops.solarize(images, 0.5)[0, 0, :, 0], [0.0, 0.3, 0.5, 0.3, 0.0], atol=1e-7)


def apply_with_values(operation, images, values, axis):
    """Calls any of the operations; values are [B] in [0, 1]."""
    calls = {
        "brightness": lambda: ops.adjust_brightness(images, values - 0.5),
        "contrast": lambda: ops.adjust_contrast(images, 2 * values, axis),
        "saturation": lambda: ops.adjust_saturation(images, 2 * values, axis),
        "hue": lambda: ops.adjust_hue(images, values - 0.5, axis),
        "hue_and_saturation": lambda: ops.adjust_hue_and_saturation(images, values, 2 * values, axis),
        "grayscale": lambda: ops.to_grayscale(images, axis),
        "blur": lambda: ops.gaussian_blur(images, values + 0.1, 5, axis),
        "solarize": lambda: ops.solarize(images, values),
        "flip": lambda: ops.flip_left_right(images, values < 0.5, axis),
        "flip_up_down": lambda: ops.flip_up_down(images, values < 0.5, axis),
        "rotate": lambda: ops.rotate(images, 7 * values - 3, axis),
    }
    return calls[operation]()


ALL = [
    *("brightness", "contrast", "saturation", "hue", "hue_and_saturation"),
    *("grayscale", "blur", "solarize", "flip", "flip_up_down", "rotate"),
]


@pytest.mark.parametrize("operation", ALL)
def test_every_image_is_treated_alone_and_alike_in_all_modes_and_layouts(operation):
    images, values = random_images(4, 9, 8, 3), np.array([0.1, 0.9, 0.4, 0.6], np.float32)
    eager = apply_with_values(operation, images, values, -1).numpy()
    assert eager.shape == images.shape and eager.dtype == np.float32
    assert np.isfinite(eager).all() and eager.min() >= 0 and eager.max() <= 1 + 1e-6
    alone = [
        apply_with_values(operation, images[i : i + 1], values[i : i + 1], -1)[0] for i in range(len(images))
    ]
    np.testing.assert_allclose(eager, alone, atol=1e-6)
    for compiled in (False, True):
        function = tf.function(
            lambda x, v: apply_with_values(operation, x, v, -1), jit_compile=compiled, autograph=False
        )
        np.testing.assert_allclose(function(images, values), eager, atol=2 * HUE)
    planes = apply_with_values(operation, images.transpose(0, 3, 1, 2), values, 1).numpy()
    np.testing.assert_allclose(planes.transpose(0, 2, 3, 1), eager, atol=1e-6)


@pytest.mark.parametrize("operation", ALL)
@settings(max_examples=20, deadline=None)
@given(level=st.floats(0, 1, width=32), height=st.integers(1, 4), seed=st.integers(0, 99))
def test_constant_images_stay_finite_and_in_range(operation, level, height, seed):
    values = random_images(2, seed=seed)
    images = np.full((2, height, 5, 3), level, np.float32)
    result = apply_with_values(operation, images, values, -1).numpy()
    assert np.isfinite(result).all() and result.min() >= 0 and result.max() <= 1 + 1e-6
