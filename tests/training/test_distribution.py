"""Replicas against one device: the same weights, statistics and metrics after three steps."""

import dataclasses
import shutil
from itertools import zip_longest
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC, losses, strategy, views
from keras_sslhsic import callbacks as sslhsic_callbacks
from keras_sslhsic.training import state

# Images are given as they are, but for their range.
# Mirrored: of views that are None, those of an image would be the same, and are refused.
PLAIN = dataclasses.replace(views.get(None), flip=1.0, mean=(0.5,) * 3, std=(0.5,) * 3)
BATCH, STEPS = 8, 3


def encoder():
    images = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(6, 3, padding="same", use_bias=False)(images)
    x = keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x)
    x = keras.layers.ReLU()(x)
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))


def data(labels=True):
    """Batches whose halves differ, so that per-replica statistics are far from the global ones."""
    rng = np.random.default_rng(0)
    n = BATCH * STEPS
    brightness = np.linspace(0.2, 1.0, BATCH)[np.arange(n) % BATCH]
    # A colour for each image: noise alone would average out, and leave float32 nothing but rounding to normalise.
    colour = rng.uniform(0, 1, size=(1, n, 1, 1, 3)) * brightness[None, :, None, None, None]
    crops = np.clip(colour + rng.normal(0, 0.1, size=(2, n, 8, 8, 3)), 0, 1)
    batch = {"view1": crops[0].astype("float32"), "view2": crops[1].astype("float32")}
    if labels:
        batch["label"] = (np.arange(n) % 3).astype("int64")
    return tf.data.Dataset.from_tensor_slices(batch).batch(BATCH, drop_remainder=True)


class Run(NamedTuple):
    """Three steps: the variables after them, how far each one has moved at most, and the metrics."""

    paths: list[str]
    state: list[np.ndarray]
    moves: list[float]
    history: dict[str, list[float]]


def train(replicas, loss, target, rate=0.5, **compile_arguments):
    with strategy(f"cpu:{replicas}").scope():
        keras.utils.set_random_seed(1)
        model = SSLHSIC(encoder(), 12, 8, target=target, views=PLAIN, num_classes=3, weight_ema=0.9)
        model.compile(LARS(rate), loss=loss, **compile_arguments)
    start = [v.value.numpy() for v in [*model.weights, *model.objective.variables]]
    callbacks = [sslhsic_callbacks.TargetEMA(0.9)] if target else []
    history = model.fit(data(), epochs=1, verbose=0, callbacks=callbacks).history
    variables = [*model.weights, *model.objective.variables, *model.optimizer.variables]
    paths, state = [v.path for v in variables], [v.value.numpy() for v in variables]
    # What the optimizer holds starts at zero.
    moves = [
        np.max(np.abs(end - begin), initial=0.0) for end, begin in zip_longest(state, start, fillvalue=0.0)
    ]
    return Run(paths, state, moves, history)


def assert_same(found, expected):
    """Two runs of the same steps that add up in another order.

    A factor of the number of replicas, or statistics of one of them, would change a move by tenths of it. Rounding
    grows through the normalisations of three steps; a ten-thousandth is eight hundred times the spacing of float32.
    A bias before a batch normalisation is moved by rounding alone: 2^-24 of gradients near 1 in 32 rows, times the
    rate 0.5 and a momentum that has added up to 5.6, is below 1e-5.
    """
    for path, value, reference, move in zip(
        found.paths, found.state, expected.state, expected.moves, strict=True
    ):
        np.testing.assert_allclose(value, reference, rtol=0, atol=1e-4 * move + 1e-5, err_msg=path)
    assert found.history.keys() == expected.history.keys()
    for metric, value in expected.history.items():
        np.testing.assert_allclose(found.history[metric], value, rtol=1e-5, atol=1e-5, err_msg=metric)


LOSSES = {
    "features": lambda: losses.SSLHSICLoss(num_features=32),
    "exact": lambda: losses.SSLHSICLoss(num_features=None),
    "info_nce": lambda: losses.InfoNCELoss(),
}


