"""How many images each of n workers decodes in an epoch, and whether their parts are the batches of one worker.

    python benchmarks/workers.py --images 512 --workers 1 2 4 8

Every worker reads a generated folder by a handle of its own, as in a process of its own; batches of 64.
"""

import argparse
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from keras_sslhsic.data import from_folder
from keras_sslhsic.data.folder import FolderImages


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    flags = parser.parse_args()
    print("| workers | images that each decodes | images of an epoch | batches of one worker |")
    print("|---:|---:|---:|---|")
    with tempfile.TemporaryDirectory() as root:
        pixels = np.random.default_rng(0).integers(0, 256, (flags.images, 32, 32, 3), np.uint8)
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(Path(root, f"{number:05}.png"))
        whole, _ = read(root, (0, 1))
        for count in flags.workers:
            shares, decoded = zip(*(read(root, (index, count)) for index in range(count)), strict=True)
            equal = np.array_equal(np.concatenate(shares, axis=1), whole)
            each = " ".join(map(str, sorted({*decoded})))
            print(
                f"| {count} | {each} | {whole.shape[0] * whole.shape[1]} | {'equal' if equal else 'differ'} |"
            )


def read(root: str, share: tuple[int, int]) -> tuple[np.ndarray, int]:
    """The batches of a worker in one epoch, uint8 [steps, B / n, H, W, C], and how many images it has decoded."""
    decode, decoded = FolderImages._arrays, []

    def counted(self, number, *arguments):
        decoded.append(number)
        return decode(self, number, *arguments)

    with mock.patch.object(FolderImages, "_arrays", counted):
        batches = from_folder(root, batch_size=64, image_size=32).batches(epochs=1, share=share)
        return np.stack([batch["image"] for batch in batches.as_numpy_iterator()]), len(decoded)


if __name__ == "__main__":
    main()
