"""Fixtures of several folders: a tiny encoder, and images for it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.data import bundled
from keras_sslhsic.data.central import central_square, traced_square
from keras_sslhsic.encoders import Architecture, with_preprocessing
from keras_sslhsic.encoders.resnet import resnet


@pytest.fixture(scope="session")
def encoder():
    """An encoder of RGB pixels of any size, 8 features, with statistics as after training."""
    keras.utils.set_random_seed(3)
    network = resnet(Architecture((1, 1), (8, 8), bottleneck=False, stem_channels=8), name="tiny")
    rng = np.random.default_rng(3)
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    statistics = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    with_preprocessing(network, *statistics, size=16)  # the second one of a process must work as the first
    return with_preprocessing(network, *statistics, size=32)


@pytest.fixture(scope="session")
def real_images():
    """Batches of real images of several sizes: Fashion-MNIST, enlarged and coloured; uint8."""
    (images, _), _ = bundled.load()

    def batch(count, height, width):
        rows, columns = np.arange(height) * 28 // height, np.arange(width) * 28 // width
        gray = images[:count, :, :, 0][:, rows][:, :, columns].astype(np.float32)
        return np.stack([gray, 0.7 * gray, 255 - gray], -1).astype(np.uint8)

    return [batch(1, 32, 32), batch(7, 50, 70), batch(2, 97, 64)]


def extracted(images, size):
    """What `extract` makes of files of these images before an encoder sees them."""
    return np.stack([central_square(image, size) for image in images])


def served(images, size):
    """What exports make of them: the same but for the rounding of means, and of positions in TensorFlow's bicubic kernel."""
    return np.concatenate([traced_square(tf.cast(image[None], tf.float32), size) for image in images])
