"""Checkpoints: a killed run goes on as if it had not been."""

import io
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import tracemalloc
import warnings
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC, callbacks, compat, lock, views
from keras_sslhsic.training import checkpoint
from keras_sslhsic.training import state as training_state


def state(model):
    return [v.value.numpy() for v in [*model.weights, *model.optimizer.variables, *model.objective.variables]]


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


@pytest.mark.parametrize("steps", [2, 4, 5, None])
def test_a_run_goes_on_with_the_batches_that_come_next(steps, tiny_model, images, tmp_path):
    """Also where an epoch is other than once through the images, of three batches."""

    def fit(epochs, *callbacks):
        model = tiny_model(target=False)  # whose average would follow the number of epochs
        model.compile("sgd")
        model.fit(
            images, batch_size=8, steps_per_epoch=steps, epochs=epochs, verbose=0, callbacks=[*callbacks]
        )
        return state(model)

    whole = fit(3)
    fit(1, callbacks.Checkpoint(tmp_path))
    for expected, found in zip(whole, fit(3, callbacks.Checkpoint(tmp_path)), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("behind", [0, 1])
def test_of_two_checkpoints_the_newer_is_gone_on_with(behind, tiny_model, images, tmp_path):
    """One may be an epoch behind the other, after a kill between them."""

    def fit(epochs):
        model = tiny_model()
        model.compile("sgd")
        both = [callbacks.Checkpoint(tmp_path / name) for name in "ab"]
        model.fit(images, batch_size=8, epochs=epochs, verbose=0, callbacks=both)
        return model

    fit(2)
    (tmp_path / "ab"[behind] / "checkpoint-000002.npz").unlink()
    assert int(fit(3).step.numpy()) == 9


def test_a_run_with_an_optimizer_whose_variables_have_no_names_goes_on(tiny_model, images, tmp_path):
    """Keras numbers those over the process."""
    for epochs in (1, 2):
        model = tiny_model()
        model.compile(keras.optimizers.Nadam())
        model.fit(images, batch_size=8, epochs=epochs, verbose=0, callbacks=[callbacks.Checkpoint(tmp_path)])
    assert int(model.step.numpy()) == 6


def test_an_average_that_a_callback_keeps_goes_on_as_well(tiny_model, images, tmp_path):
    def run(epochs, *extra):
        model = tiny_model()
        model.compile(LARS(0.5), run_eagerly=True)
        average = callbacks.WeightEMA(0.5)
        schedule = callbacks.TargetEMA(total_steps=6)
        model.fit(images, batch_size=8, epochs=epochs, verbose=0, callbacks=[*extra, schedule, average])
        return model

    run(1, callbacks.Checkpoint(tmp_path))
    resumed = run(2, callbacks.Checkpoint(tmp_path))
    for expected, found in zip(state(run(2)), state(resumed), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_keeps_the_last_and_leaves_nothing_half_written(compiled, images, labels, tmp_path):
    fit(compiled(), images, labels, 4, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-000003.npz", "checkpoint-000004.npz"]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param("truncated", marks=pytest.mark.slow),
        "altered",
        pytest.param("empty", marks=pytest.mark.slow),
    ],
)
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
    with pytest.raises(ValueError, match="seed 0, and the model has 1"):
        callbacks.Checkpoint(tmp_path).restore(compiled(seed=1))


@pytest.mark.slow
def test_other_images_than_those_of_the_checkpoint_are_refused(compiled, images, labels, tmp_path):
    fit(compiled(), images, labels, 1, tmp_path)
    with pytest.raises(ValueError, match="trained on 24 images, and there are 23 now"):
        fit(compiled(), images[:23], labels[:23], 2, tmp_path)
    for other in ((255 - images, labels), (images, 2 - labels)):
        with pytest.raises(
            ValueError, match=r"on other images: there are 24 too .* another directory to begin anew"
        ):
            fit(compiled(), *other, 2, tmp_path)
    # An earlier version did not note what it was trained on.
    file = tmp_path / "checkpoint-000001.npz"
    meta, values = checkpoint._read(file)
    del meta["data"]
    checkpoint._write(file, meta, values)
    assert len(fit(compiled(), 255 - images, labels, 2, tmp_path).history["loss"]) == 1


@pytest.fixture
def saved(compiled, tmp_path):
    """A checkpoint callback with the files of two epochs, different ones."""
    callback = callbacks.Checkpoint(tmp_path)
    model = compiled()
    callback.save(model, 1)
    model.encoder.layers[1].kernel.assign_add(tf.ones([3, 3, 3, 6]))
    callback.save(model, 2)
    return callback


@pytest.mark.slow
def test_any_damage_is_noticed(saved):
    """Bits flipped anywhere, and ends cut off: the newest is read as it was written, or the older one instead of it."""
    older, newest = saved.files()
    expected = {file: checkpoint._read(file) for file in (older, newest)}
    content = newest.read_bytes()
    rng = np.random.default_rng(0)
    read = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for trial in range(1500):
            damaged = bytearray(content)
            place = int(rng.integers(len(content)))
            if trial % 5:
                damaged[place] ^= 1 << int(rng.integers(8))
            else:
                del damaged[place:]
            newest.write_bytes(damaged)
            file, meta, values = saved._newest()
            assert meta == expected[file][0]
            assert values.keys() == expected[file][1].keys()
            assert all(np.array_equal(values[name], value) for name, value in expected[file][1].items())
            read.append(file)
    assert older in read


def write_zip(file, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def header(shape, dtype="<f4"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


@pytest.mark.parametrize("attack", ["shape", "objects", "bomb", "size"])
def test_a_file_of_a_stranger_takes_no_memory_and_runs_nothing(saved, attack, tmp_path):
    older, newest = saved.files()
    newest.unlink()
    if attack == "shape":
        write_zip(newest, {"a": header((2**40,))})
    elif attack == "objects":
        write_zip(newest, {"a": header((1,), "|O") + pickle.dumps(tmp_path)})
    elif attack == "bomb":
        write_zip(newest, {"a": header((2**24,)) + bytes(2**26)}, zipfile.ZIP_DEFLATED)
    else:  # the size of a member, in the directory at the end
        write_zip(newest, {"a": header((2**29,))})
        content = bytearray(newest.read_bytes())
        directory = content.rindex(b"PK\x01\x02")
        content[directory + 20 : directory + 28] = struct.pack("<II", 2**31, 2**31)
        newest.write_bytes(content)
    tracemalloc.start()
    with pytest.warns(UserWarning, match="cannot be read"):
        file, *_ = saved._newest()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert file == older
    assert peak < 2**24  # the least of what is asked for is 64 MB; the checkpoint has 20 kB


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_counts_as_no_checkpoint(saved, compiled, make):
    older = saved.files()[0]
    older.unlink()
    make(older)
    assert saved.restore(compiled()) == 2
    for epoch in (3, 4):
        saved.save(compiled(), epoch)
    assert [file.name[-5:] for file in saved.files()] == ["3.npz", "4.npz"]
    assert older.exists()


def test_without_a_whole_checkpoint_training_does_not_begin_anew(saved, compiled):
    for file in saved.files():
        file.write_bytes(file.read_bytes()[:-1])
    with (
        pytest.warns(UserWarning, match="cannot be read"),
        pytest.raises(ValueError, match=r"None of the 2 checkpoints in .* is whole\. .*remove"),
    ):
        saved.restore(compiled())


def test_a_renamed_file_is_passed_over_and_one_of_a_newer_version_stops(saved, compiled):
    older, newest = saved.files()
    newest.rename(newest.with_name("checkpoint-000003.npz"))
    with pytest.warns(UserWarning, match="it says that it is of epoch 2"):
        assert saved.restore(compiled()) == 1
    meta, values = checkpoint._read(older)
    checkpoint._write(newest, {**meta, "format": 4, "version": "9.0", "epoch": 3}, values)
    newest.rename(newest.with_name("checkpoint-000003.npz"))
    with pytest.raises(ValueError, match=r"newer version, 9\.0, and this is"):
        saved.restore(compiled())


def test_files_are_in_the_order_of_their_epochs(tmp_path):
    for epoch in (999_999, 1_000_000):
        (tmp_path / f"checkpoint-{epoch}.npz").touch()
    assert [file.name for file in callbacks.Checkpoint(tmp_path).files()] == [
        "checkpoint-999999.npz",
        "checkpoint-1000000.npz",
    ]


def two_layers(first, second):
    """A trainer on an encoder of two layers alike, made in this order."""
    layers = {name: keras.layers.Conv2D(3, 3, padding="same", name=name) for name in (first, second)}
    x = images = keras.Input((8, 8, 3))
    for layer in layers.values():
        x = layer(x)
    encoder = keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))
    model = SSLHSIC(encoder, 12, 8, views=views.small_image(8))
    model.compile(LARS(0.5))
    return model


def test_variables_are_matched_by_name(tmp_path):
    model, other = two_layers("a", "b"), two_layers("b", "a")
    for index, slot in enumerate(model.optimizer.variables):
        slot.assign(tf.fill(slot.shape, tf.cast(index, slot.dtype)))
    callbacks.Checkpoint(tmp_path).save(model, 1)
    callbacks.Checkpoint(tmp_path).restore(other)
    for name in ("a", "b"):
        for network in ("encoder", "target_encoder"):
            layers = [getattr(m, network).get_layer(name) for m in (model, other)]
            np.testing.assert_array_equal(*(layer.kernel for layer in layers))
        slots = [
            [v for v in m.optimizer.variables if v.path.endswith(f"/{name}_kernel_momentum")]
            for m in (model, other)
        ]
        np.testing.assert_array_equal(*slots)


def test_checkpoints_that_name_variables_by_their_places_are_read(compiled, tmp_path):
    """Format 1, as the model had its variables then: all that is trained, the kernel scale and counters, then the rest."""
    model = compiled()
    scale, *kernel_optimizer = model.objective.variables
    networks = [
        model.encoder, model.projector, model.predictor, model.classifier, model.target_encoder, model.target_projector,
        model.ema_encoder,
    ]  # fmt: skip
    of_model = [*model.online_variables, scale, model.step, model.first_faults]
    of_model += [
        v for network in networks for v in network.weights if all(v is not other for other in of_model)
    ]
    for index, variable in enumerate([*of_model, *model.optimizer.variables]):
        variable.assign(tf.fill(variable.shape, tf.cast(index, variable.dtype)))
    groups = {"model": of_model, "optimizer": model.optimizer.variables, "kernel_optimizer": kernel_optimizer}
    arrays = {
        f"{group}/{i:04d}/{v.path}": v.numpy() for group, vs in groups.items() for i, v in enumerate(vs)
    }
    meta = json.dumps({"epoch": 7, "step": 21, "seed": 0}).encode()
    np.savez(tmp_path / "checkpoint-000007.npz", **arrays, **{"meta.json": np.frombuffer(meta, np.uint8)})
    restored = compiled()
    assert callbacks.Checkpoint(tmp_path).restore(restored) == 7
    for expected, found in zip(state(model), state(restored), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_reordered_variables_of_one_shape_are_told_apart(compiled, tmp_path):
    """By place, both would be taken for each other without an error."""
    model, other = compiled(), compiled()
    model.projector.get_layer("hidden_bn").gamma.assign(np.arange(12.0))
    callback = callbacks.Checkpoint(tmp_path)
    callback.save(model, 1)
    weights = other.projector.get_layer("hidden_bn")._trainable_variables
    weights.reverse()
    assert [v.name for v in other.projector.get_layer("hidden_bn").trainable_weights] == ["beta", "gamma"]
    callback.restore(other)
    np.testing.assert_array_equal(other.projector.get_layer("hidden_bn").gamma, np.arange(12.0))


@pytest.fixture
def with_dropout():
    """() -> a compiled trainer whose encoder has two layers of Dropout."""

    def build():
        keras.utils.set_random_seed(1)
        x = images = keras.Input((None, None, 3))
        for filters in (6, 5):
            x = keras.layers.Dropout(0.5)(keras.layers.Conv2D(filters, 3, padding="same")(x))
        encoder = keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))
        model = SSLHSIC(encoder, 12, 8, views=views.small_image(8), weight_ema=0.9)
        model.compile(LARS(0.5))
        return model

    return build


