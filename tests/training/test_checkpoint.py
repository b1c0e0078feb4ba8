"""Checkpoints: a killed run goes on as if it had not been."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from keras_sslhsic import LARS, callbacks, compat


def state(model):
    return [
        v.value.numpy()
        for v in [*model.weights, *model.optimizer.variables, *model.kernel_optimizer.variables]
    ]


@pytest.fixture
def compiled(tiny_model):
    def build(**arguments):
        model = tiny_model(weight_ema=0.9, num_classes=3, **arguments)
        model.compile(LARS(0.5))
        return model

    return build


def fit(model, images, labels, epochs, directory=None):
    extra = [callbacks.Checkpoint(directory)] if directory else []
    return model.fit(
        images,
        labels,
        batch_size=8,
        epochs=epochs,
        verbose=0,
        callbacks=[callbacks.TargetEMA(total_steps=12), *extra],
    )


def test_resumed_run_equals_the_uninterrupted_one(compiled, images, labels, tmp_path):
    whole = compiled()
    fit(whole, images, labels, 4)
    fit(compiled(), images, labels, 2, tmp_path)
    resumed = compiled()
    history = fit(resumed, images, labels, 4, tmp_path).history
    assert len(history["loss"]) == 2
    for expected, found in zip(state(whole), state(resumed), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_keeps_the_last_and_leaves_nothing_half_written(compiled, images, labels, tmp_path):
    fit(compiled(), images, labels, 4, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-000003.npz", "checkpoint-000004.npz"]


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty"])
def test_damaged_checkpoint_gives_way_to_the_one_before(compiled, images, labels, tmp_path, damage):
    fit(compiled(), images, labels, 2, tmp_path)
    newest = tmp_path / "checkpoint-000002.npz"
    content = bytearray(newest.read_bytes())
    if damage == "altered":
        content[::97] = bytes(byte ^ 0xFF for byte in content[::97])
    newest.write_bytes({"truncated": content[: len(content) // 2], "altered": content, "empty": b""}[damage])
    with pytest.warns(UserWarning, match="cannot be read .* the checkpoint before it"):
        assert callbacks.Checkpoint(tmp_path).restore(compiled()) == 1


def test_checkpoint_of_another_model_is_refused(compiled, tiny_model, images, labels, tmp_path):
    fit(compiled(), images, labels, 1, tmp_path)
    other = tiny_model(target=False)
    other.compile(LARS(0.5))
    with pytest.raises(ValueError, match="checkpoint of another model"):
        callbacks.Checkpoint(tmp_path).restore(other)
    other = compiled(projection_dim=9)
    with pytest.raises(ValueError, match=r"shape .* the model's has"):
        callbacks.Checkpoint(tmp_path).restore(other)


def test_a_bad_loss_is_not_saved(compiled, tmp_path):
    callback = callbacks.Checkpoint(tmp_path)
    callback.set_model(compiled())
    callback.on_epoch_end(0, {"loss": float("nan")})
    assert callback.files() == []
    callback.on_epoch_end(0, {"loss": 1.0})
    assert len(callback.files()) == 1


def test_workers_that_find_different_checkpoints_are_refused(compiled, tmp_path, monkeypatch):
    """As where each worker has a disk of its own: this one finds two epochs there, the other none."""
    callback = callbacks.Checkpoint(tmp_path)
    callback.save(compiled(), 2)
    monkeypatch.setattr(compat, "of_all_replicas", lambda strategy, epoch: [epoch, 0])
    with pytest.raises(
        ValueError,
        match=r"from different epochs, \[2, 0\]: this one found 2 in .*file system that they share",
    ):
        callback.restore(compiled())


PROGRAM = """
    import sys
    import keras, numpy as np
    from keras_sslhsic import LARS, SSLHSIC, callbacks, views

    keras.utils.set_random_seed(1)
    images = keras.Input((None, None, 3))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, use_bias=False)(images))
    encoder = keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x)))
    model = SSLHSIC(encoder, 8, 4, views=views.small_image(8))
    model.compile(LARS(0.5))
    data = np.random.default_rng(0).integers(0, 256, (64, 10, 10, 3)).astype("uint8")
    tell = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: print("batch", batch, flush=True))
    model.fit(data, batch_size=8, epochs=int(sys.argv[2]), verbose=0, callbacks=[callbacks.Checkpoint(sys.argv[1]), tell])
    np.savez(sys.argv[3], *[v.numpy() for v in model.weights])
"""


@pytest.mark.slow
def test_run_killed_at_any_moment(tmp_path):
    """SIGKILL after a number of batches that falls within an epoch, twice; then to the end."""
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    subprocess.run(
        [*program, tmp_path / "a", "4", tmp_path / "whole.npz"], check=True, stdout=subprocess.DEVNULL
    )
    for kill_after in (3, 13):
        process = subprocess.Popen(
            [*program, tmp_path / "b", "4", tmp_path / "none.npz"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(kill_after):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(
        [*program, tmp_path / "b", "4", tmp_path / "killed.npz"], check=True, stdout=subprocess.DEVNULL
    )
    assert not (tmp_path / "none.npz").exists()
    whole, killed = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "killed.npz")
    for name in whole.files:
        np.testing.assert_array_equal(killed[name], whole[name])
