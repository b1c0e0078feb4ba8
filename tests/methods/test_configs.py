"""Every method by its config, and by its name on the command line."""

from pathlib import Path

import keras
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from keras_sslhsic import cli, encoders, methods, plots, views
from keras_sslhsic.runs import build, config, folder, pretrain
from keras_sslhsic.training.strategy import strategy

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs" / "methods").glob("*.py"))
SMALL = [
    "batch_size=8", "epochs=2", "precision=float32", "encoder.name=r18_1x", "model.projector_hidden=16",
    "model.projection_dim=8", "model.num_classes=3", "views.size=16", "views.local.size=8",
    "steps_per_execution=1", "strategy=one",
]  # fmt: skip
LARGE = {"queue_size": 16, "num_prototypes": 6, "num_slices": 8}


def test_every_other_method_has_a_config():
    ours = {name for name, cls in methods.METHODS.items() if cls.__module__.startswith("keras_sslhsic.")}
    assert {path.stem for path in CONFIGS} == ours - {"ssl_hsic"}


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_builds_and_takes_a_step(path):
    settings = config.load(path)
    # Its heads are those that the method has by itself.
    head = methods.METHODS[settings.method].default_head
    assert (settings.model.projector_hidden, settings.model.projection_dim) == head[:2]
    large = [f"loss.{name}={value}" for name, value in LARGE.items() if name in settings.loss]
    settings = config.load(path, [*SMALL, *large])
    with settings.unlocked():
        settings.encoder.update({"width": 0.05, "input_shape": (None, None, 3), "stem": "small"})
    model = build.build_model(config.completed(settings), steps_per_epoch=1, machines=strategy("one"))
    assert type(model) is methods.METHODS[path.stem] and type(model.objective) is model.default_loss
    images = np.random.default_rng(0).integers(0, 256, (8, 20, 20, 3), np.uint8)
    history = model.fit(images, batch_size=8, verbose=0).history
    assert np.isfinite(history["loss"][0]) and int(model.step.numpy()) == 1


def test_the_command_line_lists_every_method_with_its_reference(capsys):
    assert not cli.main(["methods"])
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines.keys() == methods.METHODS.keys()
    for name, line in lines.items():
        assert line.endswith(methods.METHODS[name].reference)


@pytest.mark.slow
# What the config says for SSL-HSIC is left out, and views are tiny.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_command_line_trains_every_method_by_its_name(tmp_path, monkeypatch, capsys):
    """With the default run's config, and on a folder with none; a network that is traced in no time, and what is the same for
    all methods, evaluation and drawing, left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        keras.callbacks, "TensorBoard", lambda *arguments, **options: keras.callbacks.Callback()
    )
    monkeypatch.setattr(pretrain, "evaluate_run", lambda *arguments: [])
    for module, name in ((views, "show"), (plots, "curves"), (plots, "feature_map"), (plots, "neighbours")):
        monkeypatch.setattr(module, name, lambda *arguments: Figure())
    pixels = keras.Input((None, None, 1))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, use_bias=False)(pixels))
    network = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x)), name="tiny")
    encoders.with_preprocessing(network, 0.286, 0.353).save("tiny.keras")
    for i, image in enumerate(np.random.default_rng(0).integers(0, 256, (24, 8, 8), np.uint8)):
        place = Path("photos", "ab"[i % 2], f"{i}.png")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place)
    ways = {
        "config": [
            "--config", str(ROOT / "configs" / "fashion_small.py"), "--config.method={}", "--config.batch_size=3300",
            "--config.data.holdout=0.01", "--config.views.size=8",
        ],
        "folder": [
            "--data", "photos", "--method", "{}", "--config.views.mean=[0.286]", "--config.views.std=[0.353]",
            "--config.precision=mixed_bfloat16",
        ],
    }  # fmt: skip
    small = [
        "--init", "tiny.keras", "--epochs", "1", "--config.model.projector_hidden=8", "--config.model.projection_dim=4",
        "--config.views.jitter.probability=0.0", "--config.views.blur.probability=[0.0, 0.0]",
    ]  # fmt: skip
    for name in methods.METHODS:
        if not methods.METHODS[name].__module__.startswith("keras_sslhsic."):
            continue  # of another test
        fields = config.schema.loss_fields(config.schema.loss_of(name))
        large = [f"--config.loss.{field}={value}" for field, value in LARGE.items() if field in fields]
        for way, words in ways.items():
            run = f"{way}_{name}"
            command = ["pretrain", *(word.format(name) for word in words), *small, *large, "--workdir", run]
            assert cli.main(command) == 0, capsys.readouterr().err
            assert folder.load_config(run).method == name
            metrics = folder.read_summary(run)["metrics"]
            assert np.isfinite(list(metrics.values())).all() and "loss" in metrics, (run, metrics)
            assert {folder.MODEL, folder.ENCODER} <= {path.name for path in Path(run).iterdir()}
