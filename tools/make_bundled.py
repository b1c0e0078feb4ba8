"""Build the bundled Fashion-MNIST subset from the four IDX files of the original data set.

    python tools/make_bundled.py /usr/share/datasets/fashion-mnist
    keras_sslhsic/data/files/fashion_mnist_subset.npz

On Debian and Ubuntu the files come from the package `dataset-fashion-mnist`; the originals are at
https://github.com/zalandoresearch/fashion-mnist. A fixed seed draws 1,000 training and 200 test images of
each of the ten classes without replacement; their original order is kept. Prints the SHA-256 that
`keras_sslhsic.data.bundled` checks on loading.
"""

import argparse
import gzip
import hashlib
from pathlib import Path

import numpy as np

SEED = 20210614
TRAIN_PER_CLASS = 1000
TEST_PER_CLASS = 200


def read_idx(path: Path) -> np.ndarray:
    """Reads a gzipped IDX file of bytes: two zeros, type 8, rank, big-endian sizes, then the data."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path}: expected an IDX file of unsigned bytes, found magic {content[:4].hex()}")
    rank = content[3]
    shape = np.frombuffer(content, ">i4", rank, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape)


def balanced_indices(labels: np.ndarray, per_class: int, rng: np.random.Generator) -> np.ndarray:
    """Draws `per_class` indices of each class without replacement, in ascending order."""
    drawn = [
        rng.choice(np.flatnonzero(labels == label), per_class, replace=False) for label in np.unique(labels)
    ]
    return np.sort(np.concatenate(drawn)).astype(np.int32)


def make(source: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of the subset, with the index of each image in the original files."""
    rng = np.random.default_rng(SEED)
    arrays = {}
    for split, prefix, per_class in (("train", "train", TRAIN_PER_CLASS), ("test", "t10k", TEST_PER_CLASS)):
        images = read_idx(source / f"{prefix}-images-idx3-ubyte.gz")
        labels = read_idx(source / f"{prefix}-labels-idx1-ubyte.gz")
        index = balanced_indices(labels, per_class, rng)
        arrays |= {
            f"x_{split}": images[index, ..., None],
            f"y_{split}": labels[index],
            f"index_{split}": index,
        }
    return arrays


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder with the four *-ubyte.gz files")
    parser.add_argument("output", type=Path, help="the .npz file to write")
    args = parser.parse_args()
    np.savez_compressed(args.output, **make(args.source))
    content = args.output.read_bytes()
    print(f"{args.output}: {len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    main()
