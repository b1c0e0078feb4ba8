"""The losses of the other methods: against their equations, differences, other precisions and degenerate batches."""

import keras
import loss_equations as reference
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic import losses, strategy
from keras_sslhsic.hsic import sampling
from keras_sslhsic.losses import Hiddens, unit_norm
from keras_sslhsic.losses.swav import balanced

SEED = tf.constant([1, 2])
SIZE, KEYS = 5, 11


def moco_queue(loss):
    return np.asarray(loss.variables[0].numpy(), np.float64)


def directions(loss):
    seen = unit_norm(sampling.normal([loss.num_slices, SIZE], SEED))
    return np.asarray(seen, np.float64)


# name: (the loss, its value for online and target outputs in float64)
LOSSES = {
    "byol": (losses.BYOLLoss, lambda loss, q, z: reference.byol(q, z)),
    "simsiam": (losses.SimSiamLoss, lambda loss, q, z: reference.simsiam(q, z)),
    "nt_xent": (lambda: losses.NTXentLoss(0.2), lambda loss, q, z: reference.nt_xent(q, 0.2)),
    "moco": (
        lambda: losses.MoCoLoss(queue_size=KEYS),
        lambda loss, q, z: reference.moco(q, z, moco_queue(loss)),
    ),
    "barlow_twins": (losses.BarlowTwinsLoss, lambda loss, q, z: reference.barlow_twins(q)),
    "vicreg": (losses.VICRegLoss, lambda loss, q, z: reference.vicreg(q)),
    "swav": (
        lambda: losses.SwAVLoss(num_prototypes=7, frozen_steps=0),
        lambda loss, q, z: reference.swav(q, np.asarray(loss.variables[0].numpy(), np.float64)),
    ),
    "lejepa": (
        lambda: losses.LeJEPALoss(num_slices=3),
        lambda loss, q, z: reference.lejepa(q, directions(loss)),
    ),
}


def made(name):
    keras.utils.set_random_seed(3)
    loss = LOSSES[name][0]()
    loss.build(SIZE)
    return loss


def outputs(images=6, views=2, seed=0):
    """Online and target outputs, float32; views of an image are alike."""
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(images, 1, SIZE))
    return tuple((image + 0.5 * rng.normal(size=(images, views, SIZE))).astype(np.float32) for _ in range(2))


def value(loss, online, target):
    target = target if loss.needs_target or loss.needs_predictor else None
    return loss.terms(Hiddens(tf.convert_to_tensor(online), target), SEED)["loss"]


def gradient(loss, online, target):
    z = tf.convert_to_tensor(online)
    with tf.GradientTape() as tape:
        tape.watch(z)
        loss = value(loss, z, target)
    return tape.gradient(loss, z)


def expected(name, loss, online, target):
    return LOSSES[name][1](loss, *[np.asarray(x, np.float64) for x in (online, target)])


with_loss = pytest.mark.parametrize("name", LOSSES)


@with_loss
@pytest.mark.parametrize("views", [2, 3, 4])
def test_the_loss_is_the_papers(name, views):
    loss, (online, target) = made(name), outputs(views=views)
    found = value(loss, online, target)
    assert found.dtype == tf.float32 and found.shape == ()
    # Fewer than a hundred operations follow each other, on numbers no more than ten times the result.
    assert float(found) == pytest.approx(expected(name, loss, online, target), rel=100 * 10 * 2.0**-24)


@pytest.mark.parametrize("name", ["byol", "simsiam", "moco", "swav", "lejepa"])
def test_local_views_are_compared_with_the_global_ones_alone(name):
    """Two of five views are global; the other losses compare all views with each other."""
    loss, (online, target) = made(name), outputs(views=5)
    shown = target[:, :2] if loss.needs_target or loss.needs_predictor else None
    found = float(loss.terms(Hiddens(tf.constant(online), shown, 2), SEED)["loss"])
    q, z = np.asarray(online, np.float64), np.asarray(target[:, :2], np.float64)
    if name == "swav":
        loss = reference.swav(q, np.asarray(loss.variables[0].numpy(), np.float64), num_global=2)
    elif name == "lejepa":
        loss = reference.lejepa(q, directions(loss), num_global=2)
    else:
        loss = LOSSES[name][1](loss, q, z)
    assert found == pytest.approx(loss, rel=100 * 10 * 2.0**-24)


