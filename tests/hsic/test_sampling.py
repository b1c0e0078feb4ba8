import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_sslhsic.hsic import sampling


@pytest.mark.parametrize(("sample", "law"), [(sampling.uniform, "uniform"), (sampling.normal, "norm")])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_distribution(sample, law, dtype):
    x = sample([101, 99], tf.constant([1, 2]), dtype)
    assert x.shape == [101, 99] and x.dtype == dtype
    assert stats.kstest(x.numpy().ravel(), law).pvalue > 1e-3
    first, second = x.numpy().ravel()[:4999], x.numpy().ravel()[5000:]
    assert abs(stats.pearsonr(first, second[:4999]).statistic) < 4 / np.sqrt(4999)


@pytest.mark.parametrize("sample", [sampling.uniform, sampling.normal])
def test_same_numbers_under_xla(sample):
    def draw(seed):
        return sample([13, 7], seed)

    seed = tf.constant([5, 6])
    np.testing.assert_allclose(draw(seed), tf.function(draw, jit_compile=True)(seed), atol=2e-6)
