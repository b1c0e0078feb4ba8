"""Crops: against tf.image.resize of the cut array, and the distribution of the boxes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from keras_sslhsic.data.decode import random_box
from keras_sslhsic.views.crop import BOXES, resize_crops, sample_crop_boxes

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


@pytest.mark.parametrize("box", BOXES)
def test_boxes_are_the_same_compiled(box):
    def draw(seed):
        return sample_crop_boxes((500, 40, 60), seed, box=box)

    compiled = tf.function(draw, jit_compile=True, autograph=False)
    np.testing.assert_array_equal(compiled(tf.constant([1, 2])), draw([1, 2]))


def test_nothing_outside_of_the_box_matters():
    images = random_images(1, 30, 30, 1)
    outside = np.full_like(images, 1e6)
    outside[:, 5:20, 8:28] = images[:, 5:20, 8:28]
    box = [(5, 8, 15, 20)]
    np.testing.assert_array_equal(resize_crops(images, box, 24), resize_crops(outside, box, 24))


def test_unknown_method_is_refused():
    with pytest.raises(ValueError, match=r"bicubic.*'area'"):
        resize_crops(random_images(1, 4, 4, 1), [(0, 0, 4, 4)], 2, "area")


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("shape", [(256, 256), (300, 200), (1, 40), (40, 1), (1, 1), (500, 20)])
def test_boxes_lie_inside_the_image(shape, box):
    y, x, height, width = sample_crop_boxes((2000, *shape), [0, 1], box=box).numpy().T
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


def simulated_sides(box, count, height, width):
    """Sides [count, 2] of boxes in whole pixels, in float64, by the law that a name stands for."""
    rng = np.random.default_rng(7)
    drawn = 4 * count
    area = height * width * rng.uniform(0.08, 1.0, drawn)
    ratio = np.exp(rng.uniform(-np.log(4 / 3), np.log(4 / 3), drawn))
    sides = np.stack([np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))], axis=1)
    if box == "clamped":
        return np.minimum(sides, (height, width))[:count]
    return sides[(sides <= (height, width)).all(axis=1)][:count]


def device_boxes(box, count, height, width):
    return sample_crop_boxes((count, height, width), [8, 9], box=box).numpy()


def host_boxes(box, count, height, width):
    rng = np.random.default_rng(8)
    return np.array([random_box(height, width, rng, box=box) for _ in range(count)])


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("boxes", [device_boxes, host_boxes])
@pytest.mark.parametrize(("height", "width"), [(375, 500), (256, 256)])
def test_sizes_are_those_of_the_law(box, boxes, height, width):
    """Mean area and share of boxes that are as high or as wide as the image, on host and device."""
    found = boxes(box, 20_000, height, width)[:, 2:].astype(float)
    expected = simulated_sides(box, 200_000, height, width)
    for of in (
        lambda sides: sides.prod(axis=1) / (height * width),
        lambda sides: (sides == (height, width)).any(axis=1).astype(float),
    ):
        ours, reference = of(found), of(expected)
        # Two means of independent draws; chance takes them further apart than this once in 1.7 million times.
        deviation = np.sqrt(reference.var() * (1 / len(ours) + 1 / len(reference)))
        assert abs(ours.mean() - reference.mean()) < 5 * deviation


def test_the_laws_differ_as_stated():
    """On 375 x 500, for the ranges of BYOL: what the documentation says."""
    area = {box: device_boxes(box, 50_000, 375, 500)[:, 2:].prod(axis=1) / (375 * 500) for box in BOXES}
    # The standard deviations of an area are below 0.28, of a share below 0.5.
    assert area["redrawn"].mean() == pytest.approx(0.433, abs=0.0005 + 5 * 0.28 / np.sqrt(50_000))
    assert area["clamped"].mean() == pytest.approx(0.518, abs=0.0005 + 5 * 0.28 / np.sqrt(50_000))
    full = (device_boxes("clamped", 50_000, 375, 500)[:, 2:] == (375, 500)).any(axis=1)
    assert full.mean() == pytest.approx(0.25, abs=0.005 + 5 * 0.5 / np.sqrt(50_000))


@pytest.mark.parametrize("boxes", [device_boxes, host_boxes])
def test_clamped_boxes_lie_anywhere(boxes):
    y, x, height, width = boxes("clamped", 20_000, 375, 500).T
    for start, free in ((y, 375 - height), (x, 500 - width)):
        assert np.all(start[free == 0] == 0)
        place = start[free > 20] / free[free > 20]
        # Uniform on 0 ... free, in steps: its mean is 1/2, and its variance (free + 2) / (12 free).
        assert abs(place.mean() - 0.5) < 5 * np.sqrt(22 / 20 / 12 / len(place))


def test_unknown_law_is_refused():
    with pytest.raises(ValueError, match=r"'redrawn', 'clamped'.*'cut'"):
        sample_crop_boxes((1, 4, 4), [0, 1], box="cut")


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
