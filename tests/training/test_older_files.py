"""Files of version 0.1, made by it on another day: the model and the checkpoint of two epochs, and what a third one gave.

There the kernel scale belonged to the model; and the schedule of the learning rate was a class of its own.
"""

import shutil
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_sslhsic import LARS, SSLHSIC, callbacks, losses, views
from keras_sslhsic.hsic import kernels
from keras_sslhsic.training import checkpoint, older_files, schedules

FOLDER = Path(__file__).parents[1] / "data" / "version_0_1"
EXPECTED = np.load(FOLDER / "expected.npz")
X, Y = EXPECTED["x"], EXPECTED["y"]


@pytest.fixture(autouse=True)
def _no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def third_epoch(model, initial_epoch, *more):
    schedule = callbacks.TargetEMA(0.9, 12)
    model.fit(
        X, Y, batch_size=8, epochs=3, initial_epoch=initial_epoch, verbose=0, callbacks=[schedule, *more]
    )
    weights = [*model.encoder.weights, *model.target_encoder.weights, *model.projector.weights]
    # Two steps on another processor: as between replicas, a ten-thousandth of a move, and a bias moved by rounding alone.
    for index, weight in enumerate(weights):
        np.testing.assert_allclose(
            weight, EXPECTED[f"after{index}"], rtol=1e-4, atol=1e-5, err_msg=weight.path
        )
    assert float(model.objective.kernel_scale) == pytest.approx(
        float(EXPECTED["kernel_scale_after"]), rel=1e-4
    )


def new_model(loss=None):
    images = keras.Input((8, 8, 1))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, use_bias=False)(images))
    encoder = keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x)))
    model = SSLHSIC(encoder, 8, 4, views=views.grayscale(8), num_classes=4, weight_ema=0.9)
    loss = loss or losses.SSLHSICLoss(
        kernels.Gaussian(0.7), 1.0, num_features=32, kernel_optimizer=keras.optimizers.Adam(1e-2)
    )
    model.compile(LARS(schedules.warmup_cosine(0.5, 12, 2)), loss=loss)
    return model


@pytest.mark.parametrize("compiled", [True, False])
def test_a_model_has_its_features(compiled):
    model = keras.models.load_model(FOLDER / "model.keras", compile=compiled)
    np.testing.assert_allclose(model(X), EXPECTED["features"], rtol=1e-5, atol=1e-6)
    assert int(model.step.numpy()) == int(EXPECTED["step"]) == 4


def test_a_model_goes_on_with_its_kernel_scale_in_the_loss(tmp_path):
    model = keras.models.load_model(FOLDER / "model.keras")
    assert float(model.objective.kernel_scale) == EXPECTED["kernel_scale"] != np.float32(0.7)
    assert model.objective.kernel.scale == 0.7
    model.save(tmp_path / "model.keras")
    third_epoch(model, 2)
    # Saved again, it is a file of today.
    again = keras.models.load_model(tmp_path / "model.keras")
    assert not again._kernel_before and "kernel_scale" not in again.get_config()
    third_epoch(again, 2)


@pytest.mark.parametrize("number", [2, 1])
def test_training_goes_on_from_a_checkpoint(tmp_path, number):
    file = tmp_path / "checkpoint-000002.npz"
    shutil.copy(FOLDER / file.name, file)
    if number == 1:  # the same, as versions before 0.1 wrote it
        values = checkpoint._read(file)[1]
        groups = {}
        for name in values:
            groups.setdefault(name.split("/")[0], []).append(name)
        placed = {
            f"{group}/{i:04d}/any": values[name]
            for group, names in groups.items()
            for i, name in enumerate(names)
        }
        checkpoint._write(file, {"format": 1, "epoch": 2, "step": 4, "seed": 0}, placed)
    model = new_model()
    third_epoch(model, 0, callbacks.Checkpoint(tmp_path))
    assert checkpoint._read(callbacks.Checkpoint(tmp_path).files()[-1])[0]["format"] == 3


def test_a_checkpoint_has_no_scale_for_a_loss_without_one(tmp_path):
    shutil.copy(FOLDER / "checkpoint-000002.npz", tmp_path)
    model = new_model(losses.InfoNCELoss())
    assert callbacks.Checkpoint(tmp_path).restore(model) == 2
    assert int(model.step.numpy()) == 4


def test_scales_that_were_smaller_than_today_load():
    loss = {"config": {"kernel": {"class_name": "Gaussian", "config": {"scale": 1.0}}}}
    config = {"loss": loss, "kernel_optimizer": None}
    found = older_files.kernel_in_loss(config, {"kernel_scale": 1e-4, "learn_kernel_scale": False})
    assert found["loss"]["config"]["kernel"]["config"]["scale"] == kernels.MIN_SCALE
    assert found["loss"]["config"]["learn_kernel_scale"] is False
    assert loss["config"]["kernel"]["config"]["scale"] == 1.0


def test_the_schedule_of_before_is_that_of_keras():
    before = {
        "module": "keras_sslhsic.training.schedules",
        "class_name": "WarmupCosine",
        "registered_name": "keras_sslhsic>WarmupCosine",
        "config": {"peak": 0.5, "total_steps": 12, "warmup_steps": 2},
    }
    found = keras.saving.deserialize_keras_object(before)
    assert found.get_config() == schedules.warmup_cosine(0.5, 12, 2).get_config()
