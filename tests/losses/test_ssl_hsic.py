from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import losses
from keras_sslhsic.hsic import kernels
from keras_sslhsic.losses import Hiddens, InfoNCELoss, SSLHSICLoss, unit_norm

GOLDEN = sorted((Path(__file__).parents[1] / "data").glob("loss_*.npz"))
SEED = tf.constant([1, 2])
LOSSES = [
    SSLHSICLoss(num_features=32),
    SSLHSICLoss("gaussian", num_features=32, low_variance=True),
    SSLHSICLoss("linear"),
    SSLHSICLoss(num_features=None),
    SSLHSICLoss(num_features=32, estimator="unbiased", dataset_size=100, shared_draw=False),
    SSLHSICLoss(num_features=None, estimator="unbiased"),
    SSLHSICLoss(num_features=32, convention="released"),
    InfoNCELoss(),
]


def unit(*shape, seed=0):
    return tf.math.l2_normalize(tf.random.stateless_normal(shape, [seed, 1]), axis=-1)


def value_and_gradient(loss, z, terms="terms"):
    z = tf.convert_to_tensor(z)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = getattr(loss, terms)(Hiddens(z) if terms == "terms" else z, SEED)["loss"]
    return value, tape.gradient(value, z)


class FixedDraws(SSLHSICLoss):
    """The loss with frequencies and phases from outside."""

    fixed: list

    def draws(self, kernel, dim, seed):
        return self.fixed


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_released_code(path):
    golden, c = np.load(path), float(np.load(path)["c"])
    loss = FixedDraws("imq", gamma=float(golden["gamma"]), convention="released")
    loss.fixed = [(golden[f"w_{name}"] / c, golden[f"b_{name}"]) for name in ("yz", "zz")]
    z = tf.transpose(golden["hiddens"], [1, 0, 2])
    with tf.GradientTape() as tape:
        tape.watch(z)
        terms = loss.terms_of_unit_vectors(z, SEED)
    for name in ("hsic_zy", "hsic_zz", "loss"):
        assert terms[name].numpy() == pytest.approx(golden[name], rel=1e-5)
    gradient = tf.transpose(tape.gradient(terms["loss"], z), [1, 0, 2])
    np.testing.assert_allclose(gradient, golden["grad"], rtol=1e-4, atol=1e-4 * np.abs(golden["grad"]).max())

    variable = tf.Variable(c)
    with tf.GradientTape() as tape:
        entropy = kernels.scale_entropy(kernels.InverseMultiquadric(variable), z)
    assert entropy.numpy() == pytest.approx(golden["entropy"], rel=1e-5)
    assert tape.gradient(entropy, variable).numpy() == pytest.approx(golden["entropy_grad_c"], rel=1e-4)


def test_golden_files_are_there():
    assert len(GOLDEN) == 4


@pytest.mark.parametrize("loss", LOSSES)
def test_terms_add_up(loss):
    terms = loss.terms(Hiddens(unit(6, 3, 8)), SEED)
    assert all(value.dtype == tf.float32 and value.shape == () for value in terms.values())
    if isinstance(loss, SSLHSICLoss):
        expected = loss.gamma * np.sqrt(max(float(terms["hsic_zz"]), 0.0)) - float(terms["hsic_zy"])
        assert terms["loss"].numpy() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", [LOSSES[2], LOSSES[3], LOSSES[5], LOSSES[7]])
def test_as_a_keras_loss_without_draws_it_is_the_loss_of_the_views(loss):
    z, order = unit(6, 3, 8), np.random.default_rng(0).permutation(18)
    rows, identities = tf.gather(tf.reshape(z, [18, 8]), order), np.repeat(np.arange(6), 3)[order]
    expected = loss.terms(Hiddens(z), SEED)["loss"].numpy()
    assert loss(identities, 7.0 * rows).numpy() == pytest.approx(expected, rel=1e-5)
    assert loss(identities[:, None], rows).numpy() == pytest.approx(expected, rel=1e-5)


