"""The trainer as a Keras model: inputs, reproducibility, serialisation, precision, errors."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_sslhsic
from keras_sslhsic import LARS, SSLHSIC, callbacks, compat, losses, methods, views
from keras_sslhsic.data import from_arrays
from keras_sslhsic.data.images import unpack
from keras_sslhsic.hsic import kernels
from keras_sslhsic.training.monitor import Monitor

OF_LOSS = {"hsic_zy", "hsic_zz", "dependence_ratio", "mmd_to_uniform"}
OF_OUTPUTS = {"feature_std", "effective_rank", "off_centre", "alignment"}
METRICS = {"loss", "kernel_scale", "tau", "learning_rate", "grad_norm", *OF_LOSS, *OF_OUTPUTS}


def state(model):
    return [v.value.numpy() for v in [*model.weights, *model.optimizer.variables, *model.objective.variables]]


def assert_same(first, second, **tolerance):
    for a, b in zip(first, second, strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("target", [True, False])
def test_fit_reports_every_metric(tiny_model, images, labels, target):
    model = tiny_model(target=target, num_classes=3)
    model.compile(LARS(0.1))
    history = model.fit(images, labels, batch_size=8, epochs=2, verbose=0).history
    expected = METRICS | {"online_accuracy", "classifier_loss"} - (set() if target else {"tau"})
    assert set(history) == (expected if target else expected - {"tau"})
    assert all(np.all(np.isfinite(values)) and len(values) == 2 for values in history.values())
    assert int(model.step.numpy()) == 6


@pytest.mark.parametrize(
    "form", ["array", "dict of arrays", "dataset of dicts", "bare batches", "pairs", "crops"]
)
def test_every_form_of_input(tiny_model, images, labels, form):
    batched = lambda data: tf.data.Dataset.from_tensor_slices(data).batch(8, drop_remainder=True)  # noqa: E731
    x, y = {
        "array": lambda: (images, labels),
        "dict of arrays": lambda: ({"image": images, "label": labels}, None),
        "dataset of dicts": lambda: (batched({"image": images, "label": labels}), None),
        "bare batches": lambda: (batched(images), None),
        "pairs": lambda: (batched((images, labels)), None),
        "crops": lambda: (batched({"view1": images, "view2": images, "label": labels}), None),
    }[form]()
    model = tiny_model(num_classes=3)
    model.compile(LARS(0.1))
    history = model.fit(
        x, y, batch_size=8 if y is not None or isinstance(x, dict) else None, verbose=0
    ).history
    assert np.isfinite(history["loss"][0])
    trained = np.any(model.classifier.get_weights()[1] != 0)
    assert trained == (form != "bare batches")


@pytest.mark.slow
def test_same_seed_same_run_other_seed_other_run(tiny_model, images):
    runs = []
    for seed in (0, 0, 1):
        model = tiny_model(seed=seed)
        model.compile(LARS(0.5))
        model.fit(images, batch_size=8, epochs=2, verbose=0)
        runs.append(state(model))
    assert all(np.array_equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))


def test_views_change_with_the_step(tiny_model, images):
    model = tiny_model()
    seen = []
    for step in (0, 0, 1):
        model.step.assign(step)
        seen.append(model._views(images[:4], model._seeds()[0])[0].numpy())
    assert np.array_equal(seen[0], seen[1]) and not np.allclose(seen[0], seen[2])


def test_target_follows_and_predictor_is_only_online(tiny_model, images):
    model = tiny_model()
    model.compile(keras.optimizers.SGD(1.0))
    model.target_decay = keras_sslhsic.training.schedules.TargetDecay(0.75)
    before = [v.numpy() for v in model.target_variables]
    model.train_on_batch(images[:8])
    for old, new, online in zip(before, model.target_variables, model.target_sources, strict=True):
        np.testing.assert_allclose(new.numpy(), 0.75 * old + 0.25 * online.numpy(), rtol=1e-5, atol=1e-6)
    # Statistics are the target's own: it sees the same views, so after one step they equal the online ones.
    online = model.encoder.layers[2].moving_mean.numpy()
    np.testing.assert_allclose(model.target_encoder.layers[2].moving_mean.numpy(), online, rtol=1e-5)
    assert tiny_model(target=False).predictor is None


def test_weight_average(tiny_model, images):
    model = tiny_model()
    model.compile(keras.optimizers.SGD(1.0))
    before = model.encoder.layers[1].kernel.numpy()
    model.fit(images[:8], batch_size=8, verbose=0, callbacks=[callbacks.WeightEMA(0.9)])
    after = model.encoder.layers[1].kernel.numpy()
    assert model.evaluation_encoder is model.ema_encoder
    np.testing.assert_allclose(
        model.ema_encoder.layers[1].kernel.numpy(), 0.9 * before + 0.1 * after, rtol=1e-5
    )
    np.testing.assert_array_equal(
        model.ema_encoder.layers[2].moving_variance.numpy(), model.encoder.layers[2].moving_variance.numpy()
    )


def test_features_of_images(tiny_model, images):
    model = tiny_model()
    expected = model.encoder(views.prepare(images, model.policy))
    batched = from_arrays(images, np.arange(24), batch_size=8, shuffle=False).batches(epochs=1)
    for given in (images, {"image": images}, batched):
        np.testing.assert_allclose(model.predict(given, verbose=0), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model({"image": images}), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("target", [True, False])
def test_saved_model_goes_on_with_the_same_numbers(tiny_model, images, labels, tmp_path, target):
    arguments = {"target": target, "num_classes": 3, "weight_ema": 0.9, "seed": 5, "batch_norm_output": True}
    model = tiny_model(**arguments)
    model.compile(LARS(0.5, momentum=0.8), loss=losses.SSLHSICLoss("gaussian", gamma=2.0, num_features=16))
    schedule = [callbacks.TargetEMA(0.9, total_steps=12)] if target else []
    model.fit(images, labels, batch_size=8, epochs=2, verbose=0, callbacks=schedule)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    configs = [one.get_config() for one in (again, model)]
    for config in configs:
        config.pop("encoder")  # equal but for lists that JSON made of tuples; its weights are compared
    assert configs[0] == configs[1]
    assert again.get_compile_config() == model.get_compile_config()
    assert_same(state(again), state(model), rtol=0)
    for one in (model, again):
        one.fit(images, labels, batch_size=8, epochs=4, initial_epoch=2, verbose=0, callbacks=schedule)
    assert_same(state(again), state(model), rtol=1e-6, atol=1e-7)


@pytest.fixture
def swav(tiny_encoder):
    """A compiled model whose loss has a large state, prototypes that the optimizer trains."""
    model = methods.SwAV(tiny_encoder(), 12, 8, views=views.small_image(8))
    model.compile("sgd", losses.SwAVLoss(num_prototypes=6, frozen_steps=0), run_eagerly=True)
    return model


def test_weights_that_are_put_back_bring_the_state_of_the_loss(swav, images):
    back = keras.callbacks.EarlyStopping("step", mode="min", patience=1, restore_best_weights=True)
    kept = []

    class Keep(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs):
            logs["step"] = int(self.model.step.numpy())
            kept.append([v.numpy() for v in [*self.model.trained_variables, self.model.step]])

    swav.fit(images, batch_size=8, epochs=2, verbose=0, callbacks=[Keep(), back])
    assert all(np.any(first != last) for first, last in zip(*kept, strict=True))
    assert_same([*swav.trained_variables, swav.step], kept[0], rtol=0)


def test_weights_go_between_models_of_which_one_is_not_compiled(swav):
    other = methods.SwAV.from_config(swav.get_config())
    other.set_weights(swav.get_weights())
    assert_same(other.get_weights(), swav.get_weights()[: len(other.weights)], rtol=0)
    prototypes = [v.numpy() for v in swav.objective.variables]
    other.encoder.layers[1].kernel.assign_add(np.ones([3, 3, 3, 6]))
    swav.set_weights(other.get_weights())
    np.testing.assert_array_equal(swav.encoder.layers[1].kernel, other.encoder.layers[1].kernel)
    assert_same(swav.objective.variables, prototypes, rtol=0)
    with pytest.raises(ValueError, match="weight list of length"):
        other.set_weights(other.get_weights()[:-1])


def test_averages_of_an_optimizer_reach_what_it_trains(swav):
    # At the end of `fit` Keras puts them into `trainable_weights`, in the order in which the optimizer has them.
    assert list(map(id, swav.trainable_weights)) == list(map(id, swav.trained_variables))


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_save_that_fails_leaves_the_file_of_before(name, tiny_model, tmp_path, monkeypatch):
    """By hand, and as `ModelCheckpoint` calls it."""
    model, file = tiny_model(), tmp_path / name
    save = model.save if name.endswith("keras") else model.save_weights
    save(file)
    before = file.read_bytes()

    def full(store):
        raise OSError("No space left on device")

    monkeypatch.setattr(model, "save_own_variables", full)
    for options in ({}, {"overwrite": True}):
        with pytest.raises(OSError, match="No space left"):
            save(file, **options)
        assert file.read_bytes() == before and [path.name for path in tmp_path.iterdir()] == [name]


def test_a_loss_scale_of_ones_own_is_saved(tiny_model, images, tmp_path):
    model = tiny_model()
    model.compile(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=64.0), run_eagerly=True
    )
    model.fit(images, batch_size=8, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    assert_same(again.optimizer.variables, model.optimizer.variables, rtol=0)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("later", ["mixed_float16", "float32"])
def test_the_loss_is_scaled_where_networks_compute_in_float16(scaled, later, tiny_model, tmp_path):
    """Whatever the policy is when the model is compiled, or loaded."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = tiny_model()
        keras.config.set_dtype_policy(later)
        model.compile("sgd", auto_scale_loss=scaled)
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
    finally:
        keras.config.set_dtype_policy("float32")
    for each in (model, again):
        assert isinstance(each.optimizer, keras.optimizers.LossScaleOptimizer) == scaled
    assert_same(again.optimizer.variables, model.optimizer.variables, rtol=0)


