"""The size that an encoder was trained at: known by its file, used where images are read, said with what comes of it."""

import dataclasses
import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny
from PIL import Image

from keras_sslhsic import cli, export, load_pretrained, save_pretrained
from keras_sslhsic.data import decode
from keras_sslhsic.data.central import central_square, traced_square
from keras_sslhsic.encoders import Encoder, EncoderSpec, encoder_of, with_preprocessing
from keras_sslhsic.zoo.extract import extract


@pytest.fixture(scope="module")
def twelve():
    """An encoder of any size that was trained at 12 pixels."""
    pixels = keras.Input((None, None, 3))
    x = keras.layers.Conv2D(4, 3, activation="relu")(pixels)
    network = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(x), name="tiny")
    return with_preprocessing(network, 0.5, 0.25, trained_at=12)


@pytest.fixture
def photos(tmp_path):
    """A folder with a folder a class, of smooth images of several sizes."""
    rng = np.random.default_rng(0)
    for i in range(8):
        coarse = rng.integers(0, 256, (5, 5, 3), np.uint8)
        path = tmp_path / "photos" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coarse).resize((60 + i, 40), Image.Resampling.BILINEAR).save(path)
    return tmp_path / "photos"


def test_files_keep_it_and_those_of_before_have_none(twelve, tmp_path):
    twelve.save(tmp_path / "a.keras")
    entry = save_pretrained(twelve, tmp_path / "b")
    assert "any size, trained at 12x12 pixels" in (tmp_path / "b" / "README.md").read_text()
    assert [load_pretrained(tmp_path / name).spec.trained_at for name in ("a.keras", "b")] == [12, 12]
    assert entry.trained_at == 12
    fields = twelve.spec.to_dict()
    del fields["trained_at"]
    assert EncoderSpec.from_dict(fields).size_for(None) is None
    with pytest.raises(ValueError, match="spec of the encoder is damaged"):
        EncoderSpec.from_dict({**fields, "trained_at": "12"})
    with pytest.raises(ValueError, match=r"A later version of keras_sslhsic .* \('wings'\): install"):
        EncoderSpec.from_dict({**twelve.spec.to_dict(), "wings": 2})
    assert load_pretrained("r18_fashion").spec.size_for(None) == 28  # its entry says it


@pytest.mark.parametrize(
    "height, width, resize, expected",
    [
        (None, None, None, 12),
        (8, 8, None, 8),
        (8, 9, None, None),
        (None, 8, None, None),
        (None, None, (16, 16), 16),
    ],
)
def test_what_the_network_sees_comes_before_it(height, width, resize, expected):
    spec = EncoderSpec(height, width, 3, 4, resize, trained_at=12)
    assert spec.size_for(None) == expected
    if height:
        with pytest.raises(ValueError, match=f"reads images of 8 x {width} pixels, found image_size=12"):
            spec.size_for(12)
    elif not width:
        assert spec.size_for(30) == 30


def test_features_are_of_images_of_that_size(twelve, photos, tmp_path):
    for size, given in ((12, {}), (20, {"image_size": 20})):
        out = tmp_path / f"{size}.npz"
        assert extract(twelve, photos, out, **given).image_size == size
        with np.load(out) as found:
            files = [decode.decode((photos / name).read_bytes()) for name in found["files"]]
            expected = twelve(np.stack([central_square(pixels, size) for pixels in files]))
            np.testing.assert_allclose(found["features"], expected, rtol=1e-5, atol=1e-5)
            assert found["image_size"] == str(size)
        assert extract(twelve, photos, out, **given).computed == 0
    with pytest.raises(
        ValueError, match=r"20\.npz holds features of images of 20 pixels, and those to come are of 12"
    ):
        extract(twelve, photos, tmp_path / "20.npz")
    with pytest.raises(ValueError, match="image_size must be None or at least 1, found 0"):
        extract(twelve, photos, tmp_path / "20.npz", image_size=0)


def test_features_that_an_earlier_version_computed_are_gone_on_with(twelve, photos, tmp_path):
    free, out = encoder_of(twelve.plain()), tmp_path / "out.npz"
    assert free.spec.trained_at is None and extract(free, photos, out).image_size is None
    with np.load(out) as found:
        np.savez(out, **{name: found[name] for name in found if name != "image_size"})
    assert extract(free, photos, out).computed == 0
    with pytest.raises(
        ValueError, match="of images of the size that they have, and those to come are of 12 pixels"
    ):
        extract(twelve, photos, out)