def test_as_a_keras_loss_each_call_draws_anew_and_the_seed_decides():
    rows, identities = unit(12, 8), np.repeat(np.arange(6), 2)
    first, again, other = (
        SSLHSICLoss(num_features=16),
        SSLHSICLoss(num_features=16),
        SSLHSICLoss(num_features=16, seed=1),
    )
    values = [first(identities, rows).numpy() for _ in range(3)]
    assert len(set(values)) == 3
    assert [again(identities, rows).numpy() for _ in range(3)] == pytest.approx(values)
    assert other(identities, rows).numpy() != pytest.approx(values[0])


def test_features_that_are_drawn_once_stay_and_their_seed_decides():
    z, once = unit(6, 2, 8), [SSLHSICLoss(num_features=16, redraw=False, seed=seed) for seed in (0, 0, 1)]
    values = [
        [loss.terms(Hiddens(z), tf.constant([0, step]))["loss"].numpy() for step in range(3)] for loss in once
    ]
    assert len({*values[0], *values[1]}) == 1 and values[2][0] != values[0][0]
    rows, identities = tf.reshape(z, [12, 8]), np.repeat(np.arange(6), 2)
    assert once[0](identities, rows).numpy() == once[0](identities, rows).numpy()


def test_independent_draws_read_near_the_exact_loss():
    z = unit(16, 2, 8)
    exact = SSLHSICLoss(num_features=None).terms(Hiddens(z), SEED)
    for options in ({}, {"shared_draw": False}, {"low_variance": True}):
        terms = SSLHSICLoss(num_features=8192, **options).terms(Hiddens(z), SEED)
        assert terms["hsic_zy"].numpy() == pytest.approx(exact["hsic_zy"].numpy(), abs=0.05)
        assert terms["hsic_zz"].numpy() == pytest.approx(exact["hsic_zz"].numpy(), rel=0.1)


def test_conventions():
    z, loss = (
        unit(5, 3, 8),
        {name: SSLHSICLoss(num_features=None, convention=name) for name in ("paper", "released")},
    )
    paper, released = [loss[name].terms(Hiddens(z), SEED) for name in ("paper", "released")]
    assert (released["hsic_zy"] - paper["hsic_zy"]).numpy() == pytest.approx(1 / 2)
    assert (released["hsic_zz"] / paper["hsic_zz"]).numpy() == pytest.approx((14 / 15) ** 2)
    ratios = [terms["dependence_ratio"].numpy() for terms in (paper, released)]
    assert ratios[0] == pytest.approx(paper["hsic_zy"].numpy() / np.sqrt(paper["hsic_zz"].numpy()), rel=1e-5)
    assert ratios[1] == pytest.approx(ratios[0] * 15 / 14, rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"estimator": "unbiased", "dataset_size": 9}])
@pytest.mark.parametrize("num_features", [None, 32])
def test_the_ratio_of_independent_views_is_zero_in_every_convention(num_features, options):
    z = unit(6, 3, 8)
    paper, released = (
        SSLHSICLoss(num_features=num_features, convention=name, **options).terms(Hiddens(z), SEED)
        for name in ("paper", "released")
    )
    size = 0 if num_features is None and options else 1  # the unbiased hsic_zz has no divisor to choose
    expected = paper["dependence_ratio"].numpy() * (18 / 17) ** size
    assert released["dependence_ratio"].numpy() == pytest.approx(expected, rel=1e-4)


def test_largest_ratio_is_that_of_the_convention():
    assert SSLHSICLoss().largest_ratio(8, 2) == pytest.approx(np.sqrt(7) * 15 / 16)
    assert SSLHSICLoss(convention="released").largest_ratio(8, 2) == pytest.approx(np.sqrt(7))
    assert SSLHSICLoss(estimator="unbiased").largest_ratio(8, 2) == np.inf


