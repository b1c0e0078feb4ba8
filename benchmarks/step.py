"""The training step on this machine: time, images a second, and what each part costs.

    python benchmarks/step.py --model small --batch 128
    python benchmarks/step.py --model r50 --batch 8 --steps 3
    python benchmarks/step.py --communication --model r50 --batch 64 256     (bytes between replicas; nothing is run)

The rows are the whole step, as `fit` runs it, and the step without its views, loss, optimizer, averages or target;
a part's share is the time that the step saves without it. Network is what is left of the whole: forward and
backward, target included. Seconds are wall time; processor seconds, of all threads, suffer less on a busy machine.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import lowering
import replica
import tensorflow as tf
import variants


def measure(name: str, batch_size: int, without: str | None, steps: int, xla: bool) -> tuple[float, float]:
    """(seconds, processor seconds) of one step, medians."""
    _, step, batch = variants.build(name, batch_size, without)
    data = variants.random_batch(batch)
    compiled = tf.function(step, jit_compile=xla or None, autograph=False)
    compiled(data)
    wall, processor = [], []
    for _ in range(steps):
        started, used = time.perf_counter(), time.process_time()
        float(compiled(data)["loss"])
        wall.append(time.perf_counter() - started)
        processor.append(time.process_time() - used)
    return statistics.median(wall), statistics.median(processor)


def shares(arguments: argparse.Namespace) -> None:
    """Prints the table of parts."""
    rows, batch_size = {}, arguments.batch[0]
    for without in (None, *variants.PARTS):
        wall, processor = measure(arguments.model, batch_size, without, arguments.steps, arguments.xla)
        rows[without] = processor
        name = f"without {without}" if without else "whole step"
        share = "" if without is None else f"{1 - processor / rows[None]:7.1%}"
        print(
            f"{name:<20} {wall:8.3f} s {batch_size / wall:8.1f} images/s {processor:8.3f} processor s {share}",
            flush=True,
        )
    others = sum(1 - rows[part] / rows[None] for part in ("views", "loss", "optimizer", "ema"))
    print(f"network {1 - others:.1%}, everything else {others:.1%} of the processor time")


def communication(arguments: argparse.Namespace) -> None:
    """Prints what one replica sums with the others in a step."""
    for replicas in (2, 4):
        for batch_size in arguments.batch:
            _, step, batch = variants.build(arguments.model, batch_size)
            with replica.one_of(replicas):
                sums = replica.sums(lowering.trace(step, batch).graph)
            total = sum(size for _, size in sums)
            print(
                f"{replicas} replicas, {batch_size} images on each: {len(sums)} tensors summed, "
                f"{total / 1e6:.2f} MB; the largest {max(size for _, size in sums) / 1e6:.2f} MB",
                flush=True,
            )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=variants.MODELS, default="small")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[128], help="several for --communication alone"
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--xla", action="store_true", help="compile the step with XLA")
    parser.add_argument("--communication", action="store_true", help="count the bytes between replicas")
    arguments = parser.parse_args()
    communication(arguments) if arguments.communication else shares(arguments)


if __name__ == "__main__":
    main()
