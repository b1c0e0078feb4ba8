"""The contract of an encoder: what it says of itself, its maps, its files, and what it refuses."""

import copy
import dataclasses
import functools
import pickle
import shutil
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_sslhsic
from keras_sslhsic import compat, encoders, views
from keras_sslhsic.encoders import (
    ARCHITECTURES,
    EncoderSpec,
    Stage,
    build_encoder,
    encoder_of,
    with_preprocessing,
)
from keras_sslhsic.encoders.spec import find_stages
from keras_sslhsic.evaluation import extract_features

DATA = Path(__file__).parents[1] / "data"


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def of_statistics(network):
    """The network with statistics as after training."""
    rng = np.random.default_rng(0)
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, weight.shape) for weight in layer.get_weights()])
    return network


@pytest.fixture(scope="module")
def encoder():
    network = of_statistics(build_encoder("r18_1x", (16, 16, 1), width=0.05))
    return with_preprocessing(network, 0.286, 0.353)


@pytest.mark.parametrize("stem", ["imagenet", "small"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_knows_its_stages(name, stem, tmp_path):
    network = build_encoder(name, stem=stem, width=0.01)
    made = with_preprocessing(network, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], size=64)
    spec = made.spec
    blocks, channels = ARCHITECTURES[name][0].blocks, ARCHITECTURES[name][0].scaled(0.01).channels
    first = {"imagenet": 2, "small": 0}[stem]
    assert spec.stages == {
        f"P{first + group}": Stage(
            f"group{group}_block{blocks[group] - 1}_relu", 2 ** (first + group), channels[group]
        )
        for group in range(4)
    }
    assert (spec.shape, spec.shape_seen) == ((None, None, 3), (64, 64, 3))
    assert (spec.network, spec.feature_size) == (name, channels[-1])
    assert EncoderSpec.from_dict(spec.to_dict()) == spec
    if name == "r18_1x":
        made.save(tmp_path / "a.keras")
        assert keras_sslhsic.load_pretrained(tmp_path / "a.keras").spec == spec


@pytest.mark.parametrize("stem", ["imagenet", "small"])
@pytest.mark.parametrize("name", ["r18_1x", "r50_1x"])
def test_maps_have_their_strides_and_the_last_is_what_is_pooled(name, stem):
    network = of_statistics(build_encoder(name, stem=stem, width=0.02))
    made = with_preprocessing(network, 0.5, 0.25)
    images = pixels(2, 64, 96, 3)
    maps = made.maps()(images)
    assert list(maps) == list(made.spec.stages)
    for level, found in maps.items():
        stage = made.spec.stages[level]
        assert found.shape == (2, 64 // stage.stride, 96 // stage.stride, stage.channels)
        assert found.dtype == tf.float32
    np.testing.assert_allclose(np.mean(list(maps.values())[-1], (1, 2)), made(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("antialias", [False, True])
def test_maps_are_of_what_the_network_sees(antialias):
    network = of_statistics(build_encoder("r18_1x", stem="small", width=0.02))
    made = with_preprocessing(network, 0.5, [0.1, 0.2, 0.3], size=(16, 24), antialias=antialias)
    images = pixels(2, 40, 50, 3)
    last = made.maps()(images)["P3"]
    assert last.shape == (2, 2, 3, made.spec.feature_size)
    np.testing.assert_allclose(np.mean(last, (1, 2)), made(images), rtol=1e-5, atol=1e-6)


def test_an_encoder_is_not_normalised_twice(encoder):
    with pytest.raises(ValueError, match="normalises them itself"):
        with_preprocessing(encoder, 0.286, 0.353)


def test_maps_share_the_weights(encoder):
    maps = encoder.maps()
    assert {id(v) for v in maps.variables} == {id(v) for v in encoder.variables}


def test_stages_of_small_images_are_not_rounded_up():
    stages = find_stages(build_encoder("r18_1x", (8, 8, 1), "imagenet", width=0.02))
    assert [stage.stride for stage in stages.values()] == [4, 8, 16, 32]


def test_other_networks_have_stages_too():
    network = keras.applications.ResNet50(
        weights=None, include_top=False, pooling="avg", input_shape=(64, 64, 3)
    )
    assert {level: stage.layer for level, stage in find_stages(network).items()} == {
        "P2": "conv2_block3_out", "P3": "conv3_block4_out", "P4": "conv4_block6_out", "P5": "conv5_block3_out",
    }  # fmt: skip
    mobile = keras.applications.MobileNetV2((64, 64, 3), 0.35, False, weights=None, pooling="avg")
    assert {level: stage.layer for level, stage in find_stages(mobile).items()} == {
        "P2": "block_3_expand_relu", "P3": "block_6_expand_relu", "P4": "block_13_expand_relu", "P5": "out_relu",
    }  # fmt: skip
    images = keras.Input((32, 32, 3))
    x = keras.layers.ZeroPadding2D(1)(keras.layers.Conv2D(2, 3, strides=2, padding="same", name="z")(images))
    x = keras.layers.Conv2D(2, 3, strides=2, name="y")(keras.ops.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]))
    padded = find_stages(keras.Model(images, keras.layers.GlobalAveragePooling2D()(x)))
    assert padded == {"P1": Stage("z", 2, 2), "P2": Stage("y", 4, 2)}
    x = keras.layers.Conv2D(4, 3, strides=2, padding="same", name="a")(images)
    x = keras.layers.Conv2D(8, 3, strides=2, padding="same", name="b")(x)
    chain = keras.Model(images, keras.layers.Flatten()(x))
    assert find_stages(chain) == {"P1": Stage("a", 2, 4), "P2": Stage("b", 4, 8)}
    assert find_stages(keras.Sequential(chain.layers)) == find_stages(chain)
    assert find_stages(keras.Sequential([keras.layers.Conv2D(4, 3)])) == {}  # never built
    patches = keras.layers.Conv2D(8, 14, strides=14, name="patches")(images)
    assert find_stages(keras.Model(images, keras.layers.GlobalAveragePooling2D()(patches))) == {}
    assert find_stages(keras.Model(images, keras.layers.Flatten()(images))) == {}


def test_a_model_of_others_says_its_shapes_and_has_no_maps():
    images = keras.Input((None, 32, 3))
    model = keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(images)))
    found = encoder_of(model)
    assert found.spec == EncoderSpec(None, 32, 3, 4)
    with pytest.raises(
        ValueError, match=r"stages of .* are not known: put its network.*with_preprocessing\.$"
    ):
        found.maps()


