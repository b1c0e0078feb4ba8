"""Segmentation and depth by command and by config, on tiny folders."""

from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from keras_sslhsic import cli
from keras_sslhsic.encoders import Architecture, with_preprocessing
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.evaluation import dense, results
from keras_sslhsic.runs import evaluate


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder of images, masks and depth; an encoder beside it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for i in range(5):
        bright = np.arange(32) < 8 + 3 * i
        pixels = np.where(bright[None, :, None], 220, 40) + rng.integers(0, 30, (32, 32, 3))
        mask = np.tile(bright, (32, 1))
        for kind, values in (
            ("images", pixels.astype(np.uint8)),
            ("masks", mask.astype(np.uint8)),
            ("depth", np.where(mask, 1000, 3000).astype(np.uint16)),
        ):
            Path("data", kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(values).save(Path("data", kind, f"{i}.png"))
    network = resnet(
        Architecture((1, 1), (8, 16), bottleneck=False, stem_channels=8), (None, None, 3), "small", "tiny"
    )
    with_preprocessing(network, 0.4, 0.2).save("tiny.keras")
    return "data"


SMALL = [
    "--encoder",
    "tiny.keras",
    "--data",
    "data",
    "--crop-size",
    "32",
    "--batch-size",
    "4",
    "--steps",
    "2",
]
SMALL += ["--learning-rates", "0.01", "--seeds", "1", "--head-width", "0.02"]


@pytest.mark.slow
def test_evaluate_measures_masks_and_depth(data, capsys):
    assert cli.main(["evaluate", "segmentation", *SMALL, "--work-dir", "work", "--out", "found.jsonl"]) == 0
    assert "segmentation on data: miou " in capsys.readouterr().out
    assert cli.main(["evaluate", "depth", *SMALL, "--out", "found.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "depth on data: pct1.25 " in out and "depth on data: rms " in out and "] m, the 95 %" in out
    masks, depths = results.read("found.jsonl")
    assert (masks.protocol, masks.encoder, masks.data, masks.num_classes) == (
        "segmentation",
        "tiny.keras",
        data,
        2,
    )
    assert list(depths.others) == ["pct1.25^2", "pct1.25^3", "rms", "rel"]
    assert Path("work/segmentation.png").exists()
    assert cli.main(["report", "."]) == 2  # there is no results.jsonl
    assert cli.main(["report", "found.jsonl"]) == 0
    assert "rel (lower is better)" in Path("report.md").read_text()


def test_settings_are_refused_before_anything_is_loaded(data, capsys, monkeypatch):
    monkeypatch.setattr(cli.arguments, "load", lambda name: pytest.fail("An encoder was loaded."))
    for flags, message in (
        (["segmentation", "--epochs", "3"], "segmentation has no --epochs"),
        (["depth", "--num-classes", "3"], "depth has no --num-classes"),
        (["depth", "--seeds", "0"], "seeds must be at least 1"),
        (["segmentation", "--crop-size", "a"], "crop_size must be an integer"),
        (["segmentation", "--crop-size", "1,2,3"], "crop_size must be an integer, or two, height and width"),
    ):
        assert cli.main(["evaluate", flags[0], "--encoder", "tiny.keras", "--data", data, *flags[1:]]) == 2
        assert message in capsys.readouterr().err


def test_a_folder_to_work_in_that_cannot_be_is_said_before_training(data, capsys, monkeypatch):
    monkeypatch.setattr(dense, "train", lambda *_, **__: pytest.fail("A network was trained."))
    Path("taken").write_text("")
    assert cli.main(["evaluate", "segmentation", *SMALL, "--work-dir", "taken", "--out", "found.jsonl"]) == 2
    assert "taken/segmentation.png cannot be written: Not a directory." in capsys.readouterr().err


def test_a_config_names_them_with_data_of_their_own(data, monkeypatch):
    settings = {
        "views": "byol",
        "data": {"source": "bundled"},
        "evals": {"segmentation": {"data": data, "crop_size": 32}},
    }
    [group] = evaluate.groups_of(ConfigDict(settings))
    assert group.splits["train"].shape == (32, 32, 3) and group.evals == {"segmentation": {}}
    settings["evals"] = {"depth": {}}
    with pytest.raises(
        ValueError, match='depth needs images of another kind than a run has: name some as its "data"'
    ):
        evaluate.groups_of(ConfigDict(settings))


def test_the_settings_of_both_are_flags_and_help_is_on_those_of_the_protocol_that_is_named(capsys):
    def told(protocol):
        with pytest.raises(SystemExit):
            cli.main(["evaluate", protocol, "--help"])
        return " ".join(capsys.readouterr().out.split())

    of_depth, of_all = told("depth"), told("all")
    assert "--depth-scale" in of_depth and "--work-dir" in of_depth and "(default: 7500)" in of_depth
    assert "segmentation" not in of_depth.split("settings of depth, and")[1] and "--fraction" not in of_depth
    assert "--depth-scale" in of_all and "--fraction" in of_all and "30000 (segmentation)" in of_all
