"""Operators against TensorFlow Addons 0.23 and TensorFlow 2.15, which `make test-addons` runs in an environment of their own.

tools/addons_expected.py says what is compared, and why no more. All is float32; SPACING is that of numbers in [0.5, 1).
"""

import os
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_sslhsic.training import ema
from keras_sslhsic.views import ops

SPACING = 2.0**-24


@pytest.fixture(scope="module")
def expected():
    path = os.environ.get("ADDONS_EXPECTED")
    if path is None:
        pytest.skip(
            "Expected values come from an environment with TensorFlow Addons: run `make test-addons`."
        )
    if not Path(path).is_file():
        pytest.fail(
            f"ADDONS_EXPECTED names {path}, which is not there: make it with tools/addons_expected.py."
        )
    with np.load(path) as file:
        return dict(file)


def test_expected_values_are_of_addons(expected):
    assert str(expected["version_addons"]) == "0.23.0"
    assert str(expected["version_tensorflow"]).startswith("2.15.")
    assert str(expected["version_keras"]).startswith("2.15.")


@pytest.mark.parametrize("taps", [7, 23])
def test_gaussian_blur(expected, taps):
    blurred = ops.gaussian_blur(expected["blur_images"], expected["blur_sigmas"], taps).numpy()
    # Two passes of products and sums over the taps, and the taps' own sum, in either implementation; values are below 1.
    bound = 2 * 2 * 3 * taps * SPACING
    np.testing.assert_allclose(blurred, expected[f"blur_{taps}"], rtol=0, atol=bound)
    # Neither left the images as they are.
    assert np.abs(blurred - expected["blur_images"]).max() > 0.1


@pytest.mark.parametrize(
    ("name", "operator", "parameter"),
    [("hue", ops.adjust_hue, "deltas"), ("saturation", ops.adjust_saturation, "factors")],
)
def test_hue_and_saturation(expected, name, operator, parameter):
    changed = operator(expected["colour_images"], expected[f"colour_{parameter}"]).numpy()
    # Some twenty operations on numbers up to 6, the hue in sixths of a turn, in either implementation.
    np.testing.assert_allclose(changed, expected[name], rtol=0, atol=2 * 20 * 6 * SPACING)
    assert np.abs(changed - expected["colour_images"]).max() > 0.1


def test_gray_pixels_stay_in_hsv_as_in_yiq(expected):
    changed = ops.adjust_hue_and_saturation(
        expected["gray_images"], expected["colour_deltas"], expected["colour_factors"]
    ).numpy()
    # Addons multiplies by two matrices of 3 x 3 with entries below 2.
    np.testing.assert_allclose(changed, expected["gray"], rtol=0, atol=2 * 6 * 2 * SPACING)


@pytest.mark.parametrize("index", [0, 1])
def test_moving_average_of_weights(expected, index):
    weights, averages = expected[f"weights_{index}"], expected[f"averages_{index}"]
    value, average = keras.Variable(weights[0]), keras.Variable(weights[0])
    # Three roundings a step, of a difference of two weights, in either implementation.
    bound = 2 * 3 * len(averages) * 2 * np.abs(weights).max() * SPACING
    for weight, wanted in zip(weights[1:], averages, strict=True):
        value.assign(weight)
        ema.update([average], [value], expected["average_decay"])
        np.testing.assert_allclose(average.numpy(), wanted, rtol=0, atol=bound)
    assert np.abs(averages[-1] - weights[-1]).max() > 0.1
