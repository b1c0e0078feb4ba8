"""All test images of Fashion-MNIST, of files in the form that Debian's package has."""

import gzip
import struct

import numpy as np
import pytest

from keras_sslhsic.data import bundled


def write(folder, images, labels):
    for name, array in (("t10k-images-idx3-ubyte.gz", images), ("t10k-labels-idx1-ubyte.gz", labels)):
        head = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape)
        (folder / name).write_bytes(gzip.compress(head + array.tobytes(), 1))


def test_the_images_are_those_of_the_files(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10_000, 28, 28), np.uint8)
    labels = rng.integers(0, 10, 10_000).astype(np.uint8)
    assert bundled.all_test_images(tmp_path) is None
    write(tmp_path, images, labels)
    found, of = bundled.all_test_images(tmp_path)
    np.testing.assert_array_equal(found, images[..., None])
    np.testing.assert_array_equal(of, labels)
    assert of.dtype == np.int64


def test_other_files_are_refused(tmp_path):
    write(tmp_path, np.zeros([9_999, 28, 28], np.uint8), np.zeros(10_000, np.uint8))
    with pytest.raises(
        ValueError, match=r"images-idx3-ubyte.gz was expected to hold 7,840,000 bytes in IDX format"
    ):
        bundled.all_test_images(tmp_path)
