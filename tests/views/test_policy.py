"""Policies as data, and the whole program: reproducible, independent, the same in every mode of execution."""

import dataclasses
import json

import ml_collections
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import views

PRESETS = [
    views.byol(24),
    views.simclr(24),
    views.small_image(24),
    views.grayscale(24),
    views.multispectral(24, 7),
]
LOCAL = views.multi_crop(24, local_size=10, num_local=3)


def random_images(batch, policy, height=40, width=32, seed=0):
    shape = (batch, height, width, len(policy.mean))
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def denormalized(view, policy):
    return np.asarray(view) * policy.std + policy.mean


@pytest.mark.parametrize("policy", [*PRESETS, LOCAL])
def test_round_trips_through_dicts_json_and_configs(policy):
    config = policy.to_dict()
    assert views.ViewPolicy.from_dict(config) == policy
    for junk in (None, [1], "byol", {"crop": 5}):
        with pytest.raises(ValueError, match="is made of a mapping with the fields"):
            views.ViewPolicy.from_dict(junk)
    assert views.get(json.loads(json.dumps(config))) == policy
    assert views.get(ml_collections.ConfigDict(config)) == policy
    assert views.get(policy) is policy


def test_numbers_of_numpy_are_kept_as_those_of_python():
    given = views.ViewPolicy(
        size=np.int64(32),
        flip=np.float32(0.25),
        crop=views.Crop(area=np.array([0.25, 1.0])),
        blur=views.Blur(probability=[np.float32(0.5), 0.25]),
        mean=np.array([0.5, 0.25, 0.5], np.float32),
        std=list(np.array([0.5, 0.25, 0.5], np.float32)),
    )
    expected = views.ViewPolicy(
        size=32,
        flip=0.25,
        crop=views.Crop(area=(0.25, 1.0)),
        blur=views.Blur(probability=(0.5, 0.25)),
        mean=(0.5, 0.25, 0.5),
        std=(0.5, 0.25, 0.5),
    )
    assert given == expected and json.dumps(given.to_dict()) == json.dumps(expected.to_dict())


def test_fields_can_be_overridden_in_a_config():
    config = ml_collections.ConfigDict({"views": views.grayscale(28).to_dict()})
    config.update_from_flattened_dict(
        {"views.size": 20, "views.blur.probability": (0.3, 0.4), "views.jitter.brightness": 0.1}
    )
    policy = views.get(config.views)
    assert (policy.size, policy.blur.probability, policy.jitter.brightness) == (20, (0.3, 0.4), 0.1)
    assert policy.mean == views.grayscale().mean


@pytest.mark.parametrize(
    "name", ["byol", "simclr", "multi_crop", "small_image", "grayscale", "multispectral"]
)
def test_get_finds_presets(name):
    assert views.get(name) == getattr(views, name)()


def test_presets_crop_as_their_recipes_do():
    laws = {name: views.get(name).crop.box for name in ("byol", "simclr", "small_image", "grayscale")}
    assert laws == {"byol": "clamped"} | dict.fromkeys(["simclr", "small_image", "grayscale"], "redrawn")
    assert views.ViewPolicy() == views.byol()


def test_the_law_of_the_crop_decides_the_views():
    images, policy = random_images(16, views.byol(24)), views.byol(24)
    redrawn = dataclasses.replace(policy, crop=dataclasses.replace(policy.crop, box="redrawn"))
    for view, other in zip(*(views.make_views(images, p, [0, 1]) for p in (policy, redrawn)), strict=True):
        assert np.abs(view - other).max() > 0.1