@pytest.mark.slow
def test_dropout_goes_on_where_it_was(with_dropout, images, labels, tmp_path):
    whole = with_dropout()
    fit(whole, images, labels, 3)
    fit(with_dropout(), images, labels, 2, tmp_path)
    resumed = with_dropout()
    fit(resumed, images, labels, 3, tmp_path)
    for expected, found in zip(state(whole), state(resumed), strict=True):
        np.testing.assert_array_equal(found, expected)
    names = training_state.variables(whole)
    seeds = [f"model/encoder/{layer}/seed_generator_state" for layer in ("dropout", "dropout#1")]
    assert [name for name in names if "model/encoder" in name and "seed" in name] == seeds
    assert int(names[seeds[0]].numpy()[1]) > 0


def test_every_variable_is_in_a_checkpoint(with_dropout, tmp_path):
    model = with_dropout()
    held = [*model.variables, *model.optimizer.variables, *model.objective.variables]
    assert {id(v) for v in training_state.variables(model).values()} == {id(v) for v in held}


@pytest.mark.slow
def test_a_data_set_that_starts_again_is_warned_of(compiled, images, tmp_path):
    def again():
        return tf.data.Dataset.from_tensor_slices(images).batch(8, drop_remainder=True)

    def fit_to(epochs, x):
        model = compiled()
        model.fit(
            x, batch_size=8 if x is images else None, epochs=epochs, verbose=0,
            callbacks=[callbacks.Checkpoint(tmp_path), callbacks.TargetEMA(total_steps=12)],
        )  # fmt: skip

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "No labels came")
        fit_to(1, again())
    with pytest.warns(
        UserWarning, match=r"of epoch 1, and the data set starts again .* give arrays, or a data set of"
    ):
        fit_to(2, again())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "No labels came")
        fit_to(3, images)


