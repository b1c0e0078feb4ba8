"""export, convert, models, methods: encoders and what trains them."""

import argparse
from typing import Any

from keras_sslhsic.cli import arguments
from keras_sslhsic.files import display


def add(commands: Any) -> None:
    """Adds the commands to a parser."""
    export = arguments.command(
        commands, "export", _export, "write an encoder as a SavedModel, .tflite or .onnx"
    )
    export.add_argument("--model", required=True, help="a name of the zoo, a .keras file, a run folder, ...")
    export.add_argument("--out", required=True, help="NAME.tflite, NAME.onnx, or a folder for a SavedModel")
    arguments.image_size(export, "of what the encoder sees of an image, its central square")
    export.add_argument(
        "--keep-batch-norm",
        action="store_true",
        help="do not fold it into the convolutions: a tenth slower, and fine-tuning normalises by the batch",
    )

    convert = arguments.command(
        commands, "convert", _convert, "turn an official checkpoint into Keras weights"
    )
    convert.add_argument("source", help="checkpoint.npy of SSL-HSIC, or a .pkl of BYOL")
    convert.add_argument(
        "--to", required=True, help="NAME.weights.h5, or NAME.keras with the preprocessing inside"
    )
    convert.add_argument(
        "--heads", action="store_true", help="keep projector, predictor and classifier (NAME.keras)"
    )
    convert.add_argument("--expect", help="fail unless it is this architecture, e.g. r50_1x")

    arguments.command(commands, "models", _models, "list the pretrained encoders")
    arguments.command(commands, "methods", _methods, "list what an encoder can be trained with")


def _export(options: argparse.Namespace) -> None:
    from keras_sslhsic import export

    encoder = arguments.load(options.model)
    export.write(encoder, options.out, options.keep_batch_norm, options.image_size)
    size = encoder.spec.size_for(options.image_size)
    height, width, _ = encoder.spec.shape
    whole = f"images of {height} x {width} pixels" if height and width else "all of an image, as it is given"
    seen = f"central squares, resized to {size} x {size} pixels" if size else whole
    if size and (short := encoder.spec.short_side_for(size)) != size:
        seen = f"images whose short side is resized to {short} pixels, of them the central {size} x {size}, as it was measured"
    print(f"Wrote {display(options.out)}; it sees {seen}.")


def _convert(options: argparse.Namespace) -> None:
    from keras_sslhsic.zoo.convert import convert

    noted = convert(options.source, options.to, heads=options.heads, expect=options.expect)
    for key, value in noted.items():
        print(f"{key}: {display(value)}")
    print(f"Wrote {display(options.to)}.")


def _models(options: argparse.Namespace) -> None:
    from keras_sslhsic.zoo import registry

    print(registry.format_table())


def _methods(options: argparse.Namespace) -> None:
    from keras_sslhsic.methods import METHODS

    for name, method in METHODS.items():
        print(f"{name:<14}{(method.__doc__ or '').partition(chr(10))[0]} {method.reference}")