@pytest.mark.parametrize("policies", [("mixed_bfloat16", "float32"), ("float32", "mixed_float16")])
@pytest.mark.parametrize("method", methods.METHODS)
def test_every_layer_computes_after_loading_as_before(method, policies, tiny_encoder, tmp_path):
    """Whatever the policy of the moment is."""
    saved, later = policies
    keras.config.set_dtype_policy(saved)
    try:
        heads = {"projector_hidden": 12, "projection_dim": 8}
        model = methods.METHODS[method](tiny_encoder(), views="small_image", num_classes=3, **heads)
        model.save(tmp_path / "model.keras")
        keras.config.set_dtype_policy(later)
        again = keras.models.load_model(tmp_path / "model.keras")
        assert keras.config.dtype_policy().name == later
    finally:
        keras.config.set_dtype_policy("float32")
    before, after = (
        [compat.precisions(layer) for layer in compat.every_layer(each)] for each in (model, again)
    )
    assert before == after
    assert compat.precisions(again) == {"float32", saved.removeprefix("mixed_")}


def test_checkpoints_of_tensorflow_hold_the_state_of_the_loss(tiny_model, images, tmp_path):
    models = [tiny_model(), tiny_model()]
    for model in models:
        model.compile("sgd")
    models[0].fit(images, batch_size=8, verbose=0)
    path = tf.train.Checkpoint(model=models[0]).save(tmp_path / "checkpoint")
    assert not np.array_equal(*(model.objective.variables[0].numpy() for model in models))
    tf.train.Checkpoint(model=models[1]).restore(path).assert_consumed()
    assert_same(state(models[0]), state(models[1]), rtol=0)


