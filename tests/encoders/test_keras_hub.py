"""Segmentation and detection by keras-hub on encoders: `make test-hub` runs it, in an environment of its own."""

import re
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_sslhsic
from keras_sslhsic.encoders import Architecture, with_preprocessing
from keras_sslhsic.encoders.resnet import resnet

keras_hub = pytest.importorskip("keras_hub", reason="make test-hub runs it, in an environment of its own")
ROOT = Path(__file__).parents[2]
TINY = Architecture((1, 1, 1, 1), (8, 8, 8, 12), bottleneck=False, stem_channels=4)


@pytest.fixture(scope="module")
def encoder():
    return with_preprocessing(resnet(TINY, (None, None, 3), name="tiny"), 0.4, 0.2)


@pytest.fixture(scope="module")
def boxes():
    """Photographs of noise, each with one bright rectangle, whose class is its colour."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 96, (8, 64, 64, 3)).astype(np.uint8)
    corners = np.concatenate([rng.integers(0, 24, (8, 2)), rng.integers(36, 64, (8, 2))], axis=1)
    labels = np.arange(8) % 2
    for image, (left, top, right, bottom), label in zip(images, corners, labels, strict=True):
        image[top:bottom, left:right, label] += 128
    return images, corners[:, None].astype(np.float32), labels[:, None].astype(np.float32)


def test_the_image_encoder_of_deeplab(encoder, tmp_path):
    def deeplab(output_stride):
        return keras_hub.models.DeepLabV3Backbone(
            encoder.dense_maps(output_stride), "P5", output_stride // 4, [2, 4], "P2", image_shape=(64, 96, 3)
        )

    images = np.random.default_rng(1).integers(0, 256, (2, 64, 96, 3)).astype(np.float32)
    network = deeplab(32)
    computed = network(images)
    assert computed.shape == (2, 64, 96, 256)
    # It takes the stride of a map from its name: one of stride 16 makes the result twice as large.
    assert deeplab(16)(images).shape == (2, 128, 192, 256)
    [inner] = [layer for layer in network.layers if isinstance(layer, keras.Model)]
    for name, value in encoder.maps()(images).items():
        np.testing.assert_allclose(inner(images)[name], value, rtol=1e-5, atol=1e-5)
    network.save(tmp_path / "deeplab.keras")
    again = keras.models.load_model(tmp_path / "deeplab.keras")
    np.testing.assert_allclose(again(images), computed, rtol=1e-5, atol=1e-5)


def test_the_image_encoder_of_a_converted_network_and_a_saved_one(encoder, tmp_path):
    encoder.save(tmp_path / "saved.keras")
    images = np.random.default_rng(2).integers(0, 256, (1, 224, 224, 3)).astype(np.float32)
    for path in (tmp_path / "saved.keras", ROOT / "tests/data/checkpoint_tiny.npy"):
        given = keras_sslhsic.load_pretrained(path)
        last = max(given.spec.stages)
        backbone = keras_hub.models.RetinaNetBackbone(
            given.dense_maps(32), int(last[1]) - 1, int(last[1]), use_p5=True, image_shape=(224, 224, 3)
        )
        inner = backbone.get_layer("backbone")
        np.testing.assert_allclose(inner(images)[last], given.maps()(images)[last], rtol=1e-5, atol=1e-5)
        assert all(weight.trainable for weight in inner.weights if "moving" not in weight.path)


def test_the_documented_detector_learns_boxes(encoder, boxes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/dense.md").read_text("utf-8")
    [code] = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "RetinaNet" in code]
    images, corners, labels = boxes
    before = [value.copy() for value in encoder.get_weights()]
    names = {"keras": keras, "encoder": encoder, "images": images, "boxes": corners, "labels": labels}
    exec(compile(code, "docs/dense.md", "exec"), names)
    losses = names["history"].history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    for value, known in zip(encoder.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, known)
    loaded = keras.models.load_model("detector.keras")
    found, again = names["found"], loaded.predict(images, verbose=0)
    assert found["boxes"].shape == (8, 100, 4)
    np.testing.assert_allclose(again["boxes"], found["boxes"], rtol=1e-3, atol=1e-3)
