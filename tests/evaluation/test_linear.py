import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.evaluation import linear, linear_evaluation, linear_features
from keras_sslhsic.evaluation.linear_evaluation import (
    RELEASED_RECIPE,
    default_candidates,
    released,
    standardise,
)
from keras_sslhsic.evaluation.sweep import Candidate, Recipe, WideClassifier, choose, grid, schedule

CANDIDATES = grid((0.01, 0.1, 0.5), (0.0, 1e-2))


@pytest.mark.parametrize("nesterov", [True, False])
def test_training_together_equals_training_each_alone(blobs, nesterov):
    features, labels, test, _ = blobs
    recipe = Recipe(epochs=5, batch_size=50, warmup_steps=3, nesterov=nesterov)
    together = WideClassifier(16, 4, CANDIDATES)
    together.fit(features, labels, recipe, seed=3)
    for k, candidate in enumerate(CANDIDATES):
        alone = WideClassifier(16, 4, [candidate])
        alone.fit(features, labels, recipe, seed=3)
        np.testing.assert_allclose(together.logits(test)[:, k], alone.logits(test)[:, 0], atol=1e-4)


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_candidate_equals_keras_sgd(blobs, nesterov):
    import keras

    features, labels, *_ = blobs
    recipe = Recipe(epochs=3, batch_size=400, nesterov=nesterov)
    classifier = WideClassifier(16, 4, [Candidate(0.3, 0.05)])
    classifier.fit(features, labels, recipe, seed=0)

    kernel, bias = keras.Variable(np.zeros([16, 4])), keras.Variable(np.zeros([4]))
    rates = [0.3 * 0.5 * (1 + np.cos(np.pi * t / 3)) for t in range(3)]
    optimizer = keras.optimizers.SGD(rates[0], momentum=0.9, nesterov=nesterov)
    velocity = [np.zeros([16, 4]), np.zeros([4])]
    for t in range(3):
        with tf.GradientTape() as tape:
            logits = features @ kernel.value + bias.value
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            loss += 0.5 * 0.05 * tf.reduce_sum(kernel.value**2)
        gradients = tape.gradient(loss, [kernel.value, bias.value])
        if t == 0:  # Keras puts the learning rate into the velocity, so only one step can be compared.
            optimizer.apply(gradients, [kernel, bias])
            first = [kernel.numpy(), bias.numpy()]
            kernel.assign(np.zeros([16, 4]))
            bias.assign(np.zeros([4]))
        for i, (variable, gradient) in enumerate(zip((kernel, bias), gradients, strict=True)):
            velocity[i] = 0.9 * velocity[i] + gradient.numpy()
            update = gradient.numpy() + 0.9 * velocity[i] if nesterov else velocity[i]
            variable.assign(variable.numpy() - rates[t] * update)
        if t == 0:
            np.testing.assert_allclose(kernel.numpy(), first[0], atol=1e-6)
            np.testing.assert_allclose(bias.numpy(), first[1], atol=1e-6)
    np.testing.assert_allclose(classifier.kernel, kernel.numpy(), atol=1e-5)
    np.testing.assert_allclose(classifier.bias, bias.numpy(), atol=1e-5)


def test_schedule_warms_up_and_ends_at_zero():
    values = [float(schedule(tf.constant(t), 14, 4)) for t in (0, 2, 4, 9, 14)]
    assert values == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0], abs=1e-6)


def test_separable_features_give_1():
    labels = np.arange(300) % 3
    features = np.eye(3)[labels]
    result = linear_features(features, labels, features, labels, epochs=10)
    assert result.top1 == result.top5 == result.validation_top1 == 1.0


def test_random_labels_give_chance_within_the_interval():
    generator = np.random.default_rng(0)
    features, labels = generator.normal(size=(1500, 8)), generator.integers(5, size=1500)
    result = linear_features(features[:1000], labels[:1000], features[1000:], labels[1000:], epochs=5)
    assert result.interval[0] < 0.2 < result.interval[1]


def test_reaches_unpenalised_logistic_regression(blobs):
    from sklearn.linear_model import LogisticRegression

    train, labels, test, test_labels = blobs
    expected = LogisticRegression(max_iter=500).fit(train, labels).score(test, test_labels)
    assert linear_features(*blobs).top1 >= expected - 0.02