@pytest.mark.parametrize("seed", [-1, 2**40 + 3])
def test_any_integer_is_a_seed(tiny_model, images, seed):
    ends = []
    for one in (seed, seed % 2**32):
        model = tiny_model(seed=one)
        model.compile("sgd", run_eagerly=True)
        model.fit(images, batch_size=8, verbose=0)
        ends.append(model.get_weights())
    assert_same(*ends, rtol=0)


def test_every_argument_is_in_the_config(tiny_model):
    import inspect

    for cls in (SSLHSIC, methods.Method):
        arguments = set(inspect.signature(cls.__init__).parameters) - {"self", "options", "kwargs"}
        assert arguments <= set(tiny_model().get_config())


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_is_close_to_float32(tiny_model, images, policy):
    ends = {}
    for precision in ("float32", policy):
        keras.mixed_precision.set_dtype_policy(precision)
        model = tiny_model(weight_ema=0.9)
        model.compile(LARS(0.2))
        history = model.fit(images, batch_size=8, epochs=17, verbose=0).history
        assert np.all(np.isfinite(history["loss"]))
        assert all(v.dtype in ("float32", "int64") for v in model.weights)
        ends[precision] = history
    assert ends[policy]["loss"][0] == pytest.approx(ends["float32"]["loss"][0], abs=0.02)
    assert ends[policy]["loss"][-1] == pytest.approx(ends["float32"]["loss"][-1], abs=0.05)


def test_validation_data(tiny_model, images):
    model = tiny_model()
    model.compile(LARS(0.1))
    before = [w.copy() for w in model.encoder.get_weights()]
    held_out = from_arrays(images, batch_size=8).batches(epochs=1)
    result = model.evaluate(held_out, return_dict=True, verbose=0)
    assert np.isfinite(result["loss"])
    assert_same(model.encoder.get_weights(), before, rtol=0)


