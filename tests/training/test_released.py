"""Whole training steps against the released code: losses, schedules, kernel scale, parameters, statistics."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import LARS, SSLHSIC, losses
from keras_sslhsic.training.schedules import TargetDecay
from keras_sslhsic.zoo.convert import Checkpoint, haiku_name, networks_from_checkpoint

DATA = Path(__file__).parents[1] / "data"
STEPS = 3


@keras.saving.register_keras_serializable(package="tests")
class GivenDraws(losses.SSLHSICLoss):
    """The loss with the frequencies and phases of the released run instead of its own; those are for a scale of 1."""

    golden, step = None, 0

    def draws(self, kernel, dim, seed):
        get = lambda name: tf.constant(self.golden[f"step{self.step}/{name}"])  # noqa: E731
        return [(get(f"w_{kind}") / kernel.scale, get(f"b_{kind}")) for kind in ("yz", "zz")]


class Rates(keras.optimizers.schedules.LearningRateSchedule):
    """The learning rates of the released run."""

    def __init__(self, golden):
        self.rates = [float(golden[f"step{step}/learning_rate"]) for step in range(STEPS)]

    def __call__(self, step):
        return tf.gather(tf.constant(self.rates), tf.cast(step, tf.int32))


def tree(golden, prefix):
    """{module: {parameter: array}} of the arrays under a prefix."""
    modules = {}
    for name in golden.files:
        if name.startswith(prefix):
            module, parameter = name.removeprefix(prefix).rsplit("/", 1)
            modules.setdefault(module, {})[parameter] = golden[name]
    return modules


def networks(golden, which):
    return networks_from_checkpoint(
        Checkpoint(tree(golden, f"{which}/params/"), tree(golden, f"{which}/state/"), None, "SSL-HSIC")
    )


def released_model(golden, optimizer):
    online, target = networks(golden, "online_init"), networks(golden, "target_init")
    model = SSLHSIC(online.encoder, 32, 16, views=None, num_classes=5)
    loss = GivenDraws(num_features=64, convention="released")
    loss.golden = golden
    model.compile(optimizer, loss=loss, run_eagerly=True)
    pairs = [
        (model.projector, online.projector),
        (model.predictor, online.predictor),
        (model.classifier, online.classifier),
        (model.target_encoder, target.encoder),
        (model.target_projector, target.projector),
    ]
    for ours, theirs in pairs:
        ours.set_weights(theirs.get_weights())
    model.target_decay = TargetDecay(0.99, 20)
    return model, loss


@pytest.mark.parametrize("name", ["tiny", "bottleneck"])
def test_three_steps_of_training(name):
    golden = np.load(DATA / f"train_{name}.npz")
    model, loss = released_model(golden, LARS(Rates(golden)))
    batch = {key: tf.constant(golden[key]) for key in ("view1", "view2")} | {
        "label": tf.constant(golden["labels"])
    }
    for step in range(STEPS):
        loss.step = step
        model.reset_metrics()
        found = {key: float(value) for key, value in model.train_step(batch).items()}
        expected = {
            "hsic_zy": "hsic_zy",
            "hsic_zz": "hsic_zz",
            "loss": "hsic_loss",
            "classifier_loss": "classifier_loss",
            "learning_rate": "learning_rate",
            "tau": "tau",
            "kernel_scale": "kernel_scale_after",
        }
        for ours, theirs in expected.items():
            value = float(golden[f"step{step}/{theirs}"])
            # The loss is a difference of terms about as large as hsic_zy, which nearly cancel.
            size = found["hsic_zy"] if ours == "loss" else abs(value)
            assert abs(found[ours] - value) <= 1e-4 * size + 1e-7, (
                f"{ours} at step {step}: {found[ours]}, not {value}"
            )
    for which, encoder, projector in (
        ("online_final", model.encoder, model.projector),
        ("target_final", model.target_encoder, model.target_projector),
    ):
        final = networks(golden, which)
        for ours, theirs in ((encoder, final.encoder), (projector, final.projector)):
            for found, expected in zip(_parameters(ours), _parameters(theirs), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    final = networks(golden, "online_final")
    for ours, theirs in ((model.predictor, final.predictor), (model.classifier, final.classifier)):
        for found, expected in zip(_parameters(ours), _parameters(theirs), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("which", ["online", "target"])
def test_batch_statistics(which):
    """Haiku divides its averages by 1 - decay^n when it reads them (`average`), and starts what it divides (`hidden`) at 0.

    Keras' averages are not divided, and start where they are put: here at Haiku's first `average`, as the converter
    writes it. So after n updates ours are hidden + decay^n * first, and nothing but the start differs.
    """
    golden = np.load(DATA / "train_tiny.npz")
    model, loss = released_model(golden, LARS(Rates(golden)))
    batch = {key: tf.constant(golden[key]) for key in ("view1", "view2")}
    for step in range(STEPS):
        loss.step = step
        model.train_step(batch)
    encoder = model.encoder if which == "online" else model.target_encoder
    first, final = (tree(golden, f"{which}_{when}/state/") for when in ("init", "final"))
    updates = 2 * STEPS  # one a view
    for layer in encoder.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            module = f"tiny_res_net/~/{haiku_name(layer.name)}/~/"
            for kind, found in (("mean_ema", layer.moving_mean), ("var_ema", layer.moving_variance)):
                start, end = first[module + kind], final[module + kind]
                assert end["counter"] == updates
                expected = end["hidden"] + 0.9**updates * start["average"]
                np.testing.assert_allclose(found.numpy(), expected.ravel(), rtol=1e-4, atol=1e-5)


def _parameters(network):
    statistics = ("moving_mean", "moving_variance")
    variables = network.variables
    return [v.numpy() for v in variables if v.name not in statistics]