def test_policies_saved_before_there_was_a_choice_are_redrawn():
    """A run that goes on, and a model that was saved, see the views that they were trained on."""
    saved = views.byol(24).to_dict()
    del saved["crop"]["box"]
    assert views.get(saved).crop == views.Crop(box="redrawn")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: views.Crop(box="cut"), "'redrawn', 'clamped'.*'cut'"),
        (lambda: views.get("moco"), "byol.*'moco'"),
        (lambda: views.get(3), "byol.*3"),
        (lambda: views.get({"sise": 3}), r"size.*\['sise'\]"),
        (lambda: views.get({"blur": {"radius": 3}}), r"Blur.*sigma.*\['radius'\]"),
        (lambda: views.ViewPolicy(blur=views.Blur((1.0,))), r"\(1.0,\) and \(0.0, 0.2\)"),
        (lambda: views.multi_crop(num_local=-1), "1 views.* found -1"),
        (lambda: views.ViewPolicy(local=views.Local(2)), "2 views.* found 2"),
        (lambda: views.ViewPolicy(mean=(0.5,)), r"\(0.5,\) and \(0.229, 0.224, 0.225\)"),
        (lambda: views.ViewPolicy(flip=50), "flip must be at most 1, found 50"),
        (
            lambda: views.ViewPolicy(blur=views.Blur((1.0, -1.0))),
            "blur.probability must be at least 0, found -1",
        ),
        (lambda: views.ViewPolicy(jitter=views.ColorJitter(hue=-0.1)), "jitter.hue must be at least 0"),
        (lambda: views.ViewPolicy(crop=views.Crop((1.0, 0.2))), "crop.area must be at least 1, found 0.2"),
        (
            lambda: views.ViewPolicy(local=views.Local(1, 8, (0.1, 1.5))),
            "local.area must be at most 1, found 1.5",
        ),
        (lambda: views.byol("224"), "size must be an integer, found '224'"),
        (
            lambda: views.make_views(np.zeros((4, 4, 3)), views.byol(4), [0, 1]),
            r"images \[B, H, W, C\].*\(4, 4, 3\)",
        ),
        (lambda: views.make_views(np.zeros((1, 4, 4, 3)), "byol", 3), r"a seed int \[2\]"),
        (lambda: views.make_views(np.zeros((1, 4, 4, 3)), "byol", [3]), r"a seed int \[2\].* \(1,\)"),
        (lambda: views.make_views(np.zeros((1, 4, 4, 3)), "bjol", [0, 1]), "'bjol'"),
        (lambda: views.make_views(np.full((1, 4, 4, 3), 200.0), "byol", [0, 1]), "up to 200: divide"),
        (lambda: views.make_views(np.full((1, 4, 4, 3), 200), "byol", [0, 1]), "up to 200: divide"),
        (lambda: views.prepare(np.full((1, 4, 4, 3), 200.0), views.byol(4)), "up to 200: divide"),
        (lambda: views.ViewPolicy(crop=views.Crop([1.0, 0.2])), "crop.area must be at least 1, found 0.2"),
        (lambda: views.ViewPolicy(std=(0.2, 0.0, 0.2)), "std must be above 0, found 0"),
        (lambda: views.finish_views([np.zeros((1, 4, 4, 3))], views.byol(4), [0, 1]), "2 views, found 1"),
        (lambda: views.prepare(np.zeros((1, 4, 4, 1)), views.byol(4)), "1 channels.* 3"),
    ],
)
def test_errors_say_what_was_given_and_expected(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("policy", PRESETS)
def test_views_have_shape_type_and_range(policy):
    made = views.make_views(random_images(6, policy), policy, [0, 1])
    assert len(made) == 2
    for view in made:
        assert view.shape == (6, 24, 24, len(policy.mean)) and view.dtype == tf.float32
        values = denormalized(view, policy)
        assert np.isfinite(values).all() and values.min() >= -1e-5 and values.max() <= 1 + 1e-5


def test_local_views_are_small_and_of_small_parts_and_change_no_other_view():
    # Each image is a ramp, whose range in a view is the share of the width that the view shows.
    ramp = np.broadcast_to(np.linspace(0, 255, 200)[:, None], (16, 200, 200, 3)).astype(np.uint8)
    plain = {"jitter": views.ColorJitter(0.0), "grayscale": 0.0, "mean": (0.0,) * 3, "std": (1.0,) * 3}
    policy = dataclasses.replace(LOCAL, blur=views.Blur((0.0,) * 5), **plain)
    made = views.make_views(ramp, policy, [0, 1])
    assert [view.shape for view in made] == [(16, 24, 24, 3)] * 2 + [(16, 10, 10, 3)] * 3
    for view, (low, high) in zip(made, [policy.crop.area] * 2 + [policy.local.area] * 3, strict=True):
        # Sides are between those of the least tall and the tallest crop; half a pixel of the view at each end is not seen.
        shown = np.ptp(np.asarray(view), axis=(1, 2, 3)) / (1 - 1 / view.shape[1])
        assert shown.min() >= 0.9 * np.sqrt(low * 3 / 4) and shown.max() <= 1.1 * np.sqrt(high * 4 / 3)
    large = dataclasses.replace(
        policy, local=views.Local(), blur=views.Blur((0.0,) * 2), solarize=views.Solarize((0.0,) * 2)
    )
    for view, alone in zip(made, views.make_views(ramp, large, [0, 1]), strict=False):
        np.testing.assert_array_equal(view, alone)


@pytest.mark.parametrize(
    ("policy", "compiled"),
    [
        (views.multi_crop(24, 10, 1), True),
        (views.byol(24), False),
        (views.byol(24), True),
        (views.grayscale(24), True),
    ],
)
def test_same_eager_in_a_graph_and_compiled(policy, compiled):
    images, seed = tf.constant(random_images(8, policy)), tf.constant([3, 4])

    def step(images, seed):
        return views.make_views(images, policy, seed)

    result = tf.function(step, jit_compile=compiled, autograph=False)(images, seed)
    for ours, expected in zip(result, step(images, seed), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_same_inside_tf_data():
    policy = views.grayscale(24)
    images, seed = random_images(8, policy), tf.constant([3, 4])
    dataset = tf.data.Dataset.from_tensor_slices(images).batch(8, drop_remainder=True)
    (inside,) = dataset.map(lambda images: views.make_views(images, policy, seed))
    for ours, expected in zip(inside, views.make_views(images, policy, seed), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_uint8_and_float_images_give_the_same():
    policy = views.byol(24)
    images = random_images(4, policy)
    for ours, expected in zip(
        views.make_views(images / np.float32(255), policy, [0, 1]),
        views.make_views(images, policy, [0, 1]),
        strict=True,
    ):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_seed_reproduces_bit_for_bit_and_another_differs():
    policy = views.byol(24)
    images = random_images(4, policy)
    first, again, other = (views.make_views(images, policy, seed) for seed in ([7, 1], [7, 1], [7, 2]))
    for view, same, different in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(view, same)
        assert (np.abs(view - different).max(axis=(1, 2, 3)) > 0.1).all()


def test_images_and_views_draw_their_own():
    policy = views.byol(24)
    images = np.repeat(random_images(1, policy), 6, axis=0)
    made = np.concatenate(views.make_views(images, policy, [0, 1]))
    distances = np.abs(made[:, None] - made).max(axis=(2, 3, 4)) + np.eye(12)
    assert distances.min() > 0.1


def test_an_image_does_not_depend_on_the_others():
    policy = views.byol(24)
    images = random_images(6, policy)
    others = random_images(6, policy, seed=1)
    others[2] = images[2]
    for view, changed in zip(
        views.make_views(images, policy, [0, 1]), views.make_views(others, policy, [0, 1]), strict=True
    ):
        np.testing.assert_array_equal(view[2], changed[2])
        assert np.abs(view[0] - changed[0]).max() > 0.1


@pytest.mark.parametrize("shape", [(1, 30), (30, 1), (1, 1), (30, 30)])
@pytest.mark.parametrize("level", [0, 128, 255])
@pytest.mark.parametrize("policy", [views.byol(24), views.grayscale(24)])
def test_black_white_constant_and_thin_images(shape, level, policy):
    images = np.full((8, *shape, len(policy.mean)), level, np.uint8)
    for view in views.make_views(images, policy, [0, 1]):
        values = denormalized(view, policy)
        assert np.isfinite(values).all() and values.min() >= -1e-5 and values.max() <= 1 + 1e-5


def test_any_number_of_views():
    policy = dataclasses.replace(
        views.small_image(16), blur=views.Blur((0.5,) * 4), solarize=views.Solarize((0.0, 0.2, 0.0, 0.2))
    )
    made = views.make_views(random_images(3, policy), policy, [0, 1])
    assert [view.shape for view in made] == [(3, 16, 16, 3)] * 4


def test_ready_made_crops_get_all_that_follows_the_crop():
    """With crops of the whole image at its own size, both ways are the same."""
    policy = dataclasses.replace(views.byol(32), crop=views.Crop(area=(1.0, 1.0), aspect=(1.0, 1.0)))
    images = random_images(6, policy, 32, 32)
    for ours, expected in zip(
        views.finish_views([images, images], policy, [0, 1]),
        views.make_views(images, policy, [0, 1]),
        strict=True,
    ):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_no_policy_only_normalises():
    policy = views.get(None)
    images = random_images(3, policy)
    expected = (images / 255 - policy.mean) / policy.std
    np.testing.assert_allclose(views.prepare(images, policy), expected, atol=1e-5)
    for view in views.finish_views([images, images / np.float32(255)], policy, [0, 1]):
        np.testing.assert_allclose(view, expected, atol=1e-5)


def test_more_than_three_channels():
    policy = views.ViewPolicy(
        size=16,
        jitter=views.ColorJitter(saturation=0.0, hue=0.0),
        grayscale=0.0,
        mean=(0.5,) * 5,
        std=(0.2,) * 5,
    )
    assert views.make_views(random_images(2, policy), policy, [0, 1])[0].shape == (2, 16, 16, 5)