def test_the_learnt_scale_is_the_kernels_and_gets_no_gradient():
    z = unit(5, 2, 8)
    for num_features in (32, None):
        loss = SSLHSICLoss(num_features=num_features)
        loss.build(8)
        scale = loss.variables[0]
        scale.assign(0.4)
        with tf.GradientTape() as tape:
            tape.watch(scale.value)
            value = loss.terms(Hiddens(z), SEED)["loss"]
        assert tape.gradient(value, scale.value) is None
        kernel = kernels.InverseMultiquadric(0.4)
        same = SSLHSICLoss(kernel, num_features=num_features).terms(Hiddens(z), SEED)["loss"]
        assert value.numpy() == pytest.approx(same.numpy(), rel=1e-5)


def test_a_learnt_scale_begins_with_the_kernels_and_makes_a_step():
    loss = SSLHSICLoss(kernels.Gaussian(0.4), kernel_optimizer=keras.optimizers.SGD(0.1))
    assert loss.variables == [] and float(loss.kernel_scale) == np.float32(0.4)
    loss.build(8)
    z = unit(5, 2, 8)
    with tf.GradientTape() as tape:
        scale = tf.Variable(0.4)
        entropy = kernels.scale_entropy(kernels.Gaussian(scale), z)
    found = loss.update(Hiddens(3.0 * z[:, :1], 5.0 * z[:, 1:]))["kernel_scale"]
    assert float(found) == pytest.approx(0.4 + 0.1 * float(tape.gradient(entropy, scale)), rel=1e-5)
    assert float(found) == float(loss.kernel_scale) == float(loss.variables[0].numpy())


@pytest.mark.parametrize("options", [{"kernel": "linear"}, {"learn_kernel_scale": False}])
def test_a_scale_that_is_not_learnt_has_no_variables(options):
    loss = SSLHSICLoss(**options)
    loss.build(8)
    assert loss.variables == []
    assert float(loss.update(Hiddens(unit(5, 2, 8)))["kernel_scale"]) == 1.0


def test_outputs_are_normalised_by_the_loss_and_those_of_the_target_are_views():
    z = unit(6, 4, 8)
    for loss in (SSLHSICLoss(num_features=32), InfoNCELoss()):
        expected = loss.terms(Hiddens(z), SEED)["loss"].numpy()
        found = loss.terms(Hiddens(7.0 * z[:, :2], 0.1 * z[:, 2:]), SEED)["loss"].numpy()
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_loss_of_ones_own_is_found_by_its_name():
    @losses.register("test_spread")
    class Spread(losses.Objective):
        def __init__(self, weight=1.0, **kwargs):
            super().__init__(**kwargs)
            self.weight = weight

        def get_config(self):
            return {**super().get_config(), "weight": self.weight}

    found = losses.get({"name": "test_spread", "weight": 2.0})
    assert isinstance(found, Spread) and found.weight == 2.0
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(found))
    assert type(again) is Spread and again.weight == 2.0
    with pytest.raises(ValueError, match="Unknown loss 'test_sprad': did you mean test_spread"):
        losses.get({"name": "test_sprad"})
    with pytest.raises(ValueError, match="'test_spread' takes no gamma"):
        losses.get({"name": "test_spread", "gamma": 3.0})
    for nameless in ("ssl_hsic", {"gamma": 3.0}, None):
        with pytest.raises(ValueError, match="the name of a loss in a mapping"):
            losses.get(nameless)
    with pytest.raises(NotImplementedError, match="Spread compares views, and is no loss of"):
        found(np.zeros(4), np.zeros([4, 2]))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_are_computed_in_float32(loss, dtype):
    z = tf.cast(unit(6, 2, 8), dtype)
    value, gradient = value_and_gradient(loss, z)
    expected, expected_gradient = value_and_gradient(loss, tf.cast(z, tf.float32))
    assert value.dtype == tf.float32 and value.numpy() == pytest.approx(expected.numpy(), rel=1e-5)
    np.testing.assert_allclose(tf.cast(gradient, tf.float32), expected_gradient, rtol=2e-2, atol=1e-3)
    identities = np.repeat(np.arange(6), 2)
    assert loss(identities, tf.reshape(z, [12, 8])).dtype == tf.float32


