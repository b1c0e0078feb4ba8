"""Segmentation and depth: parts against independent computations, and whole protocols on tiny images."""

import dataclasses
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import jaccard_score

from keras_sslhsic.encoders import Architecture, with_preprocessing
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.evaluation import PROTOCOLS, dense, dense_protocol, depth, reporting, results, segmentation
from keras_sslhsic.evaluation.maps import VOID, MapSplit

TINY = Architecture((1, 1, 1), (8, 16, 16), bottleneck=False, stem_channels=8)
QUICK = {"steps": 3, "batch_size": 4, "learning_rates": (0.02,), "head_width": 0.02}


@pytest.fixture(scope="module")
def encoder():
    keras.utils.set_random_seed(0)
    return with_preprocessing(resnet(TINY, (None, None, 3), "small", "tiny"), 0.4, 0.2)


def halves(count=6, of_depth=False, side=32):
    """A bright half and a dark one, of another width in each image: class 1 and 0, or 1 and 3 metres. One row is unknown."""
    rng = np.random.default_rng(0)
    images, maps = [], []
    for i in range(count):
        bright = np.arange(side) < side // 4 + 3 * i
        pixels = np.where(bright[None, :, None], 220, 40) + rng.integers(0, 30, (side, side, 3))
        target = np.tile(bright, (side, 1)).astype(np.uint8)
        target[0] = VOID
        if of_depth:
            target = np.where(target == VOID, 0, np.where(target == 1, 1.0, 3.0)).astype(np.float32)
        images.append(pixels.astype(np.uint8))
        maps.append(target)
    return MapSplit(
        images.__getitem__, np.zeros(count, int), (side, side, 3), target=maps.__getitem__,
        num_classes=None if of_depth else 3,
    )  # fmt: skip


def test_up_projection_is_unpooling_and_convolution():
    x = np.random.default_rng(0).normal(size=(2, 5, 7, 6)).astype(np.float32)
    images = keras.Input(x.shape[1:])
    model = keras.Model(images, depth.up_projection(images, 4, 1, "up"))
    rng = np.random.default_rng(1)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    unpooled = np.zeros((2, 10, 14, 6), np.float32)
    unpooled[:, ::2, ::2] = x

    def normalised(y, name):
        gamma, beta, mean, variance = model.get_layer(name).get_weights()
        return tf.nn.batch_normalization(y, mean, variance, beta, gamma, 1e-5)

    def up(name):
        kernel = model.get_layer(f"{name}_conv").kernel  # [5, 5, out, in], turned by half a turn
        kernel = tf.transpose(kernel, [0, 1, 3, 2])[::-1, ::-1]
        return normalised(tf.nn.conv2d(unpooled, kernel, 1, "SAME"), f"{name}_bn")

    inner = tf.nn.relu(up("up_up0"))
    inner = normalised(tf.nn.conv2d(inner, model.get_layer("up_inner_conv").kernel, 1, "SAME"), "up_inner_bn")
    np.testing.assert_allclose(model(x), tf.nn.relu(inner + up("up_up1")), rtol=1e-5, atol=1e-5)


def test_reverse_huber_is_its_definition():
    rng = np.random.default_rng(0)
    targets = rng.uniform(1, 5, (2, 4, 6)).astype(np.float32)
    predictions = (targets + rng.normal(size=targets.shape)).astype(np.float32)
    targets[0, 0] = [0, np.nan, np.inf, -1, 0, np.nan]
    known = np.isfinite(targets) & (targets > 0)
    r = np.abs(predictions.astype(np.float64) - targets)[known]
    c = r.max() / 5
    expected = np.mean([x if x <= c else (x * x + c * c) / (2 * c) for x in r])
    assert (r <= c).any() and (r > c).any()
    variable = tf.Variable(predictions[..., None])
    with tf.GradientTape() as tape:
        loss = depth.reverse_huber(tf.constant(targets), variable)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    gradient = tape.gradient(loss, variable)[..., 0].numpy()
    slopes = np.where(r <= c, 1, r / c) / known.sum()
    np.testing.assert_allclose(np.abs(gradient[known]), slopes, rtol=1e-4)
    assert (gradient[~known] == 0).all()
    assert depth.reverse_huber(tf.zeros([1, 2, 2]), variable[:1, :2, :2]) == 0  # nothing known