def test_exports_resize_to_it(twelve, tmp_path):
    images = tf.cast(tf.random.stateless_uniform((2, 30, 24, 3), (0, 1), 0, 255, tf.int32), tf.uint8)
    for size, given in ((12, {}), (20, {"image_size": 20})):
        path = tmp_path / f"served{size}"
        export.write(twelve, path, **given)
        served = tf.saved_model.load(str(path)).signatures["serving_default"](image=images)["features"]
        np.testing.assert_allclose(served, twelve(tiny.served(images, size)), rtol=1e-4, atol=1e-4)
    # So does what has no network inside of which it is known, and nothing else is resized.
    layers = [
        keras.Input((None, None, 3)),
        keras.layers.MaxPooling2D(),
        keras.layers.GlobalAveragePooling2D(),
    ]
    plain = encoder_of(keras.Sequential(layers))
    # An encoder of one size is served of images of any, where that is asked for.
    fixed = encoder_of(keras.Sequential([keras.Input((8, 8, 3)), *layers[1:]]))
    for name, encoder, given, seen in (
        ("free", plain, {}, images),
        ("eight", plain, {"image_size": 8}, tiny.served(images, 8)),
        ("fixed", fixed, {"image_size": 8}, tiny.served(images, 8)),
    ):
        export.export_saved_model(encoder, tmp_path / name, **given)
        served = tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"](image=images)[
            "features"
        ]
        np.testing.assert_allclose(served, plain(seen), rtol=1e-4)


def test_of_a_classifier_extract_and_exports_see_what_measured_it(twelve, photos, tmp_path):
    spec = dataclasses.replace(twelve.spec, short_side=15)
    assert [spec.short_side_for(size) for size in (12, 24, 4)] == [15, 30, 5]
    classifier = Encoder(twelve.inputs[0], twelve.outputs[0], spec)
    classifier.save(tmp_path / "classifier.keras")
    classifier = load_pretrained(tmp_path / "classifier.keras")
    assert classifier.spec.short_side == 15
    with np.load(extract(classifier, photos, tmp_path / "out.npz").out) as found:
        files = [(photos / name).read_bytes() for name in found["files"]]
        squares = np.stack([central_square(decode.decode(file), 12, 15) for file in files])
        np.testing.assert_allclose(found["features"], twelve(squares), rtol=1e-5, atol=1e-5)
        export.write(classifier, tmp_path / "served")
        served = tf.saved_model.load(str(tmp_path / "served")).signatures
        # Means of blocks are rounded in the one, and positions of the kernel.
        encoded = served["encoded"](bytes=tf.constant(files))["features"]
        traced = [traced_square(tf.cast(decode.decode(file)[None], tf.float32), 12, 15) for file in files]
        np.testing.assert_allclose(encoded, twelve(np.concatenate(traced)), rtol=1e-4, atol=1e-4)
        image = decode.decode(files[0])[None]
        np.testing.assert_allclose(
            served["serving_default"](image=image)["features"], encoded[:1], rtol=1e-4, atol=1e-4
        )


def test_the_commands_use_it_and_results_say_it(twelve, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    twelve.save("twelve.keras")
    evaluate = [
        "evaluate",
        "knn",
        "--encoder",
        "twelve.keras",
        "--data",
        "photos",
        "--k",
        "1",
        "--out",
        "r.jsonl",
    ]
    assert cli.main(evaluate) == cli.main([*evaluate, "--image-size", "20"]) == 0
    sizes = [json.loads(line)["recipe"]["image_size"] for line in Path("r.jsonl").read_text().splitlines()]
    assert sizes == [12, 20]
    assert cli.main(["extract", "--model", "twelve.keras", "--data", "photos", "--out", "f.npz"]) == 0
    told = capsys.readouterr().out
    assert "knn on photos at 12 pixels: top1" in told and "knn on photos at 20 pixels: top1" in told
    assert "8 rows in f.npz, 8 of them computed now, of images of 12 pixels." in told
