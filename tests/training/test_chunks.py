"""A batch in chunks against the same batch at once, whose BatchNorm sees chunks."""

import dataclasses
import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import SSLHSIC, methods, strategy, views
from keras_sslhsic.training import ema
from keras_sslhsic.training.chunks import Encoded

BATCH, RATE = 16, 0.05
POLICY = views.ViewPolicy(size=8)
# Mirrored: of views that are None, those of an image would be the same, and are refused.
PLAIN = dataclasses.replace(views.get(None), flip=1.0, mean=(0.5,) * 3, std=(0.5,) * 3)


def encoder(dropout=0.2, activity=1e-3):
    images = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(
        6, 3, padding="same", use_bias=False, kernel_regularizer=keras.regularizers.L2(1e-3)
    )(images)
    x = keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x)
    x = keras.layers.ReLU(activity_regularizer=keras.regularizers.L2(activity))(x)
    x = keras.layers.Dropout(dropout, seed=3)(x)
    return keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))


def trainer(method=SSLHSIC, chunks=1, network=encoder, policy=POLICY, **options):
    keras.utils.set_random_seed(1)
    model = method(network(), 12, 8, views=policy, num_classes=3)
    model.compile(keras.optimizers.SGD(RATE), chunks=chunks, **options)
    return model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    brightness = np.linspace(0.3, 1.0, BATCH)[:, None, None, None]
    return {
        "image": (brightness * rng.integers(0, 256, (BATCH, 12, 12, 3))).astype("uint8"),
        "label": np.arange(BATCH) % 3,
    }


def step_at_once(model, data, chunks):
    """One step by the definition: every chunk through the networks under one tape, and the loss of all of them."""
    variables, kept = model.trained_variables, ema.statistics(model)
    labels = tf.constant(data["label"], tf.int32)
    before = [v.numpy() for v in kept]
    view_seed, loss_seed = model._seeds()
    parts, after = [], []
    with tf.GradientTape() as tape:
        for number, images in enumerate(np.split(data["image"], chunks)):
            for variable, value in zip(kept, before, strict=True):
                variable.assign(value)
            parts.append(model._encode(images, (number, chunks), view_seed, training=True))
            after.append([v.numpy() for v in kept])
        hiddens = [part.hiddens for part in parts]
        target = None if hiddens[0].target is None else tf.concat([h.target for h in hiddens], 0)
        whole = hiddens[0]._replace(online=tf.concat([h.online for h in hiddens], 0), target=target)
        features = tf.concat([part.features for part in parts], 0)
        of_layers = tf.reduce_mean([part.of_layers for part in parts])
        loss, _ = model._measure(Encoded(whole, features, of_layers), labels, loss_seed)
    gradients = tape.gradient(loss, variables)
    statistics = [np.mean(values, axis=0) for values in zip(*after, strict=True)]
    return loss.numpy(), [v - RATE * g for v, g in zip(variables, gradients, strict=True)], statistics


def check_step(method, data, chunks=4):
    expected, weights, statistics = step_at_once(trainer(method), data, chunks)
    model = trainer(method, chunks, run_eagerly=True)
    start = [v.numpy() for v in model.trained_variables]
    found = model.train_on_batch(data, return_dict=True)
    assert found["loss"] + found["classifier_loss"] == pytest.approx(expected, rel=1e-5)
    for variable, wanted, first in zip(model.trained_variables, weights, start, strict=True):
        moved = np.abs(wanted - first).max()
        np.testing.assert_allclose(variable, wanted, rtol=0, atol=1e-5 * moved + 1e-6, err_msg=variable.path)
    for variable, wanted in zip(ema.statistics(model), statistics, strict=True):
        np.testing.assert_allclose(variable, wanted, rtol=1e-5, atol=1e-6, err_msg=variable.path)


def test_a_step_is_that_of_the_whole_batch(data):
    """Regularizers of weights and outputs, Dropout, the classifier and the moving statistics are among it."""
    check_step(SSLHSIC, data)


