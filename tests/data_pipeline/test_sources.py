"""The data set that a config names."""

import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from keras_sslhsic import views
from keras_sslhsic.data import bundled
from keras_sslhsic.data.sources import bundled_splits, source


def test_a_negative_seed_is_named():
    config = ConfigDict({"batch_size": 8, "seed": -1, "data": {"source": "bundled"}})
    with pytest.raises(ValueError, match="seed must be at least 0, found -1"):
        source(config)


def test_an_unknown_source_is_named():
    config = ConfigDict({"batch_size": 8, "seed": 0, "data": {"source": "web"}})
    with pytest.raises(ValueError, match="Unknown data source 'web': there are bundled, folder, tfds"):
        source(config)


@pytest.mark.parametrize("host_crops", [True, False])
def test_host_crops_are_those_of_the_views_and_of_the_whole_image(tmp_path, host_crops):
    """A wide image is white outside of its central square, which alone is left without host crops."""
    image = np.full((16, 64, 3), 255, np.uint8)
    image[:, 24:40] = 0
    for i in range(8):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    data = {
        "source": "folder",
        "path": str(tmp_path),
        **({"host_crops": True} if host_crops else {"image_size": 16}),
    }
    config = ConfigDict({"batch_size": 8, "seed": 0, "data": data, "views": views.byol(12).to_dict()})
    batch = next(iter(source(config).batches(0)))
    if host_crops:
        assert batch["view1"].shape == batch["view2"].shape == (8, 12, 12, 3)
        assert np.mean(batch["view1"].numpy() > 200) > 0.5
    else:
        assert batch["image"].shape == (8, 16, 16, 3) and np.max(batch["image"]) == 0


@pytest.mark.parametrize("holdout", [0.0, 0.1])
def test_the_bundled_images_are_trained_on_but_for_what_is_held_out(holdout):
    config = ConfigDict({"batch_size": 50, "seed": 0, "data": {"source": "bundled", "holdout": holdout}})
    images, (train, test) = source(config), bundled_splits(holdout)
    assert images.num_examples == len(train[0]) == len(train[1]) == 10_000 - round(10_000 * holdout)
    assert images.class_names == list(bundled.CLASS_NAMES) and images.sample(3).shape == (3, 28, 28, 1)
    (x, _), given = bundled.load()
    if holdout:
        assert np.bincount(test[1]).tolist() == [100] * 10
        assert sorted(map(bytes, [*train[0], *test[0]])) == sorted(map(bytes, x))
    else:
        np.testing.assert_array_equal(test[0], given[0])
