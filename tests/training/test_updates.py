"""What moves, when, and over how many steps: schedules, frozen layers, accumulated gradients, losses of layers."""

import dataclasses
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC, callbacks, compat, losses, strategy, views
from keras_sslhsic.training import schedules

# Images are given as they are, but for their range.
# Mirrored: of views that are None, those of an image would be the same, and are refused.
PLAIN = dataclasses.replace(views.get(None), flip=1.0, mean=(0.5,) * 3, std=(0.5,) * 3)


def values(variables):
    return [v.value.numpy() for v in variables]


def moved(before, variables):
    return any(np.any(a != b) for a, b in zip(before, values(variables), strict=True))


class Taus(keras.callbacks.Callback):
    """Notes tau after every step."""

    def on_train_begin(self, logs=None):
        self.found = []

    def on_train_batch_end(self, batch, logs=None):
        self.found.append(logs["tau"])


# Schedules ----------------------------------------------------------------------------------------------------------


def expected(total, base=0.99):
    decay = schedules.TargetDecay(base, total)
    return [float(decay(step)) for step in range(total)]


@pytest.mark.slow
@pytest.mark.parametrize("between", ["nothing", "compile", "load"])
def test_every_fit_has_a_schedule_of_its_own(tiny_model, images, tmp_path, between):
    model, taus = tiny_model(), Taus()
    model.compile(LARS(0.5))
    for epochs in (2, 2, 1):
        before = values(model.target_variables)
        model.fit(images, batch_size=8, epochs=epochs, verbose=0, callbacks=[taus])
        np.testing.assert_allclose(taus.found, expected(3 * epochs), rtol=1e-6)
        assert moved(before, model.target_variables)
        if between == "compile":
            model.compile(LARS(0.5))
        elif between == "load":
            model.save(tmp_path / "model.keras")
            model = keras.models.load_model(tmp_path / "model.keras")
    assert int(model.step.numpy()) == 15


def test_another_fit_of_the_same_length_is_not_traced_anew(tiny_model, images):
    model = tiny_model()
    model.compile(LARS(0.5))
    functions = []
    for _ in range(2):
        model.fit(images, batch_size=8, verbose=0)
        functions.append(model.train_function)
    assert functions[0] is functions[1]


def test_what_initial_epoch_leaves_out_counts_as_trained(tiny_model, images):
    model, taus = tiny_model(), Taus()
    model.compile(LARS(0.5))
    model.fit(images, batch_size=8, epochs=4, initial_epoch=2, verbose=0, callbacks=[taus])
    np.testing.assert_allclose(taus.found, expected(12)[6:], rtol=1e-6)


