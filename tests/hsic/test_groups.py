import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_sslhsic.hsic.groups import group


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20))
def test_groups_are_those_of_numpy(labels):
    groups = group(tf.constant(labels, tf.int32))
    _, index, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(groups.index, index)
    np.testing.assert_array_equal(groups.sizes, np.pad(sizes, [0, len(labels) - len(sizes)]))
