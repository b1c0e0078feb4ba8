"""Compiles the training step for a TPU on a machine that has none.

    make tpu-check                            everything; builds its own environment first
    .venv-tpu/bin/python tools/tpu_check.py --only small
    .venv-tpu/bin/python tools/tpu_check.py --only r50 --batch 4096 --chunks 64

The step is this package's own: views, online and target network, loss, LARS or AdamW, the kernel's Adam and the
moving averages. TensorFlow's TPU kernels lower it, and the compiler of libtpu compiles it for a v5e. Fails where
an operation has no TPU kernel, where the compiler refuses the program, and where the negative control (views by
crop_and_resize, which has no TPU kernel) is accepted.
"""

import os

# Without this, the TPU library asks a cloud's metadata server what machine it is on, again and again.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ.update(
    JAX_PLATFORMS="cpu",
    TPU_ACCELERATOR_TYPE="v5litepod-4",
    TPU_WORKER_HOSTNAMES="localhost",
    CUDA_VISIBLE_DEVICES="-1",
)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import itertools
import sys
import time
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import hlo
import lowering
import replica
import tensorflow as tf
import variants
from jax.experimental import topologies

# Bytes of one v5e chip; the compiler's count of temporaries leaves out what lies in the fast memory.
HBM, FAST_MEMORY = 16e9, 128 * 2**20
CASES = ("small", "local", "swav", "r50", "r50_local", "replicas", "negative")
COLUMNS = {
    "case": "<9",
    "replicas": ">8",
    "images": ">7",
    "GFLOP": ">8",
    "GB moved": ">9",
    "weights GB": ">11",
    "temporary GB": ">13",
    "HBM GB": ">7",
    "all-reduce": ">11",
    "trace s": ">8",
    "lower s": ">8",
    "compile s": ">10",
}


def print_row(cells: Iterable[str | int]) -> None:
    """Prints a row of the table."""
    print(
        "".join(f"{cell:{column}}" for cell, column in zip(cells, COLUMNS.values(), strict=True)), flush=True
    )


def trace(
    name: str, batch_size: int, precision: str = "float32", replicas: int = 1, chunks: int = 1
) -> lowering.PureStep:
    """The step of one replica."""
    model, step, batch = variants.build(name, batch_size, precision=precision)
    if chunks > 1:
        model.compile(model.optimizer, loss=model.objective, chunks=chunks)
    if replicas == 1:
        return lowering.functionalize(step, batch)
    with replica.one_of(replicas):
        return lowering.functionalize(step, batch)


def check(
    case: str, name: str, images: int, precision: str = "float32", replicas: int = 1, chunks: int = 1
) -> dict[str, int]:
    """Traces, lowers and compiles a step, and prints its row of the table.

    Args:
        case: what to call it.
        name: of the model, see `variants.build`.
        images: on a chip.
        precision: Keras' dtype policy.
        replicas: chips.
        chunks: parts in which the images go through the networks.

    Returns:
        Bytes of a chip's memory; see `hlo.memory`.
    """
    times = [time.monotonic()]
    step = trace(name, images, precision, replicas, chunks)
    times.append(time.monotonic())
    program = lowering.lower(step, "TPU")
    times.append(time.monotonic())
    devices = topologies.get_topology_desc(topology_name="v5e:2x2", platform="tpu").devices[:replicas]
    executable = hlo.compile_step(program, len(step.batch), len(step.outputs), devices, attached=False)
    times.append(time.monotonic())
    cost, memory = hlo.cost(executable), hlo.memory(executable)
    collectives = executable.hlo_modules()[0].to_string().count(" all-reduce")
    if replicas > 1 and not collectives:
        raise SystemExit(f"{case}: no all-reduce in the program of {replicas} replicas.")
    print_row(
        [
            case,
            replicas,
            images,
            f"{cost['flops'] / 1e9:.1f}",
            f"{cost['bytes'] / 1e9:.2f}",
            *(f"{memory[kind] / 1e9:.3f}" for kind in ("arguments", "temporaries", "total")),
            collectives,
            *(f"{after - before:.0f}" for before, after in itertools.pairwise(times)),
        ]
    )
    return memory


def print_fit(case: str, images: int, memory: dict[str, int]) -> None:
    """Prints how many images fill a chip's memory.

    The temporaries, with all that the fast memory may hold, are taken to be in proportion to the images. Part of them
    is not, so this errs on the safe side.
    """
    slope = (memory["temporaries"] + FAST_MEMORY) / images
    fit = int((HBM - memory["total"] + memory["temporaries"]) / slope)
    print(
        f"{case}: {fit} images fit a chip of 16 GB, at {slope / 1e6:.2f} MB an image as with {images}",
        flush=True,
    )


def check_refused() -> None:
    """The negative control: a step that cannot run on a TPU must not pass."""
    model, step, batch = variants.build("tiny", 4)

    def views(images, *_):
        boxes = tf.tile([[0.1, 0.1, 0.9, 0.9]], [images.shape[0], 1])
        sides = [model.policy.size] * 2
        return (tf.image.crop_and_resize(images, boxes, tf.range(images.shape[0]), sides),) * 2

    model._views = views
    try:
        lowering.lower(lowering.functionalize(step, batch), "TPU")
    except (tf.errors.OpError, ValueError) as error:
        if "CropAndResize" not in str(error):
            raise
        print("negative: refused, as it must be: CropAndResize has no TPU kernel", flush=True)
    else:
        raise SystemExit("negative: a step with crop_and_resize was lowered; this check proves nothing.")


def main() -> None:
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=CASES, help="one case instead of all")
    parser.add_argument("--batch", type=int, default=64, help="images on a chip in the cases of ResNet-50")
    parser.add_argument("--chunks", type=int, default=1, help="in which these go through the networks")
    arguments = parser.parse_args()
    cases = [arguments.only] if arguments.only else CASES
    print_row(COLUMNS)
    if "negative" in cases:
        check_refused()
    if "small" in cases:
        check("small", "small", 128)
        # With few images most of the temporaries are in the fast memory beside the cores.
        print_fit("small", 1024, check("small", "small", 1024))
    if "replicas" in cases:
        check("replicas", "small", 32, replicas=4)
    for case in ("local", "swav"):
        if case in cases:
            check(case, f"tiny_{case}", 64)
    for case in ("r50", "r50_local"):
        if case in cases:
            memory = check(case, case, arguments.batch, "mixed_bfloat16", chunks=arguments.chunks)
            if arguments.chunks == 1:  # else what is kept of a chunk does not grow with the images
                print_fit(case, arguments.batch, memory)


if __name__ == "__main__":
    main()