@pytest.mark.parametrize("target", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_replicas_equal_one_device(replicas, name, target):
    assert_same(train(replicas, LOSSES[name](), target), train(1, LOSSES[name](), target))


def test_the_scale_of_the_gradient_is_that_of_the_global_batch():
    """With plain SGD and a step of one, the weights move by the gradient itself: a factor R would show."""
    moved = {}
    for replicas in (1, 2):
        with strategy(f"cpu:{replicas}").scope():
            keras.utils.set_random_seed(1)
            model = SSLHSIC(encoder(), 12, 8, target=False, views=PLAIN)
            model.compile(keras.optimizers.SGD(1.0), loss=losses.SSLHSICLoss(num_features=32))
        before = model.projector.layers[-2].kernel.value.numpy()
        history = model.fit(data(labels=False).take(1), verbose=0).history
        moved[replicas] = before - model.projector.layers[-2].kernel.value.numpy()
    assert np.abs(moved[1]).max() > 1e-3
    # A weight below 1 is rounded by up to 2^-25 on each side.
    np.testing.assert_allclose(moved[2], moved[1], rtol=0, atol=1e-4 * np.abs(moved[1]).max() + 2**-24)
    assert history["grad_norm"][0] > np.linalg.norm(moved[1])


@pytest.mark.slow
def test_lars_with_a_schedule():
    """The rate is that of the step on every replica, and so the weights are those of one device."""
    rate = keras.optimizers.schedules.CosineDecay(0.5, decay_steps=STEPS)
    one, two = (train(replicas, LOSSES["features"](), True, rate) for replicas in (1, 2))
    for run in (one, two):
        np.testing.assert_allclose(run.history["learning_rate"], float(rate(STEPS - 1)), rtol=1e-6)
    assert_same(two, one)


@pytest.mark.slow
def test_steps_per_execution_changes_nothing():
    one = train(1, LOSSES["features"](), True)
    many = train(1, LOSSES["features"](), True, steps_per_execution=3)
    for expected, found in zip(one.state, many.state, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    for metric, value in one.history.items():
        np.testing.assert_allclose(many.history[metric], value, rtol=1e-6, err_msg=metric)


@pytest.mark.slow
def test_steps_per_execution_changes_nothing_with_replicas():
    # Shapes are dynamic inside of the loop, so sums are taken in another order.
    one = train(2, LOSSES["features"](), True)
    assert_same(train(2, LOSSES["features"](), True, steps_per_execution=3), one)


@pytest.mark.parametrize("crops", [False, True])
def test_views_are_those_of_the_whole_batch_on_any_number_of_replicas(crops):
    policy = dataclasses.replace(views.byol(8), flip_vertical=0.5, rotation=90.0)
    images = tf.random.stateless_uniform([8, 16, 16, 3], [1, 2])
    drawn = {}
    for replicas in (1, 2, 4):
        with strategy(f"cpu:{replicas}").scope():
            model = SSLHSIC(encoder(), 12, 8, views=policy)
        machines = model.distribute_strategy

        @tf.function
        def draw(seed, model=model, share=8 // replicas):
            begin = share * tf.distribute.get_replica_context().replica_id_in_sync_group
            own = images[begin : begin + share]
            return model._views((own, own) if crops else own, seed)

        found = machines.run(draw, args=(tf.constant([3, 4]),))
        drawn[replicas] = [tf.concat(machines.experimental_local_results(view), 0) for view in found]
    for replicas in (2, 4):
        # Normalised by a standard deviation of 0.2; sums, such as those of a blur, are taken in another order.
        np.testing.assert_allclose(drawn[replicas], drawn[1], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_on_another_number_of_replicas(tmp_path):
    """The same images, views and results as where it began, whichever it was."""
    rng = np.random.default_rng(0)
    colour = rng.uniform(0, 255, (16, 1, 1, 3)) * np.tile(np.linspace(0.2, 1.0, 8), 2)[:, None, None, None]
    images = np.clip(colour + rng.normal(0, 25, (16, 10, 10, 3)), 0, 255).astype("uint8")

    def fit(replicas, directory):
        with strategy(f"cpu:{replicas}").scope():
            keras.utils.set_random_seed(1)
            model = SSLHSIC(encoder(), 12, 8, views=views.small_image(8), weight_ema=0.9)
            model.compile(LARS(0.5), loss=losses.SSLHSICLoss(num_features=32))
        start = state.arrays(state.variables(model))
        each = [sslhsic_callbacks.TargetEMA(0.9, 4), sslhsic_callbacks.Checkpoint(directory)]
        history = model.fit(images, batch_size=8, epochs=2, verbose=0, callbacks=each).history
        end = state.arrays(state.variables(model))
        return Run(
            [*end], [*end.values()], [np.max(np.abs(end[k] - start[k]), initial=0) for k in end], history
        )

    whole = {replicas: fit(replicas, tmp_path / str(replicas)) for replicas in (1, 2)}
    assert_same(whole[2], whole[1])
    for before, after in ((1, 2), (2, 1)):
        file = "checkpoint-000001.npz"
        (tmp_path / f"{before}{after}").mkdir()
        shutil.copy(tmp_path / str(before) / file, tmp_path / f"{before}{after}" / file)
        gone_on = fit(after, tmp_path / f"{before}{after}")
        assert {name: len(values) for name, values in gone_on.history.items()} == dict.fromkeys(
            whole[1].history, 1
        )
        second = {name: values[1:] for name, values in whole[1].history.items()}
        assert_same(gone_on, whole[before]._replace(history=second))


def test_xla_under_a_strategy_is_refused():
    with strategy("cpu:2").scope():
        model = SSLHSIC(encoder(), 12, 8, views=PLAIN)
        with pytest.raises(ValueError, match="jit_compile=True cannot be used under MirroredStrategy"):
            model.compile(jit_compile=True)
        model.compile()
    assert model.jit_compile is False


def test_a_batch_that_the_replicas_cannot_share_is_refused():
    with strategy("cpu:2").scope():
        model = SSLHSIC(encoder(), 12, 8, views=PLAIN)
        model.compile()
    dataset = data().unbatch().batch(7, drop_remainder=True)
    with pytest.raises(ValueError, match="global batch of 7 images cannot be shared by 2 replicas"):
        model.fit(dataset)