@pytest.mark.parametrize("policy", [pytest.param("mixed_float16", marks=pytest.mark.slow), "mixed_bfloat16"])
def test_mixed_precision_training(policy):
    keras.mixed_precision.set_dtype_policy(policy)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(8)])
    model.compile("sgd", loss=SSLHSICLoss(num_features=16))
    x, identities = np.random.default_rng(0).normal(size=(12, 4)), np.repeat(np.arange(6), 2)
    assert np.isfinite(model.train_on_batch(x, identities))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "z",
    [
        tf.repeat(unit(1, 1, 8), [6], axis=0) * tf.ones([6, 2, 1]),
        tf.zeros([6, 2, 8]),
        tf.concat([unit(3, 2, 8)] * 2, axis=0),
        tf.repeat(unit(6, 1, 8), [2], axis=1),
    ],
    ids=["collapsed", "zero", "duplicated images", "identical views"],
)
def test_degenerate_batches_have_finite_loss_and_gradient(loss, z):
    value, gradient = value_and_gradient(loss, z)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))
    rows, identities = tf.Variable(tf.reshape(z, [12, 8])), np.repeat(np.arange(6), 2)
    with tf.GradientTape() as tape:
        value = loss(identities, rows)
    assert np.isfinite(value) and np.all(np.isfinite(tape.gradient(value, rows)))


@pytest.mark.parametrize("kernel", ["linear", "gaussian", "imq"])
@pytest.mark.parametrize("num_features", [64, None])
def test_collapse_has_no_gradient_but_that_of_the_norm(kernel, num_features):
    # With low variance the features have unit norm, as the kernel has, and every gradient vanishes.
    z = tf.repeat(unit(1, 1, 8), [6], axis=0) * tf.ones([6, 2, 1])
    loss = SSLHSICLoss(kernel, num_features=num_features, low_variance=num_features is not None)
    value, gradient = value_and_gradient(loss, z, "terms_of_unit_vectors")
    if kernel == "linear" and num_features:
        # z'z is the norm itself here: its gradient points along z, and leaves the sphere.
        gradient -= z * tf.reduce_sum(gradient * z, axis=-1, keepdims=True)
    np.testing.assert_allclose(value, 0.0, atol=1e-5)
    np.testing.assert_allclose(gradient, 0.0, atol=2e-6)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if getattr(loss, "estimator", "") != "unbiased"])
def test_a_batch_of_one_image(loss):
    value, gradient = value_and_gradient(loss, unit(1, 2, 8))
    assert np.isfinite(value) and np.all(np.isfinite(gradient))


@pytest.mark.parametrize("size", [1e-30, 1e-7, 1.0, 1e7, 1e30])
def test_norms_of_any_size(size):
    rows, identities = tf.Variable(size * unit(12, 8)), np.repeat(np.arange(6), 2)
    with tf.GradientTape() as tape:
        value = SSLHSICLoss(num_features=32)(identities, rows)
    assert np.isfinite(value) and np.all(np.isfinite(tape.gradient(value, rows)))
    if size >= 1e-6:
        np.testing.assert_allclose(tf.norm(unit_norm(rows), axis=-1), 1.0, rtol=1e-5)


def test_unit_norm_has_the_gradient_of_the_quotient():
    x = tf.Variable([[3.0, 4.0]])
    with tf.GradientTape() as tape:
        y = unit_norm(x)[0, 0]
    np.testing.assert_allclose(tape.gradient(y, x), [[16 / 125, -12 / 125]], rtol=1e-5)
    assert np.all(unit_norm(tf.zeros([2, 3])) == 0)


@pytest.mark.parametrize("loss", [LOSSES[0], LOSSES[3], LOSSES[7]])
def test_compiles_under_xla(loss):
    z = unit(6, 2, 8)

    @tf.function(jit_compile=True)
    def compiled(z):
        return value_and_gradient(loss, z)

    for result, expected in zip(compiled(z), value_and_gradient(loss, z), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "loss", [*LOSSES, SSLHSICLoss(kernels.Gaussian(0.4), gamma=1.0, seed=5, name="other")]
)
def test_configuration_round_trip(loss):
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert type(restored) is type(loss) and restored.get_config() == loss.get_config()
    z = unit(5, 2, 8)
    assert restored.terms(Hiddens(z), SEED)["loss"].numpy() == pytest.approx(
        loss.terms(Hiddens(z), SEED)["loss"].numpy()
    )