def test_scale_and_shift_of_the_features_do_not_matter(blobs):
    train, labels, test, test_labels = blobs
    shifted = linear_features(100 * train + 7, labels, 100 * test + 7, test_labels, epochs=5)
    assert shifted.top1 == pytest.approx(linear_features(*blobs, epochs=5).top1, abs=0.011)


def test_standardise_uses_the_training_features_and_silences_constants(blobs):
    train = np.concatenate([blobs[0], np.full([400, 1], 3.0)], axis=1)
    test = np.concatenate([blobs[2], np.full([200, 1], 4.0)], axis=1)
    a, b = standardise(train, test)
    np.testing.assert_allclose(a[:, :-1].mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(a[:, :-1].std(0), 1, atol=1e-5)
    np.testing.assert_allclose(b[:, :-1], (test - train.mean(0))[:, :-1] / train.std(0)[:-1], atol=1e-5)
    assert not a[:, -1].any() and not b[:, -1].any()


def test_a_bad_learning_rate_is_not_chosen(blobs):
    result = linear_features(*blobs, candidates=grid((1e6, 0.02), (0.0,)), epochs=10)
    assert result.learning_rate == 0.02


def test_a_candidate_that_diverges_loses_and_is_no_result(blobs, make_encoder, pictures):
    """From weight decay x learning rate = 100 on the weights grow by a factor a step, to NaN."""
    bad, good = Candidate(10.0, 10.0), Candidate(0.02)
    assert linear_features(*blobs, candidates=[bad, good]).learning_rate == 0.02
    assert linear_features(*blobs, candidates=good).learning_rate == 0.02  # one needs no list
    sweep = WideClassifier(16, 4, [bad, good])
    sweep.fit(*blobs[:2], Recipe(30, 40), seed=0)
    assert np.isnan(sweep.accuracies(*blobs[2:])).tolist() == [True, False]
    message = r"diverged: lower the learning rate \(10\) or the weight decay \(10\)"
    with pytest.raises(ValueError, match=message):
        linear_features(*blobs, candidates=[bad])
    with pytest.raises(ValueError, match=message):
        linear(make_encoder(), *pictures, candidates=bad, recipe=Recipe(15, 20), crop_area=None)
    with pytest.raises(ValueError, match=r"All 2 candidates diverged \(learning_rate 10 to 20"):
        linear_features(*blobs, candidates=[bad, Candidate(20.0, 10.0)])


@pytest.mark.parametrize("value", [np.inf, np.nan, -1.0, "0.1"])
def test_candidates_are_finite_numbers(value):
    with pytest.raises(ValueError, match="learning_rate must be"):
        Candidate(value)
    with pytest.raises(ValueError, match="weight_decay must be"):
        Candidate(0.1, value)


def test_one_candidate_needs_no_validation(blobs):
    result = linear_features(*blobs, candidates=[Candidate(0.02)], epochs=5)
    assert result.validation_top1 is None and result.learning_rate == 0.02


@pytest.mark.parametrize(
    "labels, message",
    [
        (np.zeros(400, int), "one class only"),
        (None, "missing"),
        (np.r_[np.zeros(399, int), 1], "of the classes"),
    ],
)
def test_unusable_labels_are_named(blobs, labels, message):
    with pytest.raises(ValueError, match=message):
        linear_features(blobs[0], labels, blobs[2], np.zeros(200, int))


def test_images_are_learnt_and_the_encoder_stays_bit_identical(make_encoder, pictures):
    encoder = make_encoder()
    before = [value.copy() for value in encoder.get_weights()]
    result = linear(
        encoder,
        *pictures,
        validation=40,
        candidates=grid((0.05, 0.5), (0.0, 1e-4)),
        recipe=Recipe(epochs=30, batch_size=40),
        crop_area=None,
    )
    assert result.top1 > 0.9 and result.validation_top1 > 0.9 and result.epochs == 30
    assert all(np.array_equal(a, b) for a, b in zip(before, encoder.get_weights(), strict=True))


def test_without_crops_images_equal_cached_features(make_encoder, pictures):
    """A step on images is a step on their features: same order, same classifier."""
    encoder, (train, test) = make_encoder(), pictures
    recipe = Recipe(epochs=2, batch_size=160)
    result = linear(encoder, train, test, candidates=[Candidate(0.5)], recipe=recipe, crop_area=None)
    features = np.array(encoder(train[0], training=False)), np.array(encoder(test[0], training=False))
    classifier = WideClassifier(8, 4, [Candidate(0.5)])
    classifier.fit(features[0], train[1], recipe, seed=0)  # One batch an epoch: its order does not matter.
    predictions = np.argmax(classifier.logits(features[1])[:, 0], axis=-1)
    assert result.top1 == pytest.approx(np.mean(predictions == test[1]), abs=0.013)


def test_datasets_and_crops(make_encoder, pictures):
    (train, test), encoder = pictures, make_encoder()
    parts = [tf.data.Dataset.from_tensor_slices(part).batch(40) for part in (train, test, test)]
    options = {"recipe": Recipe(epochs=2, batch_size=40), "crop_area": (0.5, 1.0), "candidates": CANDIDATES}
    result = linear(encoder, *parts, num_classes=4, **options)
    assert result.num_test == 80 and Candidate(result.learning_rate, result.weight_decay) in CANDIDATES
    with pytest.raises(ValueError, match="num_classes"):
        linear(encoder, *parts, **options)
    with pytest.raises(ValueError, match="validation set of its own"):
        linear(encoder, *parts[:2], num_classes=4, **options)


ONE = {"candidates": [Candidate(0.8, 1e-3)], "crop_area": None, "seed": 3}


def test_the_learning_rate_follows_the_batch_that_runs(make_encoder, pictures):
    """0.8 for batches of 1600 is 0.08 for the 160 images that there are."""
    encoder = make_encoder()
    with pytest.warns(UserWarning, match="160 images, where 1600 were asked for.* scaled by 0.1"):
        clipped = linear(encoder, *pictures, **ONE, recipe=Recipe(4, 1600))
    plain = linear(encoder, *pictures, **ONE | {"candidates": [Candidate(0.08, 1e-3)]}, recipe=Recipe(4, 160))
    assert (clipped.learning_rate, clipped.batch_size) == (pytest.approx(0.08), 160)
    assert clipped.recipe["batch_size"] == 160 and clipped.recipe["learning_rates"] == [pytest.approx(0.08)]
    assert (clipped.top1, clipped.top5) == (plain.top1, plain.top5)


def test_the_learning_rate_follows_the_batches_of_a_dataset(make_encoder, pictures):
    train, test = (tf.data.Dataset.from_tensor_slices(part).batch(40) for part in pictures)
    with pytest.warns(UserWarning, match="40 images, where 4096"):
        result = linear(
            make_encoder(), train, test, num_classes=4, candidates=released(4096), recipe=Recipe(2, 4096)
        )
    assert (result.learning_rate, result.batch_size) == (pytest.approx(0.5 * 40 / 256), 40)


def test_features_of_a_small_set_are_trained_at_the_rate_of_their_batch(blobs):
    with pytest.warns(UserWarning, match="400 images, where 800"):
        result = linear_features(*blobs, candidates=[Candidate(0.04)], batch_size=800)
    assert (result.learning_rate, result.batch_size) == (pytest.approx(0.02), 400)
    assert result.top1 == linear_features(*blobs, candidates=[Candidate(0.02)], batch_size=400).top1


def test_a_batch_that_the_encoder_sees_in_parts_is_one_step(make_encoder, pictures, monkeypatch):
    encoder = make_encoder()
    whole = linear(encoder, *pictures, **ONE, recipe=Recipe(4, 80))
    monkeypatch.setattr(linear_evaluation, "ENCODING_BATCH", 24)
    assert linear(encoder, *pictures, **ONE, recipe=Recipe(4, 80)) == whole


def test_the_record_has_all_that_was_set_and_chosen(make_encoder, pictures):
    result = linear(
        make_encoder(), *pictures, candidates=grid((0.1, 0.2), (0.0, 1e-3)), recipe=Recipe(2, 40), seed=1
    )
    record = result.to_dict()
    assert record["recipe"] == {
        "epochs": 2,
        "batch_size": 40,
        "steps": 8,
        "warmup_steps": 0,
        "momentum": 0.9,
        "nesterov": True,
        "learning_rates": [0.1, 0.2],
        "weight_decays": [0.0, 1e-3],
        "held_out": 32,  # a fifth, where 10,000 would be more
        "crop_area": [0.08, 1.0],
        "image_size": 8,
    }
    assert record["num_train"] == 160 and record["at_edge"] == []


def test_the_edge_of_a_sweep_is_reported(blobs):
    large = grid((0.01, 0.3, 10.0), (0.0,))  # all but the first too large
    with pytest.warns(
        UserWarning,
        match=r"best learning_rate of the sweep, 0.01, is at its edge \(0.01 to 10\).*PROTOCOL --learning-rates",
    ):
        result = linear_features(*blobs, candidates=large, epochs=3)
    assert result.at_edge == ("learning_rate",)


@pytest.mark.parametrize(
    "values, rates, decays, at_edge",
    [
        ([1, 3, 2], [0.1, 0.2, 0.4], [0, 0, 0], ()),
        ([1, 2, 3], [0.1, 0.2, 0.4], [0, 0, 0], ("learning_rate",)),
        ([3, 2, 1], [0.1, 0.2, 0.4], [1e-4, 1e-5, 1e-6], ("learning_rate", "weight_decay")),
        ([3, 2], [0.1, 0.2], [0, 0], ()),  # two values have no inside
        (
            [3, 1, 1, 1],
            [0.1, 0.1, 0.1, 0.1],
            [0, 1e-6, 1e-5, 1e-4],
            (),
        ),  # there is no smaller penalty than none
        ([3, 3, 1], [0.1, 0.2, 0.4], [0, 0, 0], ()),  # one inside is as good
        ([1, 2, 3], [0.1, 0.2, 0.1 * 2 + 1e-17], [0, 0, 0], ()),  # 0.2 but for rounding
    ],
)
@pytest.mark.filterwarnings("ignore:The best")
def test_edges(values, rates, decays, at_edge):
    choice = choose(values, learning_rate=rates, weight_decay=decays)
    assert (choice.index, choice.value, choice.at_edge) == (int(np.argmax(values)), max(values), at_edge)


def test_a_sweep_on_validation_images_of_their_own_trains_on_both_in_the_end(make_encoder, pictures):
    (images, labels), test = pictures
    own = (images[120:], labels[120:])
    options = {"candidates": grid((0.1, 0.5), (0.0,)), "recipe": Recipe(3, 40), "crop_area": None}
    result = linear(make_encoder(), (images[:120], labels[:120]), test, own, **options)
    assert (result.num_train, result.recipe["held_out"]) == (160, 40)


def test_one_candidate_is_trained_on_validation_images_of_their_own_too(make_encoder, pictures):
    (images, labels), test = pictures
    own, encoder = (images[120:], labels[120:]), make_encoder()
    options = {"candidates": [Candidate(0.5)], "recipe": Recipe(3, 40), "crop_area": None}
    split = linear(encoder, (images[:120], labels[:120]), test, own, **options)
    assert split == linear(encoder, *pictures, **options) and split.num_train == 160
    with pytest.raises(ValueError, match=r"validation labels hold classes that the train labels lack: \[3\]"):
        linear(encoder, *([array[part[1] < 3] for array in part] for part in pictures), own, **options)


def test_the_default_rates_of_features_follow_the_batch(blobs):
    found = linear_features(*blobs, batch_size=16, epochs=1).recipe["learning_rates"]
    assert found == pytest.approx([rate / 16 for rate in (0.001, 0.003, 0.01, 0.03, 0.1)])


def test_same_seed_same_result(make_encoder, pictures):
    encoder = make_encoder()
    options = {"validation": 40, "recipe": Recipe(2, 40), "candidates": [Candidate(0.5)], "seed": 5}
    assert linear(encoder, *pictures, **options) == linear(encoder, *pictures, **options)


def test_released_recipe():
    (candidate,) = released(4096)
    assert candidate == Candidate(8.0, 0.0)
    assert (
        not RELEASED_RECIPE.nesterov and RELEASED_RECIPE.warmup_steps == 100 and RELEASED_RECIPE.epochs == 90
    )
    assert any(c.learning_rate == pytest.approx(0.4 * 16) for c in default_candidates(4096))