@with_loss
@pytest.mark.parametrize("views", [2, 4])
def test_the_gradient_is_that_of_differences(name, views):
    """Of the equation in float64 where it is the whole gradient: the codes of SwAV are under stop-gradient."""
    loss, (online, target) = made(name), outputs(views=views)
    found, step = gradient(loss, online, target).numpy(), 1e-5
    wide = np.asarray(online, np.float64)
    function = lambda z: expected(name, loss, z, target)  # noqa: E731
    if name == "swav":
        prototypes = np.asarray(loss.variables[0].numpy(), np.float64)
        function = lambda z: reference.swav(z, prototypes, codes_of=wide)  # noqa: E731
    differences = np.empty_like(wide)
    for index in np.ndindex(wide.shape):
        there = np.zeros_like(wide)
        there[index] = step
        differences[index] = (function(wide + there) - function(wide - there)) / (2 * step)
    # The differences are off by step^2 times a third derivative, and float64's spacing over the step: both below 1e-8.
    np.testing.assert_allclose(found, differences, rtol=0, atol=1e-3 * np.abs(differences).max())
    # Every view has a part in it.
    assert np.all(np.abs(found).max(axis=(0, 2)) > 1e-3 * np.abs(found).max())


@with_loss
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_computed_in_float32(name, dtype):
    loss, (online, target) = made(name), [tf.cast(x, dtype) for x in outputs()]
    single = [tf.cast(x, tf.float32) for x in (online, target)]
    found = value(loss, online, target)
    assert found.dtype == tf.float32 and float(found) == float(value(loss, *single))
    slope = gradient(loss, online, target)
    spacing = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    wide = gradient(loss, *single).numpy()
    # Gradients of several uses are added up in the narrow type.
    np.testing.assert_allclose(
        tf.cast(slope, tf.float32), wide, rtol=0, atol=4 * spacing * np.abs(wide).max()
    )


@with_loss
@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize(
    "kind", ["collapsed", "zero", "duplicated images", "identical views", "huge", "one image"]
)
def test_degenerate_batches_have_finite_loss_and_gradient(name, views, kind):
    loss, (online, target) = made(name), outputs(views=views)
    change = {
        "collapsed": lambda z: np.broadcast_to(z[:1, :1], z.shape),
        "zero": np.zeros_like,
        "duplicated images": lambda z: np.concatenate([z[:3]] * 2),
        "identical views": lambda z: np.broadcast_to(z[:, :1], z.shape),
        "huge": lambda z: 1e4 * z,
        "one image": lambda z: z[:1],
    }[kind]
    online, target = [np.ascontiguousarray(change(z)) for z in (online, target)]
    assert np.isfinite(value(loss, online, target))
    assert np.all(np.isfinite(gradient(loss, online, target)))
    loss.update(Hiddens(tf.constant(online), tf.constant(target)))
    assert all(np.all(np.isfinite(v.numpy())) for v in loss.variables)


