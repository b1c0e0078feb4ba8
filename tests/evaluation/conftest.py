import keras
import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture
def blobs():
    """Four classes in 16 dimensions that overlap: (train features, labels, test features, labels)."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(4, 16))
    labels = np.arange(600) % 4
    features = (centres[labels] + 1.5 * generator.normal(size=(600, 16))).astype(np.float32)
    return features[:400], labels[:400], features[400:], labels[400:]


@pytest.fixture
def pictures():
    """Images whose class is a bright quadrant: ((x, y), (x, y)), uint8 [N, 8, 8, 1]."""
    generator = np.random.default_rng(1)
    labels = np.arange(240) % 4
    images = generator.integers(0, 120, size=(240, 8, 8, 1))
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(label, 2)
        image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 100
    images = images.astype(np.uint8)
    return (images[:160], labels[:160]), (images[160:], labels[160:])


@pytest.fixture
def make_encoder():
    """Builds a tiny network with BatchNormalization from images in [0, 255] to 8 features."""

    def build(height=8):
        return keras.Sequential(
            [
                keras.Input((height, height, 1)),
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(8, 3, strides=2, padding="same"),
                keras.layers.BatchNormalization(momentum=0.9),
                keras.layers.ReLU(),
                keras.layers.Flatten(),
                keras.layers.Dense(8),
            ]
        )

    return build


@pytest.fixture
def two_replicas():
    return tf.distribute.MirroredStrategy(
        ["CPU:0", "CPU:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