def test_names_and_numbers_of_an_evaluation_line_up(tiny_model, images, labels):
    model = tiny_model(num_classes=3)
    model.compile(LARS(0.1))
    for given in (labels, None):
        numbers = model.evaluate(images, given, batch_size=8, verbose=0)
        named = dict(zip(model.metrics_names, numbers, strict=True))
        expected = model.evaluate(images, given, batch_size=8, return_dict=True, verbose=0)
        assert named.keys() == expected.keys()
        assert named["effective_rank"] == pytest.approx(expected["effective_rank"], rel=1e-3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda x: x[..., :1], "repeat the channel"),
        (lambda x: x[0], r"give one image as x\[np.newaxis\]"),
        (lambda x: x[:1], "at least 2 images in a batch, found 1"),
        (lambda x: np.full(x.shape, np.nan, "float32"), "with NaN"),
        (lambda x: tf.data.Dataset.from_tensor_slices(x[..., :1]).batch(8), "repeat the channel"),
        (lambda x: tf.data.Dataset.from_tensor_slices(x / np.float32("nan")).batch(8), "hold NaN"),
    ],
)
def test_images_that_cannot_be_evaluated(tiny_model, images, given, message):
    model = tiny_model()
    model.compile(LARS(0.1))
    with pytest.raises(ValueError, match=message):
        model.evaluate(given(images), batch_size=8, verbose=0)
    if isinstance(given(images), tf.data.Dataset):
        with pytest.raises(ValueError, match=message):
            model.predict(given(images), verbose=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_labels_of_any_type_and_in_a_column(tiny_model, images, labels, kind):
    model = tiny_model(num_classes=3)
    model.compile(LARS(0.1))
    column = labels[:, None].astype(kind if kind == "uint8" else "int64")
    expected = model.fit(images, labels, batch_size=8, shuffle=False, verbose=0).history
    assert "online_accuracy" in expected
    assert "online_accuracy" in model.fit(images, column, batch_size=8, verbose=0).history
    pairs = tf.data.Dataset.from_tensor_slices((images, labels.astype(kind))).batch(8, drop_remainder=True)
    assert "online_accuracy" in model.fit(pairs, verbose=0).history


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
def test_logs_hold_what_has_a_value(tiny_model, images, labels, eager):
    model = tiny_model(num_classes=3)
    model.compile(LARS(0.1), run_eagerly=eager)
    validation = {"loss", *OF_LOSS, *OF_OUTPUTS}
    classifier = {"classifier_loss", "online_accuracy"}
    for given, shown in ((labels, classifier), (None, set()), (labels, classifier)):
        held_out = from_arrays(images, given, batch_size=8).batches(epochs=1)
        history = model.fit(
            images, given, batch_size=8, epochs=2, validation_data=held_out, verbose=0
        ).history
        assert set(history) == METRICS | shown | {f"val_{name}" for name in validation | shown}
        assert all(len(values) == 2 for values in history.values())
        result = model.evaluate(held_out, return_dict=True, verbose=0)
        assert result["loss"] == pytest.approx(history["val_loss"][-1], rel=1e-5)


def test_info_nce_shows_its_own_metrics(tiny_model, images):
    model = tiny_model()
    model.compile(LARS(0.1), loss=losses.InfoNCELoss())
    history = model.fit(images, batch_size=8, verbose=0).history
    assert set(history) == METRICS - OF_LOSS - {"kernel_scale"}


def test_kernel_scale_stays_when_it_is_not_learnt(tiny_model, images):
    model = tiny_model()
    model.compile(LARS(0.1), losses.SSLHSICLoss(kernels.InverseMultiquadric(0.5), learn_kernel_scale=False))
    history = model.fit(images, batch_size=8, verbose=0).history
    assert history["kernel_scale"] == [0.5]


@pytest.mark.parametrize("num_features", [8, None])
def test_the_scale_of_a_linear_kernel_is_not_learnt(tiny_model, images, num_features):
    model = tiny_model()
    model.compile(
        LARS(0.1),
        loss=losses.SSLHSICLoss(
            "linear", num_features=num_features, kernel_optimizer=keras.optimizers.SGD(1.0)
        ),
    )
    history = model.fit(images, batch_size=8, epochs=2, verbose=0).history
    assert history["kernel_scale"] == [1.0, 1.0]


@pytest.mark.parametrize("kernel", ["imq", "gaussian"])
def test_no_scale_reaches_zero(tiny_model, images, kernel):
    """Far too large a step towards 0 ends at the smallest scale, from where the next steps lead up again."""
    model = tiny_model()
    loss = losses.SSLHSICLoss(kernel, num_features=8, kernel_optimizer=keras.optimizers.SGD(1e4))
    model.compile(LARS(0.1), loss=loss)
    collapsed = tf.ones([4, 2, 8])
    loss.update(losses.Hiddens(collapsed))  # all distances are 0, and so is the best scale
    assert float(loss.kernel_scale) == np.float32(kernels.MIN_SCALE)
    spread = tf.random.stateless_normal([4, 2, 8], [1, 2])
    # The Gaussian is flat there, but for pairs of a row with itself: only for the other does the entropy rise with c.
    if kernel == "imq":
        loss.learnt_scale.optimizer.learning_rate = 1e-4
        loss.update(losses.Hiddens(spread))
        assert float(loss.kernel_scale) > kernels.MIN_SCALE
    assert np.isfinite(model.fit(images, batch_size=8, verbose=0).history["loss"][0])


# Objectives and methods ---------------------------------------------------------------------------------------------


class Logs(losses.Objective):
    """A loss with names of its own, a queue as its state, and a trained variable."""

    needs_target = needs_predictor = None
    latest = ("filled",)

    def build(self, size):
        self.queue = keras.Variable(tf.zeros([6, size]), trainable=False, name="queue")
        self.weight = keras.Variable(tf.ones([size]), trainable=True, name="weight")

    @property
    def variables(self):
        return [self.queue, self.weight] if self.owner else []

    def terms(self, hiddens, seed):
        z = hiddens.online * self.weight
        spread = tf.math.reduce_std(z, axis=0)
        return {"loss": tf.reduce_mean(tf.nn.relu(1.0 - spread)), "odd_name": tf.constant(2.0)}

    def update(self, hiddens):
        self.queue.assign(tf.concat([hiddens.online[:, 0], self.queue.value], axis=0)[:6])
        filled = tf.reduce_sum(tf.cast(tf.reduce_any(self.queue.value != 0.0, axis=1), tf.float32))
        return {"filled": filled}


class Plain(methods.Method):
    """The least that a method is."""

    default_loss = Logs


@pytest.fixture
def plain(tiny_encoder):
    def build(**arguments):
        keras.utils.set_random_seed(1)
        model = Plain(tiny_encoder(), 12, 8, views=views.small_image(8), **arguments)
        model.compile(LARS(0.1))
        return model

    return build


def test_whatever_a_loss_names_is_logged_and_what_it_owns_is_trained_and_kept(plain, images, tmp_path):
    model = plain()
    history = model.fit(images[:8], batch_size=4, epochs=2, verbose=0).history
    shown = {"loss", "odd_name", "filled", "grad_norm", "learning_rate", *OF_OUTPUTS}
    assert set(history) == shown
    assert history["odd_name"] == [2.0, 2.0] and history["filled"] == [6.0, 6.0]  # the last of 4 and 6
    assert np.any(model.objective.weight.numpy() != 1.0)
    assert (model.target, model.predictor) == (False, None)

    callbacks.Checkpoint(tmp_path).save(model, 2)
    restored = plain()
    assert callbacks.Checkpoint(tmp_path).restore(restored) == 2
    assert_same(state(restored), state(model), rtol=0)
    model.save(tmp_path / "model.keras")
    custom = {"Plain": Plain, "Logs": Logs}
    again = keras.models.load_model(tmp_path / "model.keras", custom_objects=custom)
    assert_same(state(again), state(model), rtol=0)


@pytest.mark.parametrize("target", [False, True])
@pytest.mark.parametrize("predictor", [False, True])
def test_target_and_predictor_are_switches_of_their_own(plain, images, target, predictor):
    model = plain(target=target, predictor=predictor)
    hiddens, features = model.hiddens(model._views(images[:4], tf.constant([1, 2])), training=True)
    assert hiddens.online.shape == (4, 2, 8) and features.shape == (4, 6)
    if not target and not predictor:
        assert hiddens.target is None
        return
    projected = [model.projector(model.encoder(x, training=True), training=True) for x in
                 model._views(images[:4], tf.constant([1, 2]))]  # fmt: skip
    # A fresh target is a copy of the online network; without one, its own projections are compared with.
    np.testing.assert_allclose(hiddens.target, tf.stack(projected, axis=1), rtol=1e-4, atol=1e-5)
    same = np.allclose(hiddens.target, hiddens.online, rtol=1e-4, atol=1e-5)
    assert same == (not predictor)


def test_no_gradient_flows_into_what_is_compared_with(plain, images):
    model = plain(predictor=True)
    with tf.GradientTape() as tape:
        hiddens, _ = model.hiddens(model._views(images[:4], tf.constant([1, 2])), training=True)
        value = tf.reduce_sum(hiddens.target**2)
    assert all(g is None for g in tape.gradient(value, model.online_variables))


@pytest.mark.parametrize(
    ("needs", "has", "message"),
    [
        (
            {"needs_target": True},
            {},
            r"Needs needs a target network, and this Plain has none: .* target=True",
        ),
        (
            {},
            {"target": True},
            r"Needs is for models without a target network, and this Plain has one: .* target=False",
        ),
        (
            {"needs_predictor": True},
            {},
            r"Needs needs a predictor network, and this Plain has none: .* predictor=True",
        ),
        ({}, {"predictor": True}, r"without a predictor network, and this Plain has one: .* predictor=False"),
        ({"needs_target": None, "needs_predictor": None}, {"target": True, "predictor": True}, None),
    ],
)
def test_a_loss_says_what_it_needs(tiny_encoder, needs, has, message):
    loss = type("Needs", (Logs,), {"needs_target": False, "needs_predictor": False} | needs)()
    model = Plain(tiny_encoder(), 12, 8, **has)
    if message is None:
        model.compile(LARS(0.1), loss=loss)
        return
    with pytest.raises(ValueError, match=message):
        model.compile(LARS(0.1), loss=loss)


def test_a_loss_keeps_the_state_of_one_model(plain):
    model, other = plain(), plain()
    queue = model.objective.queue
    model.compile(LARS(0.2), loss=model.objective)
    assert model.objective.queue is queue
    with pytest.raises(ValueError, match="This Logs keeps the state of another model"):
        other.compile(LARS(0.1), loss=model.objective)


class Forgetful(losses.Objective):
    """Moves a variable that no file will have."""

    def build(self, size):
        self.count = keras.Variable(0.0, trainable=False)


class Nameless(losses.Objective):
    def terms(self, hiddens, seed):
        return {"lose": tf.reduce_mean(hiddens.online)}


def test_a_loss_that_breaks_its_contract_is_told_so(plain, images):
    model = plain()
    with pytest.raises(ValueError, match="variable count of Forgetful among its `variables`"):
        model.compile("sgd", loss=Forgetful())
    model.compile("sgd", loss=Nameless(), run_eagerly=True)
    with pytest.raises(ValueError, match='terms of Nameless must have a "loss", found lose'):
        model.fit(images, batch_size=8, verbose=0)


def test_a_method_has_the_networks_that_its_loss_needs(tiny_encoder):
    loss = type("Needs", (Logs,), {"needs_target": True, "needs_predictor": True})
    method = type("Mine", (Plain,), {"default_loss": loss})
    model = method(tiny_encoder(), 12, 8)
    assert model.target and model.predictor is not None
    model.compile()


def test_more_metrics_than_there_are_places():
    monitor = Monitor()
    with pytest.raises(ValueError, match="At most 64 metrics"):
        monitor.update_state({f"name{i}": tf.constant(1.0) for i in range(65)})


# Collapse -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_gamma_that_no_batch_can_bear_is_warned_of(tiny_model, images):
    model = tiny_model(target=False)
    model.compile(LARS(0.1), loss=losses.SSLHSICLoss(gamma=2.5))
    # The largest ratio of 8 images in 2 views is sqrt(7) (1 - 1/16) = 2.48.
    with pytest.warns(UserWarning, match=r"gamma is 2\.5, .* of 8 images in 2 views is never above 2\.48"):
        model.fit(images, batch_size=8, verbose=0)
    for fine in (losses.SSLHSICLoss(gamma=2.4), losses.InfoNCELoss()):
        model.compile(LARS(0.1), loss=fine)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.fit(images, batch_size=8, verbose=0)


def watched(callback, model, stds, ratios, steps=60):
    """Epochs of given means of `feature_std` and `dependence_ratio`, each of `steps` steps; the warnings."""
    callback.set_model(model)
    callback.on_train_begin()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for epoch, (std, ratio) in enumerate(zip(stds, ratios, strict=True)):
            callback.on_epoch_begin(epoch)
            means = np.cumsum(np.broadcast_to(std, steps)) / np.arange(1, steps + 1)
            for step, mean in enumerate(means):
                logs = {"feature_std": mean} | ({} if ratio is None else {"dependence_ratio": ratio})
                callback.on_train_batch_end(step, logs)
            callback.on_epoch_end(epoch, logs)
    return [str(warning.message) for warning in caught]


class Trained:
    """What the callback sees of a model."""

    def __init__(self, loss):
        self.objective, self.stop_training, self.latest = loss, False, ()


@pytest.mark.parametrize("stop", [False, True])
def test_collapse_is_warned_of_once_and_ends_training_on_request(stop):
    model = Trained(losses.SSLHSICLoss(gamma=3.0))
    callback = callbacks.WatchCollapse(stop=stop)
    (message,) = watched(callback, model, [0.8, 0.02, 0.02], [1.2, 1.2, 1.2])
    assert "standard deviation is 0.02" in message and "1.2 now, is below gamma, 3" in message
    assert model.stop_training == stop


def test_collapse_within_an_epoch_is_seen_before_the_mean_of_the_epoch_shows_it():
    falling = np.where(np.arange(300) < 100, 0.9, 0.02)
    (message,) = watched(callbacks.WatchCollapse(), Trained(losses.SSLHSICLoss()), [falling], [1.0], 300)
    assert falling.mean() > 0.1 and "0.02" in message


@pytest.mark.parametrize(
    ("loss", "std", "ratio"),
    [
        (losses.SSLHSICLoss(gamma=3.0), 0.5, 1.0),  # apart
        (losses.SSLHSICLoss(gamma=3.0), 0.05, 3.5),  # on the way out
        (losses.InfoNCELoss(), 0.5, None),
    ],
)
def test_outputs_that_spread_are_no_collapse(loss, std, ratio):
    assert watched(callbacks.WatchCollapse(), Trained(loss), [std] * 2, [ratio] * 2) == []


def test_collapse_under_another_loss_is_named_too():
    (message,) = watched(callbacks.WatchCollapse(), Trained(losses.InfoNCELoss()), [0.02], [None])
    assert message.startswith("The outputs have collapsed") and "gamma" not in message


def test_no_threshold():
    with pytest.raises(ValueError, match=r"between 0 and 1, found 0\.0"):
        callbacks.WatchCollapse(threshold=0.0)


@pytest.mark.slow
def test_a_large_gamma_without_a_target_collapses_and_a_small_one_does_not(tiny_model):
    rng = np.random.default_rng(0)
    colour = rng.uniform(40, 215, (256, 1, 1, 3))
    many = np.clip(colour + rng.normal(0, 25, (256, 10, 10, 3)), 0, 255).astype("uint8")
    epochs, spread = {}, {}
    for gamma in (3.0, 1.0):
        model = tiny_model(target=False)
        model.compile(keras.optimizers.Adam(0.01), loss=losses.SSLHSICLoss(gamma=gamma, num_features=None))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watch = callbacks.WatchCollapse(stop=True)
            history = model.fit(many, batch_size=128, epochs=30, verbose=0, callbacks=[watch]).history
        collapsed = [str(warning.message) for warning in caught if "have collapsed" in str(warning.message)]
        assert len(collapsed) == (gamma == 3.0)
        epochs[gamma], spread[gamma] = len(history["loss"]), history["feature_std"]
        # The rank does not show it: it has no scale.
        assert min(history["effective_rank"]) > 1.2
    assert epochs[3.0] < 30 and spread[3.0][-1] < 0.1
    assert epochs[1.0] == 30 and min(spread[1.0]) > 0.3


# Bad input ----------------------------------------------------------------------------------------------------------


def test_data_set_smaller_than_the_batch(tiny_model, images):
    model = tiny_model()
    model.compile()
    with pytest.raises(ValueError, match=r"24 examples, fewer than one batch of 32"):
        model.fit(images, batch_size=32)


def test_float_images(tiny_model, images):
    model = tiny_model()
    model.compile()
    with pytest.raises(ValueError, match=r"uint8.*float32"):
        model.fit(images.astype("float32") / 255, batch_size=8)
    with pytest.raises(ValueError, match=r"lie in \[.*expects \[0, 255\]"):
        model.fit(
            tf.data.Dataset.from_tensor_slices(images.astype("float32") / 255).batch(8, drop_remainder=True)
        )


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [3, -1])
def test_labels_outside_of_the_classes(tiny_model, images, labels, wrong):
    model = tiny_model(num_classes=3)
    model.compile()
    labels = labels.copy()
    labels[20] = wrong
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8, drop_remainder=True)
    with pytest.raises(ValueError, match=r"label at step 2 is outside of the 3 classes"):
        model.fit(dataset, verbose=0)
    model.fit(images, batch_size=8, verbose=0)  # the fault was of that call alone