@with_loss
@pytest.mark.parametrize(("replicas", "views"), [(2, 2), pytest.param(4, 3, marks=pytest.mark.slow)])
def test_replicas_equal_one_device(name, replicas, views):
    """Loss, gradient and state; the trainer divides the loss by the number of replicas."""
    given = outputs(images=8, views=views)
    one, machines = made(name), strategy(f"cpu:{replicas}")
    with machines.scope():
        loss = made(name)

    @tf.function
    def step():
        share = [tf.reshape(x, [replicas, -1, *x.shape[1:]]) for x in given]
        online, target = [x[tf.distribute.get_replica_context().replica_id_in_sync_group] for x in share]
        with tf.GradientTape() as tape:
            tape.watch(online)
            found = value(loss, online, target)
            scaled = found / replicas
        slope = tape.gradient(scaled, online)
        loss.update(Hiddens(online, target))
        return found, slope

    found, slope = [machines.experimental_local_results(x) for x in machines.run(step)]
    expected_slope = gradient(one, *given).numpy()
    one.update(Hiddens(*map(tf.constant, given)))
    # Sums of eight images in another order; a factor of the number of replicas would be far off.
    for each in found:
        assert float(each) == pytest.approx(float(value(made(name), *given)), rel=1e-5)
    np.testing.assert_allclose(
        np.concatenate(slope), expected_slope, rtol=0, atol=1e-5 * np.abs(expected_slope).max()
    )
    for variable, reference_variable in zip(loss.variables, one.variables, strict=True):
        for copy in machines.experimental_local_results(variable.value):
            np.testing.assert_allclose(copy.numpy(), reference_variable.numpy(), rtol=1e-5, atol=1e-6)


@with_loss
def test_no_gradient_flows_into_the_target(name):
    loss, (online, target) = made(name), outputs()
    target = tf.constant(target)
    with tf.GradientTape() as tape:
        tape.watch(target)
        found = value(loss, online, target)
    assert tape.gradient(found, target) is None


@with_loss
def test_configuration_round_trip(name):
    loss = made(name)
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert type(restored) is type(loss) and restored.get_config() == loss.get_config()
    assert losses.get({"name": name}).get_config().keys() == loss.get_config().keys()
    assert losses.LOSSES[name] is type(loss)


@pytest.mark.slow
@with_loss
def test_compiles_under_xla(name):
    loss, given = made(name), outputs()
    compiled = tf.function(
        lambda z: (value(loss, z, given[1]), gradient(loss, z, given[1])), jit_compile=True
    )
    found, slope = compiled(tf.constant(given[0]))
    assert float(found) == pytest.approx(float(value(loss, *given)), rel=1e-5)
    wide = gradient(loss, *given).numpy()
    np.testing.assert_allclose(slope, wide, rtol=0, atol=1e-4 * np.abs(wide).max())


def test_for_two_views_info_nce_is_nt_xent_and_for_more_it_is_not():
    two, three = outputs(views=2)[0], outputs(views=3)[0]
    pair = [loss(0.2) for loss in (losses.NTXentLoss, losses.InfoNCELoss)]
    first, second = [float(value(loss, two, None)) for loss in pair]
    assert first == pytest.approx(second, rel=1e-5)
    first, second = [float(value(loss, three, None)) for loss in pair]
    assert first > 1.01 * second


def test_the_queue_holds_the_newest_keys_first():
    loss = made("moco")
    start = loss.variables[0].numpy()
    np.testing.assert_allclose(np.linalg.norm(start, axis=1), 1.0, rtol=1e-5)
    first, second = [np.full((2, 2, SIZE), sign, np.float32) for sign in (1.0, -1.0)]
    for target in (first, second):
        loss.update(Hiddens(tf.constant(first), tf.constant(target)))
    side = np.float32(1 / np.sqrt(SIZE))
    queue = loss.variables[0].numpy()
    np.testing.assert_allclose(queue[:4], -side, rtol=1e-6)
    np.testing.assert_allclose(queue[4:8], side, rtol=1e-6)
    np.testing.assert_array_equal(queue[8:], start[: KEYS - 8])
    small = losses.MoCoLoss(queue_size=3)  # than a batch
    small.build(SIZE)
    small.update(Hiddens(tf.constant(first), tf.constant(second)))
    np.testing.assert_allclose(small.variables[0].numpy(), -side, rtol=1e-6)