@pytest.mark.parametrize("of_depth", [True, False])
def test_losses_of_replicas_are_those_of_the_whole_batch(of_depth, two_replicas):
    """Shares with other numbers of known pixels, and other largest residuals."""
    rng = np.random.default_rng(0)
    if of_depth:
        loss_of, targets = depth.reverse_huber, rng.uniform(1, 5, (4, 3, 5)).astype(np.float32)
        predictions = targets[..., None] + rng.normal(size=(4, 3, 5, 1)).astype(np.float32)
        predictions[0] *= 4
        targets[1, 1:] = np.nan
    else:
        loss_of, targets = segmentation.cross_entropy, rng.integers(0, 3, (4, 3, 5), np.uint8)
        predictions = rng.normal(size=(4, 3, 5, 3)).astype(np.float32)
        targets[1, 1:] = VOID

    @tf.function
    def measured(targets, predictions):
        with tf.GradientTape() as tape:
            tape.watch(predictions)
            loss = loss_of(targets, predictions) / tf.distribute.get_strategy().num_replicas_in_sync
        return loss, tape.gradient(loss, predictions)

    whole = measured(tf.constant(targets), tf.constant(predictions))

    def shares(values):
        return two_replicas.experimental_distribute_values_from_function(
            lambda context: tf.constant(np.split(values, 2)[context.replica_id_in_sync_group])
        )

    found = two_replicas.run(measured, args=(shares(targets), shares(predictions)))
    losses, gradients = map(two_replicas.experimental_local_results, found)
    np.testing.assert_allclose(sum(losses), whole[0], rtol=1e-5)
    np.testing.assert_allclose(np.concatenate(gradients), whole[1], rtol=1e-5, atol=1e-8)


def test_five_depth_metrics_against_numpy():
    rng = np.random.default_rng(0)
    targets = rng.uniform(0.5, 9, (3, 10, 12)).astype(np.float32)
    predictions = (targets * rng.uniform(0.5, 2, targets.shape)).astype(np.float32)
    targets[:, :3] = 0
    targets[1, 5] = np.nan
    sums = sum(depth.errors(t, p) for t, p in zip(targets, predictions, strict=True))
    d, e = (x[(targets > 0)].astype(np.float64) for x in (targets, predictions))
    worse = np.maximum(d / e, e / d)
    expected = {
        "pct1.25": np.mean(worse < 1.25),
        "pct1.25^2": np.mean(worse < 1.25**2),
        "pct1.25^3": np.mean(worse < 1.25**3),
    }
    expected |= {"rms": np.sqrt(np.mean((d - e) ** 2)), "rel": np.mean(np.abs(d - e) / d)}
    found = depth.TASK.measures(sums)
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-12)


def test_miou_against_scikit_learn():
    """Class 4 is nowhere, class 3 predicted alone, and void pixels do not count."""
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 3, (4, 9, 11)).astype(np.uint8)
    predicted = np.where(rng.random(targets.shape) < 0.6, targets, rng.integers(0, 4, targets.shape)).astype(
        np.uint8
    )
    targets[:, 2] = VOID
    with pytest.raises(ValueError, match="Expected predicted classes below 5, found 7 to 7"):
        segmentation.confusion(np.zeros([2, 2]), np.full([2, 2], 7), 5)
    with pytest.raises(ValueError, match="Expected target classes below 5, found -1 to 0"):
        segmentation.confusion(np.array([[0, -1]]), np.zeros([1, 2]), 5)
    sums = sum(segmentation.confusion(t, p, 5) for t, p in zip(targets, predicted, strict=True))
    counts = targets != VOID
    expected = jaccard_score(targets[counts], predicted[counts], labels=range(4), average=None)
    found = segmentation.intersection_over_union(sums)
    np.testing.assert_allclose(found[:4], expected, rtol=1e-12)
    assert np.isnan(found[4]) and found[3] == 0
    assert segmentation.TASK.measures(sums)["miou"] == pytest.approx(expected.mean(), rel=1e-12)


def test_cross_entropy_leaves_void_out():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 4, 5)).astype(np.float32)
    targets = rng.integers(0, 5, (2, 3, 4)).astype(np.uint8)
    targets[0] = VOID
    shares = np.exp(logits[1]) / np.exp(logits[1]).sum(-1, keepdims=True)
    own = np.take_along_axis(shares, targets[1][..., None].astype(int), -1)
    np.testing.assert_allclose(segmentation.cross_entropy(targets, logits), -np.log(own).mean(), rtol=1e-5)
    assert segmentation.cross_entropy(targets[:1], logits[:1]) == 0