@pytest.mark.parametrize("of", ["weights", "optimizer", "average"])
def test_weights_that_are_not_finite_are_not_saved(saved, compiled, of):
    model = compiled()
    variable = {
        "weights": model.projector.layers[-2].kernel,
        "optimizer": model.optimizer.variables[-1],
        "average": model.ema_encoder.layers[1].kernel,
    }[of]
    variable.assign(tf.fill(variable.shape, np.inf))
    saved.set_model(model)
    with pytest.raises(
        FloatingPointError,
        match=r"(kernel|momentum) became NaN or infinite in epoch 3, .*the last checkpoint is of epoch 2",
    ):
        saved.on_epoch_end(2, {"loss": 1.0})
    assert [file.name[-5:] for file in saved.files()] == ["1.npz", "2.npz"]


def test_a_checkpoint_of_weights_that_are_not_finite_is_passed_over(saved, compiled):
    meta, values = checkpoint._read(saved.files()[1])
    values["model/encoder/conv2d/kernel"] = np.full([3, 3, 3, 6], np.nan, "float32")
    checkpoint._write(saved.directory / "checkpoint-000003.npz", {**meta, "epoch": 3}, values)
    with pytest.warns(UserWarning, match="conv2d/kernel is not finite"):
        assert saved.restore(compiled()) == 2


