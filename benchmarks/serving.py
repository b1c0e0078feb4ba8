"""Serving: load time, latency and throughput of an exported encoder beside well-known ResNet-50s.

Usage: python benchmarks/serving.py [--requests 50] [--rounds 5] [--model r50_1x]

Every network is exported to a SavedModel and served from there in a process of its own, on this machine's
CPUs: seconds to load (until the first answer, with TensorFlow already imported), latency of one 224x224 uint8
image (median and 99th percentile) and images a second at batch 32. The networks take turns, a few requests
each, so that whatever else the machine does meets them all alike; `ratio` is the median over the rounds of
the latency relative to ours. The graph holds resizing and normalisation for ours, the mean subtraction for
keras.applications, whose layers are left as they are. LiteRT and ONNX files of our encoder, and torchvision's
resnet50 (eager and scripted), are measured where their packages are installed.

keras.applications.ResNet50 strides in the first 1x1 convolution of a block, ours and torchvision's in the 3x3,
which takes more multiplications: they are counted and printed.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def latencies(serve, images, requests: int) -> list[float]:
    """Milliseconds of each request."""
    found = []
    for _ in range(requests):
        start = time.perf_counter()
        serve(images)
        found.append(1e3 * (time.perf_counter() - start))
    return found


def answer(runtime: str, path: str) -> None:
    """Loads a network, then measures `batch requests` for every line that comes in; prints lines of JSON."""
    serve, load = RUNTIMES[runtime](path)
    images = np.random.default_rng(0).integers(0, 256, (32, 224, 224, 3), np.uint8)
    print(json.dumps(load), flush=True)
    for line in sys.stdin:
        batch, requests = map(int, line.split())
        serve(images[:batch])
        print(json.dumps(latencies(serve, images[:batch], requests)), flush=True)


def saved_model(path):
    import tensorflow as tf

    start = time.perf_counter()
    function = tf.saved_model.load(path).signatures["serving_default"]

    def serve(images):
        return function(image=tf.constant(images))["features"].numpy()

    serve(np.zeros((1, 224, 224, 3), np.uint8))
    return serve, time.perf_counter() - start


def litert(path):
    from ai_edge_litert.interpreter import Interpreter

    start = time.perf_counter()
    interpreter = Interpreter(path, num_threads=2)
    (given,), (returned,) = interpreter.get_input_details(), interpreter.get_output_details()

    def serve(images):
        if tuple(interpreter.get_input_details()[0]["shape"]) != images.shape:
            interpreter.resize_tensor_input(given["index"], images.shape)
            interpreter.allocate_tensors()
        interpreter.set_tensor(given["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(returned["index"])

    serve(np.zeros((1, 224, 224, 3), np.uint8))
    return serve, time.perf_counter() - start


def onnx(path):
    import onnxruntime

    start = time.perf_counter()
    session = onnxruntime.InferenceSession(path)

    def serve(images):
        return session.run(["features"], {"image": images})[0]

    serve(np.zeros((1, 224, 224, 3), np.uint8))
    return serve, time.perf_counter() - start


def torchvision(scripted: str):
    import torch
    from torchvision.models import resnet50

    start = time.perf_counter()
    network = resnet50().eval()
    network.fc = torch.nn.Identity()
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    if scripted == "script":
        network = torch.jit.freeze(torch.jit.script(network))

    def serve(images):
        with torch.inference_mode():
            x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
            return network((x - mean) / std).numpy()

    serve(np.zeros((1, 224, 224, 3), np.uint8))
    return serve, time.perf_counter() - start


RUNTIMES = {"saved_model": saved_model, "litert": litert, "onnx": onnx, "torchvision": torchvision}


def multiplications(model) -> int:
    """Of the convolutions of a model, for one image of 224x224."""
    import tensorflow as tf

    graph = tf.function(model).get_concrete_function(tf.TensorSpec((1, 224, 224, 3))).graph
    convolutions = [node for node in graph.get_operations() if node.type == "Conv2D"]
    return sum(math.prod((*c.outputs[0].shape, *c.inputs[1].shape[:3])) for c in convolutions)


def export(folder: Path, name: str, small: bool) -> list[tuple[str, str, str]]:
    """Writes every network; returns (label, runtime, path)."""
    import keras

    import keras_sslhsic
    from keras_sslhsic.encoders import with_preprocessing
    from keras_sslhsic.export import export_litert, export_onnx, export_saved_model

    if small:
        encoder = with_preprocessing(keras_sslhsic.build_encoder("r18_1x", width=0.25), 0.5, 0.25, size=224)
    else:
        encoder = keras_sslhsic.zoo.load_pretrained(name, weights="random")
    runs = [(f"{name} SavedModel", "saved_model", str(folder / "ours"))]
    export_saved_model(encoder, folder / "ours")
    if importlib.util.find_spec("ai_edge_litert"):
        export_litert(encoder, folder / "ours.tflite")
        runs.append((f"{name} LiteRT", "litert", str(folder / "ours.tflite")))
    if importlib.util.find_spec("tf2onnx") and importlib.util.find_spec("onnxruntime"):
        export_onnx(encoder, folder / "ours.onnx")
        runs.append((f"{name} ONNX", "onnx", str(folder / "ours.onnx")))

    application = keras.applications.ResNet50(weights=None, include_top=False, pooling="avg")
    images = keras.Input((224, 224, 3), dtype="float32", name="image")
    inputs = keras.applications.resnet50.preprocess_input(images)
    export_saved_model(
        keras.Model(images, application(inputs)), folder / "applications", keep_batch_norm=True
    )
    ours, theirs = (1e-9 * multiplications(model) for model in (encoder, application))
    print(f"1e9 multiplications an image: {name} {ours:.2f}, keras.applications.ResNet50 {theirs:.2f}")
    runs.append(("keras.applications.ResNet50 SavedModel", "saved_model", str(folder / "applications")))
    if importlib.util.find_spec("torchvision"):
        runs += [(f"torchvision resnet50 {kind}", "torchvision", kind) for kind in ("eager", "script")]
    return runs


def main() -> None:
    """Exports, lets the networks take turns, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="r50_1x", help="name in the zoo")
    parser.add_argument("--requests", type=int, default=50, help="requests of one image, over all rounds")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each network")
    parser.add_argument("--small", action="store_true", help="a small network instead, to try the script out")
    parser.add_argument("--serve", nargs=2, metavar=("RUNTIME", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        answer(*options.serve)
        return
    # keras_sslhsic adds to it what suits training; those who serve have TensorFlow alone.
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        runs = export(Path(folder), options.model, options.small)
        servers, loads = [], []
        for _, runtime, path in runs:
            command = [sys.executable, __file__, "--serve", runtime, path]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            server = subprocess.Popen(command, text=True, env=environment, **pipes)
            servers.append(stack.enter_context(server))
            loads.append(ask(servers[-1]))
        each = -(-options.requests // options.rounds)
        rounds = [[ask(server, f"1 {each}") for server in servers] for _ in range(options.rounds)]
        batches = [[ask(server, "32 1") for server in servers] for _ in range(options.rounds)]
        for server in servers:
            server.stdin.close()
    medians = np.median(rounds, axis=-1)  # [rounds, networks]
    ratios = np.median(medians / medians[:, :1], axis=0)
    print(f"{'network':42} {'load s':>8} {'p50 ms':>8} {'p99 ms':>8} {'ratio':>6} {'images/s':>9}")
    for i, (label, _, _) in enumerate(runs):
        p50, p99 = np.percentile([turn[i] for turn in rounds], (50, 99))
        throughput = 32e3 / np.median([turn[i] for turn in batches])
        print(f"{label:42} {loads[i]:8.2f} {p50:8.1f} {p99:8.1f} {ratios[i]:6.3f} {throughput:9.2f}")


def ask(server: subprocess.Popen, line: str | None = None):
    """The next answer of a server, to a line if there is one."""
    if line is not None:
        server.stdin.write(line + "\n")
        server.stdin.flush()
    while not (found := server.stdout.readline()).startswith(("[", *"0123456789")):
        if not found:
            raise RuntimeError(f"{server.args} ended: run it by hand to see why")
    return json.loads(found)


if __name__ == "__main__":
    main()