def test_the_codes_share_the_images_among_the_prototypes():
    scores = tf.constant(np.random.default_rng(0).uniform(-1, 1, (12, 2, 4)), tf.float32)
    codes = balanced(scores, 0.05, 3).numpy()
    for view in range(2):
        expected = reference.sinkhorn(np.asarray(scores[:, view], np.float64))
        np.testing.assert_allclose(codes[:, view], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(codes.sum(-1), 1.0, rtol=1e-6)
    np.testing.assert_allclose(balanced(scores, 0.05, 100).numpy().sum(0), 3.0, rtol=1e-2)


def test_prototypes_stay_at_first_and_have_unit_norm():
    keras.utils.set_random_seed(0)
    loss = losses.SwAVLoss(num_prototypes=7, frozen_steps=2)
    loss.build(SIZE)
    prototypes, steps = loss.variables
    assert prototypes.trainable and not steps.trainable
    online = tf.constant(outputs()[0])
    gradients = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            found = value(loss, online, None)
        gradients.append(np.abs(tape.gradient(found, prototypes.value)).max())
        prototypes.assign(3.0 * prototypes.value)
        loss.update(Hiddens(online))
        np.testing.assert_allclose(np.linalg.norm(prototypes.numpy(), axis=1), 1.0, rtol=1e-6)
    assert gradients[:2] == [0, 0] and gradients[2] > 0
    assert int(steps.numpy()) == 3


def test_the_mmd_of_lejepa_is_that_of_the_kernel():
    z = outputs(images=12)[0]
    loss = losses.LeJEPALoss(weight=1.0, num_slices=200_000, sketch="imq")
    scale = np.sqrt(2.0 * SIZE)
    mmds = [reference.imq_mmd(np.asarray(z[:, view], np.float64), scale) for view in range(2)]
    # Five standard errors of the mean over frequencies.
    frequencies, _ = loss.frequencies(SIZE, SEED)
    angles, lengths = np.einsum("bpq,fq->bpf", z, frequencies), np.sum(np.square(frequencies), 1)
    terms = np.abs(np.exp(1j * angles).mean(0) - np.exp(-0.5 * lengths)) ** 2
    bound = 5 * np.std(terms.mean(0)) / np.sqrt(loss.num_slices)
    assert float(value(loss, z, None)) / 12 == pytest.approx(np.mean(mmds), abs=bound)
    assert np.mean(mmds) > 20 * bound


def test_gaussian_outputs_have_the_least_sigreg():
    z = sampling.normal([512, 2, SIZE], SEED)
    for sketch in ("slices", "imq"):
        loss = losses.LeJEPALoss(sketch=sketch, num_slices=256)
        found = [float(loss.terms(Hiddens(scale * z), SEED)["sigreg"]) for scale in (0.5, 1.0, 2.0)]
        assert found[1] < 0.1 * min(found[0], found[2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.NTXentLoss(0.0), "temperature must be above 0, found 0"),
        (lambda: losses.MoCoLoss(temperature=-1.0), "temperature must be above 0, found -1"),
        (lambda: losses.MoCoLoss(queue_size=0), "queue_size must be at least 1, found 0"),
        (lambda: value(losses.MoCoLoss(), *outputs()), "no queue yet: compile a model"),
        (lambda: losses.SwAVLoss(num_prototypes=1), "num_prototypes must be at least 2, found 1"),
        (lambda: value(losses.SwAVLoss(), *outputs()), "no prototypes yet: compile a model"),
        (lambda: losses.BarlowTwinsLoss(-1.0), "redundancy must be at least 0, found -1"),
        (lambda: losses.VICRegLoss(variance_weight=-1.0), "variance_weight must be at least 0, found -1"),
        (lambda: losses.LeJEPALoss(knots=8), "odd number of knots.*knots=8"),
        (lambda: losses.LeJEPALoss(2.0), "weight=2.0"),
        (lambda: losses.LeJEPALoss(sketch="cube"), "sketch='cube'"),
        (lambda: losses.BYOLLoss().terms(Hiddens(tf.zeros([4, 2, 3]))), "outputs of a target, found none"),
        *((lambda name=name: value(made(name), *outputs(views=1)), "M = 1") for name in LOSSES),
    ],
)  # fmt: skip
def test_errors_say_what_was_found(call, message):
    with pytest.raises(ValueError, match=message):
        call()