def test_writers_at_the_same_time_disturb_no_file(compiled, tmp_path, monkeypatch):
    callback, model, savez = callbacks.Checkpoint(tmp_path), compiled(), np.savez

    def interrupted(*arguments, **arrays):
        monkeypatch.setattr(np, "savez", savez)
        callbacks.Checkpoint(tmp_path).save(model, 1)
        savez(*arguments, **arrays)

    monkeypatch.setattr(np, "savez", interrupted)
    callback.save(model, 1)
    assert os.listdir(tmp_path) == ["checkpoint-000001.npz"]
    assert callback.restore(model) == 1


def test_one_process_at_a_time_trains_into_a_directory(compiled, images, labels, tmp_path):
    with (
        lock.held(tmp_path / "a"),
        pytest.raises(lock.InUseError, match=f"a is in use by process {os.getpid()}"),
    ):
        fit(compiled(), images, labels, 1, tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_crops_that_are_not_finite_are_not_trained_on(tiny_model):
    crops = np.random.default_rng(0).random((24, 8, 8, 3), "float32")
    others = crops.copy()
    crops[17, 3, 4, 1] = np.nan  # not in the first batch, which is looked at before
    dataset = tf.data.Dataset.from_tensor_slices({"view1": crops, "view2": others})
    model = tiny_model()
    model.compile(LARS(0.5))
    with pytest.raises(ValueError, match="images or crops hold NaN or infinite values"):
        model.fit(dataset.batch(8, drop_remainder=True), epochs=1, verbose=0)
    assert all(np.isfinite(v).all() for v in state(model))
    with pytest.raises(ValueError, match="crops hold NaN or infinite values"):
        model.fit({"view1": crops, "view2": crops}, batch_size=8, verbose=0)


def test_a_bad_loss_is_not_saved(compiled, tmp_path):
    callback = callbacks.Checkpoint(tmp_path)
    callback.set_model(compiled())
    callback.on_epoch_end(0, {"loss": float("nan")})
    assert callback.files() == []
    callback.on_epoch_end(0, {"loss": 1.0})
    callback.on_train_end()
    assert len(callback.files()) == 1


@pytest.fixture
def held_up(monkeypatch):
    """An event: writing waits for it."""
    go_on, write = threading.Event(), checkpoint._write

    def waits(*arguments):
        assert go_on.wait(60)
        write(*arguments)

    monkeypatch.setattr(checkpoint, "_write", waits)
    return go_on


def test_training_goes_on_while_the_state_of_before_is_written(compiled, tmp_path, held_up):
    callback, model = callbacks.Checkpoint(tmp_path), compiled()
    before = training_state.arrays(training_state.variables(model))
    callback.set_model(model)
    callback.on_epoch_end(0, {"loss": 1.0})  # comes back though nothing is written yet
    assert os.listdir(tmp_path) == [] and callback.seconds > 0
    for variable in training_state.variables(model).values():
        variable.assign(tf.ones(variable.shape, variable.dtype))
    held_up.set()
    callback.on_train_end()
    _, values = checkpoint._read(tmp_path / "checkpoint-000001.npz")
    assert values.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(values[name], value)


def test_what_goes_wrong_with_a_file_is_raised_once(compiled, tmp_path, monkeypatch):
    callback, full = callbacks.Checkpoint(tmp_path), OSError("the disk is full")
    write = checkpoint._write

    def fails(*arguments):
        raise full

    callback.set_model(compiled())
    callback.on_epoch_end(0)
    monkeypatch.setattr(checkpoint, "_write", fails)
    for at_the_next in (True, False):
        callback.on_epoch_end(1)
        with pytest.raises(OSError, match="the disk is full"):
            callback.on_epoch_end(2) if at_the_next else callback.on_train_end()
    callback.on_epoch_end(1)
    with (
        pytest.raises(OSError, match="the disk is full"),  # also where something else ends `fit`
        callback.alone(callback.model),
    ):
        raise KeyboardInterrupt
    assert [file.name for file in callback.files()] == ["checkpoint-000001.npz"]
    monkeypatch.setattr(checkpoint, "_write", write)
    callback.on_epoch_end(1)
    callback.on_train_end()
    assert callback.epoch == 2


def test_an_exception_in_fit_waits_for_the_file(compiled, tmp_path, held_up):
    callback = callbacks.Checkpoint(tmp_path)
    callback.set_model(compiled())
    with pytest.raises(KeyboardInterrupt), callback.alone(callback.model):
        callback.on_epoch_end(0)
        threading.Timer(0.1, held_up.set).start()
        raise KeyboardInterrupt
    assert [file.name for file in callback.files()] == ["checkpoint-000001.npz"]


def test_the_best_stays_beside_the_last_and_is_known_after_a_restart(compiled, tmp_path):
    model = compiled()

    def epochs(callback, numbered):
        callback.set_model(model)
        for epoch, accuracy in numbered.items():
            model.encoder.layers[1].kernel.assign(tf.fill([3, 3, 3, 6], float(epoch)))
            # Probes do not measure in every epoch.
            callback.on_epoch_end(epoch - 1, {"loss": 1.0} | ({"knn_top1": accuracy} if accuracy else {}))
        callback.on_train_end({"loss": 1.0})
        return [file.name[-5] for file in callback.files()]

    def best():
        return callbacks.Checkpoint(tmp_path, keep=1, best="knn_top1")

    with pytest.warns(UserWarning, match="No epoch has logged 'knn_top1', .* the logs hold loss"):
        assert epochs(best(), {1: None}) == ["1"]
    assert epochs(best(), {2: 0.5, 3: 0.75, 4: 0.75, 5: float("nan"), 6: None}) == ["3", "6"]
    again = best()
    assert again.restore(model) == 6 and again.best_epoch == 3
    assert epochs(again, {7: 0.7, 8: None}) == ["3", "8"]
    assert again.restore_best(model) == 3
    np.testing.assert_array_equal(model.encoder.layers[1].kernel, np.full([3, 3, 3, 6], 3.0))
    # So does an object that has neither trained nor restored.
    assert again.restore(model) == 8
    new = best()
    assert new.restore_best(model) == 3 and (new.best_epoch, new.best_value) == (3, 0.75)
    np.testing.assert_array_equal(model.encoder.layers[1].kernel, np.full([3, 3, 3, 6], 3.0))
    assert best().restore(model) == 8 and callbacks.Checkpoint(tmp_path).restore_best(model) == 0
    np.testing.assert_array_equal(model.encoder.layers[1].kernel, np.full([3, 3, 3, 6], 8.0))
    assert epochs(again, {9: 0.8}) == ["9"]
    # Another measure has no best yet, and without one the newest alone stay.
    other = callbacks.Checkpoint(tmp_path, best="online_accuracy")
    assert other.restore(model) == 9 and other.best_epoch is None and other.restore_best(model) == 0
    assert epochs(callbacks.Checkpoint(tmp_path), {10: 0.9, 11: 0.1, 12: 0.1}) == ["1", "2"]
    # A best file that is gone is said, not passed over.
    assert again.best_epoch == 9
    with pytest.raises(ValueError, match=r"9\.npz, the best checkpoint, cannot be read: .* Take the last"):
        again.restore_best(model)


def test_the_best_loss_is_the_least(compiled, tmp_path):
    model, losses = compiled(), {1: 3.0, 2: 1.0, 3: 2.0}
    callback = callbacks.Checkpoint(tmp_path, keep=1, best="val_loss")
    callback.set_model(model)
    for epoch, loss in losses.items():
        callback.on_epoch_end(epoch - 1, {"val_loss": loss})
    callback.on_train_end({"val_loss": 2.0})
    assert (callback.best_epoch, callback.best_value) == (2, 1.0)
    again = callbacks.Checkpoint(tmp_path, keep=1, best="val_loss")
    assert again.restore(model) == 3 and again.restore_best(model) == 2


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
