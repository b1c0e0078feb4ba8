"""Schedules against the released ones."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_sslhsic.training.schedules import TargetDecay, scaled_learning_rate, warmup_cosine

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "schedules.npz")


def test_learning_rate_agrees_with_the_released_one():
    peak = scaled_learning_rate(float(GOLDEN["base_learning_rate"]), int(GOLDEN["batch_size"]))
    schedule = warmup_cosine(peak, int(GOLDEN["total_steps"]), int(GOLDEN["warmup_steps"]))
    rates = [float(schedule(int(step))) for step in GOLDEN["steps"]]
    np.testing.assert_allclose(rates, GOLDEN["learning_rate"], rtol=1e-5, atol=1e-6)


def test_target_decay_agrees_with_the_released_one():
    schedule = TargetDecay(float(GOLDEN["base_ema"]), int(GOLDEN["total_steps"]))
    taus = [float(schedule(int(step))) for step in GOLDEN["steps"]]
    np.testing.assert_allclose(taus, GOLDEN["target_ema"], rtol=1e-6)


def test_ends_and_beyond():
    schedule = warmup_cosine(2.0, 100, 10)
    np.testing.assert_allclose(
        [float(schedule(t)) for t in (0, 5, 10, 55, 100, 1000)], [0, 1, 2, 1, 0, 0], atol=1e-6
    )
    cold = warmup_cosine(2.0, 100)
    np.testing.assert_allclose([float(cold(t)) for t in (0, 50, 100, 1000)], [2, 1, 0, 0], atol=1e-6)
    decay = TargetDecay(0.9, 100)
    np.testing.assert_allclose([float(decay(t)) for t in (0, 50, 100, 1000)], [0.9, 0.95, 1, 1], atol=1e-6)
    assert float(TargetDecay(0.9)(12345)) == pytest.approx(0.9)


@pytest.mark.parametrize("schedule", [warmup_cosine(0.4, 100, 10), TargetDecay(0.99, 100)])
def test_survive_serialisation(schedule):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert type(again) is type(schedule) and again.get_config() == schedule.get_config()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: warmup_cosine(-1.0, 10), "peak must be at least 0, found -1.0"),
        (lambda: warmup_cosine(1.0, 10, 10), "warmup_steps=10 and total_steps=10"),
        (lambda: TargetDecay(1.5), r"base must be in \[0, 1\], got 1.5"),
        (lambda: TargetDecay(0.9, 0), "total_steps must be at least 1, got 0"),
    ],
)
def test_refuse_values_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()