def test_an_encoder_is_a_model():
    with pytest.raises(ValueError, match=r"must be a keras.Model, found 'r18_1x'.*build_encoder"):
        SSLHSIC("r18_1x")


def test_no_epochs(tiny_model, images):
    model = tiny_model()
    model.compile()
    with pytest.raises(ValueError, match="epochs must be at least 1, found 0"):
        model.fit(images, epochs=0)
    with pytest.raises(ValueError, match="batch_size must be at least 1, found 0"):
        model.fit(images, batch_size=0)


def test_loss_that_is_not_finite_names_the_step(tiny_model, images):
    class Breaks(losses.SSLHSICLoss):
        def terms(self, hiddens, seed):
            terms = super().terms(hiddens, seed)
            return {**terms, "loss": terms["loss"] / tf.cast(seed[0] != self.bad[0], tf.float32)}

    model = tiny_model()
    loss = Breaks(num_features=8)
    model.step.assign(4)
    loss.bad = model._seeds()[1].numpy()
    model.step.assign(0)
    model.compile(loss=loss)
    with pytest.raises(FloatingPointError, match="NaN or infinite at step 4"):
        model.fit(images, batch_size=8, epochs=3, verbose=0)


@pytest.mark.parametrize("steps_per_execution", [1, 7, 64])
def test_a_fault_is_noticed_soon_for_any_steps_per_execution(steps_per_execution):
    looks = []
    callback = callbacks.StopOnFault()
    callback._check = lambda: looks.append(end)
    for _ in range(2):
        callback.on_epoch_begin(0)
        for end in range(steps_per_execution - 1, 640, steps_per_execution):
            callback.on_train_batch_end(end)
    assert looks[0] == steps_per_execution - 1 and looks[len(looks) // 2] == looks[0]
    gaps = np.diff(looks[: len(looks) // 2])
    assert max(gaps) < 50 + steps_per_execution and min(gaps) >= 50


def test_one_view(tiny_model, images):
    one = views.ViewPolicy(
        size=8, blur=views.Blur(probability=(0.0,)), solarize=views.Solarize(probability=(0.0,))
    )
    model = tiny_model(views=one, target=False)
    model.compile()
    with pytest.raises(ValueError, match="At least M = 2 views"):
        model.fit(images, batch_size=8, verbose=0)


def test_unbatched_and_ragged_batches(tiny_model, images):
    model = tiny_model()
    model.compile()
    with pytest.raises(ValueError, match="drop_remainder=True"):
        model.fit(tf.data.Dataset.from_tensor_slices(images).batch(8))
    with pytest.raises(ValueError, match=r"\[B, H, W, C\]"):
        model.fit(tf.data.Dataset.from_tensor_slices(images))
    with pytest.raises(ValueError, match="Rename the key"):
        unpack({"picture": images})


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"projector_hidden": 0}, "projector_hidden must be at least 1, found 0"),
        ({"num_classes": 1}, "num_classes must be None or at least 2, found 1"),
        ({"projection_dim": 1.5}, "projection_dim must be an integer, found 1.5"),
        ({"seed": "a"}, "seed must be an integer, found 'a'"),
        ({"target": "x"}, "target must be True, False or None, found 'x'"),
        ({"predictor": 1}, "predictor must be True, False or None, found 1"),
        ({"batch_norm_output": 1}, "batch_norm_output must be True, False or None, found 1"),
        ({"weight_ema": 1.0}, r"weight_ema must be None or in \[0, 1\), found 1.0"),
        ({"views": "cubist"}, "Views must be one of"),
    ],
)
def test_arguments_out_of_range(tiny_model, wrong, message):
    with pytest.raises(ValueError, match=message):
        tiny_model(**wrong)


