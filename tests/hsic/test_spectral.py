import numpy as np
import pytest
import tensorflow as tf
from scipy import integrate, stats

from keras_sslhsic.hsic import bessel
from keras_sslhsic.hsic.kernels import Gaussian, InverseMultiquadric
from keras_sslhsic.hsic.spectral import GaussianFrequencies, IMQAmplitude, IMQFrequencies

DIMS = [1, 3, 128, 256, 1024, 4096]
FAMILY = [GaussianFrequencies, IMQFrequencies, IMQAmplitude]


def cumulative(dim, x):
    """Distribution function of the amplitude at scale 1, integrated from the Bessel density."""
    end = 14.0 * np.sqrt(dim)
    # Points crowd at 0, where the density of one dimension has its logarithmic pole.
    grid = end * np.linspace(1e-6, 1.0, 40_001) ** 2
    density = np.exp(bessel.log_density(dim, grid))
    total = integrate.cumulative_trapezoid(density, grid, initial=0.0)
    assert total[-1] == pytest.approx(1.0, abs=2e-4)
    return np.interp(x, grid, total)


@pytest.mark.parametrize("dim", DIMS)
def test_imq_amplitude_follows_the_bessel_density(dim):
    sample = IMQAmplitude(dim, scale=0.5).sample(20_000, seed=[dim, 7]).numpy()
    assert stats.kstest(0.5 * sample, lambda x: cumulative(dim, x)).pvalue > 1e-3


@pytest.mark.parametrize("dim", [1, 3, 256])
def test_imq_frequencies_have_that_amplitude_and_no_direction(dim):
    sample = IMQFrequencies(dim, scale=2.0).sample(4000, seed=[dim, 8]).numpy()
    amplitude = np.linalg.norm(sample, axis=1)
    assert stats.kstest(2.0 * amplitude, lambda x: cumulative(dim, x)).pvalue > 1e-3
    mean_direction = np.mean(sample / amplitude[:, None], axis=0)
    assert np.linalg.norm(mean_direction) < 4 / np.sqrt(4000)


@pytest.mark.parametrize("dim", [*DIMS, 16384])
def test_imq_log_prob_is_the_bessel_density(dim):
    amplitudes = np.sqrt(dim) * np.array([0.05, 0.3, 1.0, 2.5])
    expected = bessel.log_density(dim, 0.8 * amplitudes) + np.log(0.8)
    np.testing.assert_allclose(
        IMQAmplitude(dim, tf.constant(0.8, tf.float64)).log_prob(amplitudes), expected, atol=1e-6
    )
    np.testing.assert_allclose(IMQAmplitude(dim, 0.8).log_prob(amplitudes), expected, rtol=1e-5, atol=1e-5)
    # The density of w is that of |w| over the area of the sphere of that radius.
    w = np.zeros((4, dim))
    w[:, -1] = amplitudes
    area = np.log(2.0) + 0.5 * dim * np.log(np.pi) - float(tf.math.lgamma(tf.constant(0.5 * dim, tf.float64)))
    area = area + (dim - 1) * np.log(amplitudes)
    log_prob = IMQFrequencies(dim, tf.constant(0.8, tf.float64)).log_prob(w)
    np.testing.assert_allclose(log_prob + area, expected, rtol=1e-9, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 64, 4096])
def test_amplitude_density_integrates_to_one(dim):
    distribution = IMQAmplitude(dim, tf.constant(1.0, tf.float64))
    x = 14.0 * np.sqrt(dim) * np.linspace(1e-6, 1.0, 20_001) ** 2
    assert integrate.trapezoid(np.exp(distribution.log_prob(x)), x) == pytest.approx(1.0, abs=5e-4)


def test_gaussian_log_prob_and_entropy():
    w = np.random.default_rng(0).normal(size=(5, 3))
    reference = stats.multivariate_normal(np.zeros(3), np.eye(3) / 0.49)
    distribution = GaussianFrequencies(3, tf.constant(0.7, tf.float64))
    np.testing.assert_allclose(distribution.log_prob(w), reference.logpdf(w), rtol=1e-10)
    assert distribution.entropy().numpy() == pytest.approx(reference.entropy())


@pytest.mark.parametrize("kernel", [Gaussian(0.8), InverseMultiquadric(0.8)])
@pytest.mark.parametrize("dim", [1, 5, 300])
def test_characteristic_function_is_the_kernel(kernel, dim):
    w = kernel.frequencies(dim).sample(40_000, seed=[dim, 3]).numpy()
    direction = np.ones(dim) / np.sqrt(dim)
    for distance in (0.3, 1.0, 2.0):
        values = np.cos(w @ (distance * direction))
        expected = kernel.value(tf.constant(distance**2, tf.float64)).numpy()
        assert abs(values.mean() - expected) < 4 * values.std() / np.sqrt(len(values))


