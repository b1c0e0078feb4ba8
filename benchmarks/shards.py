"""Features by Apache Beam's direct runner: images a second and memory, on one process and two.

    .venv-beam/bin/python benchmarks/shards.py --images 2000 20000

Images are of 32 pixels, the encoder an r18_1x of a tenth of the width, and a shard has about 250 images; a row is a process of
its own. Memory is the peak of the largest process that computes. Images a second are those of all shards but the first of each
process, which its start is part of.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

MODES = {1: [], 2: ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, nargs="+", default=[2000, 20000])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # folder, processes, what to extract to
    flags = parser.parse_args()
    if flags.one:
        return one(*flags.one)
    print(
        "| images | processes | images/s | processor ms an image | peak memory, MB |\n|---:|---:|---:|---:|---:|",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as place:
        save_encoder(Path(place, "encoder.keras"))
        for count in flags.images:
            folder = Path(place, str(count))
            folder.mkdir()
            pixels = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), np.uint8)
            for number, image in enumerate(pixels):
                Image.fromarray(image).save(folder / f"{number:06}.png")
            for processes in MODES:
                command = [sys.executable, __file__, "--one", folder, str(processes), f"{folder}-{processes}"]
                subprocess.run(command, check=True)
    return None


def save_encoder(file: Path) -> None:
    import keras_sslhsic
    from keras_sslhsic.encoders import with_preprocessing

    network = keras_sslhsic.build_encoder("r18_1x", (None, None, 3), stem="small", width=0.1)
    with_preprocessing(network, 0.5, 0.25, trained_at=32).save(file)


def one(folder: str, processes: str, out: str) -> None:
    from pyarrow import parquet

    from keras_sslhsic.zoo import rows
    from keras_sslhsic.zoo.shards import extract_shards

    model = Path(folder).parent / "encoder.keras"
    count = len(list(Path(folder).iterdir())) // 250
    found = extract_shards(model, folder, out, options=MODES[int(processes)], shards=count)
    made = sorted(rows.shards(Path(out)), key=lambda file: file.stat().st_mtime)
    begun, rest = made[int(processes) - 1], made[int(processes) :]
    seconds = made[-1].stat().st_mtime - begun.stat().st_mtime
    images = sum(parquet.read_metadata(file).num_rows for file in rest)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    of_computing = used[0] if processes == "1" else used[1]
    spent = sum(use.ru_utime + use.ru_stime for use in used)
    print(
        f"| {found.rows:,} | {processes} | {images / seconds:,.0f} | {1000 * spent / found.rows:.2f} | "
        f"{of_computing.ru_maxrss / 1024:,.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
