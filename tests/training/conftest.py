"""A network small enough to train in a test, and images for it."""

import keras
import numpy as np
import pytest

from keras_sslhsic import SSLHSIC, views


@pytest.fixture
def tiny_encoder():
    """() -> keras.Model from [B, None, None, 3] to [B, 6], with one BatchNorm layer."""

    def build():
        images = keras.Input((None, None, 3))
        x = keras.layers.Conv2D(6, 3, padding="same", use_bias=False)(images)
        x = keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x)
        x = keras.layers.ReLU()(x)
        return keras.Model(images, keras.layers.GlobalAveragePooling2D(dtype="float32")(x))

    return build


@pytest.fixture
def tiny_model(tiny_encoder):
    """(arguments of SSLHSIC) -> a model that is not compiled yet."""

    def build(**arguments):
        keras.utils.set_random_seed(1)
        arguments = {"projector_hidden": 12, "projection_dim": 8, "views": views.small_image(8)} | arguments
        return SSLHSIC(tiny_encoder(), **arguments)

    return build


@pytest.fixture
def images():
    """uint8 [24, 10, 10, 3], each of a colour of its own."""
    rng = np.random.default_rng(0)
    colour = rng.uniform(40, 215, (24, 1, 1, 3))
    return np.clip(colour + rng.normal(0, 25, (24, 10, 10, 3)), 0, 255).astype("uint8")


@pytest.fixture
def labels():
    """int [24] of three classes."""
    return np.arange(24) % 3