def test_other_losses_are_refused(tiny_model):
    with pytest.raises(ValueError, match=r"one of keras_sslhsic.losses, .* found 'mse'"):
        tiny_model().compile(loss="mse")


def test_a_batch_of_one_image(tiny_model, images):
    model = tiny_model()
    model.compile()
    with pytest.raises(ValueError, match=r"A batch of 1 image: .* at least 2"):
        model.fit(images, batch_size=1)


def test_a_tensor_is_trained_on_as_an_array(tiny_model, images):
    model = tiny_model()
    model.compile()
    model.fit(tf.constant(images), batch_size=8, verbose=0)
    assert int(model.step.numpy()) == 3


@pytest.mark.parametrize(
    "given, message",
    [
        (lambda x: x > 128, r"found bool"),
        (lambda x: x / np.float32("nan"), r"hold NaN or Inf"),
        (lambda x: x[..., :1], r"\[B, H, W, 3\], found shape \[24, 10, 10, 1\].*repeat the channel"),
        (lambda x: {"view1": x, "view2": x}, r"crops are views to train on"),
        (lambda x: list(x), r"found a list: np.stack\(images\)"),
        (lambda x: {"image": list(x)}, r"found a list: np.stack\(images\)"),
        (lambda x: x[0], r"found shape \[10, 10, 3\]. For a single image add a batch axis"),
    ],
)  # fmt: skip
def test_images_whose_features_would_be_wrong(tiny_model, images, given, message):
    model = tiny_model()
    wrong = given(images)
    forms = [wrong] if isinstance(wrong, (dict, list)) else [wrong, tf.constant(wrong), {"image": wrong}]
    for form in forms:
        for features in (model, model.predict):
            with pytest.raises(ValueError, match=message):
                features(form)


