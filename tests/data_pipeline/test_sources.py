"""The data set that a config names."""

import pytest
from ml_collections import ConfigDict

from keras_sslhsic.data.sources import source


def test_a_negative_seed_is_named():
    config = ConfigDict({"batch_size": 8, "seed": -1, "data": {"source": "bundled"}})
    with pytest.raises(ValueError, match="seed must be at least 0, found -1"):
        source(config)


def test_an_unknown_source_is_named():
    config = ConfigDict({"batch_size": 8, "seed": 0, "data": {"source": "web"}})
    with pytest.raises(ValueError, match="Unknown data source 'web'; expected one of bundled, folder, tfds"):
        source(config)
