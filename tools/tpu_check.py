"""Compiles the training step for a TPU on a machine that has none.

    make tpu-check                            everything; builds its own environment first
    .venv-tpu/bin/python tools/tpu_check.py --only small

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
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import hlo
import lowering
import replica
import tensorflow as tf
import variants
from jax.experimental import topologies

HBM = 16e9  # bytes of one v5e chip
CASES = ("small", "r50", "replicas", "negative")
ROW = "{:<10} {:>9} {:>7} {:>9} {:>9} {:>11} {:>13} {:>11} {:>8}"
HEADER = (
    "case",
    "replicas",
    "images",
    "GFLOP",
    "GB moved",
    "weights GB",
    "temporary GB",
    "all-reduce",
    "seconds",
)


def trace(name: str, batch_size: int, precision: str = "float32", replicas: int = 1) -> lowering.PureStep:
    """The step of one replica."""
    _, step, batch = variants.build(name, batch_size, precision=precision)
    if replicas == 1:
        return lowering.functionalize(step, batch)
    with replica.one_of(replicas):
        return lowering.functionalize(step, batch)


def check(case: str, step: lowering.PureStep, replicas: int = 1) -> tuple[int, int]:
    """Lowers and compiles a step, and prints its row of the table.

    Returns:
        (images on a chip, bytes of a chip's memory).
    """
    started = time.monotonic()
    program = lowering.lower(step, "TPU")
    devices = topologies.get_topology_desc(topology_name="v5e:2x2", platform="tpu").devices[:replicas]
    executable = hlo.compile_step(program, len(step.batch), len(step.outputs), devices, attached=False)
    cost, memory = hlo.cost(executable), hlo.memory(executable)
    collectives = executable.hlo_modules()[0].to_string().count(" all-reduce")
    if replicas > 1 and not collectives:
        raise SystemExit(f"{case}: no all-reduce in the program of {replicas} replicas.")
    images = step.batch["image"].shape[0]
    print(
        ROW.format(
            case, replicas, images, f"{cost['flops'] / 1e9:.1f}", f"{cost['bytes'] / 1e9:.2f}",
            f"{memory['arguments'] / 1e9:.3f}", f"{memory['temporaries'] / 1e9:.3f}", collectives,
            f"{time.monotonic() - started:.0f}",
        ),
        flush=True,
    )  # fmt: skip
    return images, memory["total"]


def print_fit(case: str, some: tuple[int, int], more: tuple[int, int]) -> None:
    """Prints the batch of a chip that fills its memory, on the line through two compiled batches."""
    slope = (more[1] - some[1]) / (more[0] - some[0])
    fit = int(more[0] + (HBM - more[1]) / slope)
    print(
        f"{case:<10} {fit} images fit a chip of 16 GB: {slope / 1e6:.2f} MB an image, from {some[0]} and {more[0]}"
    )


def check_refused() -> None:
    """The negative control: a step that cannot run on a TPU must not pass."""
    model, step, batch = variants.build("tiny", 4)

    def views(images, seed):
        boxes = tf.tile([[0.1, 0.1, 0.9, 0.9]], [images.shape[0], 1])
        size = [model.policy.size] * 2
        return (tf.image.crop_and_resize(images, boxes, tf.range(images.shape[0]), size),) * 2

    model._views = views
    try:
        lowering.lower(lowering.functionalize(step, batch), "TPU")
    except (tf.errors.OpError, ValueError) as error:
        if "CropAndResize" not in str(error):
            raise
        print("negative   refused, as it must be: CropAndResize has no TPU kernel", flush=True)
    else:
        raise SystemExit("negative: a step with crop_and_resize was lowered; this check proves nothing.")


def main() -> None:
    """Runs the cases."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=CASES, help="one case instead of all")
    parser.add_argument(
        "--batch",
        type=int,
        default=64,
        help="images on a chip in the case r50; half as many are compiled too",
    )
    arguments = parser.parse_args()
    cases = [arguments.only] if arguments.only else CASES
    print(ROW.format(*HEADER), flush=True)
    if "negative" in cases:
        check_refused()
    if "small" in cases:
        print_fit("small", *(check("small", trace("small", batch)) for batch in (64, 128)))
    if "replicas" in cases:
        check("replicas", trace("small", 32, replicas=4), replicas=4)
    if "r50" in cases:
        batches = (arguments.batch // 2, arguments.batch)
        print_fit("r50", *(check("r50", trace("r50", batch, "mixed_bfloat16")) for batch in batches))


if __name__ == "__main__":
    main()
