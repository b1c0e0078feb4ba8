"""Memory and time of a training step whose batch goes through the networks in chunks.

    python benchmarks/chunks.py --batch 256 --size 64 --chunks 1 2 4 16

Each row is a process of its own: ResNet-18 of width 0.5 with a target network, `compile(chunks=...)`. Memory is the most
that the process held, less what it held before the first step; time is the median of the steps after the first, as a ratio
to that of the first row.
"""

import argparse
import multiprocessing
import statistics
import time

ROW = "{:>7} {:>12} {:>10} {:>8}"


def measure(chunks: int, batch: int, size: int, steps: int) -> tuple[float, float]:
    """(megabytes that the steps add to the process, seconds of a step)."""
    import numpy as np

    import keras_sslhsic

    images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), dtype=np.uint8)
    encoder = keras_sslhsic.build_encoder("r18_1x", input_shape=(None, None, 3), width=0.5, stem="small")
    model = keras_sslhsic.SSLHSIC(encoder, 512, 128, views=keras_sslhsic.views.small_image(size))
    model.compile(keras_sslhsic.LARS(0.4), chunks=chunks)
    before, seconds = _held("VmRSS"), []
    for _ in range(steps + 1):
        started = time.perf_counter()
        model.train_on_batch(images)
        seconds.append(time.perf_counter() - started)
    return (_held("VmHWM") - before) / 1e3, statistics.median(seconds[1:])


def _held(what: str) -> int:
    """Kilobytes of this process now (VmRSS), or at most so far (VmHWM), as Linux counts them."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(f"{what}:"))


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=64, help="side of the images")
    parser.add_argument("--chunks", type=int, nargs="+", default=[1, 2, 4, 16])
    parser.add_argument("--steps", type=int, default=3, help="after the first")
    arguments = parser.parse_args()
    print(ROW.format("chunks", "megabytes", "seconds", "ratio"), flush=True)
    first = None
    for chunks in arguments.chunks:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            memory, seconds = pool.apply(measure, (chunks, arguments.batch, arguments.size, arguments.steps))
        first = first or seconds
        print(ROW.format(chunks, f"{memory:,.0f}", f"{seconds:.2f}", f"{seconds / first:.2f}"), flush=True)


if __name__ == "__main__":
    main()