@pytest.mark.parametrize("kind", FAMILY)
def test_moments_match_the_samples(kind):
    distribution = kind(6, scale=[0.5, 2.0])
    sample = distribution.sample(60_000, seed=[4, 5]).numpy()
    error = 5 * sample.std(axis=0) / np.sqrt(len(sample))
    assert np.all(np.abs(sample.mean(axis=0) - distribution.mean()) < error)
    np.testing.assert_allclose(sample.var(axis=0), distribution.variance(), rtol=0.06)
    np.testing.assert_allclose(distribution.stddev() ** 2, distribution.variance(), rtol=1e-5)


@pytest.mark.parametrize("kind", FAMILY)
def test_shapes(kind):
    distribution = kind(5, scale=[[0.5], [2.0]])
    event = [] if kind is IMQAmplitude else [5]
    assert distribution.batch_shape == [2, 1] and distribution.event_shape == event
    sample = distribution.sample([7, 3], seed=[1, 2])
    assert sample.shape == [7, 3, 2, 1, *event] and sample.dtype == tf.float32
    assert distribution.log_prob(sample).shape == [7, 3, 2, 1]
    assert kind(5, tf.constant(1.0, tf.float64)).sample(seed=[1, 2]).dtype == tf.float64


@pytest.mark.parametrize(
    "kind", [GaussianFrequencies, IMQFrequencies, pytest.param(IMQAmplitude, marks=pytest.mark.slow)]
)
def test_samples_are_the_same_for_a_seed_and_under_xla(kind):
    def sample(seed):
        return kind(33, 0.7).sample(50, seed=seed)

    eager = sample(tf.constant([3, 4]))
    compiled = tf.function(sample, jit_compile=True)(tf.constant([3, 4]))
    np.testing.assert_allclose(eager, compiled, rtol=1e-4, atol=1e-5)
    assert not np.allclose(eager, sample(tf.constant([3, 5])))


@pytest.mark.parametrize("kind", FAMILY)
def test_samples_are_differentiable_in_the_scale(kind):
    scale = tf.Variable(0.7)
    with tf.GradientTape() as tape:
        sample = kind(4, scale).sample(9, seed=[1, 2])
        total = tf.reduce_sum(sample)
    # A sample is 1 / scale times something that does not depend on it.
    assert tape.gradient(total, scale).numpy() == pytest.approx(-float(total) / 0.7, rel=1e-4)


@pytest.mark.parametrize("kind", FAMILY)
def test_log_prob_is_differentiable(kind):
    x = tf.constant([0.9, 1.7] if kind is IMQAmplitude else [[0.3, -0.5, 1.0]], tf.float64)
    scale = tf.constant(0.8, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([x, scale])
        value = tf.reduce_sum(kind(3, scale).log_prob(x))
    d_x, d_scale = tape.gradient(value, [x, scale])
    h = 1e-6
    numeric = (kind(3, scale + h).log_prob(x) - kind(3, scale - h).log_prob(x)) / (2 * h)
    np.testing.assert_allclose(d_scale, np.sum(numeric), rtol=1e-5)
    step = tf.one_hot(0, x.shape[-1], dtype=tf.float64) * h
    numeric = np.sum(kind(3, scale).log_prob(x + step) - kind(3, scale).log_prob(x - step)) / (2 * h)
    np.testing.assert_allclose(
        np.sum(d_x, axis=0)[..., 0] if kind is not IMQAmplitude else d_x[0], numeric, rtol=1e-5
    )


def test_stratified_samples_have_the_same_distribution_and_cover_it_evenly():
    distribution = IMQFrequencies(64, 1.0)
    sets = np.stack([distribution.stratified_sample(200, [1, i]).numpy() for i in range(20)])
    plain = np.stack([distribution.sample(200, seed=[2, i]).numpy() for i in range(20)])
    stratified, independent = np.linalg.norm(sets, axis=-1), np.linalg.norm(plain, axis=-1)
    assert stats.kstest(stratified.ravel(), lambda x: cumulative(64, x)).pvalue > 1e-3
    assert stratified.mean(axis=1).std() < 0.5 * independent.mean(axis=1).std()


@pytest.mark.parametrize("kind", FAMILY)
def test_errors(kind):
    with pytest.raises(ValueError, match="found 0"):
        kind(0)
    with pytest.raises(ValueError, match=r"found -2\.0"):
        kind(3, scale=-2.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="positive"):
        kind(3, scale=tf.constant(-1.0), validate_args=True).sample(seed=[1, 2])
