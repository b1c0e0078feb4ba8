"""Experiment configs: files, overrides, errors."""

import json
import sys
from pathlib import Path

import keras
import pytest

from keras_sslhsic import losses
from keras_sslhsic.runs import config, folder

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
        ("views=5", r"The field views holds others, which are set one by one: views.area, views.size"),
        ("epochs=many", r"epochs is int \(3\); 'many' is str"),
        ("epochs", r"An override is field=value, found 'epochs'"),
    ],
)
def test_bad_overrides(file, override, message):
    with pytest.raises(ValueError, match=message):
        config.load(file, [override])


def test_a_config_may_hold_dataclasses_and_methods_as_a_module_may(tmp_path):
    path = tmp_path / "my_method.py"
    path.write_text(
        "from __future__ import annotations\n"
        "import dataclasses\n"
        "from keras_sslhsic import losses\n"
        "@dataclasses.dataclass\n"
        "class Widths:\n"
        "    hidden: int = 3\n"
        "@losses.register('mine')\n"
        "class Mine(losses.Objective):\n"
        "    pass\n"
        "def get_config():\n"
        "    return {'hidden': Widths().hidden}\n"
    )
    assert config.load(path).hidden == 3
    # What `import my_method` registers it as, so that a model file of a run loads after that.
    assert keras.saving.get_registered_name(losses.LOSSES["mine"]) == "my_method>Mine"
    assert "my_method" not in sys.modules


def test_names_are_shown_escaped(tmp_path):
    path = tmp_path / "a\nb.py"
    path.write_text("raise KeyError")
    for name in (path, tmp_path / "none\x1b[31m.py"):
        with pytest.raises(ValueError, match=r"a\\nb\.py cannot be run|none\\x1b\[31m\.py"):
            config.load(name)


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match="There is no config file"):
        config.load(tmp_path / "none.py")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match=r"empty.py defines no get_config\(\) that returns a ConfigDict"):
        config.load(tmp_path / "empty.py")
    (tmp_path / "none.py").write_text("def get_config():\n    pass\n")
    with pytest.raises(ValueError, match=r"none.py defines no get_config\(\) that returns a ConfigDict"):
        config.load(tmp_path / "none.py")
    (tmp_path / "divides.py").write_text("def get_config():\n    return 1 / 0\n")
    with pytest.raises(ValueError, match=r"divides.py cannot be run: ZeroDivisionError"):
        config.load(tmp_path / "divides.py")
    (tmp_path / "number.py").write_text("def get_config():\n    return {1: 2}\n")
    with pytest.raises(ValueError, match=r"fields of a config have names, found 1 in .*number.py"):
        config.load(tmp_path / "number.py")
    (tmp_path / "dict.py").write_text("def get_config():\n    return {'a': {'b': 1}}\n")
    assert config.load(tmp_path / "dict.py", ["a.b=2"]).to_dict() == {"a": {"b": 2}}
    (tmp_path / "broken.py").write_text("def get_config(:")
    with pytest.raises(ValueError, match=r"broken.py cannot be run: SyntaxError"):
        config.load(tmp_path / "broken.py")
    (tmp_path / "README.md").write_text("# A page")
    with pytest.raises(ValueError, match=r"Configs are Python files \(.py\)"):
        config.load(tmp_path / "README.md")


@pytest.mark.parametrize("name", ["fashion_small", "imagenet_r50_1x"])
def test_a_run_from_before_crops_had_a_law_goes_on_if_its_views_are_the_same(tmp_path, name):
    settings = config.load(CONFIGS[0].with_name(f"{name}.py"))
    older = settings.to_dict()
    older["views"]["crop"].pop("box")
    (tmp_path / folder.CONFIG).write_text(json.dumps(older))
    if name == "imagenet_r50_1x":
        with pytest.raises(ValueError, match=r"views\.crop\.box \('redrawn' there, 'clamped' now\)"):
            folder.check_folder(tmp_path, settings, resume=True)
        settings.views.crop.box = "redrawn"
    folder.check_folder(tmp_path, settings, resume=True)
