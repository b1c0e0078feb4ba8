import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import export_saved_model
from keras_sslhsic.evaluation import FinetuneRecipe, fine_tuning, finetune, linear
from keras_sslhsic.evaluation.fine_tuning import SEMI_SUPERVISED, TRANSFER, batch_norm_momentum, recipes
from keras_sslhsic.evaluation.images import of_arrays
from keras_sslhsic.evaluation.sweep import Candidate, Recipe
from keras_sslhsic.zoo import load_pretrained

RECIPE = FinetuneRecipe(steps=30, batch_size=40, encoder_learning_rate=0.05, crop_area=None)


def copies(encoder):
    return [value.copy() for value in encoder.get_weights()]


def same(before, encoder):
    return [np.array_equal(a, b) for a, b in zip(before, encoder.get_weights(), strict=True)]


def test_learns_a_copy_and_leaves_the_encoder_alone(make_encoder, pictures, tmp_path):
    encoder = make_encoder()
    before = copies(encoder)
    result = finetune(encoder, *pictures, recipe=RECIPE, save_to=tmp_path / "classifier.keras")
    assert result.top1 > 0.9 and result.num_train == 160 and result.fraction == 1.0
    assert all(same(before, encoder))
    images, labels = pictures[1]
    saved = keras.models.load_model(tmp_path / "classifier.keras", compile=False)
    found = saved.predict(images.astype(np.float32), verbose=0)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-6)
    assert (found.argmax(axis=1) == labels).mean() == result.top1
    classifier = load_pretrained(tmp_path / "classifier.keras")
    assert classifier.spec.trained_at == images.shape[1] and classifier.spec.class_names == ()
    export_saved_model(classifier, tmp_path / "served")
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    np.testing.assert_allclose(served(image=tf.constant(images))["features"], found, rtol=1e-4, atol=1e-5)


def test_in_place_changes_every_tensor_and_restores_the_momentum(make_encoder, pictures):
    encoder = make_encoder()
    norm = encoder.layers[2]
    norm.momentum = 0.77
    before = copies(encoder)
    result = finetune(encoder, *pictures, recipe=dataclasses.replace(RECIPE, steps=3), in_place=True)
    assert not any(same(before, encoder))
    assert norm.momentum == 0.77 and result.batch_norm_momentum == 0.9


@pytest.mark.parametrize("several", [False, True])
def test_a_step_of_two_replicas_is_that_of_one_device(several, two_replicas):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (16, 4, 4, 1), np.uint8)
    labels = generator.random((16, 3)) < 0.5 if several else np.arange(16) % 3
    splits = [of_arrays(images, labels)] * 2
    recipe = dataclasses.replace(RECIPE, steps=1, batch_size=16, crop_area=None, weight_decay=0.1)
    trained = []
    for scope in (tf.distribute.get_strategy().scope(), two_replicas.scope()):
        keras.utils.set_random_seed(0)
        with scope:
            dense = keras.layers.Dense(5, "tanh", kernel_regularizer=keras.regularizers.L2(0.01))
            encoder = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), dense])
        before = copies(encoder)
        run = fine_tuning._train(encoder, splits[0], recipe, 3, several, 0, False)
        trained.append(run.classifier.get_weights())
        assert not any(same(before, encoder)[:1])
    for one, other in zip(*trained, strict=True):
        # Sums of 16 terms, in another order.
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=16 * 2**-24)
    assert np.abs(trained[0][-1]).max() > 1e-4  # the bias of the head has moved from 0


