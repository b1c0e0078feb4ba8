"""Experiment configs: files, overrides, errors."""

import itertools
import json
import sys
import warnings
from pathlib import Path

import keras
import pytest

from keras_sslhsic import losses
from keras_sslhsic.losses import LOSSES
from keras_sslhsic.methods import METHODS
from keras_sslhsic.runs import build, config, folder, schema

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.py"))
FASHION = ROOT / "configs" / "fashion_small.py"
OURS = [name for name, method in METHODS.items() if method.__module__.startswith("keras_sslhsic.")]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_loads_and_says_what_it_is(path):
    settings = config.load(path)
    assert settings.name == path.stem
    assert json.loads(json.dumps(settings.to_dict()))["name"] == path.stem
    config.check(config.completed(settings))
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


def test_all_evaluations_may_be_left_out(path="configs/fashion_small.py"):
    settings = config.load(path, ["evals={}"])
    assert config.completed(settings).evals.to_dict() == {}
    assert config.completed(config.load(path)).evals.to_dict()
    with pytest.raises(
        ValueError, match=r"evals.knn.k, .*; evals.PROTOCOL.SETTING adds one, and evals={} leaves"
    ):
        config.load(path, ["evals=None"])


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


def test_a_frozen_config_can_be_changed_and_a_missing_value_is_told(tmp_path):
    frozen, required = tmp_path / "frozen.py", tmp_path / "required.py"
    head = "import ml_collections\ndef get_config():\n    return ml_collections."
    frozen.write_text(head + "FrozenConfigDict({'epochs': 3, 'data': {'source': 'bundled'}})\n")
    assert config.load(frozen, ["epochs=4", "data.holdout=0.1"]).to_dict() == {
        "epochs": 4,
        "data": {"source": "bundled", "holdout": 0.1},
    }
    required.write_text(
        head + "ConfigDict({'epochs': ml_collections.config_dict.required_placeholder(int)})\n"
    )
    with pytest.raises(ValueError, match=r"required\.py cannot be run: RequiredValueError"):
        config.load(required)


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


def test_a_run_may_go_on_elsewhere_and_keep_more_of_its_checkpoints(tmp_path):
    settings = config.load(CONFIGS[0].with_name("fashion_small.py"))
    (tmp_path / folder.CONFIG).write_text(json.dumps(settings.to_dict()))
    elsewhere = config.load(
        CONFIGS[0].with_name("fashion_small.py"),
        ["epochs=30", "strategy=mirrored", "checkpoints.keep=5", "checkpoints.best=knn_top1"],
    )
    folder.check_folder(tmp_path, elsewhere, resume=True)
    for change in ("chunks=2", "view_sizes=[20,28]", "batch_size=64"):
        with pytest.raises(ValueError, match=f"they differ in {change.partition('=')[0]}"):
            folder.check_folder(tmp_path, config.overridden(settings, [change]), resume=True)
    for wrong, message in {
        "view_sizes=[28,20]": r"from small to large, each once, found \[28, 20\]",
        "checkpoints.keep=0": r"checkpoints.keep",
    }.items():
        with pytest.raises(ValueError, match=message):
            config.completed(config.overridden(settings, [wrong]))


def test_the_page_of_the_fields_is_what_the_command_prints():
    page = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    printed = "\n".join(schema.describe())
    assert page.endswith(printed), (
        "Write it anew: sed -i '/^## The run/,$d' docs/config.md && keras-sslhsic config >> docs/config.md"
    )
    assert all(f"`{name}`" in printed for name in ("epochs", "memory_mb", "temperature", "weight_ema", "box"))


def test_every_field_is_explained():
    parts = [*schema.sections("bundled", "ssl_hsic", "ssl_hsic").items()]
    parts += [(name, schema.source_fields(name)) for name in ("folder", "tfds")]
    unexplained = [
        f"{section}.{name}"
        for section, fields in parts
        for name, field in fields.items()
        if not field.help and not section.startswith("views.")  # which are explained as a whole
    ]
    assert not unexplained


def run_of(*overrides, **fields):
    """The completed config of a file with these fields, or of the shipped one."""
    settings = config.completed(config.ConfigDict(fields) if fields else config.load(FASHION, overrides))
    config.check(settings)
    return settings


