"""What is logged of the outputs, against NumPy in float64 and SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import pdist

from keras_sslhsic.training.diagnostics import of_outputs


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 20), st.integers(2, 4), st.integers(2, 12), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_they_are_what_they_say(images, views, size, offset, seed):
    z = np.random.default_rng(seed).standard_normal([images, views, size]) + offset
    found = {name: value.numpy() for name, value in of_outputs(z.astype("float32")).items()}
    unit = z / np.linalg.norm(z, axis=-1, keepdims=True)
    eigenvalues = np.linalg.eigvalsh(np.cov(unit[:, 0].T, bias=True))
    assert found["feature_std"] == pytest.approx(np.sqrt(eigenvalues.sum()), rel=1e-4)
    assert found["effective_rank"] == pytest.approx(eigenvalues.sum() ** 2 / (eigenvalues**2).sum(), rel=1e-3)
    pairs = [pdist(of_image, "sqeuclidean").mean() for of_image in unit]
    assert found["alignment"] == pytest.approx(np.mean(pairs), rel=1e-4)
    p_values = 2 * stats.norm.sf(abs(unit[:, 0].mean(0)) / stats.sem(unit[:, 0]))
    if abs(p_values / 0.025 - 1).min() > 1e-3:  # rounding decides nearer to the threshold
        assert found["off_centre"] == pytest.approx((p_values < 0.025).mean())


def test_of_one_view_there_is_no_alignment():
    assert set(of_outputs(np.ones([4, 1, 3], "float32"))) == {"feature_std", "effective_rank", "off_centre"}