@pytest.mark.parametrize("given", ["arrays", "mapping", "dataset"])
def test_images_of_several_classes_come_by_every_door(given, make_encoder, pictures):
    (images, labels), (test, test_labels) = pictures
    several, expected = (np.eye(4, dtype=bool)[numbers] for numbers in (labels, test_labels))
    splits = [(images, several), (test, expected)]
    options = {}
    if given == "mapping":
        splits = [dict(zip(("image", "label"), split, strict=True)) for split in splits]
    elif given == "dataset":
        splits = [tf.data.Dataset.from_tensor_slices(split).batch(40) for split in splits]
        options = {"num_classes": 4}
    assert finetune(make_encoder(), *splits, recipe=RECIPE, metric="map11", **options).map11 > 0.9
    if given == "arrays":
        for wrong in (labels, several.astype(int), several[:-1]):
            with pytest.raises(ValueError, match=r"train labels must be bool \[160, K\], for metric 'map11'"):
                finetune(make_encoder(), (images, wrong), splits[1], recipe=RECIPE, metric="map11")
        with pytest.raises(ValueError, match="must have the shape"):
            finetune(make_encoder(), *splits, recipe=RECIPE)
        missing = (splits[1][0], expected & [True, True, False, True])
        with pytest.raises(ValueError, match="be in some test image, for metric 'map11': class 2 is in none"):
            finetune(make_encoder(), splits[0], missing, recipe=RECIPE, metric="map11")
        for options, message in (
            (
                {"recipe": RECIPE, "fraction": 0.5},
                "A fraction is a share of each class, and images have several",
            ),
            ({"recipe": [RECIPE, RECIPE]}, "2 candidates .*: give validation images of their own, or one"),
        ):
            with pytest.raises(ValueError, match=message):
                finetune(make_encoder(), *splits, metric="map11", **options)


@pytest.mark.parametrize("which", [0, 1])
def test_labels_of_a_dataset_that_are_no_classes_are_said(which, make_encoder, pictures):
    def dataset(split, shift):
        return tf.data.Dataset.from_tensor_slices((split[0], split[1] + shift)).batch(40)

    splits = [dataset(split, 3 * (which == i)) for i, split in enumerate(pictures)]
    name = ("train", "test")[which]
    message = f"num_classes is 4, but a batch of {name} has labels from 3 to 6: they are to be from 0 to 3"
    with pytest.raises(ValueError, match=message):
        finetune(make_encoder(), *splits, num_classes=4, recipe=RECIPE)
    with pytest.raises(ValueError, match=message):
        linear(make_encoder(), *splits, num_classes=4, recipe=Recipe(1, 40), candidates=Candidate(0.1, 0.0))


@pytest.mark.parametrize("which", [0, 1])
def test_images_without_a_label_are_said_before_work(which, pictures):
    """A data set of TFDS numbers them -1."""
    splits = [of_arrays(images, labels - (which == i)) for i, (images, labels) in enumerate(pictures)]
    encoder = keras.Sequential([keras.Input(splits[0].shape), keras.layers.Flatten()])
    for protocol in (finetune, linear):
        with pytest.raises(
            ValueError, match=f"{('train', 'test')[which]} labels cannot be used. .* found -1"
        ):
            protocol(encoder, *splits)


def test_the_last_batch_of_a_dataset_may_be_smaller(make_encoder, pictures):
    train, test = (tf.data.Dataset.from_tensor_slices(split).batch(48) for split in pictures)
    assert train.element_spec[0].shape[0] is None
    recipe = dataclasses.replace(RECIPE, batch_size=48)
    result = finetune(make_encoder(), train, test, recipe=recipe, num_classes=4)
    assert result.num_test == len(pictures[1][1]) and result.top1 > 0.9


