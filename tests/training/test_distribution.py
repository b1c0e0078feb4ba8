"""Replicas against one device: the same weights, statistics and metrics after three steps."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC, losses, strategy, views
from keras_sslhsic import callbacks as sslhsic_callbacks

# Images are given as they are, but for their range.
PLAIN = dataclasses.replace(views.get(None), mean=(0.5,) * 3, std=(0.5,) * 3)
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


def train(replicas, loss, target, rate=0.5, **compile_arguments):
    with strategy(f"cpu:{replicas}").scope():
        keras.utils.set_random_seed(1)
        model = SSLHSIC(encoder(), 12, 8, target=target, views=PLAIN, num_classes=3, weight_ema=0.9)
        model.compile(LARS(rate), loss=loss, **compile_arguments)
    callbacks = [sslhsic_callbacks.TargetEMA(0.9)] if target else []
    history = model.fit(data(), epochs=1, verbose=0, callbacks=callbacks).history
    state = [
        v.value.numpy()
        for v in [*model.weights, *model.optimizer.variables, *model.kernel_optimizer.variables]
    ]
    return model, state, history


LOSSES = {
    "features": lambda: losses.SSLHSICLoss(num_features=32),
    "exact": lambda: losses.SSLHSICLoss(num_features=None),
    "info_nce": lambda: losses.InfoNCELoss(),
}


@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("replicas", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_replicas_equal_one_device(replicas, name, target):
    model, one, history = train(1, LOSSES[name](), target)
    _, many, distributed_history = train(replicas, LOSSES[name](), target)
    for variable, expected, found in zip(model.weights, one, many, strict=False):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=variable.path)
    for expected, found in zip(one, many, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert history.keys() == distributed_history.keys()
    for metric, value in history.items():
        np.testing.assert_allclose(distributed_history[metric], value, rtol=1e-5, atol=1e-5, err_msg=metric)


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
    np.testing.assert_allclose(moved[2], moved[1], rtol=1e-4, atol=1e-7)
    assert history["grad_norm"][0] > np.linalg.norm(moved[1])


def test_lars_with_a_schedule():
    """The rate is that of the step on every replica, and so the weights are those of one device."""
    rate = keras.optimizers.schedules.CosineDecay(0.5, decay_steps=STEPS)
    _, one, history = train(1, LOSSES["features"](), True, rate)
    _, many, distributed = train(2, LOSSES["features"](), True, rate)
    for found in (history, distributed):
        np.testing.assert_allclose(found["learning_rate"], float(rate(STEPS - 1)), rtol=1e-6)
    for expected, found in zip(one, many, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_steps_per_execution_changes_nothing():
    _, one, history = train(1, LOSSES["features"](), True)
    _, many, executed = train(1, LOSSES["features"](), True, steps_per_execution=3)
    for expected, found in zip(one, many, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    for metric, value in history.items():
        np.testing.assert_allclose(executed[metric], value, rtol=1e-6, err_msg=metric)


@pytest.mark.slow
def test_steps_per_execution_changes_nothing_with_replicas():
    _, one, _ = train(2, LOSSES["features"](), True)
    _, many, _ = train(2, LOSSES["features"](), True, steps_per_execution=3)
    # Shapes are dynamic inside of the loop, so sums are taken in another order.
    for expected, found in zip(one, many, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_replicas_draw_different_views():
    with strategy("cpu:2").scope():
        model = SSLHSIC(encoder(), 12, 8, views=views.small_image(8))

    @tf.function
    def draw(seed):
        images = tf.random.stateless_uniform([4, 16, 16, 3], [1, 2])
        return model._views(images, seed)[0]

    first, second = model.distribute_strategy.run(draw, args=(tf.constant([3, 4]),)).values
    assert not np.allclose(first, second)


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
