"""Time, memory and variance of the SSL-HSIC loss, as tables.

    python benchmarks/loss.py                  # all tables at full size, about five minutes on two idle cores
    python benchmarks/loss.py --quick          # small sizes, to see that it runs
    python benchmarks/loss.py ratio variance   # some of the tables

Times are the best of several runs: wall clock, and processor time of all threads, which suffers less on a busy machine.
Machines are compared by the ratio to one 4096^3 float32 matrix product of TensorFlow on the same cores.
"""

from __future__ import annotations

import argparse
import math
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from keras_sslhsic.hsic import bessel, features, kernels
from keras_sslhsic.hsic.spectral import IMQAmplitude, IMQFrequencies
from keras_sslhsic.losses import SSLHSICLoss

SEED = tf.constant([1, 2])


def best(function, *args, repeats=5):
    """Returns the least wall and processor time of a call, in seconds, after one that traces."""
    function(*args)
    wall, cpu = [], []
    for _ in range(repeats):
        start, start_cpu = time.perf_counter(), time.process_time()
        for output in tf.nest.flatten(function(*args)):
            np.asarray(output)
        wall.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    return min(wall), min(cpu)


def views(images, number, dim):
    return tf.math.l2_normalize(tf.random.stateless_normal([images, number, dim], SEED), axis=-1)


def step(loss):
    """The loss and its gradient, in one graph."""

    @tf.function
    def function(z):
        with tf.GradientTape() as tape:
            tape.watch(z)
            value = loss(z)
        return value, tape.gradient(value, z)

    return function


def library(**options):
    loss = SSLHSICLoss(**options)
    return step(lambda z: loss.terms_of_unit_vectors(z, SEED)["loss"])


def textbook(num_features):
    """The formulas written down one after the other, and differentiated automatically."""

    def loss(z):
        images, number, dim = z.shape
        n = images * number
        draws = [features.draw(kernels.InverseMultiquadric(), dim, num_features, [1, i]) for i in (1, 2)]
        r, r2 = [tf.reshape(features.random_fourier_features(z, *draw), [n, -1]) for draw in draws]
        sums = tf.reduce_sum(tf.reshape(r, [images, number, -1]), axis=1)
        zy = tf.reduce_sum(sums**2) / (n * (number - 1)) - tf.reduce_sum(tf.reduce_mean(r, axis=0) ** 2)
        cross = tf.matmul(r - tf.reduce_mean(r, 0), r2 - tf.reduce_mean(r2, 0), transpose_a=True)
        return 3.0 * tf.sqrt(tf.reduce_sum(cross**2)) / (n - 1) - zy

    return step(loss)


def table(title, header, rows):
    print(f"\n## {title}\n\n| {' | '.join(header)} |\n|{' --- |' * len(header)}")
    for row in rows:
        cells = [f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row]
        print(f"| {' | '.join(cells)} |", flush=True)


def ratio(quick):
    side, images = (1024, 256) if quick else (4096, 4096)
    a = tf.random.stateless_normal([side, side], SEED)
    product = best(tf.function(lambda a: tf.matmul(a, a)), a, repeats=3)
    z = views(images, 4, 256)
    rows = [(f"{side}^3 float32 product", *(1e3 * t for t in product), 1.0, 1.0)]
    steps = {
        "formulas, automatic gradient": textbook(512),
        "SSLHSICLoss": library(),
        "SSLHSICLoss, low variance": library(low_variance=True),
        "SSLHSICLoss, third draw": library(shared_draw=False),
    }
    for name, function in steps.items():
        wall, cpu = best(function, z)
        rows.append((name, 1e3 * wall, 1e3 * cpu, wall / product[0], cpu / product[1]))
    title = f"Forward and backward, B={images}, M=4, Q=256, D=512"
    table(title, ("", "wall ms", "processor ms", "wall ratio", "processor ratio"), rows)


