"""The hash of an encoder: one for what computes the same, another for what computes something else."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_sslhsic
from keras_sslhsic.encoders import build_encoder, encoder_hash, encoder_of, with_preprocessing

LAYERS = keras.layers


def filled(model):
    """The model with the same weights in every process."""
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.5, 1.5, w.shape).astype(np.float32) for w in model.get_weights()])
    return model


def of(middle, units=2):
    """A functional encoder with something between its layers."""
    images = keras.Input((8, 8, 1))
    x = middle(LAYERS.Conv2D(3, 3, padding="same")(images))
    return filled(keras.Model(images, LAYERS.Dense(units)(LAYERS.Flatten()(x))))


class Scaled(LAYERS.Layer):
    def __init__(self, by):
        super().__init__()
        self.by, self.inner = by, LAYERS.Dense(2)

    def call(self, x):
        return self.inner(x) * self.by


class Shifted(Scaled):
    def call(self, x):
        return self.inner(x) + self.by


Shifted.__name__ = "Scaled"  # as a class that was edited


class Unseen(LAYERS.Layer):
    def __init__(self, by):
        super().__init__()
        self.by = by.item()  # of an array, which Keras can make no config of

    def call(self, x):
        return x * self.by


# What stands between the layers of encoders whose layers and weights are the same, or look the same.
MIDDLES = {
    "relu": keras.ops.relu,
    "gelu": keras.ops.gelu,
    "gelu, exact": lambda x: keras.ops.gelu(x, approximate=False),
    "ReLU": LAYERS.ReLU(),
    "ReLU to 6": LAYERS.ReLU(6),
    "resized to 4": lambda x: keras.ops.image.resize(x, (4, 16)),
    "resized to 16": lambda x: keras.ops.image.resize(x, (16, 4)),
    "resized, nearest": lambda x: keras.ops.image.resize(x, (16, 4), interpolation="nearest"),
    "x 2": lambda x: x * 2.0,
    "x 3": lambda x: x * 3.0,
    "2 -": lambda x: 2.0 - x,
    "- 2": lambda x: x - 2.0,
    "x an array": lambda x: x * np.array([1, 2, 3], np.float32),
    "x another": lambda x: x * np.array([1, 2, 4], np.float32),
    "mirrored": lambda x: x[:, ::-1],
    "mirrored down": lambda x: x[:, :, ::-1],
    "squared": lambda x: x * x,
    "joined": lambda x: x + keras.ops.relu(x),
    "joined after": lambda x: keras.ops.relu(x + x),
    "normalised by the batch": lambda x: LAYERS.BatchNormalization(scale=False)(x, training=True),
    "normalised": LAYERS.BatchNormalization(scale=False),
    "half precision": LAYERS.Activation("relu", dtype="mixed_bfloat16"),
    "largest": LAYERS.MaxPooling2D(1),
    "mean": LAYERS.AveragePooling2D(1),
    "Lambda": LAYERS.Lambda(lambda x: x + 1),
    "another Lambda": LAYERS.Lambda(lambda x: x + 2),
    "scaled": Scaled(1.5),
    "scaled more": Scaled(2.5),
    "shifted": Shifted(1.5),
    "without config": Unseen(np.array(2.0)),
    "without config, more": Unseen(np.array(3.0)),
    "a function": LAYERS.Activation(lambda x: x * 4),
    "another function": LAYERS.Activation(lambda x: x * 5),
    "each place": LAYERS.TimeDistributed(LAYERS.Dense(3, "relu")),
    "each place, gelu": LAYERS.TimeDistributed(LAYERS.Dense(3, "gelu")),
}


def test_whatever_computes_is_seen_once():
    hashes = {name: encoder_hash(of(middle)) for name, middle in MIDDLES.items()}
    for one, other in itertools.combinations(hashes, 2):
        assert hashes[one] != hashes[other], (one, other)
    assert hashes == {name: encoder_hash(of(middle)) for name, middle in MIDDLES.items()}
    assert all(len(found) == 18 and found.startswith("2-") for found in hashes.values())


@pytest.mark.parametrize(
    "name", ["relu", "resized to 16", "x an array", "joined", "mirrored", "Lambda", "each place"]
)
def test_it_survives_saving(name, tmp_path):
    encoder = of(MIDDLES[name])
    encoder.save(tmp_path / "a.keras")
    assert encoder_hash(keras.models.load_model(tmp_path / "a.keras", safe_mode=False)) == encoder_hash(
        encoder
    )


def test_what_is_put_before_a_network_is_seen_and_its_names_are_not(tmp_path):
    network = filled(build_encoder("r18_1x", (None, None, 1), width=0.05))
    settings = {"mean": 0.5, "std": 0.25, "size": 32}
    encoder = with_preprocessing(network, **settings)
    others = [
        with_preprocessing(network, **settings | change)
        for change in ({"size": 48}, {"size": None}, {"antialias": True}, {"mean": 0.4}, {"std": 0.2})
    ]
    assert len({encoder_hash(each) for each in (encoder, *others)}) == 6
    expected = encoder_hash(encoder)
    encoder.trainable = False
    renamed = with_preprocessing(
        filled(build_encoder("r18_1x", (None, None, 1), width=0.05)), **settings, name="other"
    )
    encoder.save(tmp_path / "a.keras")
    loaded = keras_sslhsic.load_pretrained(tmp_path / "a.keras", trainable=True)
    for same in (encoder, renamed, encoder.plain(), encoder_of(encoder.plain()), loaded):
        assert encoder_hash(same) == expected
    weight = loaded.get_layer(encoder.spec.network).weights[0]
    weight.assign(weight + 1e-6)
    assert encoder_hash(loaded) != expected


def test_it_does_not_depend_on_process_and_version():
    # Keras 3.12 and 3.13, which cannot read the file, give this of the same layers and weights.
    assert encoder_hash(keras_sslhsic.load_pretrained("r18_fashion")) == "2-77aa4fa756440107"


def test_sequential_models_are_their_graph_and_others_their_code():
    layers = [keras.Input((8, 8, 1)), LAYERS.Conv2D(2, 3), LAYERS.GlobalAveragePooling2D()]
    sequential = filled(keras.Sequential(layers))
    assert encoder_hash(sequential) == encoder_hash(encoder_of(sequential))
    nested = keras.Sequential([keras.Input((8, 8, 1)), sequential])
    assert encoder_hash(nested) == encoder_hash(filled(keras.models.clone_model(nested)))

    def subclassed(activation):
        class Own(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = LAYERS.Dense(2)

            def call(self, images):
                return activation(self.dense(keras.ops.reshape(images, (-1, 4))))

        model = Own()
        model(np.zeros([1, 2, 2, 1], np.float32))
        return filled(model)

    one, same, other = (
        encoder_hash(subclassed(f)) for f in (lambda x: x * 2, lambda x: x * 2, lambda x: x * 3)
    )
    assert one == same != other
    with pytest.raises(ValueError, match=r"Only a keras\.Model"):
        encoder_hash(lambda x: tf.cast(x, tf.float32))
