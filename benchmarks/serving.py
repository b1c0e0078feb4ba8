"""Serving: load time, latency and throughput of an exported encoder beside well-known ResNet-50s.

Usage: python benchmarks/serving.py [--requests 50] [--model r50_1x]

Every network is exported to a SavedModel and served from there in a process of its own, on this machine's
CPUs: seconds to load (until the first answer, with TensorFlow already imported), latency of one 224x224 uint8
image (median and 99th percentile) and images a second at batch 32. The graph holds resizing and normalisation
for ours, the mean subtraction for keras.applications. LiteRT and ONNX files of our encoder, and torchvision's
resnet50 (eager and scripted), are measured where their packages are installed.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def measure(serve, requests: int) -> dict[str, float]:
    """Latency in ms at batch 1, images a second at batch 32, of a function of uint8 images."""
    images = np.random.default_rng(0).integers(0, 256, (32, 224, 224, 3), np.uint8)
    for _ in range(3):
        serve(images[:1])
    latencies = []
    for _ in range(requests):
        start = time.perf_counter()
        serve(images[:1])
        latencies.append(1e3 * (time.perf_counter() - start))
    serve(images)
    repeats = max(2, requests // 16)
    start = time.perf_counter()
    for _ in range(repeats):
        serve(images)
    throughput = 32 * repeats / (time.perf_counter() - start)
    return {
        "p50": np.percentile(latencies, 50),
        "p99": np.percentile(latencies, 99),
        "throughput": throughput,
    }


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


def export(folder: Path, name: str, small: bool) -> list[tuple[str, str, str]]:
    """Writes every network; returns (label, runtime, path)."""
    import keras

    import keras_sslhsic
    from keras_sslhsic.networks import with_preprocessing
    from keras_sslhsic.zoo.export import export_litert, export_onnx, export_saved_model

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
    export_saved_model(keras.Model(images, application(inputs)), folder / "applications")
    runs.append(("keras.applications.ResNet50 SavedModel", "saved_model", str(folder / "applications")))
    if importlib.util.find_spec("torchvision"):
        runs += [(f"torchvision resnet50 {kind}", "torchvision", kind) for kind in ("eager", "script")]
    return runs


def main() -> None:
    """Exports, measures each network in its own process, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="r50_1x", help="name in the zoo")
    parser.add_argument("--requests", type=int, default=50, help="requests of one image")
    parser.add_argument("--small", action="store_true", help="a small network instead, to try the script out")
    parser.add_argument("--serve", nargs=2, metavar=("RUNTIME", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        runtime, path = options.serve
        serve, load = RUNTIMES[runtime](path)
        print(json.dumps({"load": load, **measure(serve, options.requests)}))
        return
    print(f"{'network':42} {'load s':>8} {'p50 ms':>8} {'p99 ms':>8} {'images/s':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for label, runtime, path in export(Path(folder), options.model, options.small):
            command = [
                sys.executable,
                __file__,
                "--requests",
                str(options.requests),
                "--serve",
                runtime,
                path,
            ]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            row = json.loads(output.splitlines()[-1])
            print(
                f"{label:42} {row['load']:8.2f} {row['p50']:8.1f} {row['p99']:8.1f} {row['throughput']:9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
