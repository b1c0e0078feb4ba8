"""The command line: keras-sslhsic pretrain | evaluate | report | extract | export | convert | inspect | models."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_sslhsic import checks
from keras_sslhsic.version import __version__

# Each command imports what it needs, so that one can be read by itself.

PROTOCOLS = (
    "knn", "linear", "linear_features", "logistic", "finetune", "transfer", "transfer_finetune", "all"
)  # fmt: skip

# What bad input raises, beside TensorFlow's errors.
UNUSABLE = (ValueError, OSError, ImportError, FloatingPointError, RuntimeError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0, 2 for input that cannot be used, 130 for Ctrl-C."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    options.overrides = [_override(parser, argument, options) for argument in rest]
    try:
        _check(options)
        options.run(options)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    except Exception as error:
        if not isinstance(error, UNUSABLE) and not _is_op_error(error):
            raise
        from keras_sslhsic.files import display

        reason = "\n".join(map(display, _explain(error).split("\n")))
        print(f"keras-sslhsic {options.command}: {reason}", file=sys.stderr)
        return 2
    return 0


def _check(options: argparse.Namespace) -> None:
    """Finds values that cannot be meant, and outputs that could not be written in the end."""
    for name, value in vars(options).items():
        if value == "":
            raise ValueError(f"the value of {name} is empty.")
    checks.integer("seed", getattr(options, "seed", None), 0, optional=True)
    given = (getattr(options, name, None) for name in ("out", "to", "sheet", "json"))
    for path in map(Path, filter(None, given)):
        from keras_sslhsic import files

        files.check_writable(path, folder=options.command in ("export", "report"))


def _explain(error: Exception) -> str:
    from keras_sslhsic.files import display

    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no file or folder {display(error.filename)}; give one that exists."
    if isinstance(error, OSError) and error.filename:
        return f"{display(error.filename)}: {error.strerror}."
    if _is_op_error(error):  # the reason, its type, and a traceback of what a pipeline ran
        where = r"^(\{\{.*?\}\} )?(Error in user-defined function .*? Iterator::\S+: )?[\w.]+: "
        return re.sub(where, "", str(error).split("\nTraceback")[0])
    return str(error)


def _is_op_error(error: Exception) -> bool:
    return "OpError" in (kind.__name__ for kind in type(error).__mro__)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-sslhsic",
        description="Self-supervised learning with kernel dependence maximisation (SSL-HSIC), for Keras.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    pretrain = _command(commands, "pretrain", _pretrain, "train an encoder without labels")
    pretrain.add_argument(
        "--config", required=True, help="a Python file with get_config(), such as configs/fashion_small.py"
    )
    pretrain.add_argument(
        "--config.FIELD=VALUE",
        action="store_true",
        help="change a field of the config, e.g. --config.epochs=5",
    )
    pretrain.add_argument("--workdir", required=True, help="the run folder; made if it is missing")
    pretrain.add_argument("--resume", action="store_true", help="go on with the run that the folder holds")

    evaluate = _command(commands, "evaluate", _evaluate, "measure what an encoder has learnt")
    evaluate.add_argument(
        "protocol", nargs="?", choices=PROTOCOLS,
        help="one protocol; `all`: every protocol on the bundled images; none, with --run: kNN and linear on the run's data",
    )  # fmt: skip
    evaluate.add_argument(
        "--run", dest="run_folder", help="a run folder: its encoder, compared with the one it started from"
    )
    evaluate.add_argument(
        "--encoder", help="a name of the zoo, a .keras file, or a folder of save_pretrained"
    )
    evaluate.add_argument(
        "--data",
        help="`bundled`; a folder with the sub-folders train and test (linear, finetune: perhaps validation), a folder a "
        "class in each; or a data set of TensorFlow Datasets (transfer, transfer_finetune: one of the twelve sets); "
        "default: bundled, where the run did not use other images",
    )  # fmt: skip
    evaluate.add_argument(
        "--config",
        help="a Python file with get_config() that holds settings of the protocol; those given here come first",
    )
    evaluate.add_argument("--data-dir", help="where TensorFlow Datasets keeps its files")
    evaluate.add_argument("--train-split", default="train", help="of a TensorFlow data set (default: train)")
    evaluate.add_argument("--test-split", default="test", help="of a TensorFlow data set (default: test)")
    evaluate.add_argument(
        "--validation-split",
        help="of a TensorFlow data set, such as train[90%%:] (linear, finetune; default: some training images are held out)",
    )
    evaluate.add_argument(
        "--image-size", type=int, default=224, help="side of the crops of folders and TFDS (default: 224)"
    )
    evaluate.add_argument(
        "--short-side",
        type=int,
        help="what test images are resized to before the central crop (default: 256/224 of the image size for linear and "
        "finetune, else the image size; transfer, transfer_finetune: as the paper)",
    )
    evaluate.add_argument(
        "--max-broken",
        type=float,
        default=0.01,
        help="share of broken files that a folder may have (default: 0.01)",
    )
    evaluate.add_argument(
        "--batch-size", type=int,
        help="images a step (default: linear 4096, finetune 1024, transfer_finetune and linear_features 256); knn, logistic, "
        "transfer: images that the encoder sees at once (default: 256)",
    )  # fmt: skip
    evaluate.add_argument(
        "--epochs", type=integers,
        help="passes over the training images (default: linear 90, linear_features 30); finetune, transfer_finetune: "
        "one or several to choose from, as 30,50, which is finetune's default",
    )  # fmt: skip
    evaluate.add_argument(
        "--steps", type=int, help="updates instead of epochs (finetune; transfer_finetune, default: 20000)"
    )
    evaluate.add_argument(
        "--learning-rates",
        type=numbers,
        help="to choose from on held-out images, for the batch size, as 0.1,0.2; one alone is taken as it is (the default ones "
        "follow the batch size)",
    )
    evaluate.add_argument(
        "--weight-decays",
        type=numbers,
        help="to choose from, as 0,1e-6 (finetune, transfer_finetune: each is divided by the learning rate)",
    )
    evaluate.add_argument("--k", type=int, help="neighbours (knn)")
    evaluate.add_argument("--temperature", type=float, help="of the neighbours' votes (knn)")
    evaluate.add_argument("--fraction", type=float, help="share of the labels (finetune)")
    evaluate.add_argument(
        "--num-classes", type=int, help="classes of a TFDS set that does not name them (linear, finetune)"
    )
    evaluate.add_argument("--seed", type=int, help="of whatever the protocol draws (default: 0)")
    evaluate.add_argument(
        "--out", help="file of JSON lines to add the result to (default: results.jsonl of the run, or here)"
    )

    report = _command(
        commands, "report", _report, "gather the results below a folder in one table and one chart"
    )
    report.add_argument("path", help="a folder with results.jsonl anywhere below, or one such file")
    report.add_argument("--out", help="where report.md and report.png go (default: that folder)")

    extract = _command(commands, "extract", _extract, "compute the features of every image under a folder")
    extract.add_argument("--model", required=True, help="a name of the zoo, a .keras file, a run folder, ...")
    extract.add_argument("--data", required=True, help="a folder of images, at any depth")
    extract.add_argument(
        "--out", required=True, help="NAME.npz or NAME.parquet; stopped, the same command goes on"
    )
    extract.add_argument("--batch-size", type=int, default=64, help="images a step, at most (default: 64)")
    _memory(extract)

    export = _command(commands, "export", _export, "write an encoder as a SavedModel, .tflite or .onnx")
    export.add_argument("--model", required=True, help="a name of the zoo, a .keras file, a run folder, ...")
    export.add_argument("--out", required=True, help="NAME.tflite, NAME.onnx, or a folder for a SavedModel")
    export.add_argument(
        "--keep-batch-norm",
        action="store_true",
        help="do not fold it into the convolutions: a tenth slower, and fine-tuning normalises by the batch",
    )

    convert = _command(commands, "convert", _convert, "turn an official checkpoint into Keras weights")
    convert.add_argument("source", help="checkpoint.npy of SSL-HSIC, or a .pkl of BYOL")
    convert.add_argument(
        "--to", required=True, help="NAME.weights.h5, or NAME.keras with the preprocessing inside"
    )
    convert.add_argument(
        "--heads", action="store_true", help="keep projector, predictor and classifier (NAME.keras)"
    )
    convert.add_argument("--expect", help="fail unless it is this architecture, e.g. r50_1x")

    inspect = _command(
        commands, "inspect", _inspect, "look over a folder of images: counts, sizes, classes, broken files"
    )
    inspect.add_argument("path", help="a folder of images")
    inspect.add_argument(
        "--channels", type=int, choices=(1, 3, 4), default=3, help="for mean and std (default: 3)"
    )
    inspect.add_argument(
        "--sheet", default="contact_sheet.png", help="picture of some images (default: contact_sheet.png)"
    )
    inspect.add_argument("--json", help="write the report there as JSON too")
    _memory(inspect)

    _command(commands, "models", _models, "list the pretrained encoders")
    return parser


def integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split(",")))


def _command(commands, name, run, summary):
    parser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(run=run)
    return parser


def _memory(parser):
    parser.add_argument(
        "--memory-mb", type=int, default=1024, help="memory for images, in 2^20 bytes (default: 1024)"
    )


def _override(parser, argument, options):
    """`epochs=5` of `--config.epochs=5`."""
    if not getattr(options, "config", None) or not argument.startswith("--config.") or "=" not in argument:
        parser.error(
            f"unrecognized argument: {argument} (fields of a config are changed with --config.FIELD=VALUE)"
        )
    return argument.removeprefix("--config.")


def _pretrain(options):
    # The networks of a step, online and target on each view, run beside each other on a CPU: that keeps small ones
    # busier than sharing every operation out among all cores.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))
    from keras_sslhsic.files import display, is_leftover
    from keras_sslhsic.runs import config, folder, pretrain
    from keras_sslhsic.runs.evaluate import format_table

    settings = config.load(options.config, options.overrides)
    finished = options.resume and folder.is_finished(options.workdir)
    try:
        summary = pretrain.run(settings, options.workdir, options.resume)
    except KeyboardInterrupt:
        print("\nFinished epochs are saved; the same command with --resume goes on.", file=sys.stderr)
        raise
    if summary["results"]:
        print(format_table(summary["results"]))
    if finished:
        print("The run was finished before; nothing was changed.")
    files = (p for p in Path(options.workdir).iterdir() if p.is_file() and not is_leftover(p))
    print(f"The run is in {display(options.workdir)}: {', '.join(sorted(display(p.name) for p in files))}.")


def _evaluate(options):
    from keras_sslhsic import evaluation
    from keras_sslhsic.evaluation import protocols, results
    from keras_sslhsic.evaluation.report import table
    from keras_sslhsic.files import display
    from keras_sslhsic.runs.evaluate import evaluate_run, format_table, untrained_encoder

    if (options.run_folder is None) == (options.encoder is None):
        raise ValueError("Give either --run with a run folder, or --encoder with an encoder.")
    if options.protocol in (None, "all"):
        defaults = vars(_parser().parse_args(["evaluate"]))
        own = ["overrides", "protocol", "run_folder", "encoder"] + ["seed", "out"] * (
            options.protocol == "all"
        )
        extra = [key for key, value in vars(options).items() if key not in own and value != defaults[key]]
        if options.protocol == "all" and options.data == "bundled":
            extra.remove("data")
        if extra:
            goes = "goes" if len(extra) == 1 else "go"
            raise ValueError(
                f"{protocols.flags(extra)} {goes} with one protocol: name one of {', '.join(PROTOCOLS[:-1])}."
            )
    name = options.run_folder or options.encoder
    out = options.out or Path(options.run_folder or ".") / "results.jsonl"
    if options.protocol is None:
        if options.run_folder is None:
            raise ValueError(f"Give a protocol with --encoder: one of {', '.join(PROTOCOLS)}.")
        print(format_table(evaluate_run(options.run_folder)))
        return
    if options.validation_split and options.protocol not in evaluation.splits.TRAINING:
        raise ValueError(f"{options.protocol} has no --validation-split; it goes with linear and finetune.")
    options.data = options.data or _own_data(options)
    arguments = {} if options.protocol == "all" else _arguments(options)
    encoder = _load(name)
    if options.protocol == "all":
        untrained = untrained_encoder(options.run_folder) if options.run_folder else None
        records = []
        for record in evaluation.benchmark_bundled(
            encoder, untrained, name=name, seed=options.seed or 0, verbose=True
        ):
            results.append(out, record)
            records.append(record)
        print(table(records))
        return
    result: evaluation.Result
    if options.protocol in ("transfer", "transfer_finetune"):
        run = evaluation.transfer if options.protocol == "transfer" else evaluation.transfer_finetune
        where = {"data_dir": options.data_dir, "size": options.image_size, "short_side": options.short_side}
        result = run(encoder, options.data, **where, **arguments, verbose=True)
    else:
        splits: dict[str, Any] = evaluation.labelled_splits(
            options.data,
            options.protocol,
            {name: getattr(options, f"{name}_split") for name in ("train", "test", "validation")},
            options.data_dir,
            options.max_broken,
            image_size=options.image_size,
            short_side=options.short_side,
            channels=encoder.input_shape[-1],
        )
        result = evaluation.evaluate(options.protocol, encoder, verbose=True, **splits, **arguments)
    results.append(
        out, result.record(encoder=name, encoder_hash=evaluation.encoder_hash(encoder), data=options.data)
    )
    low, high = result.interval
    print(
        f"{options.protocol} on {display(options.data)}: {result.metric} {_percent(result.value)} %", end=" "
    )
    print(f"(95 %: {_percent(low)} to {_percent(high)})")
    print(f"Added to {display(out)}.")


def _arguments(options):
    """Of the protocol's function: a length replaces one that comes before, in the other unit too."""
    from keras_sslhsic.evaluation import protocols
    from keras_sslhsic.runs import config

    names = frozenset().union(*protocols.SETTINGS.values())
    given: dict[str, Any] = {} if options.protocol == "knn" else {"seed": 0}
    for layer in (
        config.load(options.config).to_dict() if options.config else {},
        dict(map(config.parse, options.overrides)),
        {name: value for name in names if (value := getattr(options, name)) is not None},
    ):
        if {"steps", "epochs"} & set(layer):
            given = {name: value for name, value in given.items() if name not in ("steps", "epochs")}
        given |= layer
    return protocols.arguments(options.protocol, **given)