def test_floats_are_in_the_range_of_uint8_everywhere(tiny_model, images):
    model = tiny_model()
    model.compile(LARS(0.1))
    floats = images.astype("float32")
    for features in (model, lambda x: model.predict(x, verbose=0), model.serving_encoder()):
        np.testing.assert_allclose(features(floats), model(images), rtol=1e-4, atol=1e-5)
    as_data = tf.data.Dataset.from_tensor_slices(floats).batch(8)
    np.testing.assert_allclose(model.predict(as_data, verbose=0), model(images), rtol=1e-4, atol=1e-5)
    results = [model.evaluate(x, batch_size=8, return_dict=True, verbose=0) for x in (images, floats)]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-4)
    with pytest.raises(ValueError, match=r"expects \[0, 255\]: multiply by 255"):
        model(floats / 255)


def test_one_encoder_evaluates_everywhere(tiny_model, images, tmp_path):
    """With a moving average, the average; a step at a rate of 1 takes both apart."""
    model = tiny_model(weight_ema=0.9)
    model.compile(keras.optimizers.SGD(1.0))
    model.fit(images, batch_size=8, epochs=1, verbose=0)
    prepared = views.prepare(images, model.policy)
    average, online = model.ema_encoder(prepared), model.encoder(prepared)
    assert model.evaluation_encoder is model.ema_encoder
    assert np.abs(average - online).max() > 1e-3
    np.testing.assert_allclose(model(images), average, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict(images, verbose=0), average, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.serving_encoder()(images), average, rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again(images), average, rtol=1e-5, atol=1e-6)

    def loss_of():
        return model.evaluate(images, batch_size=8, return_dict=True, verbose=0)["loss"]

    before = loss_of()
    model.encoder.set_weights([np.zeros_like(w) for w in model.encoder.get_weights()])
    assert loss_of() == before  # evaluation does not look at the online network


