"""Crops: against tf.image.resize of the cut array, and the distribution of the boxes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from keras_sslhsic.views.crop import resize_crops, sample_crop_boxes

METHODS = [(method, antialias) for method in ("bicubic", "bilinear") for antialias in (False, True)]


def random_images(*shape, seed=0):
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def resized_one_by_one(images, boxes, size, method, antialias):
    return np.concatenate(
        [
            tf.image.resize(
                images[i : i + 1, y : y + h, x : x + w], (size, size), method, antialias=antialias
            )
            for i, (y, x, h, w) in enumerate(boxes)
        ]
    )


@pytest.mark.parametrize(("method", "antialias"), METHODS)
@pytest.mark.parametrize("size", [1, 7, 112])
def test_equals_resize_of_the_cut_array(method, antialias, size):
    images = random_images(6, 64, 50, 3)
    boxes = [
        (0, 0, 64, 50),  # all of it
        (0, 0, 20, 31),  # corners
        (44, 19, 20, 31),
        (63, 49, 1, 1),  # one pixel
        (12, 0, 1, 50),  # one row
        (3, 8, 48, 37),
    ]
    expected = resized_one_by_one(images, boxes, size, method, antialias)
    result = resize_crops(images, boxes, size, method, antialias)
    np.testing.assert_allclose(result, expected, atol=1e-4)
    planes = resize_crops(images.transpose(0, 3, 1, 2), boxes, size, method, antialias, axis=1)
    np.testing.assert_allclose(planes.numpy().transpose(0, 2, 3, 1), expected, atol=1e-4)


@pytest.mark.parametrize(("method", "antialias"), METHODS)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_equals_resize_for_any_source_box_and_target(method, antialias, data):
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    y, x = data.draw(st.integers(0, height - 1)), data.draw(st.integers(0, width - 1))
    box = (y, x, data.draw(st.integers(1, height - y)), data.draw(st.integers(1, width - x)))
    size = data.draw(st.integers(1, 60))
    images = random_images(1, height, width, 2)
    np.testing.assert_allclose(
        resize_crops(images, [box], size, method, antialias),
        resized_one_by_one(images, [box], size, method, antialias),
        atol=1e-4,
    )


@pytest.mark.parametrize(("method", "antialias"), METHODS)
def test_same_compiled(method, antialias):
    images, boxes = random_images(2, 64, 50, 3), tf.constant([(0, 0, 20, 31), (3, 8, 48, 37)])
    compiled = tf.function(
        lambda images, boxes: resize_crops(images, boxes, 28, method, antialias),
        jit_compile=True,
        autograph=False,
    )
    expected = resize_crops(images, boxes, 28, method, antialias)
    # XLA fuses the steps to a centre. Centres lie below 64, where one rounds by up to 2^-19: four times on each of two
    # axes, and the weights of a pixel change up to three times as fast as its centre.
    np.testing.assert_allclose(compiled(images, boxes), expected, atol=3 * 2 * 4 * 2**-19)


def test_boxes_are_the_same_compiled():
    compiled = tf.function(
        lambda seed: sample_crop_boxes((500, 40, 60), seed), jit_compile=True, autograph=False
    )
    np.testing.assert_array_equal(compiled(tf.constant([1, 2])), sample_crop_boxes((500, 40, 60), [1, 2]))


def test_nothing_outside_of_the_box_matters():
    images = random_images(1, 30, 30, 1)
    outside = np.full_like(images, 1e6)
    outside[:, 5:20, 8:28] = images[:, 5:20, 8:28]
    box = [(5, 8, 15, 20)]
    np.testing.assert_array_equal(resize_crops(images, box, 24), resize_crops(outside, box, 24))


def test_unknown_method_is_refused():
    with pytest.raises(ValueError, match=r"bicubic.*'area'"):
        resize_crops(random_images(1, 4, 4, 1), [(0, 0, 4, 4)], 2, "area")


@pytest.mark.parametrize("shape", [(256, 256), (300, 200), (1, 40), (40, 1), (1, 1), (500, 20)])
def test_boxes_lie_inside_the_image(shape):
    y, x, height, width = sample_crop_boxes((2000, *shape), [0, 1]).numpy().T
    assert y.min() >= 0 and x.min() >= 0 and height.min() >= 1 and width.min() >= 1
    assert (y + height).max() <= shape[0] and (x + width).max() <= shape[1]


def boxes_by_rejection(count, height, width, area, aspect, rng):
    """Draws until the box fits, one box at a time."""
    boxes = []
    while len(boxes) < count:
        pixels = height * width * rng.uniform(*area)
        ratio = np.exp(rng.uniform(*np.log(aspect)))
        h, w = round(np.sqrt(pixels / ratio)), round(np.sqrt(pixels * ratio))
        if h <= height and w <= width:
            boxes.append((rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w))
    return np.array(boxes)


@pytest.mark.parametrize(
    ("shape", "area"), [((256, 256), (0.08, 1.0)), ((300, 200), (0.08, 1.0)), ((500, 500), (0.2, 0.5))]
)
def test_boxes_have_the_distribution_of_drawing_until_one_fits(shape, area):
    boxes = sample_crop_boxes((20_000, *shape), [3, 4], area=area).numpy()
    expected = boxes_by_rejection(20_000, *shape, area, (3 / 4, 4 / 3), np.random.default_rng(0))
    for ours, reference in zip(boxes.T, expected.T, strict=True):
        assert stats.ks_2samp(ours, reference).pvalue > 1e-4
    ours_area, reference_area = boxes[:, 2] * boxes[:, 3], expected[:, 2] * expected[:, 3]
    assert stats.ks_2samp(ours_area, reference_area).pvalue > 1e-4
    ours_aspect, reference_aspect = boxes[:, 3] / boxes[:, 2], expected[:, 3] / expected[:, 2]
    assert stats.ks_2samp(ours_aspect, reference_aspect).pvalue > 1e-4


def test_area_is_uniform_and_aspect_log_uniform_where_every_box_fits():
    boxes = sample_crop_boxes((20_000, 4000, 4000), [5, 6], area=(0.08, 0.7)).numpy().astype(float)
    share = boxes[:, 2] * boxes[:, 3] / 4000**2
    log_aspect = np.log(boxes[:, 3] / boxes[:, 2])
    assert stats.kstest(share, stats.uniform(0.08, 0.62).cdf).pvalue > 1e-4
    limit = np.log(4 / 3)
    assert stats.kstest(log_aspect, stats.uniform(-limit, 2 * limit).cdf).pvalue > 1e-4
    assert abs(stats.spearmanr(share, log_aspect).statistic) < 4 / np.sqrt(20_000)


def test_central_box_where_none_fits():
    boxes = sample_crop_boxes((4, 10, 400), [0, 1], area=(0.9, 1.0))
    np.testing.assert_array_equal(boxes, [(0, 193, 10, 13)] * 4)
