"""Images with a map each: one transform changes both."""

import numpy as np
import pytest

from keras_sslhsic.evaluation.maps import UNKNOWN, VOID, MapSplit, Transform, draw

PALETTE = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250], [250, 250, 10]], np.uint8)


def class_map(seed, height=50, width=70):
    """Blocks of four classes, none narrower than 7 pixels."""
    blocks = np.random.default_rng(seed).integers(0, 4, (height // 7 + 1, width // 7 + 1))
    return np.kron(blocks, np.ones((7, 7), int))[:height, :width].astype(np.uint8)


def split_of(maps, shape=(32, 40, 3), **fields):
    images = [PALETTE[m] for m in maps]
    zeros = np.zeros(len(maps), np.int64)
    return MapSplit(images.__getitem__, zeros, shape, target=maps.__getitem__, num_classes=4, **fields)


@pytest.mark.parametrize("short_side", [None, 41])
def test_the_map_of_a_transformed_image_is_the_transformed_map(short_side):
    """The nearest colour of a pixel is its class, but on the edges of blocks, where colours mix."""
    split, rng, counted = split_of([class_map(0)], short_side=short_side), np.random.default_rng(1), 0
    for _ in range(60):
        transform = draw(rng, (0.5, 2.0))
        image, target = split.changed(split.read(0), split.target(0), transform)
        distances = np.abs(image[:, :, None].astype(int) - PALETTE).sum(-1)
        pure = distances.min(-1) == 0
        np.testing.assert_array_equal(distances.argmin(-1)[pure], target[pure])
        # Beyond the edges the image is gray and the map void; a pixel on the edge itself has a share of it.
        assert (target[pure] != VOID).all()
        assert (target[(image == 127).all(-1)] == VOID).all()
        counted += pure.sum()
    assert counted > 0.3 * 60 * 32 * 40


def test_transforms_by_hand():
    image = np.random.default_rng(0).integers(0, 256, (8, 10, 3), np.uint8)
    target = np.random.default_rng(1).random((8, 10)).astype(np.float32)
    for values in (image, target):
        whole = Transform().apply(values, (8, 10), (8, 10), 0)
        np.testing.assert_array_equal(whole, values)
        mirrored = Transform(flip=True).apply(values, (8, 10), (8, 10), 0)
        np.testing.assert_array_equal(mirrored, values[:, ::-1])
        part = Transform(y=0.0, x=1.0, flip=True).apply(values, (8, 10), (4, 5), 0)
        np.testing.assert_array_equal(part, values[:4, 5:][:, ::-1])
        padded = Transform().apply(values, (8, 10), (12, 12), 7)
        np.testing.assert_array_equal(padded[2:-2, 1:-1], values)
        assert (padded[:2] == 7).all() and (padded[:, -1] == 7).all()
    # Halved, each pixel is the mean of four.
    halved = Transform().apply(image, (4, 5), (4, 5), 0)
    means = image.reshape(4, 2, 5, 2, 3).mean(axis=(1, 3))
    assert np.abs(halved - means).max() <= 1


def test_a_map_of_another_resolution_than_its_image():
    target = class_map(2, 49, 70)
    large = np.repeat(np.repeat(target, 2, 0), 2, 1)
    split = split_of([target])
    for transform in (Transform(), Transform(1.0, 0.2, 0.9, True)):
        ones = [split.changed(PALETTE[target], given, transform)[1] for given in (target, large)]
        np.testing.assert_array_equal(*ones)


def test_batches_of_images_and_maps():
    split = split_of([class_map(seed) for seed in range(6)])
    [(images, maps)] = split.batches(6).as_numpy_iterator()
    assert images.shape == (6, 32, 40, 3) and maps.shape == (6, 32, 40) and maps.dtype == np.uint8
    np.testing.assert_array_equal(maps[3], class_map(3)[9:41, 15:55])
    stream = list(split.training_batches(2, 5, (0.5, 2.0)).take(7).as_numpy_iterator())
    later = list(split.training_batches(2, 5, (0.5, 2.0), step=4).take(3).as_numpy_iterator())
    for one, other in zip(stream[4:], later, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])
    part = split.part(np.array([4, 1])) + split.part(np.array([2]))
    [(images, maps)] = part.batches(3).as_numpy_iterator()
    np.testing.assert_array_equal(
        maps, [split.changed(split.read(i), split.target(i), Transform())[1] for i in (4, 1, 2)]
    )
    assert part.recipe() == {"crop_size": [32, 40]}


def test_depth_is_unknown_beyond_the_edge():
    depth = np.full((10, 10), 3.0, np.float32)
    split = MapSplit(
        lambda i: np.zeros((10, 10, 3), np.uint8), np.zeros(1, int), (12, 10, 3), target=lambda i: depth
    )
    [(_, maps)] = split.batches(1).as_numpy_iterator()
    assert maps.dtype == np.float32 and (maps[0, 1:-1] == 3).all() and (maps[0, [0, -1]] == UNKNOWN).all()