def test_float_crops_out_of_range(tiny_model, images):
    model = tiny_model()
    model.compile()
    crops = images.astype("float32")
    with pytest.raises(ValueError, match=r"Crops that are not uint8 must lie in \[0, 1\]"):
        model.fit(
            tf.data.Dataset.from_tensor_slices({"view1": crops, "view2": crops}).batch(8, drop_remainder=True)
        )


@pytest.mark.parametrize("channels", [1, None])
def test_channels_that_do_not_suit_the_views(images, channels):
    pixels = keras.Input((None, None, channels or 3))
    encoder = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(pixels))
    model = SSLHSIC(encoder, 4, 4, views=views.grayscale(8))
    model.compile()
    with pytest.raises(
        ValueError, match=r"read the images with channels=1 \(channels: 1 in the data of a config\)"
    ) as caught:
        model.fit(images, batch_size=8)
    if channels == 1:  # another encoder alone would not do
        assert "input_shape=(8, 8, 3) and give it views whose mean and std have as many" in str(caught.value)


@pytest.mark.slow
def test_images_of_another_size_are_traced_anew(tiny_model, images):
    """Three sizes after one another: a size that TensorFlow has made general would leave the crops without shapes."""
    model = tiny_model()
    model.compile(LARS(0.1))
    for batch in (images, images[:, :9, :8], images[:, :6]):
        for size in (8, 12):
            loss = model.fit(batch, batch_size=size, verbose=0).history["loss"][0]
            assert np.isfinite(loss)


@pytest.mark.parametrize(
    "shape, given, message",
    [
        ((8, 8, 3), lambda x: x[..., :1], r"reads images of 8 x 8 x 3, and the views are 8 x 8 x 1.*repeat the channel"),
        ((None, None, 1), lambda x: x, r"any x any x 1, and the views are 8 x 8 x 3: build it with input_shape=\(8, 8, 3"),
        ((9, 9, 3), lambda x: x, r"9 x 9 x 3, and the views are 8 x 8 x 3: .*views.byol\(9\)"),
        ((9, 9, 3), lambda x: {"view1": x, "view2": x}, r"9 x 9 x 3, and the views are 10 x 10 x 3"),
    ],
)  # fmt: skip
def test_images_that_do_not_suit_the_encoder(images, shape, given, message):
    pixels = keras.Input(shape)
    encoder = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(pixels))
    model = SSLHSIC(encoder, 4, 4, views=views.small_image(8))
    model.compile()
    with pytest.raises(ValueError, match=message):
        model.fit(tf.data.Dataset.from_tensor_slices(given(images)).batch(8, drop_remainder=True))


def test_forms_that_fit_does_not_take(tiny_model, images):
    model = tiny_model()
    model.compile()
    with pytest.raises(ValueError, match=r"found a list: np.stack\(images\)"):
        model.fit(list(images), batch_size=8)
    for nothing in (None, {}):
        for method in (model.fit, model.predict, model.evaluate):
            with pytest.raises(ValueError, match=f"a dict with one, or a dataset, found {nothing}"):
                method(nothing)
    with pytest.raises(ValueError, match=r"validation_split is not supported.*validation_data"):
        model.fit(images, batch_size=8, validation_split=0.1)


@pytest.mark.parametrize("config", [None, [1], "r18_1x", {}, {"target": True}])
@pytest.mark.parametrize("method", [SSLHSIC, methods.BYOL])
def test_the_config_of_something_else_is_no_model(method, config):
    with pytest.raises(ValueError, match=f"Expected the config of a {method.__name__}, .* found "):
        method.from_config(config)


def test_quantized_layers_are_not_trained(tiny_model, images):
    model = tiny_model()
    model.compile(LARS(0.1))
    model.projector.quantize("int8")
    said = "is quantized, and its weights do not train"
    with pytest.raises(ValueError, match=said):
        model.train_on_batch(images)
    with pytest.raises(ValueError, match=said):
        model.fit(images, batch_size=8)


@pytest.mark.parametrize("when", ["before compile", "after"])
def test_a_model_of_which_nothing_is_trainable_is_not_trained(tiny_model, images, when):
    model = tiny_model()
    if when == "before compile":
        model.trainable = False
    model.compile(LARS(0.1))
    model.trainable = False
    with pytest.raises(ValueError, match="No weight of the networks is trainable"):
        model.fit(images, batch_size=8)