@pytest.mark.slow
def test_a_second_fit_that_is_interrupted_goes_on_exactly(tiny_model, images, tmp_path):
    """Its schedule began where the first `fit` ended, and so does that of whoever goes on with it."""

    def fit(model, epochs):
        schedule = callbacks.TargetEMA()
        if epochs < 4:  # as if it were to make all four, and were killed
            schedule = type("Killed", (callbacks.TargetEMA,), {
                "set_params": lambda self, params: super(type(schedule), self).set_params(params | {"epochs": 4})
            })()  # fmt: skip
        model.fit(
            images,
            batch_size=8,
            epochs=epochs,
            verbose=0,
            callbacks=[schedule, callbacks.Checkpoint(tmp_path)],
        )

    ends = []
    for stops in ((4,), (2, 4)):
        model = tiny_model()
        model.compile(LARS(0.5))
        model.fit(images, batch_size=8, epochs=3, verbose=0)
        for epochs in stops:
            fit(model, epochs)
            again = tiny_model()
            again.compile(LARS(0.5))
            model = again if epochs < 4 else model
        ends.append(values([*model.weights, *model.optimizer.variables]))
        for file in tmp_path.iterdir():
            file.unlink()
    for first, second in zip(*ends, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("epochs", [(2, 1), pytest.param((3,), marks=pytest.mark.slow)])
def test_a_schedule_that_is_over_is_said_once(tiny_model, images, epochs):
    model = tiny_model()
    model.compile(LARS(schedules.warmup_cosine(0.5, 6, 2)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for count in epochs:
            model.fit(
                images, batch_size=8, epochs=count, verbose=0, callbacks=[callbacks.TargetEMA(total_steps=6)]
            )
    found = [str(w.message) for w in caught if "ends after 6 updates" in str(w.message)]
    # Of the line that calls `fit`: see `words.warn`.
    assert {w.filename for w in caught if "ends after 6 updates" in str(w.message)} == {__file__}
    assert len(found) == 2
    assert any(
        "TargetEMA(total_steps=6)" in m and "TargetEMA() to begin anew in each fit" in m for m in found
    )
    assert any("CosineDecay" in m and "has made 6" in m and "stays at 0" in m for m in found)


@pytest.mark.parametrize(
    "schedule, length",
    [
        (schedules.warmup_cosine(0.4, 100, 10), 100),
        (schedules.warmup_cosine(0.4, 100), 100),
        (keras.optimizers.schedules.CosineDecay(0.1, 7, warmup_steps=3), 7),
        (keras.optimizers.schedules.PolynomialDecay(0.1, 9), 9),
        (keras.optimizers.schedules.PolynomialDecay(0.1, 9, cycle=True), None),
        (keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.5), None),
        (0.1, None),
    ],
)
def test_length_of_a_schedule(schedule, length):
    assert schedules.length(schedule) == length
    if length is not None:
        assert float(schedule(length)) == float(schedule(10 * length))


# Frozen layers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_compile_reads_what_is_trainable(tiny_model, images, tmp_path):
    model = tiny_model(weight_ema=0.5)
    for frozen in (True, False, True):
        model.encoder.trainable = not frozen
        model.compile(LARS(0.5))
        slots = [v for v in model.optimizer.variables if v.path.endswith("momentum")]
        assert len(slots) == len(model.trained_variables) == 10 + 3 * (not frozen)
        assert [x.trainable for x in model.target_encoder.layers] == [not frozen] * 5
        assert not any(v.trainable for v in model.target_encoder.weights)
        assert len(model.target_variables) == 3 + 5
        parts = (model.encoder, model.target_encoder, model.ema_encoder)
        befores = [part.get_weights() for part in parts]
        model.fit(images, batch_size=8, verbose=0)
        for part, before in zip(parts[: 1 if frozen else 3], befores, strict=False):
            # Weights and statistics both: a frozen BatchNorm uses those that it has.
            assert [np.any(a != b) for a, b in zip(before, part.get_weights(), strict=True)] == [
                not frozen
            ] * 5
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [x.trainable for x in again.target_encoder.layers[1:]] == [False] * 4


def test_a_frozen_target_sees_what_the_frozen_encoder_sees(tiny_model, images):
    model = tiny_model()
    model.compile(LARS(0.5))
    model.fit(images, batch_size=8, verbose=0)
    model.target_encoder.set_weights(model.encoder.get_weights())
    model.encoder.trainable = False
    model.compile(model.optimizer)  # the optimizer knows more variables than are trained now
    x = views.prepare(images, model.policy)
    np.testing.assert_array_equal(model.encoder(x, training=True), model.target_encoder(x, training=True))
    before = model.encoder.get_weights()
    model.fit(images, batch_size=8, verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(before, model.encoder.get_weights(), strict=True))


# Accumulated gradients ----------------------------------------------------------------------------------------------


def accumulating(optimizer, wrapped, **arguments):
    optimizer = optimizer(0.5, gradient_accumulation_steps=2, **arguments)
    return keras.optimizers.LossScaleOptimizer(optimizer) if wrapped else optimizer


@pytest.mark.parametrize("wrapped", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("optimizer", [LARS, keras.optimizers.SGD])
def test_averages_follow_updates_of_the_weights(tiny_model, images, optimizer, wrapped):
    model = tiny_model(weight_ema=0.5)
    model.compile(accumulating(optimizer, wrapped))
    seen, rows = [], Taus()
    averages = [*model.target_variables, *model.ema_encoder.trainable_weights, model.encoder.layers[1].kernel]

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((values(averages), model._views(images[:8], model._seeds()[0])[0].numpy()))

    start = values(averages)
    model.fit(images, batch_size=8, epochs=2, verbose=0, callbacks=[Look(), rows])
    for step, (now, _) in enumerate(seen):
        before = seen[step - 1][0] if step else start
        assert np.any(now[0] != before[0]) == np.any(now[-1] != before[-1]) == (step % 2 == 1)
    # Three updates, of six steps: the schedule is over the updates.
    np.testing.assert_allclose(rows.found, np.repeat(expected(3), 2), rtol=1e-6)
    drawn = [view for _, view in seen]
    assert all(np.any(a != b) for i, a in enumerate(drawn) for b in drawn[:i])
    assert int(model.step.numpy()) == 6 and int(compat.updates(model.optimizer)) == 3


def test_a_step_that_a_loss_scale_skips_moves_no_average(tiny_model, images):
    model = tiny_model(weight_ema=0.5)
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=1e38))
    before = values([*model.target_variables, *model.encoder.trainable_weights])
    model.target_encoder.layers[1].kernel.assign_add(tf.ones([3, 3, 3, 6]))
    changed = model.target_encoder.layers[1].kernel.numpy()
    scale = float(model.optimizer.dynamic_scale.numpy())
    model.train_on_batch(images[:8])
    assert float(model.optimizer.dynamic_scale.numpy()) == scale / 2
    np.testing.assert_array_equal(model.target_encoder.layers[1].kernel, changed)
    assert not moved(before[-3:], model.encoder.trainable_weights)


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", [False, True])
def test_replicas_accumulate_as_one_device(wrapped, images):
    crops = tf.data.Dataset.from_tensor_slices({"view1": images, "view2": images[:, ::-1]}).batch(8, True)
    ends = []
    for count in (1, 2):
        with strategy(f"cpu:{count}").scope():
            model = small()
            model.compile(accumulating(LARS, wrapped, clipnorm=10.0), losses.SSLHSICLoss(num_features=32))
        start = values(model.weights)
        model.fit(crops.repeat(), epochs=1, steps_per_epoch=5, verbose=0)
        ends.append(values(model.weights))
        assert int(compat.updates(model.optimizer)) == 2
    for begin, one, two in zip(start, *ends, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-4 * np.max(np.abs(one - begin)) + 1e-5)


# Losses of layers ---------------------------------------------------------------------------------------------------


class AddsMean(keras.layers.Layer):
    """Adds the mean of its input, times a weight, to the loss."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        self.add_loss(3.0 * self.scale * tf.reduce_mean(x))
        return x


def small(regularizer=None, adds=False, **arguments):
    keras.utils.set_random_seed(1)
    x = pixels = keras.Input((None, None, 3))
    # Replicas take turns in being traced where moving statistics are averaged over them: with a loss added already.
    x = keras.layers.BatchNormalization()(AddsMean(trainable=True)(x)) if adds else x
    x = keras.layers.Conv2D(6, 3, padding="same", use_bias=False, kernel_regularizer=regularizer)(x)
    encoder = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x)))
    return SSLHSIC(encoder, 12, 8, views=PLAIN, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("replicas, adds", [(1, False), (1, True), (2, False), (2, True)])
def test_losses_of_layers_are_added_once(replicas, adds, images):
    """Against the same step without them: gradient and logged loss differ by exactly what the layers say."""
    crops = tf.data.Dataset.from_tensor_slices({"view1": images[:8], "view2": images[8:16]}).batch(8, True)
    kinds = {"without": {}, "with": {"regularizer": None if adds else keras.regularizers.L2(0.5)}}
    ends, logged = {}, {}
    for kind, arguments in kinds.items():
        with strategy(f"cpu:{replicas}").scope():
            model = small(adds=adds, **arguments)
            model.compile(keras.optimizers.SGD(1.0), losses.SSLHSICLoss(num_features=32))
        if adds and kind == "without":
            model.encoder.layers[1].scale.assign(0.0)
        conv = model.encoder.layers[-3]
        kernel = conv.kernel.value.numpy()
        logged[kind] = model.fit(crops, verbose=0).history["loss"][0]
        ends[kind] = model.encoder.layers[1].scale.value.numpy() if adds else conv.kernel.value.numpy()
    if adds:
        # Once a view: twice 3 times the mean over the global batch, which differs between the halves.
        pixels = 2 * (images[:16].astype("float32") / 255 - 0.5)
        expected = 3.0 * (pixels[:8].mean() + pixels[8:].mean())
        np.testing.assert_allclose([1.0 - ends["with"], 0.0 - ends["without"]], [expected] * 2, rtol=1e-4)
        assert logged["with"] - logged["without"] == pytest.approx(expected, rel=1e-4)
    else:
        np.testing.assert_allclose(ends["without"] - ends["with"], kernel, rtol=1e-4, atol=1e-5)
        assert logged["with"] - logged["without"] == pytest.approx(0.5 * np.sum(kernel**2), rel=1e-4)


@pytest.mark.parametrize("weight_ema", [pytest.param(None, marks=pytest.mark.slow), 0.9])
def test_evaluation_adds_what_layers_add(images, weight_ema):
    found = []
    for regularizer in (None, keras.regularizers.L2(0.5)):
        model = small(regularizer, weight_ema=weight_ema)
        model.compile(LARS(0.5), losses.SSLHSICLoss(num_features=32))
        found.append(model.evaluate(images, batch_size=8, return_dict=True, verbose=0)["loss"])
    kernel = model.encoder.layers[1].kernel.numpy()
    assert found[1] - found[0] == pytest.approx(0.5 * np.sum(kernel**2), rel=1e-4)


@pytest.mark.slow
def test_frozen_weights_are_not_regularized(images):
    found = []
    for regularizer in (None, keras.regularizers.L2(0.5)):
        model = small(regularizer)
        model.encoder.trainable = False
        model.compile(LARS(0.5), losses.SSLHSICLoss(num_features=32))
        found.append(model.fit(images, batch_size=8, verbose=0).history["loss"][0])
    assert found[0] == found[1]
