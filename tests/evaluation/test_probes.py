import keras
import numpy as np
import pytest

from keras_sslhsic import SSLHSIC, views
from keras_sslhsic.callbacks import Evaluate, KNNProbe, LinearProbe, TargetEMA
from keras_sslhsic.evaluation import PROTOCOLS, extract_features, knn


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


def test_any_protocol_watches_by_its_settings_and_name(model, pictures):
    splits = dict(zip(("train", "test"), pictures, strict=True))
    recipe = {"steps": 3, "batch_size": 20, "learning_rates": 0.1}
    probes = [
        Evaluate("knn", splits, name="five", k=5, every=2),
        Evaluate("finetune", splits, every=4, **recipe),
    ]
    history = fit(model, pictures, probes)
    expected = PROTOCOLS["knn"].run(model, splits, k=5)
    assert history["five_top1"][-1] == pytest.approx(expected.top1, abs=0.013)
    expected = PROTOCOLS["finetune"].run(model, splits, **recipe)
    assert history["finetune_top1"] == [pytest.approx(expected.top1, abs=0.013)]


def test_what_cannot_be_is_said_before_the_training(pictures):
    splits = dict(zip(("train", "test"), pictures, strict=True))
    with pytest.raises(ValueError, match="Unknown protocol 'kn'"):
        Evaluate("kn", splits)
    with pytest.raises(ValueError, match="knn has no --epochs"):
        Evaluate("knn", splits, epochs=3)


@pytest.fixture
def pretrain(pictures, tmp_path):
    """(probes) -> an SSLHSIC trained for 4 epochs on the pictures, its history and its TensorBoard folder."""

    def run(probes):
        keras.utils.set_random_seed(1)
        images = keras.Input((8, 8, 1))
        x = keras.layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(images)
        x = keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x)
        x = keras.layers.Flatten()(keras.layers.ReLU()(x))
        encoder = keras.Model(images, x)
        model = SSLHSIC(encoder, 16, 8, views=views.grayscale(8), num_classes=4, weight_ema=0.9)
        model.compile(keras.optimizers.Adam(1e-2))
        logs = tmp_path / f"logs{len(probes)}"
        callbacks = [TargetEMA(), *probes, keras.callbacks.TensorBoard(logs)]
        (x_train, y_train), _ = pictures
        history = model.fit(x_train, y_train, batch_size=40, epochs=4, callbacks=callbacks, verbose=0).history
        return model, history, logs

    return run


@pytest.mark.slow
def test_probes_watch_ssl_hsic_and_leave_it_bit_identical(pretrain, pictures):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    probes = [KNNProbe(*pictures, every=2, k=5), LinearProbe(*pictures, every=4, epochs=5)]
    watched, history, logs = pretrain(probes)
    alone, losses, _ = pretrain([])

    assert len(history["knn_top1"]) == 2 and len(history["linear_top1"]) == 1
    (train, labels), (test, test_labels) = pictures
    # What is measured is the evaluation encoder, that of the averaged weights.
    encoder = watched.serving_encoder()
    expected = knn(
        extract_features(encoder, train), labels, extract_features(encoder, test), test_labels, k=5
    )
    assert history["knn_top1"][-1] == pytest.approx(expected.top1, abs=0.013)

    events = EventAccumulator(str(logs / "train"))
    events.Reload()
    for tag, steps in (("epoch_knn_top1", [1, 3]), ("epoch_linear_top1", [3])):
        assert [event.step for event in events.Tensors(tag)] == steps

    assert history["loss"] == losses["loss"]
    assert len(watched.variables) == len(alone.variables)
    for one, other in zip(watched.variables, alone.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.path)