def test_a_padding_or_longer_chain_is_not_taken_for_that_of_with_preprocessing(encoder):
    network = encoder.get_layer("r18_1x")
    images = keras.Input((None, None, 1))
    for how in ("stretched", "crop_to_aspect_ratio", "pad_to_aspect_ratio"):
        x = keras.layers.Rescaling(1 / 255)(images)
        x = network(keras.ops.image.resize(x, (16, 16), **({} if how == "stretched" else {how: True})))
        found = encoder_of(keras.Model(images, keras.layers.Identity(dtype="float32")(x))).spec
        known = how != "pad_to_aspect_ratio"
        assert (found.resize, bool(found.stages)) == ((16, 16) if known else None, known)
        assert found.crop == (how == "crop_to_aspect_ratio")
    chain = [keras.layers.Conv2D(1, 1), keras.layers.Rescaling(1 / 255), network, keras.layers.Identity()]
    assert not encoder_of(keras.Sequential([keras.Input((16, 16, 1)), *chain])).spec.stages


def test_a_network_of_normalised_pixels_is_no_encoder():
    with pytest.raises(
        ValueError, match=r"no normalisation inside: wrap it with encoders\.with_preprocessing"
    ):
        encoder_of(build_encoder("r18_1x", width=0.02))


def test_a_network_of_ones_own_that_is_trained_is_no_encoder_of_pixels(tmp_path):
    """Nothing in it tells that it reads normalised images: the trainer does."""

    def network():
        layers = keras.layers.Conv2D(2, 3), keras.layers.GlobalAveragePooling2D()
        return keras.Sequential([keras.Input((8, 8, 3)), *layers])

    own, images = network(), pixels(2, 8, 8, 3)
    assert extract_features(own, images).shape == (2, 2)
    model = keras_sslhsic.SSLHSIC(
        own, projector_hidden=4, projection_dim=4, views=views.small_image(8), weight_ema=0.9
    )
    for door in (
        lambda: extract_features(model.evaluation_encoder, images),
        lambda: extract_features(own, images),
        lambda: encoder_of(own),
        lambda: keras_sslhsic.export_saved_model(model.encoder, tmp_path / "served"),
        lambda: keras_sslhsic.save_pretrained(own, tmp_path / "saved"),
    ):
        with pytest.raises(ValueError, match=r"reads normalised pixels.*or give the model that trains it"):
            door()
    assert not list(tmp_path.iterdir())
    wrapped = with_preprocessing(own, model.policy.mean, model.policy.std)
    # Both normalise, in float32, in another order.
    np.testing.assert_allclose(extract_features(wrapped, images), model(images), rtol=1e-5, atol=1e-5)
    policy = dataclasses.replace(views.small_image(8), mean=(0.0,) * 3, std=(1 / 255,) * 3)
    of_pixels = keras_sslhsic.SSLHSIC(network(), projector_hidden=4, projection_dim=4, views=policy)
    assert extract_features(of_pixels.encoder, images).shape == (2, 2)


