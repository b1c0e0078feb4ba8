"""Losses against lightly's, which `make test-peers` computes in an environment of their own; see tools/peers_expected.py.

lightly computes in float64, and this library in float32: a hundred or so operations, each rounded to 2^-24 of numbers not
more than ten times the result, stay below the 1e-5 that is asked for; of the gradient, 1e-5 of its largest entry.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import losses
from keras_sslhsic.losses import Hiddens

CASES = [
    "byol_2", "simsiam_2", "nt_xent_2", "moco_2", "barlow_twins_2", "vicreg_2", "swav_2", "swav_4", "lejepa_2", "lejepa_4",
]  # fmt: skip


@pytest.fixture(scope="module")
def expected():
    path = os.environ.get("PEERS_EXPECTED")
    if path is None:
        pytest.skip("Expected values come from an environment with lightly: run `make test-peers`.")
    if not Path(path).is_file():
        pytest.fail(f"PEERS_EXPECTED names {path}, which is not there: make it with tools/peers_expected.py.")
    with np.load(path) as file:
        return dict(file)


def test_expected_values_are_of_the_pinned_versions(expected):
    assert str(expected["version_lightly"]) == "1.6.0"
    assert str(expected["version_torch"]).startswith("2.13.0")


class Directed(losses.LeJEPALoss):
    """The loss along directions from outside."""

    directions: np.ndarray

    def draw_directions(self, size, seed):
        return tf.constant(self.directions)


def made(name, expected):
    if name == "lejepa":
        loss = Directed(num_slices=len(expected["directions"]))
        loss.directions = expected["directions"]
    else:
        sizes = {
            "moco": {"queue_size": len(expected["queue"])},
            "swav": {"num_prototypes": len(expected["prototypes"])},
        }
        loss = losses.LOSSES[name](**sizes.get(name, {}))
    loss.build(expected["queue"].shape[1])
    for variable in loss.variables:
        if variable.name in expected:
            variable.assign(expected[variable.name])
    return loss


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient(case, expected):
    name, views = case.rsplit("_", 1)
    loss = made(name, expected)
    online, target = [
        tf.constant(np.swapaxes(expected[f"{kind}_{views}"], 0, 1)) for kind in ("online", "target")
    ]
    if not (loss.needs_target or loss.needs_predictor):
        target = None
    with tf.GradientTape() as tape:
        tape.watch(online)
        value = loss.terms(Hiddens(online, target), tf.constant([0, 0]))["loss"]
    assert float(value) == pytest.approx(float(expected[f"{case}_value"]), rel=1e-5)
    gradient = np.swapaxes(expected[f"{case}_gradient"], 0, 1)
    assert np.abs(gradient).max() > 1e-4
    np.testing.assert_allclose(
        tape.gradient(value, online), gradient, rtol=0, atol=1e-5 * np.abs(gradient).max()
    )
