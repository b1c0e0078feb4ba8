"""Experiment configs: files, overrides, errors."""

import json
from pathlib import Path

import pytest

from keras_sslhsic import config, views
from keras_sslhsic.views import ViewPolicy

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_loads_and_says_what_it_is(path):
    settings = config.load(path)
    assert settings.name == path.stem
    assert json.loads(json.dumps(settings.to_dict()))["name"] == path.stem
    assert "keras-sslhsic pretrain --config configs/" in path.read_text()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(
        "from ml_collections import ConfigDict\n"
        "def get_config():\n"
        "    return ConfigDict({'epochs': 3, 'name': 'a', 'rate': 0.5, 'views': {'size': 8, 'area': (0.2, 1.0)}})\n"
    )
    return path


def test_overrides(file):
    settings = config.load(file, ["epochs=5", "name=b", "rate=1", "views.size=16", "views.area=(0.5,1.0)"])
    assert (settings.epochs, settings.name, settings.rate) == (5, "b", 1.0)
    assert settings.views.to_dict() == {"size": 16, "area": (0.5, 1.0)}


@pytest.mark.parametrize(
    "override, message",
    [
        ("epoch=5", r"no field 'epoch'. The nearest ones: epochs"),
        ("views.sise=5", r"no field 'views.sise'. The nearest ones: views.size"),
        ("views=5", r"no field 'views'"),
        ("epochs=many", r"epochs is int \(3\); 'many' is str"),
        ("epochs", r"An override is field=value, got 'epochs'"),
    ],
)
def test_bad_overrides(file, override, message):
    with pytest.raises(ValueError, match=message):
        config.load(file, [override])


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match="There is no config file"):
        config.load(tmp_path / "none.py")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match=r"defines no get_config\(\)"):
        config.load(tmp_path / "empty.py")
    (tmp_path / "broken.py").write_text("def get_config(:")
    with pytest.raises(ValueError, match=r"broken.py cannot be run: SyntaxError"):
        config.load(tmp_path / "broken.py")
    (tmp_path / "README.md").write_text("# A page")
    with pytest.raises(ValueError, match=r"Configs are Python files \(.py\)"):
        config.load(tmp_path / "README.md")


def test_imagenet_is_pretrained_as_in_the_paper_and_the_released_code():
    path = CONFIGS[-1]
    settings = config.load(path)
    images = 1_281_167  # all training images
    assert path.stem == "imagenet_r50_1x" and settings.data.split == "train"
    assert settings.epochs * (images // settings.batch_size) == 312_000
    assert settings.epochs * images // settings.batch_size == 312_784
    assert images % settings.batch_size == 3_215
    assert all(number in path.read_text() for number in ("312,000", "312,784", "3,215", "Cloud TPU v4"))
    # Crops of the views, from the original image.
    assert settings.data.host_crops is True and "image_size" not in settings.data
    assert ViewPolicy.from_dict(settings.views) == views.byol(224)
    assert (settings.optimizer.learning_rate, settings.optimizer.weight_decay) == (0.4, 1e-6)
    assert (settings.loss.kernel, settings.loss.gamma, settings.loss.num_features) == ("imq", 3.0, 512)
