import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_sslhsic.data.subsets import hold_out


def counts(labels, rows, classes):
    return np.bincount(labels[rows], minlength=classes)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=8), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_every_class_gives_its_share_to_within_one_and_the_size_is_exact(sizes, share, seed):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    # At least one of each class must be left, so that a half is always possible.
    number = max(1, int(share * len(labels) / 2))
    fit, held = hold_out(labels, number, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate([fit, held])), np.arange(len(labels)))
    found, exact = counts(labels, held, len(sizes)), number * np.array(sizes) / len(labels)
    assert len(held) == number
    assert np.all(found >= np.floor(exact)) and np.all(found <= np.floor(exact) + 1)
    assert np.all(found < sizes)


def test_so_many_of_each_class():
    labels = np.repeat([0, 1, 3], [10, 6, 7])
    _, held = hold_out(labels, np.array([3, 5, 2]), seed=1)
    assert counts(labels, held, 4).tolist() == [3, 5, 0, 0]
    assert not np.array_equal(held, hold_out(labels, np.array([3, 5, 2]), seed=2)[1])
    np.testing.assert_array_equal(held, hold_out(labels, np.array([3, 5, 2]), seed=1)[1])


@pytest.mark.parametrize(
    "number, message",
    [(np.array([2, 6]), r"left of the classes \[1\]"), (0, "16 training images are too few to hold any out")],
)
def test_what_cannot_be_held_out_is_named(number, message):
    with pytest.raises(ValueError, match=message):
        hold_out(np.repeat([0, 1], [10, 6]), number)


def test_a_class_of_one_image_keeps_it():
    labels = np.array([0] * 9 + [1])
    assert 9 in hold_out(labels, 2)[0]


def test_sparse_numbers_of_classes_are_no_sizes():
    labels = np.repeat([0, 1, 2], [10, 6, 7])
    sparse = np.array([5, 2**40, 2**62])[labels]
    for one, other in zip(hold_out(labels, 7), hold_out(sparse, 7), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (sparse[hold_out(sparse, np.array([0, 0, 0, 0, 0, 3]))[1]] == 5).sum() == 3
    with pytest.raises(ValueError, match=r"left of the classes \[5\]"):
        hold_out(sparse, np.array([0, 0, 0, 0, 0, 10]))