def test_fit_a_model_with_it_and_save(tmp_path):
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(64, 1, 6)), 2, axis=1) + 0.3 * rng.normal(size=(64, 2, 6))
    model = keras.Sequential(
        [keras.Input([6]), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(4)]
    )
    model.compile(
        keras.optimizers.Adam(0.02), loss=SSLHSICLoss(num_features=64, gamma=1.0, low_variance=True)
    )
    history = model.fit(
        x.reshape(128, 6).astype("float32"), np.repeat(np.arange(64), 2), batch_size=128, epochs=40, verbose=0
    ).history["loss"]
    assert np.mean(history[-10:]) < np.mean(history[:3]) - 0.05
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").loss.num_features == 64


def test_info_nce_is_the_formula():
    z, t = unit(4, 3, 5).numpy(), 0.3
    rows, image = z.reshape(12, 5), np.repeat(np.arange(4), 3)
    e = np.exp(rows @ rows.T / t)
    losses = [
        -np.log(e[a, b] / (e[a, b] + e[a][image != image[a]].sum()))
        for a in range(12)
        for b in range(12)
        if a != b and image[a] == image[b]
    ]
    assert InfoNCELoss(t).terms(Hiddens(z))["loss"].numpy() == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SSLHSICLoss(gamma=-1.0), "gamma must be at least 0, found -1"),
        (lambda: SSLHSICLoss(learn_kernel_scale=2), "learn_kernel_scale must be True or False, found 2"),
        (
            lambda: SSLHSICLoss(kernels.Gaussian(1e-4)).build(8),
            r"at least 0\.001 to be learnt, found 0\.0001",
        ),
        (lambda: SSLHSICLoss(num_features=0), "num_features must be None or at least 1, found 0"),
        (lambda: SSLHSICLoss("rbf"), "'rbf'"),
        (lambda: SSLHSICLoss(estimator="fair"), "'fair'"),
        (lambda: SSLHSICLoss(convention="mine"), "'mine'"),
        (
            lambda: SSLHSICLoss(num_features=7, low_variance=True).terms(Hiddens(unit(4, 2, 3)), SEED),
            "found 7",
        ),
        (lambda: InfoNCELoss(0.0), "temperature must be above 0, found 0"),
        (lambda: SSLHSICLoss().terms(Hiddens(unit(4, 1, 3)), SEED), "M = 1"),
        (lambda: SSLHSICLoss().terms(Hiddens(unit(4, 3)), SEED), r"\(4, 3\)"),
        (lambda: SSLHSICLoss(estimator="unbiased").terms(Hiddens(unit(1, 3, 4)), SEED), "B = 2"),
        (lambda: InfoNCELoss().terms(Hiddens(unit(4, 1, 3))), "M = 1"),
        (lambda: SSLHSICLoss()(np.zeros((4, 2)), unit(4, 3)), r"\(4, 2\)"),
        (lambda: SSLHSICLoss()(np.zeros(5), unit(4, 3)), r"\(4, 3\)"),
        (lambda: InfoNCELoss()(np.zeros(5), unit(4, 3)), r"\(4, 3\) and \(5,\)"),
        (lambda: InfoNCELoss()(np.zeros(8), unit(4, 2, 3)), r"\(4, 2, 3\) and \(8,\)"),
    ],
)
def test_errors_state_what_was_given(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("loss", [SSLHSICLoss(num_features=None), InfoNCELoss()])
def test_lists_are_taken_as_other_losses_of_keras_take_them(loss):
    rows, labels = unit(6, 3).numpy(), np.repeat(np.arange(3), 2)
    whole = float(loss(labels, rows))
    assert float(loss(labels.tolist(), rows.tolist())) == pytest.approx(whole, rel=1e-6)
    assert float(loss(labels[:, None].tolist(), rows)) == pytest.approx(whole, rel=1e-6)