def sampling(quick):
    rows = []
    for dim in (64, 256) if quick else (64, 256, 1024, 4096, 16384):
        draws = {
            "bits": lambda seed, dim=dim: tf.random.stateless_uniform(
                [512, dim], seed, None, None, tf.int32, "philox"
            ),
            "frequencies": lambda seed, dim=dim: IMQFrequencies(dim).sample(512, seed=seed),
            "amplitudes": lambda seed, dim=dim: IMQAmplitude(dim).sample(512, seed=seed),
        }
        times = {name: best(tf.function(draw), SEED) for name, draw in draws.items()}
        start = time.perf_counter()
        bessel.grid(dim)
        rows.append(
            (
                dim,
                *(1e3 * t for t in (times["bits"][1], *times["frequencies"], times["amplitudes"][0])),
                1e3 * (time.perf_counter() - start),
                f"{100 * bessel.lost_mass(dim):.2g} %",
            )
        )
    header = (
        *("dimensions", "random bits alone, processor ms", "frequencies wall ms", "processor ms"),
        *("amplitudes wall ms", "grid wall ms", "mass beyond the grid"),
    )
    table("Sampling 512 frequencies of the inverse multiquadric kernel", header, rows)


def scaling(quick):
    base = (64, 2, 32, 64) if quick else (1024, 4, 256, 512)
    rows = []
    for axis, name in enumerate("BMQD"):
        for factor in (1, 2, 4):
            size = [value * factor if i == axis else value for i, value in enumerate(base)]
            wall, cpu = best(library(num_features=size[3]), views(*size[:3]), repeats=3)
            rows.append((name, *size, 1e3 * wall, 1e3 * cpu))
    table("Features: scaling", ("grows", "B", "M", "Q", "D", "wall ms", "processor ms"), rows)
    rows = []
    for images in (16, 32, 64) if quick else (32, 64, 128, 256, 512, 1024):
        z = views(images, 4, base[2])
        times = [
            1e3 * t
            for options in ({}, {"num_features": None})
            for t in best(library(**options), z, repeats=3)
        ]
        rows.append((images, *times))
    header = ("B", "features wall ms", "processor ms", "exact wall ms", "processor ms")
    table(f"Features (D=512) and exact: where they cross, M=4, Q={base[2]}", header, rows)


def exact(quick):
    rows = []
    for images in (64,) if quick else (4096,):
        z = views(images, 4, 256)
        function = library(num_features=None)
        function(views(8, 4, 256))
        before = peak_memory(reset=True)
        wall, cpu = best(function, z, repeats=1)
        n = 4 * images
        rows.append((n, wall, cpu, (peak_memory() - before) / 2**20, n * n * 4 / 2**20))
    table(
        "Exact, in row blocks, Q=256",
        ("BM", "wall s", "processor s", "peak extra MiB", "one kernel matrix MiB"),
        rows,
    )


def peak_memory(reset=False):
    """Peak resident memory of this process in bytes; with reset, it starts anew at what is resident now (Linux)."""
    if reset:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def variance(quick):
    rows, z = [], views(32, 1, 256) + 0.7 * tf.random.stateless_normal([32, 2, 256], [3, 4]) / 16
    z = tf.math.l2_normalize(z, axis=-1)
    flat = tf.reshape(z, [64, 256])
    kernel = kernels.InverseMultiquadric()
    expected = kernel.value(kernels.squared_distances(flat, flat))
    for number in (64, 128) if quick else (64, 128, 256, 512, 1024, 2048):
        row = [number]
        for low_variance in (False, True):
            loss = SSLHSICLoss(num_features=number, low_variance=low_variance)

            @tf.function
            def sample(seed, loss=loss, number=number, low_variance=low_variance):
                r = features.random_fourier_features(
                    flat, *features.draw(kernel, 256, number, seed, low_variance)
                )
                error = tf.reduce_mean(tf.square(tf.matmul(r, r, transpose_b=True) - expected))
                return tf.stack([error, loss.terms_of_unit_vectors(z, seed)["loss"]])

            samples = np.stack([sample(tf.constant([7, i])) for i in range(20 if quick else 150)])
            row += [math.sqrt(samples[:, 0].mean()), samples[:, 1].std()]
        rows.append((*row, row[2] / row[4]))
    header = ("D", "kernel rms error", "loss std", "low variance: kernel", "loss std", "ratio of loss std")
    table("Variance over draws, B=32, M=2, Q=256", header, [[row[0], *map(float, row[1:])] for row in rows])


TABLES = {table.__name__: table for table in (ratio, sampling, scaling, exact, variance)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; by default all")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    options = parser.parse_args()
    unknown = set(options.tables) - set(TABLES)
    if unknown:
        parser.error(f"unknown tables {sorted(unknown)}: expected some of {sorted(TABLES)}")
    for name in options.tables or TABLES:
        TABLES[name](options.quick)


if __name__ == "__main__":
    main()