@pytest.mark.parametrize("name", ["image", "normalize", "float32", "P1"])
def test_a_network_may_have_the_name_of_a_layer_beside_it(name, tmp_path):
    images = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, strides=2, padding="same")(images)
    network = keras.Model(images, keras.layers.GlobalAveragePooling2D()(x), name=name)
    encoder = with_preprocessing(network, 0.4, 0.2)
    encoder.save(tmp_path / "own.keras")
    given = pixels(2, 8, 8, 3)
    features = network((given / np.float32(255) - 0.4) / 0.2)
    for found in (encoder, keras_sslhsic.load_pretrained(tmp_path / "own.keras")):
        np.testing.assert_allclose(found(given), features, rtol=1e-5, atol=1e-5)
        for maps in (found.maps(), found.dense_maps(2)):
            np.testing.assert_allclose(
                np.mean(maps(given)["P1"], axis=(1, 2)), features, rtol=1e-5, atol=1e-5
            )


def test_a_spec_of_another_model_is_refused(encoder):
    spec = encoder.spec
    wide = EncoderSpec(**{**vars(spec), "width": 17})
    with pytest.raises(ValueError, match=r"are \(16, 16, 1, 26\), and in the spec \(16, 17, 1, 26\)"):
        encoders.Encoder(encoder.inputs[0], encoder.outputs[0], wide)
    gone = EncoderSpec(**{**vars(spec), "stages": {"P0": Stage("gone", 1, 3)}})
    with pytest.raises(ValueError, match=r"layers that the network has not: \['gone'\]"):
        encoders.Encoder(encoder.inputs[0], encoder.outputs[0], gone)


def test_copies_are_encoders(encoder):
    twin = copy.deepcopy(encoder)
    assert twin.spec == encoder.spec
    np.testing.assert_array_equal(twin(pixels(2, 16, 16, 1)), encoder(pixels(2, 16, 16, 1)))