def test_mixed_precision_trains_as_float32_does():
    images = np.random.default_rng(0).integers(0, 256, (16, 4, 4, 1), np.uint8)
    split = of_arrays(images, np.arange(16) % 3)
    recipe = dataclasses.replace(RECIPE, steps=3, batch_size=16, weight_decay=0.1)
    moved = []
    for policy, later in (("float32",) * 2, ("mixed_float16",) * 2, ("mixed_float16", "float32")):
        keras.utils.set_random_seed(0)
        keras.config.set_dtype_policy(policy)
        try:
            layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), keras.layers.Dense(5, "tanh")]
            encoder = keras.Sequential([keras.Input((4, 4, 1)), *layers])
            before = [*copies(encoder), np.zeros((5, 3)), np.zeros(3)]
            keras.config.set_dtype_policy(later)
            trained = fine_tuning._train(encoder, split, recipe, 3, False, 0, False).classifier.get_weights()
        finally:
            keras.config.set_dtype_policy("float32")
        moved.append([b - a for a, b in zip(before, trained, strict=True)])
    for one, *others in zip(*moved, strict=True):
        for other in others:
            # Each of three steps is a sum of 16 products that are rounded to 11 bits.
            assert 0 < np.linalg.norm(one - other) < 3 * 16 * 2**-11 * np.linalg.norm(one)
    assert all(map(np.array_equal, *moved[1:]))


@pytest.mark.parametrize("steps, momentum", [(1, 0.9), (100, 0.9), (200, 0.95), (1000, 0.99)])
def test_batch_norm_momentum(steps, momentum):
    assert batch_norm_momentum(steps) == pytest.approx(momentum)


def test_batch_norm_uses_that_momentum(make_encoder, pictures):
    """200 steps an epoch give 0.95: the moving mean after one step tells."""
    (images, labels), test = pictures
    encoder = make_encoder()
    encoder.layers[2].momentum = 0.5
    batches = tf.data.Dataset.from_tensors((images, labels)).repeat(200)
    finetune(
        encoder,
        batches,
        test,
        num_classes=4,
        recipe=dataclasses.replace(RECIPE, steps=1),
        in_place=True,
    )
    fresh = make_encoder()
    fresh.set_weights(encoder.get_weights())
    before = keras.Sequential(encoder.layers[:2])
    # The convolution moved by one step since; with momentum 0.5 this would be ten times as large.
    ratio = encoder.layers[2].moving_mean.numpy() / np.mean(before(images), axis=(0, 1, 2))
    np.testing.assert_allclose(np.median(ratio), 0.05, rtol=0.2)


@pytest.mark.parametrize("part", ["head", "encoder"])
def test_the_learning_rates_are_separate(make_encoder, pictures, part):
    """With the encoder's rate at 0 it stays; a head with rate 0 stays 0 and passes nothing down."""
    encoder = make_encoder()
    before = copies(encoder)
    rates = {"head_learning_rate": 0.1, "encoder_learning_rate": 0.0}
    if part == "encoder":
        rates = {"head_learning_rate": 0.0, "encoder_learning_rate": 0.1}
    result = finetune(encoder, *pictures, recipe=dataclasses.replace(RECIPE, **rates), in_place=True)
    trainable = [v.trainable for v in encoder.variables]
    moved = [not s for s, t in zip(same(before, encoder), trainable, strict=True) if t]
    assert not any(moved)
    assert (result.top1 > 0.5) == (part == "head")


def test_one_step_is_sgd_with_both_rates_and_the_penalty(make_encoder, pictures):
    encoder = make_encoder()
    kernel, bias = encoder.layers[-1].kernel, encoder.layers[-1].bias
    before = kernel.numpy()
    recipe = FinetuneRecipe(1, 160, 0.1, 0.2, weight_decay=0.3, crop_area=None)
    finetune(encoder, *pictures, recipe=recipe, in_place=True)
    # The head is 0 at first, so the penalty alone moves the encoder; Nesterov's first step is 1.9 g.
    np.testing.assert_allclose(kernel.numpy(), before * (1 - 0.2 * 1.9 * 0.3), rtol=1e-5)
    np.testing.assert_array_equal(bias.numpy(), 0)


def test_a_fraction_is_stratified_and_crops_run(make_encoder, pictures):
    recipe = dataclasses.replace(RECIPE, steps=4, crop_area=(0.5, 1.0))
    result = finetune(make_encoder(), *pictures, fraction=0.1, recipe=recipe, seed=3)
    assert result.num_train == 16 and result.seed == 3


