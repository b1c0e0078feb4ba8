"""The whole training step on a GPU machine that has JAX and no TensorFlow.

    python benchmarks/gpu_step.py lower --model r50 --batch 256 --parts --to build/gpu     (TensorFlow, any machine)
    python benchmarks/gpu_step.py run --platform cuda build/gpu/r50_256*.json              (jax and numpy alone)
    python benchmarks/gpu_step.py plan build/gpu/r50_256*.json                  (jax[cuda], on a machine without GPU)

`lower` writes the step's HLO and the shapes of its arguments; with --parts also the step without its views, loss,
optimizer, averages and target; with --options also with each of the candidates; with --expect also random inputs
and what TensorFlow makes of them, for a candidate what it makes of the plain step. `run` makes the weights, checks
that everything stays finite (and, with --expect, equal), and times the step with its state kept on the device and
written over. `plan` compiles for an H200 and runs nothing. All print one JSON line a program.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def lower(arguments: argparse.Namespace) -> None:
    """Lowers the step, the candidates for it, and the steps without one of the parts."""
    import candidates
    import lowering
    import tensorflow as tf
    import variants

    # Where results are compared, the program itself asks for float32: no environment variable reaches every kernel.
    tf.config.experimental.enable_tensor_float_32_execution(not arguments.expect)
    if arguments.expect:
        candidates.PIXELS = 1  # what is compared is small
    model, step, batch = variants.build(arguments.model, arguments.batch, None, arguments.precision)
    if arguments.chunks > 1:
        model.compile(model.optimizer, loss=model.objective, chunks=arguments.chunks)
        _write(arguments, lowering.functionalize(step, batch), f"_in_{arguments.chunks}_chunks")
        return
    plain = lowering.functionalize(step, batch)
    expected = _write(arguments, plain)
    for option in candidates.OPTIONS if arguments.options else ():
        with candidates.use(option, model):
            pure = lowering.functionalize(step, batch)
        _write(arguments, pure, f"_with_{option}", expected, option=option)
    for part in variants.PARTS if arguments.parts else ():
        _, step, batch = variants.build(arguments.model, arguments.batch, part, arguments.precision)
        _write(arguments, lowering.functionalize(step, batch), f"_no_{part}", without=part)


def _write(arguments, pure, suffix="", expected=None, **facts):
    """Writes a program, and with --expect what its results shall be: those of TensorFlow, unless they are given."""
    import lowering
    import variants

    path = arguments.to / f"{arguments.model}_{arguments.batch}{suffix}"
    program = lowering.lower(pure, arguments.platform)
    facts = {"model": arguments.model, "images": arguments.batch, "precision": arguments.precision, **facts}
    lowering.save(pure, program, path, **facts)
    if arguments.expect:
        images = list(variants.random_batch(pure.batch).values())
        if expected is None:
            results = lowering.run(pure, images)
            keys = [*pure.outputs, *(id(v) for v in pure.variables)]
            expected = dict(zip(keys, results, strict=True))
        inputs = [*(x.numpy() for x in images), *(v.numpy() for v in pure.variables)]
        outputs = [*(expected[name] for name in pure.outputs), *(expected[id(v)] for v in pure.variables)]
        named = {f"in{i}": x for i, x in enumerate(inputs)} | {f"out{i}": x for i, x in enumerate(outputs)}
        np.savez_compressed(path.with_name(path.name + ".npz"), **named)
    print(json.dumps({"program": str(path), "bytes": len(program)}), flush=True)
    return expected


def run(arguments: argparse.Namespace) -> None:
    """Compiles, checks and times each program."""
    import jax

    jax.config.update("jax_platforms", arguments.platform)
    jax.config.update("jax_enable_x64", True)  # the step counters are int64
    import hlo

    device = jax.devices()[0]
    whole: dict[tuple, float] = {}
    for path in sorted((p.with_suffix("") for p in arguments.programs), key=lambda p: len(p.name)):
        program, description = hlo.load(path)
        fed = sum(a["kind"] == "batch" for a in description["arguments"])
        outputs = len(description["outputs"])
        started = time.monotonic()
        executable = hlo.compile_step(program, fed, outputs, [device])
        row = {"program": path.name, "device": device.device_kind, "compile_s": time.monotonic() - started}
        expected = path.with_name(path.name + ".npz")
        if expected.exists():
            values = np.load(expected)
            inputs = [values[f"in{i}"] for i in range(len(description["arguments"]))]
            results = _execute(executable, [jax.device_put(x, device) for x in inputs])
            row |= compare([np.asarray(x) for x in results], values, description)
        seconds, row["outputs"] = _time(executable, description, device, arguments.steps)
        cost = hlo.cost(executable)
        without, option = description.get("without"), description.get("option")
        step = description["model"], description["images"], description["precision"]
        if not (without or option):
            whole[step] = seconds
        row |= {
            "ms": 1e3 * seconds,
            "images_per_s": description["images"] / seconds,
            "tflop_per_s": cost["flops"] / seconds / 1e12,
            "gflop_per_image": cost["flops"] / description["images"] / 1e9,
            "gb_moved": cost["bytes"] / 1e9,
            "memory_gb": hlo.memory(executable)["total"] / 1e9,
        }
        if (without or option) and step in whole:
            row[f"share_of_{without}" if without else f"gain_of_{option}"] = 1 - seconds / whole[step]
        print(json.dumps(row), flush=True)


def plan(arguments: argparse.Namespace) -> None:
    """Compiles each program for an H200 that is not there, and prints what the compiler plans."""
    import hlo

    devices = [hlo.absent_h200()]
    for path in (p.with_suffix("") for p in arguments.programs):
        program, description = hlo.load(path)
        fed = sum(a["kind"] == "batch" for a in description["arguments"])
        executable = hlo.compile_step(program, fed, len(description["outputs"]), devices, attached=False)
        memory, planned = hlo.memory(executable), hlo.planned(executable)
        row = {
            "memory_gb": memory["total"] / 1e9,
            "gb_moved": planned["bytes"] / 1e9,
            "kernels": planned["kernels"],
        }
        print(json.dumps({"program": path.name, **row}), flush=True)


def count(arguments: argparse.Namespace) -> None:
    """Prints the operations of each program as it was lowered, without compiling it."""
    import hlo

    for path in (p.with_suffix("") for p in arguments.programs):
        program, description = hlo.load(path)
        flops = hlo.counted(program)["flops"]
        row = {"gflop": flops / 1e9, "gflop_per_image": flops / description["images"] / 1e9}
        print(json.dumps({"program": path.name, **row}), flush=True)


def _execute(executable, state):
    results = executable.execute_sharded(state).disassemble_into_single_device_arrays()
    return [result[0] for result in results]


def _time(executable, description, device, steps):
    """(median seconds of a step, outputs of the last one); raises if anything is not finite."""
    import jax

    generator = np.random.default_rng(0)
    values = [jax.device_put(_value(a, generator), device) for a in description["arguments"]]
    fed = sum(a["kind"] == "batch" for a in description["arguments"])
    batch, state, seconds = values[:fed], values[fed:], []
    for _ in range(steps + 2):
        started = time.perf_counter()
        results = _execute(executable, [*batch, *state])
        jax.block_until_ready(results)
        seconds.append(time.perf_counter() - started)
        outputs, state = results[: len(description["outputs"])], results[len(description["outputs"]) :]
    if not all(np.isfinite(np.asarray(x).astype(np.float64)).all() for x in results):
        raise SystemExit("A result is not finite.")
    return statistics.median(seconds[2:]), {
        name: round(float(x), 5) for name, x in zip(description["outputs"], outputs, strict=True)
    }


def _value(argument, generator):
    shape, dtype = argument["shape"], argument["dtype"]
    if argument["kind"] == "batch":
        return generator.integers(0, 10 if argument["name"] == "label" else 256, shape).astype(dtype)
    mean, stddev = argument["mean"], argument["stddev"]
    if not stddev:
        return np.full(shape, mean, dtype)
    return (mean + stddev * generator.standard_normal(shape, np.float32)).astype(dtype)


def compare(results: list[np.ndarray], values: Mapping[str, np.ndarray], description: dict) -> dict:
    """Holds a step's results against TensorFlow's.

    What the forward pass makes (the outputs, the moving statistics) is compared by value. A gradient jumps where
    rounding turns a ReLU on or off, so variables are compared by their updates as a whole: the norm of the
    difference over the norm of the update. Updates under a root mean square of 1e-6 are rounding alone, as those of a
    bias before a batch normalisation, and are held against 1e-6.

    Args:
        results: outputs and new values of the variables.
        values: "in0", ... and "out0", ..., as `lower --expect` writes them.
        description: of the program.

    Returns:
        The worst of both kinds, as (name, relative difference), and the median of the updates.

    Raises:
        SystemExit: if one of them is too large.
    """
    variables = [(i, a["name"]) for i, a in enumerate(description["arguments"]) if a["kind"] == "variable"]
    names = [*((None, name) for name in description["outputs"]), *variables]
    forward, updates = [], []
    for i, ((argument, name), result) in enumerate(zip(names, results, strict=True)):
        wanted = values[f"out{i}"].astype(np.float64)
        difference = np.linalg.norm(result.astype(np.float64) - wanted)
        if argument is None or "moving_" in name:
            forward.append((name, float(difference / max(np.linalg.norm(wanted), 1e-3))))
        else:
            update = np.linalg.norm(wanted - values[f"in{argument}"])
            updates.append((name, float(difference / max(update, 1e-6 * wanted.size**0.5))))
    row = {
        "worst_forward": max(forward, key=lambda pair: pair[1]),
        "worst_update": max(updates, key=lambda pair: pair[1]),
        "median_update": statistics.median(value for _, value in updates),
    }
    for kind, tolerance in (("worst_forward", 1e-3), ("worst_update", 5e-2)):
        if not row[kind][1] < tolerance:
            raise SystemExit(f"Not equal to TensorFlow's results, tolerance {tolerance} for {kind}: {row}")
    return row


def main() -> None:
    """Reads the command line."""
    sys.path.insert(0, str(Path(__file__).parent))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("lower", help="with TensorFlow: write the programs")
    command.add_argument("--model", default="r50", help="tiny, tiny7, small or r50")
    command.add_argument("--batch", type=int, default=256)
    command.add_argument("--precision", default="mixed_bfloat16")
    command.add_argument(
        "--platform", default="CPU", help="whose kernels; GPU needs TensorFlow with CUDA built in"
    )
    command.add_argument(
        "--chunks", type=int, default=1, help="of the batch, instead of the plain step (default: 1)"
    )
    command.add_argument("--parts", action="store_true", help="also without each part")
    command.add_argument("--options", action="store_true", help="also with each candidate of candidates.py")
    command.add_argument(
        "--expect", action="store_true", help="also inputs and TensorFlow's results, to compare"
    )
    command.add_argument("--to", type=Path, default=Path("build/gpu"))
    command.set_defaults(run=lower)
    command = commands.add_parser("count", help="with JAX: the operations of each program, not compiled")
    command.add_argument("programs", nargs="+", type=Path, help="the .json files")
    command.set_defaults(run=count)
    command = commands.add_parser("plan", help="with JAX's CUDA plugin, no GPU: memory, traffic, kernels")
    command.add_argument("programs", nargs="+", type=Path, help="the .json files")
    command.set_defaults(run=plan)
    command = commands.add_parser("run", help="with JAX: compile, check and time them")
    command.add_argument("programs", nargs="+", type=Path, help="the .json files")
    command.add_argument("--platform", default="cuda", help="cuda or cpu")
    command.add_argument("--steps", type=int, default=20)
    command.set_defaults(run=run)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
