"""Images made by the tests."""

import io

import numpy as np
import pytest
from PIL import Image


def _photo(height=60, width=80, seed=0):
    """A smooth RGB image without symmetry, another for each seed: JPEG keeps it, and every turn shows."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (4, 5, 3), np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def _encode(image, kind="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, kind, **({"quality": 95, "subsampling": 0} if kind == "JPEG" else {}) | options)
    return stream.getvalue()


@pytest.fixture(scope="session")
def photo():
    return _photo


@pytest.fixture(scope="session")
def encode():
    return _encode


@pytest.fixture
def folder(tmp_path):
    """Writes `count` JPEGs, each of a gray level of its own, into class folders; returns the root."""

    def make(count=24, classes=2, size=(12, 16), root="images"):
        for index in range(count):
            directory = tmp_path / root / (f"class {index % classes}" if classes else "")
            directory.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, (gray(index),) * 3).save(directory / f"{index:03}.jpg", quality=95)
        return tmp_path / root

    return make


def gray(index):
    return 10 + 5 * index


@pytest.fixture(scope="session")
def identities():
    """The numbers of the images of `folder` in a batch."""

    def read(images):
        return np.round((images.numpy().mean((1, 2, 3)) - 10) / 5).astype(int).tolist()

    return read
