"""LARS against the released optimizer, and how it behaves as a Keras optimizer."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_sslhsic import LARS, build_encoder
from keras_sslhsic.encoders import Head, build_head
from keras_sslhsic.training.lars import is_adapted

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "lars.npz")


class Rates(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate for each step."""

    def __call__(self, step):
        return keras.ops.take(keras.ops.convert_to_tensor(GOLDEN["learning_rates"], "float32"), step)


@pytest.mark.parametrize("in_graph", [False, True])
def test_agrees_with_the_released_optimizer(in_graph):
    import tensorflow as tf

    names = [name.removeprefix("init/") for name in GOLDEN.files if name.startswith("init/")]
    variables = [keras.Variable(GOLDEN[f"init/{name}"]) for name in names]
    optimizer = LARS(
        Rates(),
        momentum=float(GOLDEN["momentum"]),
        weight_decay=float(GOLDEN["weight_decay"]),
        eta=float(GOLDEN["eta"]),
    )
    optimizer.build(variables)
    apply = tf.function(optimizer.apply) if in_graph else optimizer.apply
    for step in range(len(GOLDEN["learning_rates"])):
        apply([tf.constant(GOLDEN[f"grad{step}/{name}"]) for name in names])
        for name, variable in zip(names, variables, strict=True):
            np.testing.assert_allclose(
                variable.numpy(), GOLDEN[f"after{step}/{name}"], rtol=1e-5, atol=1e-6, err_msg=name
            )


def test_equation_in_float64():
    rng = np.random.default_rng(0)
    parameter, momentum = rng.normal(size=(5, 3)), np.zeros((5, 3))
    variable = keras.Variable(parameter.astype("float32"))
    optimizer = LARS(0.7, momentum=0.8, weight_decay=0.01, eta=0.02)
    optimizer.build([variable])
    for _ in range(4):
        gradient = rng.normal(size=(5, 3))
        optimizer.apply([keras.ops.convert_to_tensor(gradient, "float32")])
        update = gradient + 0.01 * parameter
        update *= 0.02 * np.linalg.norm(parameter) / np.linalg.norm(update)
        momentum = 0.8 * momentum + update
        parameter = parameter - 0.7 * momentum
    np.testing.assert_allclose(variable.numpy(), parameter, rtol=1e-5)


def test_one_dimensional_parameters_are_neither_decayed_nor_adapted():
    variable = keras.Variable(np.full(4, 5.0, "float32"))
    optimizer = LARS(0.1, weight_decay=10.0, eta=100.0)
    optimizer.build([variable])
    optimizer.apply([keras.ops.ones(4)])
    np.testing.assert_allclose(variable.numpy(), 5.0 - 0.1, rtol=1e-6)


@pytest.mark.parametrize("parameter, gradient", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_zero_norms_leave_the_factor_at_one(parameter, gradient):
    variable = keras.Variable(np.full((2, 2), parameter, "float32"))
    optimizer = LARS(0.5, weight_decay=0.0)
    optimizer.build([variable])
    optimizer.apply([keras.ops.full((2, 2), gradient)])
    np.testing.assert_allclose(variable.numpy(), parameter - 0.5 * gradient)


def test_excluded_tensors_of_resnet50_with_heads():
    encoder = build_encoder("r50_1x")
    classifier = keras.Sequential([keras.Input((2048,)), keras.layers.Dense(1000)])
    networks = [
        encoder,
        build_head(2048, Head(), "projector"),
        build_head(256, Head(), "predictor"),
        classifier,
    ]
    variables = [v for network in networks for v in network.trainable_variables]
    excluded = [v for v in variables if not is_adapted(v)]
    assert (len(variables), len(excluded)) == (171, 113)
    assert sum(int(np.prod(v.shape)) for v in variables) == 37_115_944
    assert all(v.name in ("bias", "gamma", "beta") for v in excluded)
    assert all(v.name == "kernel" for v in variables if is_adapted(v))


def test_survives_serialisation():
    optimizer = LARS(0.3, momentum=0.5, weight_decay=0.0, eta=0.1, clipnorm=1.0)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()
    assert (again.coupled_weight_decay, again.weight_decay) == (0.0, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"learning_rate": -1.0},
        {"learning_rate": float("nan")},
        {"momentum": 1.0},
        {"weight_decay": -1e-6},
        {"eta": 0.0},
    ],
)
def test_refuses_values_out_of_range(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name} must be .*, (got|found) {value:g}"):
        LARS(**wrong)