def _own_data(options):
    """The images that are measured on where none are named."""
    from keras_sslhsic.files import display
    from keras_sslhsic.runs.folder import load_config

    source = load_config(options.run_folder).data.source if options.run_folder else "bundled"
    if source != "bundled" and options.protocol != "all":
        raise ValueError(
            f"The run in {display(options.run_folder)} did not train on the bundled images: name the images to "
            "measure on with --data."
        )
    return "bundled"


def _percent(share):
    return f"{100 * share:.1f}"


def _report(options):
    from keras_sslhsic import evaluation

    print(evaluation.report(options.path, options.out))


def _extract(options):
    from keras_sslhsic.files import display
    from keras_sslhsic.zoo.extract import extract

    extracted = extract(options.model, options.data, options.out, options.batch_size, options.memory_mb)
    out, data = display(extracted.out), display(options.data)
    print(f"{extracted.rows} rows in {out}, {extracted.computed} of them computed now.")
    if extracted.gone:
        print(f"{extracted.gone} images are no longer under {data}: their rows were left out.")
    if extracted.broken:
        print(f"{len(extracted.broken)} images could not be read; {out}.broken.txt names them.")


def _export(options):
    from keras_sslhsic import export
    from keras_sslhsic.files import display

    export.write(_load(options.model), options.out, options.keep_batch_norm)
    print(f"Wrote {display(options.out)}.")


def _convert(options):
    from keras_sslhsic.files import display
    from keras_sslhsic.zoo.convert import convert

    noted = convert(options.source, options.to, heads=options.heads, expect=options.expect)
    for key, value in noted.items():
        print(f"{key}: {display(value)}")
    print(f"Wrote {display(options.to)}.")


def _inspect(options):
    from keras_sslhsic import files
    from keras_sslhsic.data import inspect_folder

    report = inspect_folder(
        options.path, channels=options.channels, verbose=True, memory_mb=options.memory_mb
    )
    print(report)
    report.save_contact_sheet(options.sheet)
    print(f"A contact sheet is in {files.display(options.sheet)}.")
    if options.json:
        files.write_json(options.json, report.to_dict())


def _models(options):
    from keras_sslhsic.zoo import registry

    print(registry.format_table())


def _load(name):
    from keras_sslhsic.zoo import load_pretrained

    return load_pretrained(name)


if __name__ == "__main__":
    sys.exit(main())
