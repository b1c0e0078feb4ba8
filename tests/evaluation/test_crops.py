import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic.evaluation.crops import random_crop_and_flip, resize_then_crop


def ramp(height, width):
    """A smooth picture, on which all bicubic filters agree."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    return (255 * np.stack([y, x, 0.5 * (x + y)], axis=-1) * 0.9 + 5).astype(np.uint8)


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
    np.testing.assert_allclose(resize_then_crop(image, 35, 40), image[6:41, 3:38], atol=1e-3)


def test_a_batch_is_its_images():
    images = np.stack([ramp(40, 50), ramp(40, 50)[::-1]])
    crops = resize_then_crop(images, 28, 32)
    np.testing.assert_array_equal(crops[1], resize_then_crop(images[1], 28, 32))
    assert crops.shape == (2, 28, 28, 3)


def test_short_side_must_hold_the_crop():
    with pytest.raises(ValueError, match="found 20 and 28"):
        resize_then_crop(ramp(40, 40), 28, 20)


def test_random_crops_differ_by_image_and_seed_and_stay_in_range():
    images = np.repeat(ramp(20, 20)[None], 64, axis=0)
    crops = random_crop_and_flip(images, 16, tf.constant([1, 2])).numpy()
    assert crops.shape == (64, 16, 16, 3) and crops.min() >= 0 and crops.max() <= 255
    assert len(np.unique(crops.reshape(64, -1), axis=0)) > 60
    np.testing.assert_array_equal(crops, random_crop_and_flip(images, 16, tf.constant([1, 2])))
    assert np.any(crops != random_crop_and_flip(images, 16, tf.constant([1, 3])))
    mirrored = crops[:, :, 0, 1] > crops[:, :, -1, 1]
    assert 0.25 < mirrored[:, 8].mean() < 0.75


def test_the_whole_area_is_the_image_or_its_mirror():
    images = np.repeat(ramp(16, 16)[None], 8, axis=0)
    crops = random_crop_and_flip(images, 16, tf.constant([0, 0]), (1.0, 1.0)).numpy()
    # Boxes of the whole area whose aspect is not 1 do not fit, so that the fallback is near the whole image.
    for crop, image in zip(crops, images, strict=True):
        assert min(np.abs(crop - image).mean(), np.abs(crop[:, ::-1] - image).mean()) < 12
