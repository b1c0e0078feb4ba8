import keras
import numpy as np
import pytest

from keras_sslhsic.evaluation import extract_features, knn
from keras_sslhsic.training.probes import KNNProbe, LinearProbe


@pytest.fixture
def model(make_encoder):
    model = make_encoder()
    model.compile("sgd", "mse")
    return model


def fit(model, pictures, probes, epochs=4):
    images = pictures[0][0]
    return model.fit(images, np.zeros([len(images), 8]), epochs=epochs, callbacks=probes, verbose=0).history


def test_values_are_in_the_history_every_n_epochs(model, pictures):
    probes = [KNNProbe(*pictures, every=2, k=5), LinearProbe(*pictures, every=4, epochs=5)]
    history = fit(model, pictures, probes)
    assert len(history["knn_top1"]) == 2 and len(history["linear_top1"]) == 1
    (train, labels), (test, test_labels) = pictures
    expected = knn(extract_features(model, train), labels, extract_features(model, test), test_labels, k=5)
    assert history["knn_top1"][-1] == pytest.approx(expected.top1, abs=0.013)


def test_the_probe_changes_nothing(model, pictures, make_encoder):
    twin = make_encoder()
    twin.set_weights(model.get_weights())
    twin.compile("sgd", "mse")
    keras.utils.set_random_seed(1)
    fit(model, pictures, [KNNProbe(*pictures)], epochs=2)
    keras.utils.set_random_seed(1)
    fit(twin, pictures, [], epochs=2)
    for a, b in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_tensorboard_draws_it(model, pictures, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit(model, pictures, [KNNProbe(*pictures), keras.callbacks.TensorBoard(tmp_path)], epochs=1)
    events = EventAccumulator(str(tmp_path / "train"))
    events.Reload()
    assert any("knn_top1" in tag for tag in events.Tags()["tensors"])


def test_every_must_be_positive(pictures):
    with pytest.raises(ValueError, match="found 0"):
        KNNProbe(*pictures, every=0)