def test_a_model_with_an_encoder_in_it_can_be_copied_and_saved_as_keras_does(encoder, tmp_path):
    images, inputs = pixels(2, 16, 16, 1), keras.Input((16, 16, 1))
    for model in (keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs))), keras.Sequential([encoder])):
        expected = model(images)
        twin = keras.models.clone_model(model)
        twin.set_weights(model.get_weights())
        model.save(tmp_path / "a.h5")
        again = keras.models.load_model(tmp_path / "a.h5")
        for copied in (twin, again, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            np.testing.assert_allclose(copied(images), expected, rtol=1e-5, atol=1e-6)


# Files


LOAD_ALONE = """
import sys

import keras
import numpy as np

data = np.load(sys.argv[1])
for path in sys.argv[2:]:
    model = keras.models.load_model(path)
    assert type(model).__name__ in ("Functional", "Sequential"), type(model)
    np.testing.assert_array_equal(model(data["images"]), data["features"])
assert "keras_sslhsic" not in sys.modules
print("loaded")
"""


@pytest.mark.slow
def test_what_was_loaded_is_saved_as_a_plain_model(encoder, tmp_path):
    images = pixels(3, 16, 16, 1)
    keras_sslhsic.save_pretrained(encoder, tmp_path / "saved")
    loaded = keras_sslhsic.load_pretrained(tmp_path / "saved")
    assert loaded.spec == encoder.spec
    keras_sslhsic.save_pretrained(loaded, tmp_path / "again")
    loaded.save(tmp_path / "a.keras")
    again = keras_sslhsic.load_pretrained(tmp_path / "again")
    np.testing.assert_array_equal(again(images), encoder(images))
    assert again.spec == encoder.spec and list(again.maps().output) == list(encoder.spec.stages)
    np.savez(tmp_path / "data.npz", images=images, features=encoder(images))
    (tmp_path / "load.py").write_text(LOAD_ALONE)
    inputs = keras.Input((16, 16, 1))
    for number, model in enumerate(
        (loaded, keras.Model(inputs, loaded(inputs)), keras.Sequential([loaded]), copy.deepcopy(loaded))
    ):
        keras.saving.save_model(model, tmp_path / f"{number}.keras")
    paths = [tmp_path / "saved" / "encoder.keras", tmp_path / "again" / "encoder.keras", tmp_path / "a.keras"]
    paths += [tmp_path / f"{number}.keras" for number in range(4)]
    run = subprocess.run(
        [sys.executable, tmp_path / "load.py", tmp_path / "data.npz", *paths], capture_output=True, text=True
    )
    assert run.stdout == "loaded\n", run.stderr


def test_saving_says_what_it_cannot_do(encoder, tmp_path):
    with pytest.raises(ValueError, match=r"saved to NAME\.keras, found .*a\.h5"):
        encoder.save(tmp_path / "a.h5")
    (tmp_path / "a.keras").write_text("mine")
    with pytest.raises(FileExistsError, match=r"a\.keras is there already"):
        encoder.save(tmp_path / "a.keras", overwrite=False)
    assert (tmp_path / "a.keras").read_text() == "mine"


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """Files of version 0.1: encoder.keras, saved/, saved_again/ of what was loaded, encoder.weights.h5; and features."""
    folder = tmp_path_factory.mktemp("old")
    shutil.unpack_archive(DATA / "old_encoders.zip", folder)
    return folder, np.load(folder / "expected.npz")


@pytest.mark.skipif(
    tuple(map(int, keras.__version__.split(".")[:2])) < (3, 14),
    reason="version 0.1 saved with Keras 3.15, whose BatchNormalization has arguments that this Keras does not know",
)
@pytest.mark.parametrize("name", ["encoder.keras", "saved", "saved_again"])
def test_files_without_a_spec_load_and_have_maps(old, name):
    folder, expected = old
    loaded = keras_sslhsic.load_pretrained(folder / name)
    np.testing.assert_allclose(loaded(expected["x"]), expected["ema"], rtol=1e-5, atol=1e-5)
    assert loaded.spec.stages["P3"] == Stage("group3_block1_relu", 8, 15)
    assert (loaded.spec.mean, loaded.spec.std) == ((0.286,), (0.353,))
    last = loaded.maps()(expected["x"])["P3"]
    np.testing.assert_allclose(np.mean(last, (1, 2)), expected["ema"], rtol=1e-5, atol=1e-5)


def test_weights_without_a_spec_load_and_have_maps(old):
    folder, expected = old
    network = build_encoder("r18_1x", (16, 16, 1), width=0.03)
    network.load_weights(folder / "encoder.weights.h5")
    loaded = with_preprocessing(network, 0.286, 0.353)
    np.testing.assert_allclose(loaded(expected["x"]), expected["ema"], rtol=1e-5, atol=1e-5)
    last = loaded.maps()(expected["x"])["P3"]
    np.testing.assert_allclose(np.mean(last, (1, 2)), expected["ema"], rtol=1e-5, atol=1e-5)


def test_the_bundled_network_has_maps():
    bundled = keras_sslhsic.load_pretrained("r18_fashion")
    images = pixels(2, 28, 28, 1)
    np.testing.assert_allclose(
        np.mean(bundled.maps()(images)["P5"], (1, 2)), bundled(images), rtol=1e-4, atol=1e-5
    )


# One range of pixels


@pytest.fixture(scope="module")
def trainer():
    network = of_statistics(build_encoder("r18_1x", (16, 16, 1), width=0.05))
    return keras_sslhsic.SSLHSIC(network, 8, 4, views=views.grayscale(16), weight_ema=0.9)


def test_a_trainer_is_its_serving_encoder(trainer, tmp_path):
    images = pixels(4, 16, 16, 1)
    served = encoder_of(trainer)
    assert isinstance(served, encoders.Encoder) and served.spec.stages
    expected = trainer.evaluation_encoder(views.prepare(images, trainer.policy))
    np.testing.assert_allclose(served(images), expected, rtol=1e-5, atol=1e-5)
    features = extract_features(trainer, images)
    np.testing.assert_array_equal(extract_features(trainer, images.astype(np.float32)), features)
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-5)
    extract_features(trainer, images, cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_trainer_on_several_replicas_gives_its_features(tmp_path):
    strategy = tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    with strategy.scope():
        network = build_encoder("r18_1x", (16, 16, 1), width=0.02)
        model = keras_sslhsic.SSLHSIC(network, 8, 4, views=views.grayscale(16), weight_ema=0.9)
    images = pixels(6, 16, 16, 1)
    features = extract_features(model, images, batch_size=4)
    expected = model.evaluation_encoder(views.prepare(images, model.policy))
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-6)
    keras_sslhsic.save_pretrained(model, tmp_path)
    np.testing.assert_allclose(
        keras_sslhsic.load_pretrained(tmp_path)(images), features, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["array", "tensor", "dataset", "pairs"])
