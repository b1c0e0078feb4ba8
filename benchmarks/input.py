"""Images a second of the input pipelines, from a generated folder and TFRecords of 500 x 375 JPEGs.

    python benchmarks/input.py --images 2000 --workers 2

Reads every image twice: the first epoch is not timed. Rows: decode to one 256 x 256 image (crops on the
device), and two crops of 224 x 224 made on the host, from a folder, from TFRecords, and from a cache of
decoded images; and, if torch and torchvision are installed, ImageFolder + DataLoader with RandomResizedCrop
twice, with uint8 tensors (the bytes that the rows above send) and with the usual float32 tensors of ToTensor.
`bytes` counts what an image sends to the device.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

from keras_sslhsic import views
from keras_sslhsic.data import from_folder, from_tfds

BATCH = 50


def photo(rng: np.random.Generator) -> Image.Image:
    """Smooth colours with grain: at quality 92 about 100 kB, as a photograph of ImageNet has."""
    smooth = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).resize(
        (500, 375), Image.Resampling.BICUBIC
    )
    grain = rng.normal(0, 10, (375, 500, 1))
    return Image.fromarray(np.clip(np.asarray(smooth) * 0.5 + 64 + grain, 0, 255).astype(np.uint8))


def write_folder(root: Path, count: int) -> None:
    """Two class folders of JPEGs."""
    rng = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        photo(rng).save(folder / f"{number:05}.jpg", quality=92)


class Photos(tfds.core.GeneratorBasedBuilder):
    """The same files as TFRecords."""

    VERSION = tfds.core.Version("1.0.0")
    folder = Path()

    def _info(self) -> tfds.core.DatasetInfo:
        features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=2)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for file in sorted(self.folder.glob("*/*.jpg")):
            yield file.name, {"image": str(file), "label": int(file.parent.name[-1])}


def rate(batches: Iterable, count: int) -> float:
    """Images a second of the second epoch of a stream."""
    stream = iter(batches)
    for _ in range(count // BATCH):
        next(stream)
    start = time.perf_counter()
    for _ in range(count // BATCH):
        next(stream)
    return count / (time.perf_counter() - start)


def sent(dataset: tf.data.Dataset) -> int:
    """Bytes of the images of one example."""
    specs = [spec for name, spec in dataset.element_spec.items() if name != "label"]
    return sum(int(np.prod(spec.shape[1:])) * spec.dtype.size for spec in specs)


def torch_rows(root: Path, workers: int) -> list[tuple[str, Callable[[], Iterable], int]]:
    """The same with torchvision; none if it is not installed."""
    try:
        import torch
        from torchvision import datasets, transforms
    except ImportError:
        print("torchvision is not installed: no comparison")
        return []

    def loader(to_tensor) -> Iterable:
        crop = transforms.Compose([transforms.RandomResizedCrop(224), to_tensor])
        folder = datasets.ImageFolder(str(root), lambda image: (crop(image), crop(image)))
        data = torch.utils.data.DataLoader(
            folder, BATCH, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=True
        )
        while True:
            yield from data

    crops = 2 * 224 * 224 * 3
    return [
        ("torchvision folder, two crops, uint8", lambda: loader(transforms.PILToTensor()), crops),
        ("torchvision folder, two crops, float32", lambda: loader(transforms.ToTensor()), 4 * crops),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=2000, help=f"images generated, a multiple of {BATCH}")
    parser.add_argument("--workers", type=int, default=2, help="threads here, processes there")
    parser.add_argument(
        "--rounds", type=int, default=3, help="each row is measured so often; the best counts"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "photos"
        write_folder(root, args.images)
        Photos.folder = root
        config = tfds.download.DownloadConfig(num_shards=8, try_download_gcs=False)
        Photos(data_dir=temporary).download_and_prepare(download_config=config)
        size = sum(file.stat().st_size for file in root.glob("*/*.jpg")) / args.images
        print(f"{args.images} JPEGs of 500 x 375, {size / 1e3:.0f} kB each, {args.workers} workers")

        common = {"batch_size": BATCH, "workers": args.workers}
        crops = {"host_crops": views.byol(224)}
        cached = {"cache": "decoded", "cache_bytes": 2**33}
        records = {"data_dir": temporary, "window": 1000}
        rows = []
        for name, make in (
            ("folder, 256", lambda: from_folder(root, **common)),
            ("folder, two crops", lambda: from_folder(root, **common, **crops)),
            ("TFRecords, 256", lambda: from_tfds("photos", **common, **records)),
            ("TFRecords, two crops", lambda: from_tfds("photos", **common, **records, **crops)),
            ("folder, 256, decoded in memory", lambda: from_folder(root, **common, **cached)),
            ("folder, two crops, decoded in memory", lambda: from_folder(root, **common, **crops, **cached)),
        ):
            rows.append((name, make, sent(make())))
        rows += torch_rows(root, args.workers)

        best = {name: 0.0 for name, _, _ in rows}
        for _ in range(args.rounds):  # in turn, so that another load on the machine meets all rows
            for name, make, _ in rows:
                best[name] = max(best[name], rate(make(), args.images))
        print(f"{'':42}{'images/s':>10}{'bytes':>10}")
        for name, _, count in rows:
            print(f"{name:42}{best[name]:10.0f}{count:10,}")


if __name__ == "__main__":
    main()