def test_colours_change_within_their_range():
    images = np.random.default_rng(0).integers(0, 256, (40, 6, 6, 3)).astype(np.float32)
    found = depth.recolour(tf.constant(images), tf.constant([0, 1], tf.int64)).numpy()
    assert found.min() >= 0 and found.max() <= 255
    gray = (np.abs(found[..., 0] - found[..., 1]) < 1e-3).all(axis=(1, 2))
    assert 0 < gray.sum() < 40
    again = depth.recolour(tf.constant(images), tf.constant([0, 1], tf.int64))
    np.testing.assert_array_equal(found, again)
    one = tf.constant(images[..., :1])
    delta = (depth.recolour(one, tf.constant([0, 1], tf.int64)) - one).numpy().reshape(40, -1)
    assert np.abs(delta).max() <= 255 * 0.1255 + 1e-3


def test_heads_are_the_papers(encoder):
    split = dataclasses.replace(halves(), shape=(64, 64, 3))
    fcn = dense.build(segmentation.TASK, encoder, split)
    convolutions = [layer for layer in fcn.layers if isinstance(layer, keras.layers.Conv2D)]
    assert [(c.filters, c.kernel_size, c.dilation_rate) for c in convolutions] == [
        (256, (3, 3), (6, 6)), (256, (3, 3), (6, 6)), (3, (1, 1), (1, 1)),
    ]  # fmt: skip
    assert fcn.output_shape == (None, 64, 64, 3)
    x = keras.Input((7, 10, 16))
    ups = keras.Model(x, depth.head(x, 32, None, 1 / 16, 0))
    transposed = [layer.filters for layer in ups.layers if isinstance(layer, keras.layers.Conv2DTranspose)]
    assert sorted(transposed) == sorted(2 * [32, 16, 8, 4])
    assert ups.output_shape == (None, 112, 160, 1)


@pytest.mark.parametrize("task", [segmentation.TASK, depth.TASK], ids=lambda task: task.name)
def test_a_trained_network_is_kerass_own(task, encoder, tmp_path):
    split = halves(2, of_depth=task is depth.TASK)
    recipe = dense.DenseRecipe(learning_rate=0.01, steps=1, batch_size=2, head_width=0.02)
    network = dense.train(task, encoder, split, recipe)
    network.save(tmp_path / "network.keras")
    with zipfile.ZipFile(tmp_path / "network.keras") as members:
        assert b"sslhsic" not in members.read("config.json")  # no class of this package is needed
    loaded = keras.models.load_model(tmp_path / "network.keras")
    [(images, _)] = split.batches(2)
    np.testing.assert_array_equal(loaded(images), network(images))
    predicted = dense.predict(task, loaded, images)
    np.testing.assert_array_equal(predicted, dense.predict(task, network, images.numpy().astype(np.float32)))
    for others, message in (
        (images / 255, "multiply by 255"),
        (tf.cast(images, tf.float32) * np.nan, "NaN"),
        (tf.cast(images, tf.uint16) * 257, "divide those of 16 bits by 257"),
        (images[:0], "empty"),
        (images[..., :1], "Expected images"),
        (images[0], "add a batch axis"),
    ):
        with pytest.raises(ValueError, match=message):
            dense.predict(task, network, others)


