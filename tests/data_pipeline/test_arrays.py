"""from_arrays: contents, order, resumption, shares, and messages for bad input."""

import hashlib
from itertools import chain

import h5py
import numpy as np
import pytest
import tensorflow as tf

from keras_sslhsic.data import arrays, bundled, from_arrays

N = 37
X = np.arange(N, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)
Y = np.arange(N, dtype=np.int32) % 5


def flat(batches):
    return list(chain.from_iterable(batches))


def ids(dataset, count=None):
    """The identities of the images in each batch."""
    batches = dataset.take(-1 if count is None else count)
    return [batch["image"][:, 0, 0, 0].numpy().tolist() for batch in batches]


def test_batches_hold_the_images_and_their_labels():
    images = from_arrays(X, Y, batch_size=8, class_names="abcde")
    dataset = images.batches(epochs=1)
    assert images.element_spec == dataset.element_spec
    assert images.element_spec["image"] == tf.TensorSpec([8, 2, 3, 1], tf.uint8)
    assert (images.batch_size, images.num_examples, images.class_names) == (8, N, list("abcde"))
    batches = list(dataset)
    assert len(batches) == images.steps_per_epoch == int(dataset.cardinality()) == 4
    for batch in batches:
        image, label = batch["image"].numpy(), batch["label"].numpy()
        assert image.dtype == np.uint8 and label.dtype == np.int64
        np.testing.assert_array_equal(image, X[image[:, 0, 0, 0]])
        np.testing.assert_array_equal(label, Y[image[:, 0, 0, 0]])
    assert "label" not in from_arrays(X, batch_size=8).element_spec


def test_an_argument_of_other_sources_is_named():
    with pytest.raises(
        TypeError, match="from_arrays has no argument host_crops: it has batch_size, class_names, seed"
    ):
        from_arrays(np.zeros([4, 8, 8, 3], np.uint8), batch_size=2, host_crops="byol")


def test_each_epoch_is_a_permutation_of_its_own_and_repeats_with_the_seed():
    def epochs(seed):
        batches = ids(from_arrays(X, batch_size=10, seed=seed, drop_remainder=False).batches(epochs=2))
        assert [len(batch) for batch in batches] == [10, 10, 10, 7] * 2
        return flat(batches[:4]), flat(batches[4:])

    first, second = epochs(3)
    assert sorted(first) == sorted(second) == list(range(N))
    assert first != second and first != sorted(first)
    assert (first, second) == epochs(3)
    assert (first, second) != epochs(4)


def test_without_shuffling_the_order_is_that_of_the_array():
    images = from_arrays(X, batch_size=16, shuffle=False, drop_remainder=False)
    assert flat(ids(images.batches(epochs=1))) == list(range(N))


@pytest.mark.parametrize("start", [(0, 0), (0, 3), (1, 0), (2, 1), (0, 9), (100, 2)])
def test_a_stream_started_at_a_step_goes_on_as_the_uninterrupted_one(start):
    images = from_arrays(X, batch_size=8, seed=1)
    skipped = start[0] * images.steps_per_epoch + start[1]
    uninterrupted = ids(images.batches(), skipped + 6)
    assert ids(images.batches(*start), 6) == uninterrupted[skipped:]


