"""Files between versions of Keras; `make test-oldest` loads the bundled encoder with the oldest that is allowed."""

import json
import shutil
import zipfile

import keras
import pytest

from keras_sslhsic import SSLHSIC, compat
from keras_sslhsic.encoders import build_encoder, with_preprocessing
from keras_sslhsic.zoo import registry
from keras_sslhsic.zoo.load import load_pretrained


def config(file):
    with zipfile.ZipFile(file) as members:
        return json.loads(members.read("config.json"))


@pytest.fixture
def network():
    images = keras.Input((8, 8, 3))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3)(images))
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))


def test_no_file_holds_what_only_newer_keras_reads(network, tmp_path):
    encoder = with_preprocessing(build_encoder("r18_1x", width=0.0625), [0.5] * 3, [0.2] * 3)
    encoder.save(tmp_path / "encoder.keras")
    SSLHSIC(network, 8, 4, views="grayscale").save(tmp_path / "trainer.keras")  # as it is before `compile`
    keras.models.load_model(tmp_path / "trainer.keras")
    bundled = registry.BUNDLED / registry.get("r18_fashion").file
    for file in tmp_path / "encoder.keras", tmp_path / "trainer.keras", bundled:
        assert '"BatchNormalization"' in json.dumps(config(file))
        assert "renorm" not in json.dumps(config(file))


def test_what_a_layer_computes_is_kept():
    layer = {
        "class_name": "BatchNormalization",
        "config": {"axis": -1, "renorm": True, "renorm_momentum": 0.9},
    }
    assert compat.for_older_keras([layer]) == [layer]
    plain = {"axis": -1, "renorm": False, "renorm_clipping": None, "renorm_momentum": 0.99}
    found = compat.for_older_keras({"layers": [{"class_name": "BatchNormalization", "config": plain}]})
    assert found == {"layers": [{"class_name": "BatchNormalization", "config": {"axis": -1}}]}
    # Any other layer with a key of that name keeps it.
    assert compat.for_older_keras({"class_name": "Own", "config": plain})["config"] == plain


def test_a_file_of_a_newer_keras_that_does_not_load_says_which_one_wrote_it(network, tmp_path):
    network.save(tmp_path / "old.keras")
    with zipfile.ZipFile(tmp_path / "old.keras") as old, zipfile.ZipFile(tmp_path / "new.keras", "w") as new:
        for member in old.infolist():
            value = old.read(member)
            if member.filename == "metadata.json":
                value = json.dumps({"keras_version": "99.1.0"})
            if member.filename == "config.json":
                value = value.replace(b'"momentum"', b'"impetus"')
            new.writestr(member, value)
    with pytest.raises(ValueError, match=r"Keras 99.1.0 wrote it, and this is Keras .*'keras>=99.1.0'\.$"):
        load_pretrained(tmp_path / "new.keras")
    shutil.copy(tmp_path / "old.keras", tmp_path / "same.keras")
    load_pretrained(tmp_path / "same.keras")