def test_same_seed_same_result(make_encoder, pictures):
    encoder = make_encoder()
    recipe = dataclasses.replace(RECIPE, steps=6, crop_area=(0.5, 1.0))
    results = [finetune(encoder, *pictures, fraction=0.5, recipe=recipe, seed=1) for _ in range(2)]
    assert results[0] == results[1]


def test_the_papers_recipes():
    """PAPER: 1 and 10 % by BYOL's appendix; transfer by Kornblith et al., weight decays divided by the rates."""
    few = recipes(**SEMI_SUPERVISED)
    assert {(r.encoder_learning_rate, r.epochs) for r in few} == {
        (rate, epochs) for rate in (0.01, 0.02, 0.05, 0.1, 0.005) for epochs in (30, 50)
    }
    assert {(r.batch_size, r.weight_decay, r.steps) for r in few} == {(1024, 0.0, None)}
    sets = recipes(**TRANSFER)
    assert len(sets) == 7 * 8 and {(r.batch_size, r.steps) for r in sets} == {(256, 20_000)}
    assert all(r.head_learning_rate == r.encoder_learning_rate for r in (*few, *sets))
    products = [r.weight_decay * r.encoder_learning_rate for r in sets]
    expected = np.tile([0.0, *np.logspace(-6, -3, 7)], 7)
    np.testing.assert_allclose(products, expected, rtol=1e-12)
    rates = [r.encoder_learning_rate for r in sets]
    np.testing.assert_allclose(rates, np.repeat(np.logspace(-4, -1, 7), 8), rtol=1e-12)


def test_either_steps_or_epochs():
    for length in ({}, {"steps": 3, "epochs": 3}):
        with pytest.raises(ValueError, match="either steps or epochs"):
            FinetuneRecipe(**length)


@pytest.mark.parametrize("recipe", [{"steps": 3}, [], [{"steps": 3}], "papers"])
def test_a_recipe_is_a_recipe(make_encoder, pictures, recipe):
    with pytest.raises(ValueError, match="recipe must be a FinetuneRecipe, or several, found"):
        finetune(make_encoder(), *pictures, recipe=recipe)


def test_epochs_are_counted_in_the_images_that_there_are(make_encoder, pictures):
    recipe = FinetuneRecipe(epochs=3, batch_size=40, crop_area=None)
    assert finetune(make_encoder(), *pictures, recipe=recipe).steps == 12
    assert finetune(make_encoder(), *pictures, recipe=recipe, fraction=0.5).steps == 6


def test_the_learning_rates_follow_the_batch_that_runs(make_encoder, pictures):
    encoder = make_encoder()
    rates = {"head_learning_rate": 0.4, "encoder_learning_rate": 0.2}
    with pytest.warns(UserWarning, match=r"160 images, where 640 were asked for.* scaled by 0\.25"):
        clipped = finetune(encoder, *pictures, recipe=FinetuneRecipe(5, 640, **rates, crop_area=None))
    plain = finetune(encoder, *pictures, recipe=FinetuneRecipe(5, 160, 0.1, 0.05, crop_area=None))
    assert clipped == plain
    assert (clipped.batch_size, clipped.head_learning_rate, clipped.encoder_learning_rate) == (160, 0.1, 0.05)
    assert clipped.recipe["batch_size"] == 160 and clipped.recipe["head_learning_rate"] == 0.1