def test_a_start_ends_with_the_same_last_epoch():
    images = from_arrays(X, batch_size=8)
    resumed = images.batches(1, 2, epochs=3)
    assert ids(resumed) == ids(images.batches(epochs=3))[6:] and int(resumed.cardinality()) == 6


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("drop_remainder", [True, False])
def test_workers_share_each_batch_in_its_order(count, drop_remainder):
    images = from_arrays(X, batch_size=6, seed=5, drop_remainder=drop_remainder)
    shares = [images.batches(epochs=2, share=(i, count)) for i in range(count)]
    together = ids(images.batches(epochs=2))
    assert shares[0].element_spec["image"].shape[0] == (6 // count if drop_remainder else None)
    assert [flat(parts) for parts in zip(*map(ids, shares), strict=True)] == together


def test_a_sample_is_spread_over_the_images():
    images = from_arrays(X, batch_size=8)
    assert images.sample(4)[:, 0, 0, 0].tolist() == [0, 12, 24, 36]
    assert images.sample(100).shape == X.shape


def test_the_order_is_uniform():
    """Chi-square over (position, example) and over neighbouring examples, of 1,500 epochs of 12 examples."""
    n, epochs = 12, 1500
    stream = from_arrays(X[:n], batch_size=n).batches(epochs=epochs)
    order = np.array(ids(stream))
    expected = epochs / n
    placed = np.stack([np.bincount(order[:, position], minlength=n) for position in range(n)])
    assert ((placed - expected) ** 2 / expected).sum() < 121 + 5 * np.sqrt(2 * 121)
    steps = np.bincount(((order[:, 1:] - order[:, :-1]) % n).ravel(), minlength=n)[1:]
    expected = steps.sum() / (n - 1)
    assert ((steps - expected) ** 2 / expected).sum() < 10 + 5 * np.sqrt(2 * 10)


def test_arrays_mapped_from_a_file_are_read_by_batch(tmp_path):
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert ids(from_arrays(mapped, batch_size=8).batches(), 5) == ids(
        from_arrays(X, batch_size=8).batches(), 5
    )


def test_a_file_of_hdf5_is_read_by_batch(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        stored = from_arrays(file.create_dataset("x", data=X), batch_size=8, seed=1)
        assert ids(stored.batches(epochs=2)) == ids(from_arrays(X, batch_size=8, seed=1).batches(epochs=2))
        assert stored.sample(4)[:, 0, 0, 0].tolist() == [0, 12, 24, 36]


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.int32, np.uint16])
def test_other_numbers_in_the_range_of_uint8_come_as_float32(kind):
    images = from_arrays(X.astype(kind), Y.astype(float)[:, None], batch_size=8)
    assert images.element_spec["image"].dtype == tf.float32 and images.element_spec["label"].dtype == tf.int64
    assert ids(images.batches(epochs=1)) == ids(from_arrays(X, batch_size=8).batches(epochs=1))
    assert images.sample(4).dtype == np.uint8


def test_crops_come_together_and_in_another_order_on_request():
    crops = {"view1": X, "view2": X / np.float32(255), "label": Y}
    images = from_arrays(crops, batch_size=8)
    for batch in images.batches(epochs=1):
        np.testing.assert_allclose(batch["view1"], 255 * batch["view2"], rtol=1e-6)
        np.testing.assert_array_equal(batch["label"], batch["view1"][:, 0, 0, 0] % 5)
    in_order = images.ordered(shuffle=False, drop_remainder=False)
    seen = [batch["view1"][:, 0, 0, 0].numpy().tolist() for batch in in_order.batches(epochs=1)]
    assert flat(seen) == list(range(N)) and in_order.steps_per_epoch == 5 == images.steps_per_epoch + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": X, "batch_size": 64}, r"37 examples, fewer than one batch of 64"),
        ({"x": X[:0], "batch_size": 1, "drop_remainder": False}, r"found none.*\[0, 2, 3"),
        ({"x": X, "batch_size": 0}, r"batch_size must be at least 1, found 0"),
        ({"x": X / np.float32(255), "batch_size": 8}, r"float32 in \[0, 1\].*x \* 255"),
        ({"x": X > 1, "batch_size": 8}, r"found bool: convert"),
        ({"x": X.astype(np.uint16) * 257, "batch_size": 8}, r"uint16 in \[0, 9252\]: scale"),
        ({"x": X.astype(np.int32) - 1, "batch_size": 8}, r"int32 in \[-1, 35\]: scale"),
        ({"x": np.full_like(X, np.nan, np.float32), "batch_size": 8}, r"float32 with NaN or infinite values"),
        ({"x": np.zeros([5, 3, 32, 32], np.uint8), "batch_size": 2}, r"\[5, 3, 32, 32\].*np\.moveaxis"),
        ({"x": np.zeros([32, 32, 3], np.uint8), "batch_size": 1}, r"one image as x\[np\.newaxis\]"),
        ({"x": X, "y": Y.astype(str), "batch_size": 8}, r"found <U.*np\.unique"),
        ({"x": X, "y": np.eye(37), "batch_size": 8}, r"argmax"),
        ({"x": X[..., 0], "batch_size": 8}, r"\[37, 2, 3\].*np\.newaxis"),
        ({"x": X, "y": Y + 0.5, "batch_size": 8}, r"Labels must be integers, found 0\.5"),
        (
            {"x": {"view1": X, "view2": X[:5]}, "batch_size": 8},
            r"as many crops of each view, found \[37, 5\]",
        ),
        ({"x": {"view1": X * 1.0, "view2": X}, "batch_size": 8}, r"Crops .* must lie in \[0, 1\]"),
        ({"x": X, "y": Y[:5], "batch_size": 8}, r"Labels must have the shape \[37\].*found \[5\]"),
        ({"x": X, "y": np.eye(37, dtype=int), "batch_size": 8}, r"argmax"),
        ({"x": X, "y": Y - 1, "batch_size": 8}, r"negative, found -1"),
        ({"x": X, "batch_size": 8, "seed": -1}, r"seed must be at least 0, found -1"),
        ({"x": X, "batch_size": 8, "seed": "a"}, r"seed must be an integer, found 'a'"),
        ({"x": X, "batch_size": 2.5}, r"batch_size must be an integer, found 2.5"),
        ({"x": X, "batch_size": 8, "shuffle": "no"}, r"shuffle must be True or False, found 'no'"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, r"epochs must be None or at least 1, found 0"),
        ({"epoch": "a"}, r"epoch must be an integer, found 'a'"),
        ({"step": -1}, r"step must be at least 0, found -1"),
        ({"share": (2, 2)}, r"count of share must be at least 3, found 2"),
        ({"share": (0, 0)}, r"count of share must be at least 1, found 0"),
        ({"share": (0, 3)}, r"A batch of 8 images cannot be shared by 3 workers.*multiple of 3"),
    ],
)
def test_batches_that_cannot_be_meant_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(X, batch_size=8).batches(**arguments)