def test_every_way_in_refuses_pixels_in_0_1(kind, encoder, trainer):
    images = pixels(4, 16, 16, 1).astype(np.float32) / 255
    dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(4)))
    given = {
        "array": images,
        "tensor": tf.constant(images),
        "dataset": dataset.map(lambda image, _: image).batch(2),
        "pairs": dataset.batch(2),
    }[kind]
    ways = [lambda: encoder.predict(given, verbose=0)]
    if kind != "tensor":
        ways += [functools.partial(extract_features, each, given) for each in (encoder, trainer, lambda x: x)]
    for way in ways:
        with pytest.raises(
            ValueError, match=r"lie in \[0, .*1\], but the encoder expects \[0, 255\]: multiply by 255"
        ):
            way()
    with pytest.warns(UserWarning, match="multiply by 255, unless it is that dark"):
        encoder(images[:1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        extract_features(encoder, pixels(4, 16, 16, 1).astype(np.float32))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.full((2, 16, 16, 1), np.nan, np.float32), "NaN or Inf"),
        (
            np.zeros((2, 8, 16, 1), np.uint8),
            r"\[B, 16, 16, 1\], found shape \[.*, 8, 16, 1\]\. Resize the images",
        ),
        (np.zeros((2, 16, 16, 3), np.uint8), r"\[B, 16, 16, 1\], found shape \[.*, 16, 16, 3\]"),
        (np.zeros((2, 16, 16, 1), bool), "found bool"),
        (np.full((2, 16, 16, 1), -0.5, np.float32), r"lie in \[-0.5, -0.5\].*give 127.5 \* \(images \+ 1\)"),
        (np.full((2, 16, 16, 1), 255.5), r"lie in \[.*256\].*undo what normalised them"),
        (np.full((2, 16, 16, 1), 2**15, np.uint16), "divide those of 16 bits by 257"),
        (np.zeros((2, 16, 16), np.uint8), r"found shape \[.*, 16, 16\]"),
    ],
)
def test_every_way_in_refuses_what_is_no_image(bad, message, encoder, trainer):
    dataset = tf.data.Dataset.from_tensor_slices(bad).batch(1)
    for way in (
        lambda: encoder(bad),
        lambda: encoder.predict(bad, verbose=0),
        lambda: encoder.predict(dataset, verbose=0),
        lambda: extract_features(encoder, bad),
        lambda: extract_features(encoder, dataset),
        lambda: extract_features(trainer, dataset),
    ):
        with pytest.raises(ValueError, match=message):
            way()


def test_functions_are_given_images_too():
    with pytest.raises(ValueError, match="NaN or Inf"):
        extract_features(lambda x: x, np.full((2, 4, 4, 1), np.nan, np.float32))
    with pytest.raises(ValueError, match=r"Expected images \[B, H, W, C\]"):
        extract_features(lambda x: x, np.zeros((2, 4), np.uint8))


def test_shapes_are_checked_within_a_graph_too(encoder):
    call = tf.function(lambda images: encoder(images))
    with pytest.raises(ValueError, match=r"Expected images \[B, 16, 16, 1\], found shape \[2, 16, 16, 3\]"):
        call(tf.zeros((2, 16, 16, 3)))


def test_files_hold_the_spec(encoder, tmp_path):
    encoder.save(tmp_path / "a.keras")
    with zipfile.ZipFile(tmp_path / "a.keras") as archive:
        assert f"{compat.NOTE}.json" in archive.namelist()