def test_what_a_config_leaves_out_has_its_default():
    settings = run_of(
        data={"path": "photos"}, views="grayscale", optimizer={"name": "sgd"}, loss={"gamma": 2.0}
    )
    assert (settings.name, settings.epochs, settings.data.source, settings.evals.to_dict()) == (
        "run",
        100,
        "folder",
        {},
    )
    # Images and network have the channels of the views.
    assert (settings.data.channels, settings.encoder.input_shape[-1], settings.views.size) == (1, 1, 28)
    assert settings.optimizer.to_dict() == {
        "name": "sgd", "learning_rate": 0.05, "weight_decay": 1e-3, "warmup_epochs": 10,
    }  # fmt: skip
    assert settings.loss.to_dict() == {"name": "ssl_hsic", "gamma": 2.0}
    assert config.completed(settings) == settings
    assert run_of(views="byol").evals.to_dict() == {
        "knn": {"k": 20},
        "linear": {"protocol": "linear_features"},
    }


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"epoch": 3}, "no field 'epoch'. The nearest ones: epochs"),
        ({"epochs": "3"}, "field epochs of the config must be an integer, found '3'"),
        ({"epochs": True}, "field epochs of the config must be an integer, found True"),
        ({"view_sizes": 20}, "field view_sizes of the config must be a list of integers, found 20"),
        ({"epochs": 2**31}, "epochs must be at most 2,147,483,647, found 2,147,483,648"),
        ({"epochs": 0}, "epochs must be at least 1, found 0"),
        ({"seed": -1}, "seed must be at least 0, found -1"),
        ({"precision": "float8"}, "precision must be 'float32' or 'mixed_bfloat16' or 'mixed_float16', found 'float8'"),
        ({"data": 3}, "field data of the config must be a mapping, found 3"),
        ({"data": {"source": "folder"}}, r"The config lacks data.path \(the folder\): give it"),
        ({"data": {"source": "flickr"}}, "Unknown data source 'flickr'"),
        ({"data": {"path": "a", "image_size": 2.5}}, "field data.image_size of the config must be None or an integer"),
        ({"encoder": {"widht": 1}}, "no field 'encoder.widht'. The nearest ones: encoder.width"),
        ({"method": "ssl_hsik"}, "Unknown method 'ssl_hsik': did you mean ssl_hsic"),
        ({"model": {"target": 1}}, "field model.target of the config must be True or False, found 1"),
        ({"model": {"encoder": 1}}, "no field 'model.encoder'"),
        ({"loss": {"name": "info_nce", "gamma": 1.0}}, "no field 'loss.gamma'"),
        ({"views": 3}, "field views of the config must be None or a text or a mapping, found 3"),
        ({"views": "flying"}, "views of the config cannot be made: Views must be one of"),
        ({"views": {"crop": {"area": (0.1, 0.2, 0.3)}}}, "field views.crop.area of the config must be 2 numbers"),
        ({"optimizer": {"learning_rate": -1.0}}, "optimizer.learning_rate must be at least 0, found -1"),
        ({"optimizer": {"momentum": 0.9}}, "no field 'optimizer.momentum'"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_config_is_one_sentence(fields, message):
    with pytest.raises(ValueError, match=message) as raised:
        run_of(**fields)
    assert "\n" not in str(raised.value)


def test_fields_that_a_file_leaves_out_are_set_too():
    settings = run_of(
        "loss.low_variance=True",
        "views.crop.antialias=True",
        "model.predictor=False",
        "evals.near.protocol=knn",
    )
    assert (settings.loss.low_variance, settings.views.crop.antialias, settings.model.predictor) == (
        True,
        True,
        False,
    )
    assert settings.evals.near.protocol == "knn" and settings.loss.gamma == 5.0
    assert run_of("views=small_image", "views.size=20", "encoder.input_shape=(None,None,3)").views.size == 20
    with pytest.raises(ValueError, match=r"no field 'loss\.temperature'"):
        config.load(FASHION, ["loss.temperature=0.1"])


def test_the_order_of_overrides_does_not_matter():
    """While local.count is two, of two views, there are none."""
    four = "=(0.0,0.0,0.0,0.0)"
    overrides = ["views.local.count=2", "loss.low_variance=True"]
    overrides += [f"views.blur.probability{four}", f"views.solarize.probability{four}"]
    first, *others = (run_of(*order).to_dict() for order in itertools.permutations(overrides))
    assert first["views"]["local"]["count"] == 2 and all(other == first for other in others)
    # Of one that cannot be made it is the views that are told.
    settings = config.read(FASHION).unlock()
    settings.views.crop.area = (2.0, 3.0)
    with pytest.raises(ValueError, match="The views of the config cannot be made"):
        config.overridden(settings, ["loss.low_variance=True"])


def test_another_loss_leaves_out_the_arguments_of_the_former():
    left_out = "loss.name=info_nce: .* left out: loss.gamma, loss.kernel, loss.num_features"
    with pytest.warns(UserWarning, match=left_out):
        settings = run_of("loss.temperature=0.2", "loss.name=info_nce")
    assert settings.loss.to_dict() == {"name": "info_nce", "temperature": 0.2}


def test_every_optimizer_has_a_learning_rate_of_its_own(monkeypatch):
    assert {*schema.RATES} == {*build.OPTIMIZERS}
    for name, (rate, decay) in schema.RATES.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error" if name == "adamw" else "ignore")
            chosen = config.completed(config.load(FASHION, [f"optimizer.name={name}"])).optimizer
        assert (chosen.name, chosen.learning_rate, chosen.weight_decay) == (name, rate, decay)
        assert chosen.warmup_epochs == 1
    left_out = "optimizer.name=sgd: .* left out: optimizer.learning_rate, optimizer.weight_decay"
    with pytest.warns(UserWarning, match=left_out):
        settings = config.load(FASHION, ["optimizer.weight_decay=0.5", "optimizer.name=sgd"])
    assert config.completed(settings).optimizer.weight_decay == 0.5
    with pytest.warns(UserWarning, match="left out"):
        mine = config.completed(config.load(FASHION, ["optimizer.name=mine"]))
    assert (mine.optimizer.learning_rate, mine.optimizer.weight_decay) == (None, 0.0)
    with pytest.raises(ValueError, match="Unknown optimizer 'mine'"):
        build.build_optimizer(mine, 1, [])
    monkeypatch.setattr(build, "OPTIMIZERS", {"mine": keras.optimizers.Adam})
    with pytest.raises(ValueError, match=r"gives no optimizer\.learning_rate, and mine has none"):
        build.build_optimizer(mine, 1, [])


def test_naming_what_is_chosen_by_default_leaves_nothing_out(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(
        "def get_config():\n    return {'model': {'target': False}, 'optimizer': {'learning_rate': 0.1}}\n"
    )
    settings = config.load(path, ["method=ssl_hsic", "optimizer.name=lars"])
    assert settings.model.target is False and settings.optimizer.learning_rate == 0.1


@pytest.mark.parametrize("name", OURS)
@pytest.mark.filterwarnings("ignore:method=")
def test_every_method_follows_from_its_name(name):
    settings = run_of(f"method={name}")
    if name != "ssl_hsic":
        assert not {"target", "predictor"} & {*settings.model}
    assert settings.loss is None or settings.loss.name == schema.loss_of(name)


def test_the_data_that_are_named_are_those_that_are_read():
    with pytest.warns(UserWarning, match="left out: data.holdout, model.num_classes"):
        settings = run_of("data.path=photos")
    assert settings.data.to_dict() == {"source": "folder", "path": "photos", "channels": 1}
    with pytest.warns(UserWarning, match="data.source=tfds"):
        assert run_of("data.name=mnist", "data.split=test").data.split == "test"


def test_types_are_said_in_words():
    parts = schema.sections("bundled", "ssl_hsic", "ssl_hsic")
    assert str(parts["loss"]["num_features"]).startswith(
        "(None or an integer, default 512): number D of random"
    )
    assert str(parts["views"]["mean"]).startswith("(a list of numbers, default (0.485")
    assert all(str(field).startswith("(") for loss in LOSSES for field in schema.loss_fields(loss).values())