def test_bundled_images_are_balanced_and_distinct():
    (x_train, y_train), (x_test, y_test) = bundled.load()
    for x, y, per_class in ((x_train, y_train, 1000), (x_test, y_test, 200)):
        assert x.shape == (10 * per_class, 28, 28, 1) and x.dtype == np.uint8 and x.max() == 255
        assert y.dtype == np.int64
        np.testing.assert_array_equal(np.bincount(y), [per_class] * 10)
    assert len({image.tobytes() for image in x_train}) > 9990
    assert len(bundled.CLASS_NAMES) == 10


def test_bundled_images_show_what_their_labels_say():
    """Trousers are narrow: the outer columns of the mean image are empty; ankle boots reach the sides."""
    (x, y), _ = bundled.load()
    columns = np.stack([x[y == label].mean((0, 1, 3)) for label in range(10)])
    trouser, boot = bundled.CLASS_NAMES.index("Trouser"), bundled.CLASS_NAMES.index("Ankle boot")
    assert columns[trouser, :6].max() < 5 < 20 < columns[boot, 3:25].min()


def test_a_damaged_bundled_file_is_refused(tmp_path, monkeypatch):
    damaged = bytearray(bundled._FILE.read_bytes())
    damaged[1000] ^= 1
    (tmp_path / "copy.npz").write_bytes(damaged)
    monkeypatch.setattr(bundled, "_FILE", tmp_path / "copy.npz")
    with pytest.raises(OSError, match=hashlib.sha256(damaged).hexdigest()):
        bundled.load()


def test_the_digest_is_of_pixels_and_labels(monkeypatch):
    x, y = np.arange(10 * 2 * 2 * 1, dtype=np.uint8).reshape(10, 2, 2, 1), np.arange(10)
    digest = from_arrays(x, y, batch_size=2).digest()
    assert from_arrays(x.copy(), y.astype(np.int32), batch_size=5, seed=1).digest() == digest
    changed = x.copy()
    changed[7, 0, 0] += 1
    others = [(changed, y), (x, y[::-1]), (x, None), (x.reshape(10, 1, 4, 1), y)]
    assert len({digest, *(from_arrays(*other, batch_size=2).digest() for other in others)}) == 5
    monkeypatch.setattr(arrays, "_DIGESTED", 12)  # three images of more
    changed = x.copy()
    changed[9] += 1
    found = {from_arrays(images, batch_size=2).digest() for images in (x, changed, 0 * x)}
    assert len(found) == 3


def test_every_label_has_a_name_where_there_are_some():
    with pytest.raises(ValueError, match=r"go up to 4, and there are 3 class_names: .* np\.unique"):
        from_arrays(X, Y, batch_size=2, class_names=["a", "b", "c"])
    from_arrays(X, 2**40 * Y.astype(np.int64), batch_size=2)
