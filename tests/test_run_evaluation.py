"""A run is evaluated from what its folder holds: no trainer, no training data, no optimizer is made for it."""

import hashlib
import json
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_sslhsic import cli
from keras_sslhsic.data import sources
from keras_sslhsic.encoders import build_encoder, with_preprocessing
from keras_sslhsic.evaluation import encoder_hash, results
from keras_sslhsic.evaluation.compare import raw_pixels
from keras_sslhsic.runs import build, evaluate, folder

OLD = Path(__file__).parent / "data" / "run_0.1.0"


def small_encoder():
    images = keras.Input((28, 28, 1))
    pooled = keras.layers.AveragePooling2D(7)(keras.layers.Rescaling(1 / 255)(images))
    return keras.Model(images, keras.layers.Flatten()(pooled))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder with a small encoder; whatever builds a trainer or opens its images fails."""

    def forbidden(*arguments, **options):
        raise AssertionError("This is made for training.")

    monkeypatch.setattr(build, "build_model", forbidden)
    monkeypatch.setattr(sources, "source", forbidden)
    monkeypatch.setattr(keras.Model, "compile", forbidden)
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    text = (OLD / folder.CONFIG).read_text().replace('"holdout": 0.0', '"holdout": 0.97')
    Path("run", folder.CONFIG).write_text(
        text.replace('"precision": "float32"', '"precision": "mixed_bfloat16"')
    )
    small_encoder().save(Path("run", folder.ENCODER))
    return "run"


def test_the_first_encoder_of_a_run_of_version_0_1_0_is_that_of_its_results():
    """Its config and seed say it; the hash of that version is what the run wrote down."""
    encoder = build.initial_encoder(folder.load_config(OLD))
    untrained = [result for result in results.read(OLD) if result.encoder == "untrained"]
    assert {_hash_of_version_0_1_0(encoder)} == {result.encoder_hash for result in untrained}


def _hash_of_version_0_1_0(encoder):
    """Of the outer layers and the weights."""
    unnamed = ("name", "layers", "build_config", "trainable")
    settings = [
        (type(x).__name__, {k: v for k, v in x.get_config().items() if k not in unnamed})
        for x in encoder.layers
    ]
    digest = hashlib.sha256(repr(settings).encode())
    for weight in map(keras.ops.convert_to_numpy, encoder.weights):
        digest.update(f"{weight.dtype}{weight.shape}".encode() + np.ascontiguousarray(weight).tobytes())
    return digest.hexdigest()[:16]


def test_the_first_encoder_is_the_file_of_the_run_where_it_has_one(run):
    twin = small_encoder()
    twin.save(Path(run, folder.INITIAL))
    encoders = evaluate.encoders_of(run)
    assert list(encoders) == [run, "untrained", "raw pixels"] and encoders["raw pixels"] is raw_pixels
    assert encoder_hash(encoders["untrained"]) == encoder_hash(twin)
    config = json.loads(Path(run, folder.CONFIG).read_text()) | {"init": "r18_fashion", "encoder": {}}
    Path(run, folder.CONFIG).write_text(json.dumps(config))
    assert list(evaluate.encoders_of(run)) == [
        run,
        "start",
        "raw pixels",
    ]  # whose weights came from somewhere


def test_a_start_that_gives_constants_leaves_the_others_measured(run):
    """As a classifier of few images may: its run would have no summary after all of its training."""
    images = keras.Input((28, 28, 1))
    ones = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(0.0, 1.0)(images))
    keras.Model(images, ones).save(Path(run, folder.INITIAL))
    with pytest.warns(
        UserWarning, match="What is untrained is not measured: train_features have zero variance"
    ):
        rows = evaluate.evaluate_run(run)
    assert [row["features"] for row in rows] == ["pretrained", "untrained", "raw pixels"]
    assert rows[1] == {"features": "untrained", "knn": "-", "linear": "-"}
    assert all(isinstance(rows[i]["knn"], float) for i in (0, 2))
    assert evaluate.format_table(rows).splitlines()[3].split() == ["untrained", "-", "-"]


@pytest.mark.slow
def test_a_run_is_evaluated_without_what_training_needs(run, capsys):
    policy = keras.config.dtype_policy().name
    assert cli.main(["evaluate", "--run", run]) == 0
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["features", "knn,", "%", "linear,", "%"]
    assert [line.split("  ")[0] for line in lines] == ["pretrained", "untrained", "raw pixels"]
    assert keras.config.dtype_policy().name == policy == "float32"
    found = results.read(run)
    assert [(result.encoder, result.label) for result in found[:2]] == [(run, "knn"), (run, "linear")]
    assert {result.data for result in found} == {"bundled, 0.97 of train held out"}
    # Once more: what the file has is not added again.
    assert cli.main(["evaluate", "--run", run]) == 0
    assert len(results.read(run)) == len(found) == 6


def test_a_run_that_is_not_finished_is_told(run):
    Path(run, folder.ENCODER).unlink()
    with pytest.raises(ValueError, match=r"is not finished: it has no encoder\.keras"):
        evaluate.evaluate_run(run)
    shutil.rmtree(run)
    with pytest.raises(ValueError, match="holds no run"):
        evaluate.evaluate_run(run)


def test_the_bundled_table_needs_an_encoder_of_its_images(tmp_path, capsys):
    encoder = with_preprocessing(build_encoder("r18_1x", (28, 28, 3), width=0.03), 0.5, 0.5)
    encoder.save(tmp_path / "colour.keras")
    assert cli.main(["evaluate", "all", "--encoder", str(tmp_path / "colour.keras")]) == 2
    assert "which have 1 channel, and" in capsys.readouterr().err
    assert cli.main(["evaluate", "knn", "--encoder", str(tmp_path / "colour.keras")]) == 2
    assert "reads 3: name others by --data." in capsys.readouterr().err
    wide = with_preprocessing(build_encoder("r18_1x", (28, 40, 1), width=0.03), 0.5, 0.5)
    wide.save(tmp_path / "wide.keras")
    assert cli.main(["evaluate", "knn", "--encoder", str(tmp_path / "wide.keras")]) == 2
    assert "reads images of 28 x 40 pixels, and evaluations make squares of files" in capsys.readouterr().err


def test_where_no_result_can_be_kept_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(evaluate, "compare", None)
    with pytest.raises(OSError, match=r"^/proc/results\.jsonl cannot be written: "):
        evaluate.measure({}, {}, {}, "/proc/results.jsonl", data="bundled")