@pytest.mark.parametrize("name", ["segmentation", pytest.param("depth", marks=pytest.mark.slow)])
def test_protocols_measure_and_go_on(name, encoder, tmp_path, monkeypatch):
    before = encoder.get_weights()
    of_depth, seeds = name == "depth", 2 if name == "depth" else 1
    splits = {"train": halves(of_depth=of_depth), "test": halves(3, of_depth)}
    settings = {**QUICK, "seeds": seeds, "work_dir": str(tmp_path / "work")}
    result = PROTOCOLS[name].run(encoder, splits, **settings)
    assert (result.protocol, result.num_train, result.num_test) == (name, 6, 3)
    assert result.interval[0] <= result.value <= result.interval[1]
    assert len(result.values) == seeds and result.value == pytest.approx(np.mean(result.values))
    assert result.recipe["steps"] == 3 and result.recipe["crop_size"] == [32, 32]
    assert (tmp_path / "work" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    for one, other in zip(encoder.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
    # Nothing is trained again, until a pixel changes.
    monkeypatch.setattr(dense, "train", None)
    assert results.same(PROTOCOLS[name].run(encoder, splits, **settings), result)
    of_another = splits["train"].target(2).copy()
    of_another[9, 30] = 1
    target = lambda number: of_another if number == 2 else splits["train"].target(number)  # noqa: E731
    with pytest.raises(TypeError, match="NoneType"):  # what trains is gone
        PROTOCOLS[name].run(
            encoder, splits | {"train": dataclasses.replace(splits["train"], target=target)}, **settings
        )
    results.append(tmp_path / "results.jsonl", result)
    [found] = results.read(tmp_path)
    assert results.same(found, result)
    text = reporting.report(tmp_path)
    if of_depth:
        assert found.others["rms"]["unit"] == "m" and found.rms > 0
        assert "rms (lower is better)" in text and "pct1.25^3" in text
    else:
        assert "miou" in text


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on_as_if_it_were_not(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(dense, "KEPT_EVERY", 2)
    images = halves(of_depth=True)
    recipe = dense.DenseRecipe(learning_rate=0.01, weight_decay=1e-3, steps=5, batch_size=2, head_width=0.02)
    whole = dense.train(depth.TASK, encoder, images, recipe)
    state = tmp_path / "state.npz"

    class Stopped(Exception):
        pass

    def stop(self, batch, logs=None):
        kept(self, batch, logs)
        if self.step == 3:
            raise Stopped

    kept = dense._Keep.on_train_batch_end
    monkeypatch.setattr(dense._Keep, "on_train_batch_end", stop)
    with pytest.raises(Stopped):
        dense.train(depth.TASK, encoder, images, recipe, state=state)
    assert state.exists()
    monkeypatch.setattr(dense._Keep, "on_train_batch_end", kept)
    resumed = dense.train(depth.TASK, encoder, images, recipe, state=state)
    for one, other in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_two_replicas_train_as_one(tmp_path, monkeypatch, two_replicas):
    monkeypatch.setattr(dense, "KEPT_EVERY", 1)
    task = dataclasses.replace(segmentation.TASK, scales=None)
    recipe = dense.DenseRecipe(learning_rate=0.01, weight_decay=1e-3, steps=2, batch_size=4, head_width=0.02)
    trained = []
    for scope in (tf.distribute.get_strategy().scope(), two_replicas.scope()):
        keras.utils.set_random_seed(0)
        with scope:
            smallest = Architecture((1,), (4,), bottleneck=False, stem_channels=4)
            encoder = with_preprocessing(resnet(smallest, (None, None, 3), "small", "one"), 0.4, 0.2)
        state = tmp_path / f"{len(trained)}.npz"
        trained.append(dense.train(task, encoder, halves(4), recipe, state=state))
        # What it keeps can be taken up.
        again = dense.train(task, encoder, halves(4), recipe, state=state)
        for one, other in zip(trained[-1].get_weights(), again.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    for one, other in zip(*(network.get_weights() for network in trained), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_mixed_precision_trains_as_float32_does():
    recipe = dense.DenseRecipe(learning_rate=0.01, weight_decay=0.5, steps=2, batch_size=4, head_width=0.02)
    task = dataclasses.replace(segmentation.TASK, scales=None)
    moved = []
    for policy in ("float32", "mixed_float16"):
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy(policy)
        try:
            smallest = Architecture((1,), (4,), bottleneck=False, stem_channels=4)
            encoder = with_preprocessing(resnet(smallest, (None, None, 3), "small", "one"), 0.4, 0.2)
            start = dense.build(task, encoder, halves(4), 0.02).trainable_variables
            before = [np.asarray(v) for v in start]
            trained = dense.train(task, encoder, halves(4), recipe).trainable_variables
        finally:
            keras.config.set_dtype_policy("float32")
        moved.append(np.concatenate([np.ravel(b - a) for a, b in zip(before, trained, strict=True)]))
    # Without the scale of the loss taken back all but none of it would move.
    assert 0 < np.linalg.norm(moved[0] - moved[1]) < 0.5 * np.linalg.norm(moved[0])


@pytest.mark.slow
def test_weight_decay_is_an_l2_penalty(encoder):
    images = halves(2, of_depth=True)
    recipe = dense.DenseRecipe(learning_rate=0.01, weight_decay=0.5, steps=1, batch_size=2, head_width=0.02)
    plain, decayed = (
        dense.train(depth.TASK, encoder, images, dataclasses.replace(recipe, weight_decay=decay))
        for decay in (0.0, 0.5)
    )
    start = dense.build(depth.TASK, encoder, images, 0.02)
    for before, one, other in zip(
        start.trainable_variables, plain.trainable_variables, decayed.trainable_variables, strict=True
    ):
        rate = 0.01 * 0.5 if len(before.shape) > 1 else 0.0
        np.testing.assert_allclose(one - other, rate * np.asarray(before), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_recipes_are_chosen_on_held_out_images(encoder):
    splits = {"train": halves(10), "test": halves(2)}
    with pytest.warns(UserWarning, match="images, where 16 were asked for"):
        result = PROTOCOLS["segmentation"].run(
            encoder, splits, steps=2, learning_rates=(1e-6, 0.05), head_width=0.02, seeds=1
        )
    assert result.learning_rate in (1e-6, 0.05) and result.recipe["held_out"] == 2
    assert result.recipe["learning_rate"] == [1e-6, 0.05]


def test_defaults_are_the_papers():
    found = PROTOCOLS["segmentation"].arguments_of({})["recipe"]
    assert [one.learning_rate for one in found] == pytest.approx([10**-3, 10**-2.5, 10**-2, 10**-1.5, 10**-1])
    assert {(one.steps, one.batch_size, one.weight_decay) for one in found} == {(30_000, 16, 1e-4)}
    [found] = PROTOCOLS["depth"].arguments_of({})["recipe"]
    assert (found.learning_rate, found.steps, found.batch_size, found.weight_decay) == (0.05, 7500, 256, 1e-3)
    [half] = PROTOCOLS["depth"].arguments_of({"batch_size": 128, "head_width": 0.5})["recipe"]
    assert (half.learning_rate, half.head_width) == (0.025, 0.5)


def test_a_training_that_diverged_and_maps_of_nothing(encoder, monkeypatch):
    split, found = halves(2), {"shown": np.zeros((1, 32, 32))}
    for statistics, message in (
        (np.full((2, 9), np.nan), "The network diverged: lower the learning rate"),
        (np.zeros((2, 9)), "No pixel of the test maps is known"),
    ):
        made = {**found, "statistics": statistics}
        monkeypatch.setattr(dense_protocol, "_trained", lambda *arguments, made=made, **options: made)
        with pytest.raises(ValueError, match=message):
            PROTOCOLS["segmentation"].run(encoder, {"train": split, "test": split}, **QUICK)


@pytest.mark.parametrize("recipe", [[], [{"steps": 3}], 3])
def test_a_recipe_is_a_recipe(encoder, recipe):
    splits = {"train": halves(2), "test": halves(2)}
    with pytest.raises(ValueError, match="recipe must be a DenseRecipe, or several, found"):
        segmentation.segment(encoder, splits, recipe=recipe)


def test_one_recipe_needs_no_list(encoder):
    splits = {"train": halves(2), "test": halves(2)}
    recipe = dense.DenseRecipe(learning_rate=0.01, steps=1, batch_size=2, head_width=0.02)
    found = segmentation.segment(encoder, splits, recipe=recipe, seeds=1)
    assert found.recipe["steps"] == 1 and found.learning_rate == 0.01


def test_what_cannot_be_measured(encoder):
    split = halves(2)
    of_depth = halves(2, of_depth=True)
    for protocol, train, test, message in (
        (
            "segmentation",
            (np.zeros((2, 8, 8, 3)), np.zeros(2)),
            split,
            "classes each, found train with a tuple",
        ),
        ("segmentation", of_depth, of_depth, "classes each, found train with maps of depth: .*load_masks"),
        ("depth", of_depth, split, "depth each, found test with maps of classes: .*load_depths"),
    ):
        with pytest.raises(ValueError, match=f"{protocol} needs images with a map of {message}"):
            PROTOCOLS[protocol].run(encoder, {"train": train, "test": test}, **QUICK)
    recipe = dense.DenseRecipe(learning_rate=0.01, steps=1, batch_size=2)
    with pytest.raises(
        ValueError, match="segmentation needs images with a map of classes each, found images"
    ):
        dense.train(segmentation.TASK, encoder, of_depth, recipe)
    gray = dataclasses.replace(split, shape=(32, 32, 1))
    with pytest.raises(ValueError, match="Expected images of 3 channels"):
        PROTOCOLS["segmentation"].run(encoder, {"train": gray, "test": gray}, **QUICK)
    with pytest.raises(ValueError, match="head_width"):
        PROTOCOLS["depth"].arguments_of({"head_width": 0})
