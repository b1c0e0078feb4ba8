"""Two replicas on logical CPU devices must see what one device sees: values and summed gradient."""

import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.hsic import hsic_zy_features, kernels, replicas
from keras_sslhsic.losses import Hiddens, InfoNCELoss, SSLHSICLoss

SEED = [4, 2]
LOSSES = {
    "features": lambda: SSLHSICLoss(num_features=16),
    "third draw": lambda: SSLHSICLoss(num_features=16, shared_draw=False),
    "unbiased features": lambda: SSLHSICLoss(num_features=16, estimator="unbiased", dataset_size=30),
    "linear": lambda: SSLHSICLoss("linear"),
    "exact": lambda: SSLHSICLoss(num_features=None),
    "unbiased exact": lambda: SSLHSICLoss(num_features=None, estimator="unbiased", gamma=0.5),
    "info_nce": lambda: InfoNCELoss(),
}


@pytest.fixture(scope="module")
def strategy():
    devices = [device.name for device in tf.config.list_logical_devices("CPU")[:2]]
    assert len(devices) == 2, "tests/conftest.py makes the logical devices"
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())


def on_replicas(strategy, function, *arrays):
    """Runs function(*parts) on each replica's part of the arrays, and returns the outputs of all replicas."""
    parts = [
        strategy.experimental_distribute_values_from_function(
            lambda context, array=array: tf.constant(np.split(array, 2)[context.replica_id_in_sync_group])
        )
        for array in arrays
    ]
    outputs = tf.function(lambda: strategy.run(function, args=parts))()
    return [strategy.experimental_local_results(output) for output in outputs]


def images(*shape):
    return np.array(tf.math.l2_normalize(tf.random.stateless_normal(shape, [1, 2]), axis=-1))


def test_outside_of_a_strategy_nothing_happens():
    x = tf.constant([1.0, 2.0])
    assert replicas.num_replicas() == 1
    assert replicas.all_sum(x) is x and replicas.all_gather(x) is x and replicas.own_rows(x) is x


def test_sum_and_gather(strategy):
    def replica(x):
        gathered = replicas.all_gather(x)
        return (
            tf.constant(replicas.num_replicas()),
            replicas.all_sum(x),
            gathered,
            replicas.own_rows(gathered[:, 0]),
        )

    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    number, total, gathered, own = on_replicas(strategy, replica, x)
    for i in range(2):
        assert number[i] == 2
        np.testing.assert_array_equal(total[i], x[:2] + x[2:])
        np.testing.assert_array_equal(gathered[i], x)
        np.testing.assert_array_equal(own[i], x[2 * i : 2 * i + 2, 0])


@pytest.mark.parametrize("name", LOSSES)
def test_terms_and_their_gradient_are_global(strategy, name):
    loss, z = LOSSES[name](), images(6, 2, 5)

    def replica(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            terms = loss.terms(Hiddens(z), tf.constant(SEED))
            share = terms["loss"] / replicas.num_replicas()
        return tape.gradient(share, z), *terms.values()

    gradient, *terms = on_replicas(strategy, replica, z)
    z = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(z)
        expected = loss.terms(Hiddens(z), tf.constant(SEED))
    for values, value in zip(terms, expected.values(), strict=True):
        np.testing.assert_allclose(values, [value, value], rtol=2e-5, atol=1e-6)
    expected_gradient = tape.gradient(expected["loss"], z)
    assert np.max(np.abs(expected_gradient)) > 1e-3
    np.testing.assert_allclose(np.concatenate(gradient), expected_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("max_rows", [1024, 40])
def test_the_scale_is_learnt_from_the_rows_of_one_device(strategy, max_rows):
    """All rows, or a sample: 40 of 30 x 4 rows are 10 a view, 5 of each replica."""
    z = images(30, 4, 5)

    def entropy(z):
        scale = tf.constant(0.7)
        with tf.GradientTape() as tape:
            tape.watch(scale)
            value = kernels.scale_entropy(kernels.InverseMultiquadric(scale), z, max_rows)
        return value, tape.gradient(value, scale)

    found = on_replicas(strategy, entropy, z)
    for values, expected in zip(found, entropy(z), strict=True):
        np.testing.assert_allclose(values, [expected, expected], rtol=1e-5)


def test_groups_may_span_replicas(strategy):
    r, labels = images(8, 5), np.array([0, 1, 2, 0, 1, 1, 3, 2])

    def replica(r, labels):
        with tf.GradientTape() as tape:
            tape.watch(r)
            value = hsic_zy_features(r, labels=labels)
            share = value / replicas.num_replicas()
        return value, tape.gradient(share, r)

    values, gradients = on_replicas(strategy, replica, r, labels)
    r = tf.constant(r)
    with tf.GradientTape() as tape:
        tape.watch(r)
        expected = hsic_zy_features(r, labels=labels)
    np.testing.assert_allclose(values, [expected, expected], rtol=1e-5)
    np.testing.assert_allclose(np.concatenate(gradients), tape.gradient(expected, r), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["features", "exact", "info_nce"])
def test_as_a_keras_loss_the_division_is_that_of_keras(strategy, name):
    z, labels = images(12, 5), np.array([0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5])
    with strategy.scope():
        loss = LOSSES[name]()

    def replica(z, labels):
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(labels, z)
        return value, tape.gradient(value, z)

    values, gradients = on_replicas(strategy, replica, z, labels)
    single, z = LOSSES[name](), tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(z)
        expected = single(labels, z)
    np.testing.assert_allclose(np.sum(values), expected, rtol=1e-4)
    np.testing.assert_allclose(np.concatenate(gradients), tape.gradient(expected, z), rtol=1e-3, atol=1e-6)
