"""Every method's config builds a trainer, which takes a step."""

from pathlib import Path

import numpy as np
import pytest

from keras_sslhsic import cli, methods
from keras_sslhsic.runs import build, config
from keras_sslhsic.training.strategy import strategy

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "methods").glob("*.py"))
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
    model = build.build_model(settings, steps_per_epoch=1, machines=strategy("one"))
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
