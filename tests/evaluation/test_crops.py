import numpy as np
import tensorflow as tf

from keras_sslhsic.evaluation.crops import random_crop_and_flip


def ramp(height, width):
    """A smooth picture, on which all bicubic filters agree."""
    y, x = np.mgrid[:height, :width] / max(height, width)
    return (255 * np.stack([y, x, 0.5 * (x + y)], axis=-1) * 0.9 + 5).astype(np.uint8)


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
