"""Images a second of the input pipelines, from a generated folder and TFRecords of 500 x 375 JPEGs.

    python benchmarks/input.py --images 2000 --workers 2

Reads every image twice: the first epoch is not timed. Rows: decode to one 256 x 256 image (crops on the
device), and two crops of 224 x 224 made on the host, from a folder, from TFRecords, and from a cache of
decoded images; and, if torch and torchvision are installed, ImageFolder + DataLoader with RandomResizedCrop
twice, with uint8 tensors (the bytes that the rows above send) and with the usual float32 tensors of ToTensor.
`bytes` counts what an image sends to the device; `/ torch` is the median over the rounds of the ratio to a
torchvision row of the same round.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from keras_sslhsic import views
from keras_sslhsic.data import Images, from_folder, from_tfds

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


def sent(images: Images) -> int:
    """Bytes of the images of one example."""
    specs = [spec for name, spec in images.element_spec.items() if name != "label"]
    return sum(int(np.prod(spec.shape[1:])) * spec.dtype.size for spec in specs)


def torch_rates(root: Path, workers: int) -> dict[str, float] | None:
    """Images a second of torchvision by the type of its tensors; None if it is not installed."""
    script = Path(__file__).with_name("input_torch.py")
    command = [sys.executable, str(script), str(root), str(workers), str(BATCH)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


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
        root = Path(temporary) / "jpegs"
        write_folder(root, args.images)
        Photos.folder = root
        config = tfds.download.DownloadConfig(num_shards=8, try_download_gcs=False)
        Photos(data_dir=temporary).download_and_prepare(download_config=config)
        kilobytes = sum(file.stat().st_size for file in root.glob("*/*.jpg")) / args.images / 1e3
        print(f"{args.images} JPEGs of 500 x 375, {kilobytes:.0f} kB each, {args.workers} workers")

        common = {"batch_size": BATCH, "workers": args.workers}
        host = {"host_crops": views.byol(224)}
        cached = {"cache": "decoded", "cache_bytes": 2**33}
        records = {"data_dir": temporary, "window": 1000}
        rows: list[tuple[str, Callable[[], Images]]] = [
            ("folder, 256", lambda: from_folder(root, **common)),
            ("folder, two crops", lambda: from_folder(root, **common, **host)),
            ("TFRecords, 256", lambda: from_tfds("photos", **common, **records)),
            ("TFRecords, two crops", lambda: from_tfds("photos", **common, **records, **host)),
            ("folder, 256, decoded in memory", lambda: from_folder(root, **common, **cached)),
            ("folder, two crops, decoded in memory", lambda: from_folder(root, **common, **host, **cached)),
        ]
        rounds: list[dict[str, float]] = []
        size = {name: sent(make()) for name, make in rows}
        crops = 2 * 224 * 224 * 3
        size |= {"torchvision, two crops, uint8": crops, "torchvision, two crops, float32": 4 * crops}
        for _ in range(args.rounds):  # in turn, so that another load on the machine meets all rows
            rates = {name: rate(make().batches(), args.images) for name, make in rows}
            other = torch_rates(root, args.workers) or {}
            rates |= {f"torchvision, two crops, {kind}": value for kind, value in other.items()}
            rounds.append(rates)
        references = [name for name in rounds[0] if name.startswith("torchvision")]
        header = "".join(f"{'/ torch ' + name.split(', ')[-1]:>16}" for name in references)
        print(f"{'':40}{'images/s':>10}{'bytes':>10}{header}")
        for name in rounds[0]:
            ratios = [np.median([rates[name] / rates[other] for rates in rounds]) for other in references]
            best = max(rates[name] for rates in rounds)
            print(f"{name:40}{best:10.0f}{size[name]:10,}" + "".join(f"{ratio:16.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
