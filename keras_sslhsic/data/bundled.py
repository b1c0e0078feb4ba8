"""The data set inside the package: a balanced subset of Fashion-MNIST."""

import gzip
import hashlib
import io
from pathlib import Path

import numpy as np

from keras_sslhsic import files

CLASS_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
SHA256 = "e660a8b4b450521f8da60b026887d0c13aa9c85f049607f1726b95879e035de8"
_FILE = Path(__file__).parent / "files" / "fashion_mnist_subset.npz"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of its package dataset-fashion-mnist

Arrays = tuple[np.ndarray, np.ndarray]


def load() -> tuple[Arrays, Arrays]:
    """Loads the bundled images: 1,000 training and 200 test images of each of ten classes of clothing.

    The images are those of Fashion-MNIST (Xiao, Rasul, Vollgraf, arXiv:1708.07747; MIT licence), chosen by a
    fixed seed. The names of the classes are in `CLASS_NAMES`.

        (x_train, y_train), (x_test, y_test) = bundled.load()

    Returns:
        `(x_train, y_train), (x_test, y_test)`: images uint8 [10000, 28, 28, 1] and [2000, 28, 28, 1] in [0,
        255], labels int64 [10000] and [2000] in 0..9.

    Raises:
        OSError: the file is missing, or its SHA-256 is not the expected one.
    """
    content = files.read_regular(_FILE, 2**24)
    digest = hashlib.sha256(content).hexdigest()
    if digest != SHA256:
        raise OSError(
            f"{_FILE} is damaged: its SHA-256 is {digest}, expected {SHA256}. Install keras_sslhsic again."
        )
    with np.load(io.BytesIO(content)) as arrays:
        train, test = [(arrays[f"x_{s}"], arrays[f"y_{s}"].astype(np.int64)) for s in ("train", "test")]
    return train, test


def all_test_images(folder: Path = DEBIAN) -> Arrays | None:
    """All test images of Fashion-MNIST, where Debian's package has them.

    Returns:
        Images uint8 [10000, 28, 28, 1] in [0, 255], and labels int64 [10000]; None without the package.

    Raises:
        ValueError: if a file holds something else.
    """
    files_of = (("t10k-images-idx3-ubyte.gz", (10_000, 28, 28, 1)), ("t10k-labels-idx1-ubyte.gz", (10_000,)))
    if not all((folder / name).exists() for name, _ in files_of):
        return None
    images, labels = [_idx(folder / name, shape) for name, shape in files_of]
    return images, labels.astype(np.int64)


def _idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes after a head of 4 bytes and the sizes, as MNIST's authors defined the format."""
    size = int(np.prod(shape))
    with gzip.open(path) as stream:
        content = stream.read(16 + size + 1)
    rank = content[3] if len(content) > 3 else 0
    if content[:3] != b"\x00\x00\x08" or len(content) != 4 + 4 * rank + size:
        raise ValueError(
            f"{path} was expected to hold {size:,} bytes in IDX format. Install its package again."
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)
