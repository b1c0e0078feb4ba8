"""A run that goes on: for longer than it was to, and from the weights of another."""

import keras
import numpy as np
import pytest
from ml_collections import ConfigDict
from PIL import Image

from keras_sslhsic import SSLHSIC, cli, encoders, load_pretrained, views
from keras_sslhsic.runs import config, defaults, folder
from keras_sslhsic.training.checkpoint import Checkpoint
from keras_sslhsic.training.schedules import warmup_cosine

SMALL = {
    "views": views.grayscale(8).to_dict(),
    "model": {"projector_hidden": 8, "projection_dim": 4},
    "loss": {"name": "ssl_hsic", "num_features": 8},
    "optimizer": {"name": "sgd", "learning_rate": 0.1, "warmup_epochs": 1},
    "batch_size": 20,
    "epochs": 2,
    "strategy": "one",
    "evals": {},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(config file, run folder) of a run of two epochs of two steps, whose network is traced in no time."""
    place = tmp_path_factory.mktemp("runs")
    pixels = keras.Input((None, None, 1))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, use_bias=False)(pixels))
    network = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x)), name="tiny")
    encoders.with_preprocessing(network, 0.286, 0.353).save(place / "tiny.keras")
    (place / "images").mkdir()
    for i, pixels in enumerate(np.random.default_rng(1).integers(0, 256, (40, 10, 10), np.uint8)):
        Image.fromarray(pixels).save(place / "images" / f"{i}.png")
    data = {"path": str(place / "images"), "image_size": 10}
    settings = SMALL | {"init": str(place / "tiny.keras"), "data": data}
    (place / "small.py").write_text(f"def get_config():\n    return {settings!r}\n")
    assert cli.main(["pretrain", "--config", str(place / "small.py"), "--workdir", str(place / "run")]) == 0
    return place / "small.py", place / "run"


@pytest.mark.slow
def test_a_finished_run_goes_on_and_another_starts_from_it(finished, tmp_path, capsys):
    file, run = finished
    images = np.random.default_rng(0).integers(0, 256, (3, 9, 9, 1), np.uint8)
    before = load_pretrained(run)(images).numpy()

    assert cli.main(["pretrain", "--resume", "--epochs", "1", "--workdir", str(run)]) == 2
    assert "has trained 2 epochs, more than the 1 that are asked for" in capsys.readouterr().err

    # Another run, of other epochs: it begins where the first one ended.
    other = ["pretrain", "--config", str(file), "--init", str(run), "--workdir", str(tmp_path / "other")]
    assert cli.main([*other, "--config.epochs=1"]) == 0
    assert f"ssl_hsic trains tiny, as {run} has it, with" in capsys.readouterr().out
    np.testing.assert_array_equal(
        keras.models.load_model(tmp_path / "other" / "initial_encoder.keras")(images), before
    )
    assert folder.load_config(tmp_path / "other").encoder.to_dict() == {}

    # The first one goes on, by its folder alone.
    assert cli.main(["pretrain", "--resume", "--config.epochs=4", "--workdir", str(run)]) == 0
    told = capsys.readouterr().out
    assert (
        "was to have 2 epochs, and goes on from 2 to 4: the schedules of learning rate and target are over 4"
        in told
    )
    assert "nothing was changed" not in told
    history = folder.read_history(run / "history.csv")
    assert history["epoch"] == [0, 1, 2, 3] and folder.load_config(run).epochs == 4
    assert folder.read_summary(run)["epochs"] == 4 and Checkpoint(run / "checkpoints").epoch == 4
    peak = 0.1 * 20 / 256
    for length, epoch in ((2, 0), (2, 1), (4, 2), (4, 3)):
        expected = float(warmup_cosine(peak, 2 * length, 2)(2 * epoch + 1))  # at the last step of the epoch
        assert history["learning_rate"][epoch] == pytest.approx(expected, rel=1e-5, abs=1e-9)
        target = 1 - (1 - 0.99) * (np.cos(np.pi * (2 * epoch + 1) / (2 * length)) + 1) / 2
        assert history["tau"][epoch] == pytest.approx(target, rel=1e-6)
    assert not np.array_equal(load_pretrained(run)(images), before)
    content = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert cli.main(["pretrain", "--resume", "--workdir", str(run)]) == 0
    assert "finished before; nothing was changed" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == content

    # The other one needs the first no more once it has begun.
    run.rename(tmp_path / "moved")
    other = ["pretrain", "--resume", "--workdir", str(tmp_path / "other")]
    assert cli.main([*other, "--epochs", "2"]) == 0

    for checkpoint in (tmp_path / "other" / "checkpoints").iterdir():
        checkpoint.unlink()
    assert cli.main([*other, "--epochs", "3"]) == 2
    assert "has no checkpoint to go on from: start another one from its weights" in capsys.readouterr().err


def test_a_run_from_given_weights_has_their_network_channels_and_normalisation(tmp_path, capsys):
    for i in range(8):
        Image.fromarray(np.full((20, 20, 3), 9 * i, np.uint8)).save(tmp_path / f"{i}.png")
    given = ConfigDict({"data": {"path": str(tmp_path)}, "init": "r18_fashion"})
    found = config.completed(defaults.suited(given))
    config.check(found)
    assert (found.init, found.encoder.to_dict(), found.data.channels) == ("r18_fashion", {}, 1)
    np.testing.assert_allclose((found.views.mean[0], found.views.std[0]), (0.286, 0.353), rtol=1e-5)
    assert "encoder: that of r18_fashion, with its mean and std" in capsys.readouterr().out


def test_training_goes_on_from_a_pretrained_encoder_in_python():
    encoder = load_pretrained("r18_fashion")
    model = SSLHSIC(encoder, 8, 4, views=views.grayscale(28))
    images = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 1), np.uint8)
    np.testing.assert_allclose(
        model(images), encoder(images), rtol=1e-4, atol=1e-5
    )  # file: mean and std to 1e-6
    assert model.encoder.trainable_variables
    with pytest.raises(ValueError, match="reads images normalised by"):
        SSLHSIC(encoder, 8, 4, views=views.byol(28))