def test_the_best_of_a_sweep_is_trained_again_on_all(make_encoder, pictures):
    """A rate that diverges is not chosen, and stops nothing."""
    encoder = make_encoder()
    swept = recipes((1e30, 0.05), epochs=(3,), batch_size=32, crop_area=None)
    before = copies(encoder)
    result = finetune(encoder, *pictures, recipe=swept, seed=2)
    assert all(same(before, encoder))
    alone = finetune(encoder, *pictures, recipe=swept[1], seed=2)
    assert (result.value, result.top5, result.steps) == (alone.value, alone.top5, 15)
    assert (result.encoder_learning_rate, result.validation_value > 0.5) == (0.05, True)
    assert (result.num_train, result.recipe["held_out"], result.at_edge) == (160, 32, ())
    assert result.recipe["encoder_learning_rate"] == [1e30, 0.05] and result.recipe["epochs"] == 3


def test_one_recipe_is_trained_on_validation_images_too(make_encoder, pictures):
    (images, labels), test = pictures
    parts = (images[:120], labels[:120]), test, (images[120:], labels[120:])
    recipe, encoder = dataclasses.replace(RECIPE, steps=4), make_encoder()
    assert finetune(encoder, *parts, recipe=recipe) == finetune(encoder, *pictures, recipe=recipe)


def test_a_record_says_which_length_and_decay_were_chosen(make_encoder, pictures):
    """The decay of the penalty, and what was given, of which it is the share by the learning rate."""
    swept = recipes((0.05,), (1e-3,), epochs=(1, 2), batch_size=32, crop_area=None)
    result = finetune(make_encoder(), *pictures, recipe=swept)
    assert result.epochs == result.steps / 5 and result.epochs in (1, 2)
    assert (result.weight_decay_times_learning_rate, result.weight_decay) == (1e-3, 1e-3 / 0.05)
    assert result.recipe["epochs"] == [1, 2] and result.recipe["weight_decay_times_learning_rate"] == 1e-3
    assert finetune(make_encoder(), *pictures, recipe=dataclasses.replace(RECIPE, steps=1)).epochs is None


def test_images_of_several_classes_are_scored_by_average_precision(make_encoder, pictures):
    (train, test), classes = pictures, np.array([[1, 0, 1], [0, 1, 1], [1, 1, 0], [0, 0, 0]], bool)
    splits = [(images, classes[labels]) for images, labels in (train, test)]
    images = [of_arrays(*split) for split in splits]
    result = finetune(
        make_encoder(), images[0], images[1], metric="map11", recipe=dataclasses.replace(RECIPE, steps=60)
    )
    assert result.metric == "map11" and result.value > 0.95 and result.top5 is None
    with pytest.raises(AttributeError, match="map11"):
        result.top1  # noqa: B018


def test_unusable_input_is_named(make_encoder, pictures):
    with pytest.raises(ValueError, match=r"saved to NAME\.keras, found classifier\.h5"):
        finetune(make_encoder(), *pictures, recipe=RECIPE, save_to="classifier.h5")
    (images, labels), test = pictures
    encoder = make_encoder()
    with pytest.raises(ValueError, match=r"Only a keras\.Model can be fine-tuned"):
        finetune(lambda x: x, (images, labels), test)
    with pytest.raises(ValueError, match="missing"):
        finetune(encoder, (images, None), test)
    with pytest.raises(ValueError, match="one class only"):
        finetune(encoder, (images, 0 * labels), test)
    with pytest.raises(ValueError, match=r"\[B, 8, 8, 1\], found shape .*6, 6, 1\]"):
        finetune(encoder, (images[:, 1:7, 1:7], labels), test)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(40)
    with pytest.raises(ValueError, match="give num_classes"):
        finetune(encoder, dataset, test)
    with pytest.raises(ValueError, match=r"fraction=0\.1"):
        finetune(encoder, dataset, test, fraction=0.1, num_classes=4)
    with pytest.raises(ValueError, match="The dataset is infinite"):
        finetune(encoder, dataset.repeat(), test, num_classes=4, recipe=RECIPE)
    with pytest.raises(ValueError, match="diverged within 30 steps: lower the learning rates"):
        finetune(encoder, *pictures, recipe=dataclasses.replace(RECIPE, encoder_learning_rate=1e30))
