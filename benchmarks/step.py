"""The training step on this machine: time, images a second, and what each part costs.

    python benchmarks/step.py --model small --batch 128
    python benchmarks/step.py --model r50 --batch 8 --steps 3
    python benchmarks/step.py --communication --batch 64 256     (bytes between replicas; nothing is run)

The whole step is what `fit` runs, and everything but the network is also run by itself: the views; the loss with its
gradient, the kernel's scale and the diagnostics; the optimizer; the moving averages. The network, forward and
backward and the target's forward pass, is what is left of the whole. Seconds are wall time. Shares are of processor
seconds, of all threads, which suffer less on a busy machine.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import lowering
import replica
import tensorflow as tf
import variants

from keras_sslhsic import compat, losses
from keras_sslhsic.hsic import kernels
from keras_sslhsic.training import diagnostics, ema

ROW = "{:<12} {:>10} {:>12} {:>10} {:>8}"


def parts(model, data: dict[str, tf.Tensor]) -> dict[str, tuple[Callable, list[tf.Tensor]]]:
    """What a step does beside its network: {name: (function, its arguments)}."""
    seeds = model._seeds()
    images, size = data["image"].shape[0], model.projection_dim
    online = tf.random.stateless_normal([images, model.policy.num_views, size], [0, 2])
    target = tf.random.stateless_normal([images, model.policy.num_global, size], [0, 3])
    gradients = [1e-3 * tf.convert_to_tensor(v.value) for v in model.trained_variables]

    def loss(online, target):
        hiddens = losses.Hiddens(online, target if model.target else None)
        with tf.GradientTape() as tape:
            tape.watch(online)
            value = model.objective.terms(hiddens, seeds[1])["loss"]
        gradient = tape.gradient(value, online)
        return gradient, model.objective.update(hiddens), diagnostics.of_outputs(online)

    def averages():
        if model.target:
            ema.update(model.target_variables, model.target_sources, 0.99)
        if model.ema_encoder is not None:
            model.update_weight_ema()

    return {
        "views": (lambda images: model._views(images, seeds[0]), [data["image"]]),
        "loss": (loss, [online, target]),
        "optimizer": (lambda *gradients: model.optimizer.apply(gradients), gradients),
        "averages": (averages, []),
    }


def measure(function: Callable, arguments: list[tf.Tensor], steps: int) -> tuple[float, float]:
    """(seconds, processor seconds) of a call in a graph, medians."""
    compiled = tf.function(function, autograph=False)
    compiled(*arguments)
    wall, processor = [], []
    for _ in range(steps):
        started, used = time.perf_counter(), time.process_time()
        compiled(*arguments)
        wall.append(time.perf_counter() - started)
        processor.append(time.process_time() - used)
    return statistics.median(wall), statistics.median(processor)


def shares(name: str, batch_size: int, steps: int) -> None:
    """Prints the table of parts, each row as soon as it is known."""
    model, step, batch = variants.build(name, batch_size)
    data = variants.random_batch(batch)
    print(ROW.format(f"{name}, {batch_size}", "seconds", "processor s", "images/s", "share"), flush=True)
    whole = measure(step, [data], steps)
    print(
        ROW.format(
            "whole step", f"{whole[0]:.3f}", f"{whole[1]:.3f}", f"{batch_size / whole[0]:.1f}", "100 %"
        )
    )
    network = whole[1]
    for part, (function, arguments) in parts(model, data).items():
        wall, processor = measure(function, arguments, steps)
        network -= processor
        print(
            ROW.format(part, f"{wall:.3f}", f"{processor:.3f}", "", f"{processor / whole[1]:.1%}"), flush=True
        )
    print(ROW.format("network", "", f"{network:.3f}", "", f"{network / whole[1]:.1%}"))


def communication(batch_sizes: list[int]) -> None:
    """Prints what the loss sums over the replicas in a step, its gradient and the kernel's included.

    The network adds to it, for any batch, 4 bytes a parameter for the gradients, and the sums of each
    BatchNormalization.
    """
    print(ROW.format("loss", "replicas", "images", "tensors", "MB"), flush=True)
    for name, num_features in (("features", 512), ("exact", None)):
        loss = losses.SSLHSICLoss(num_features=num_features)
        for replicas in (2, 4):
            for batch_size in batch_sizes:
                spec = {"z": tf.TensorSpec([batch_size, 4, 256], tf.float32)}
                with replica.one_of(replicas):
                    sums = replica.sums(lowering.trace(_loss_step(loss), spec).graph)
                size = sum(size for _, size in sums) / 1e6
                print(ROW.format(name, replicas, batch_size, len(sums), f"{size:.3f}"), flush=True)


def _loss_step(loss: losses.SSLHSICLoss) -> Callable:
    def step(data):
        z, scale = data["z"], tf.constant(1.0)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([z, scale])
            value = loss.terms(losses.Hiddens(z), tf.constant([0, 1]))["loss"]
            entropy = kernels.scale_entropy(loss.kernel.with_scale(scale), z)
        gradient = compat.sum_over_replicas([tape.gradient(entropy, scale)])
        return tape.gradient(value, z), gradient, diagnostics.of_outputs(z)

    return step


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=variants.MODELS, default="small")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[128], help="several for --communication alone"
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--communication", action="store_true", help="count the bytes between replicas")
    arguments = parser.parse_args()
    if arguments.communication:
        communication(arguments.batch)
    else:
        shares(arguments.model, arguments.batch[0], arguments.steps)


if __name__ == "__main__":
    main()
