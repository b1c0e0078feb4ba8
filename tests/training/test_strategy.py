"""Strategies by name, and what is said where a machine lacks what was asked for."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC, strategy, views
from keras_sslhsic.training.strategy import warn_of_own_statistics


def test_one_device_is_no_distribution():
    for name in ("one", "auto", "cpu:1"):
        assert strategy(name).num_replicas_in_sync == 1
        assert not strategy(name).extended._in_multi_worker_mode()


@pytest.mark.parametrize("replicas", [2, 4])
def test_logical_devices(replicas):
    found = strategy(f"cpu:{replicas}")
    assert isinstance(found, tf.distribute.MirroredStrategy) and found.num_replicas_in_sync == replicas


def test_statistics_that_replicas_keep_for_themselves_are_warned_of(recwarn):
    def network(synchronized):
        return keras.Sequential(
            [keras.Input((4,)), keras.layers.BatchNormalization(synchronized=synchronized)]
        )

    two = strategy("cpu:2")
    warn_of_own_statistics([network(True)], two)
    warn_of_own_statistics([network(False)], strategy("one"))
    assert not recwarn
    nested = keras.Sequential([keras.Input((4,)), network(False)])
    with pytest.warns(UserWarning, match="1 BatchNormalization layers, such as .*over the 2 replicas"):
        warn_of_own_statistics([nested], two)


@pytest.mark.parametrize("compiled", ["in the scope", "before"])
def test_a_model_that_was_made_outside_of_a_scope_is_refused_in_it(compiled):
    encoder = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(2, 3), keras.layers.GlobalAveragePooling2D()]
    )
    model = SSLHSIC(encoder, 8, 4, views=views.byol(8))
    if compiled == "before":
        model.compile(LARS(0.1))
    made = pytest.raises(
        ValueError, match=r"scope of a MirroredStrategy, and was made outside of it: make its encoder"
    )
    with strategy("cpu:2").scope(), made:
        if compiled == "before":
            model.fit(np.zeros([4, 8, 8, 3], np.uint8), batch_size=4, verbose=0)
        else:
            model.compile(LARS(0.1))


def test_an_encoder_that_was_made_outside_of_the_scope_is_refused():
    encoder = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(3)])
    with strategy("cpu:2").scope():
        model = SSLHSIC(encoder, 8, 4, target=False, views=views.byol(8))
        with pytest.raises(ValueError, match=r"dense.*/kernel outside of it: make the encoder in"):
            model.compile(LARS(0.1))


def test_more_logical_devices_than_there_are():
    with pytest.raises(RuntimeError, match="must come before TensorFlow's first operation"):
        strategy("cpu:64")


@pytest.mark.parametrize("name", ["gpu", "cpu", "cpu:0", "cpu:-1"])
def test_unknown_names(name):
    with pytest.raises(
        ValueError, match=f"Unknown strategy '{name}'; expected one of auto, one, tpu, mirrored"
    ):
        strategy(name)


def test_no_gpu():
    with pytest.raises(RuntimeError, match="TensorFlow sees none"):
        strategy("mirrored")


@pytest.mark.parametrize("config", [None, '{"task": {"index": 0}}'])
def test_workers_need_their_addresses(monkeypatch, config):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if config:
        monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(RuntimeError, match="needs the environment variable TF_CONFIG"):
        strategy("multiworker")


def test_no_tpu(monkeypatch):
    def fail(tpu):
        raise ValueError(f"no TPU at {tpu}")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", fail)
    with pytest.raises(RuntimeError) as error:
        strategy("tpu", tpu="grpc://nowhere")
    for part in (
        "TPUClusterResolver(tpu='grpc://nowhere')",
        "no TPU at grpc://nowhere",
        "tensorflow-tpu==2.20.0",
    ):
        assert part in str(error.value)