@pytest.mark.parametrize("replicas", [1, 2])
def test_without_batch_statistics_chunks_change_nothing(data, replicas):
    """Views, loss and its state are those of the whole batch, over several steps."""

    def network():
        images = keras.Input((8, 8, 3))
        x = keras.layers.ReLU()(keras.layers.Conv2D(6, 3)(images))
        return keras.Model(images, keras.layers.GlobalAveragePooling2D()(x))

    weights = {}
    for chunks in (1, 4):
        with strategy(f"cpu:{replicas}").scope():
            model = trainer(methods.MoCo, chunks, network, policy=views.small_image(8))
        start = [v.numpy() for v in model.trained_variables]
        model.fit(data, batch_size=BATCH, epochs=3, verbose=0)
        weights[chunks] = [v.value.numpy() for v in model.trained_variables]
    for first, whole, parts in zip(start, *weights.values(), strict=True):
        np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-4 * np.abs(whole - first).max() + 1e-6)


@pytest.mark.slow
def test_a_step_of_every_method(data):
    for name in methods.METHODS:
        check_step(methods.METHODS[name], data)


@pytest.mark.slow
def test_graph_and_xla_do_the_same(data):
    """Without Dropout, whose random numbers XLA draws otherwise."""
    without_dropout = functools.partial(encoder, dropout=0.0)
    kinds = {"eager": {"run_eagerly": True}, "graph": {"jit_compile": False}, "xla": {"jit_compile": True}}
    weights = {}
    for kind, options in kinds.items():
        model = trainer(chunks=2, network=without_dropout, **options)
        model.fit(data, batch_size=BATCH, verbose=0)
        weights[kind] = [v.numpy() for v in model.variables]
    for kind in ("graph", "xla"):
        for found, wanted in zip(weights[kind], weights["eager"], strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_replicas_take_their_chunks_together(data):
    """Two replicas with two chunks each: BatchNorm sees the first chunks of both, then the second ones.

    A regularizer of outputs, a sum over a chunk, would depend on its size.
    """
    network = functools.partial(encoder, dropout=0.0, activity=0.0)
    crops = {f"view{n}": data["image"][:, n : n + 8, n : n + 8] for n in (1, 2)} | {"label": data["label"]}
    quarters = np.split(np.arange(BATCH), 4)
    together = np.concatenate([quarters[place] for place in (0, 2, 1, 3)])
    given = {1: {name: values[together] for name, values in crops.items()}, 2: crops}
    models = []
    for replicas, batch in given.items():
        with strategy(f"cpu:{replicas}").scope():
            models.append(trainer(chunks=2, network=network, policy=PLAIN))
        models[-1].fit(tf.data.Dataset.from_tensors(batch), verbose=0)
    for one, two in zip(models[0].trained_variables, models[1].trained_variables, strict=True):
        np.testing.assert_allclose(two.value.numpy(), one.value.numpy(), rtol=0, atol=1e-5, err_msg=one.path)


@pytest.mark.slow
def test_half_precision_with_a_loss_scale(data):
    keras.config.set_dtype_policy("mixed_float16")
    try:
        wanted, _, _ = step_at_once(trainer(), data, 4)
        model = trainer(chunks=4)
        start = [v.numpy() for v in model.trained_variables]
        found = model.train_on_batch(data, return_dict=True)
    finally:
        keras.config.set_dtype_policy("float32")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    # Graph and eager mode round at other places; eight bits are left of float16's eleven over a network of four layers.
    assert found["loss"] + found["classifier_loss"] == pytest.approx(wanted, rel=2**-8)
    assert all(np.isfinite(v).all() for v in model.variables)
    assert any(np.any(v.numpy() != before) for v, before in zip(model.trained_variables, start, strict=True))


def test_what_does_not_divide_is_refused(data):
    for chunks in (3, 16):
        with pytest.raises(ValueError, match=f"chunks={chunks}"):
            trainer(chunks=chunks).fit(data, batch_size=BATCH, verbose=0)
    with pytest.raises(ValueError, match="chunks must be at least 1, found 0"):
        trainer(chunks=0)


class Counter(keras.layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x


def test_state_of_other_layers_is_refused(data):
    images = keras.Input((8, 8, 3))
    counting = keras.Model(images, keras.layers.GlobalAveragePooling2D()(Counter()(images)))
    with pytest.raises(ValueError, match=r"changes .*calls"):
        trainer(chunks=4, network=lambda: counting, run_eagerly=True).train_on_batch(data)


def test_a_loaded_model_goes_on_in_chunks(tmp_path):
    model = trainer(chunks=4)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").chunks == 4
