"""The command line.

keras-sslhsic pretrain | config | evaluate | report | reproduce | extract | index | search | export | convert | inspect |
models | methods
"""

import argparse
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_sslhsic import checks
from keras_sslhsic.files import check_writable, display
from keras_sslhsic.version import __version__

# Each command imports what it needs: help, and what a look at the arguments refuses, come without TensorFlow.

TRACEBACK = "KERAS_SSLHSIC_TRACEBACK"

# Flags that are natural numbers, and the largest of each.
_NUMBERS: dict[str, int | None] = {
    "image_size": 2**14,
    **dict.fromkeys(("epochs", "batch_size", "memory_mb", "count")),
}

# Flags of files and folders that are read -> what may be the name of something else.
_ENCODER = r"\w+|.+://.+"
_READ = {
    **dict.fromkeys(("config", "path", "source", "run_folder", "features", "index", "image"), ""),
    **dict.fromkeys(("model", "encoder", "init"), _ENCODER),
    "data": r"\w+(/[\w.+-]+)?(:[\w.*]+)?",  # of a data set of TensorFlow Datasets
}

# The names of `runs.tables.TABLES`.
_TABLES = (
    "linear", "fixed", "kernels", "regulariser", "features", "batch", "outputs", "widths", "widths_finetune",
    "centred", "finetune", "transfer", "dense", "detection",
)  # fmt: skip

# What bad input raises, beside TensorFlow's errors.
UNUSABLE = (ValueError, OSError, ImportError, FloatingPointError, RuntimeError)


def main(arguments: Sequence[str] | None = None, prepare: Callable[[], None] = lambda: None) -> int:
    """Runs a command; returns the exit status: 0, 2 for input that cannot be used, 130 for Ctrl-C.

    Args:
        arguments: words of the command; None: those of the process.
        prepare: is called before anything of the package but this module is imported.
    """
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    try:
        if options.command == "evaluate" and not options.protocol and {"-h", "--help"} & {*rest}:
            options.print_help()
            return 0
        if options.command != "evaluate":
            options.overrides = [_override(parser, argument, options) for argument in rest]
        _check(options)
        prepare()
        if options.command == "evaluate":
            if options.config:
                # It may register a protocol, whose settings are flags then.
                from keras_sslhsic.runs import config

                config.load(options.config)
            parser = _parser(settings=True)
            options, rest = parser.parse_known_args(arguments)
            options.overrides = [_override(parser, argument, options) for argument in rest]
            _check(options)
        options.run(options)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    except Exception as error:
        if not isinstance(error, UNUSABLE) and not _is_op_error(error):
            raise
        if options.traceback or os.environ.get(TRACEBACK) == "1":
            traceback.print_exception(error)
            return 2
        reason = "\n".join(map(display, _explain(error).split("\n")))
        hint = "" if _is_ours(error) else f" (keras-sslhsic --traceback {options.command} ... shows where.)"
        print(f"keras-sslhsic {options.command}: {reason}{hint}", file=sys.stderr)
        return 2
    return 0


def _check(options: argparse.Namespace) -> None:
    """Raises ValueError for an empty value or a number that cannot be, and OSError for a file or folder that there is not, or
    where the output could not be written in the end."""
    for name, value in vars(options).items():
        if value == "":
            raise ValueError(f"the value of {name} is empty.")
    checks.integer("seed", getattr(options, "seed", None), 0, optional=True, most=2**31 - 1)
    for name, most in _NUMBERS.items():
        number = getattr(options, name, None)
        if number is not None and options.command != "evaluate":  # whose settings check themselves
            checks.integer(name, number, 1, most=most)
    written = (getattr(options, name, None) for name in ("out", "to", "sheet", "json"))
    for path in map(Path, filter(None, written)):
        check_writable(path, folder=options.command in ("export", "report", "index"))
    for name, other in (_READ | ({"data": ""} if options.command == "extract" else {})).items():
        given = getattr(options, name, None)
        if given and not os.path.lexists(given) and not re.fullmatch(other, given):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), given)
    if options.command == "pretrain":
        _check_images(options)


def _check_images(options: argparse.Namespace) -> None:
    """Raises ValueError for images to train on that are neither a folder nor, as can be told without TensorFlow, a data set."""
    given = options.data
    elsewhere = options.config or any("data_dir" in override for override in options.overrides)
    if not given or os.path.isdir(given) or elsewhere:
        return
    try:
        import tensorflow_datasets as tfds

        known = tfds.list_builders(with_community_datasets=False)
    except ImportError:
        known = []
    name = re.split("[/:]", given)[0]
    prepared = Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser() / name
    if name not in known and not prepared.is_dir():
        raise ValueError(
            f"{display(given)} is no folder, and TensorFlow Datasets has no data set of that name."
        )


def _explain(error: Exception) -> str:
    """What an error says, as a sentence."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no file or folder {display(error.filename)}; give one that exists."
    if isinstance(error, OSError) and error.filename:
        return f"{display(error.filename)}: {error.strerror}."
    if _is_op_error(error):  # the reason, its type, and a traceback of what a pipeline ran
        graph = r"Graph execution error:\n(.*\n)*?<stack traces unavailable>\n"
        where = (
            rf"^({graph})?(\{{\{{.*?\}}\}} )?(Error in user-defined function .*? Iterator::\S+: )?[\w.]+: "
        )
        return re.sub(where, "", str(error).split("\nTraceback")[0])
    return str(error)


def _is_ours(error: Exception) -> bool:
    """Whether the sentence was written here: by `_explain`, or by code of this package (in a pipeline, in its traceback)."""
    if isinstance(error, OSError) and error.filename:
        return True
    raised_in = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if _is_op_error(error):
        raised_in = re.findall(r'^  File "(.*?)", line', str(error), re.MULTILINE)
    return bool(raised_in) and Path(__file__).parent in Path(raised_in[-1]).parents


def _is_op_error(error: Exception) -> bool:
    return "OpError" in (kind.__name__ for kind in type(error).__mro__)


def _parser(settings: bool = False) -> argparse.ArgumentParser:
    """The parser; with the `settings` of protocols, which are known once these are imported, and with the help on them."""
    parser = argparse.ArgumentParser(
        prog="keras-sslhsic",
        description="Self-supervised learning with kernel dependence maximisation (SSL-HSIC), for Keras.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--traceback",
        action="store_true",
        help=f"show where an error comes from, as {TRACEBACK}=1 in the environment does",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    pretrain = _command(commands, "pretrain", _pretrain, "train an encoder without labels")
    pretrain.add_argument(
        "--config", help="a Python file with get_config(), such as configs/fashion_small.py"
    )
    pretrain.add_argument(
        "--data",
        help="a folder of images (with train and test in it, those of train), or a data set of TensorFlow Datasets; without "
        "--config, all else is chosen for its images, said and saved",
    )
    pretrain.add_argument("--image-size", type=int, help="side of the views, in place of the one chosen")
    pretrain.add_argument("--method", help="which method trains (default: ssl_hsic)")
    pretrain.add_argument("--epochs", type=int, help="passes over the images")
    pretrain.add_argument(
        "--init",
        help="an encoder to start from: a run folder, a name of the zoo, or a file (default: a new network)",
    )
    pretrain.add_argument(
        "--config.FIELD=VALUE",
        action="store_true",
        help="change a field of the config, e.g. --config.epochs=5",
    )
    pretrain.add_argument("--workdir", required=True, help="the run folder; made if it is missing")
    pretrain.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run that the folder holds, as its config says where no other is given; with more --epochs, one "
        "that is finished too",
    )

    fields = _command(
        commands, "config", _config, "print every field of a config: its type, its default and what it means"
    )
    fields.add_argument("--config", help="a config, whose values are printed beside its fields")
    fields.add_argument("--config.FIELD=VALUE", action="store_true", help="as `pretrain` takes it")

    evaluate = _command(commands, "evaluate", _evaluate, "measure what an encoder has learnt", settings)
    _evaluate_arguments(evaluate, settings)

    report = _command(
        commands, "report", _report, "gather the results below a folder in one table and one chart"
    )
    report.add_argument("path", help="a folder with results.jsonl anywhere below, or one such file")
    report.add_argument("--out", help="where report.md and report.png go (default: that folder)")

    reproduce = _command(
        commands, "reproduce", _reproduce, "run a table of the paper: in a folder with the project's configs/"
    )
    reproduce.add_argument(
        "table",
        choices=(*_TABLES, "claims"),
        help="what is run; claims: what the paper states of its estimators and losses",
    )
    reproduce.add_argument(
        "--scale",
        choices=("small", "paper"),
        default="small",
        help="small: on the bundled images, what the records lack is trained, and ours stands beside the paper's; paper: on "
        "ImageNet, the runs of the table and their cost are listed, and that of --row is made (default: small)",
    )
    reproduce.add_argument("--seeds", default="1,2,3,4,5", help="of the small runs (default: 1,2,3,4,5)")
    reproduce.add_argument(
        "--records",
        default="experiments/reproduction.jsonl",
        help="JSON lines of the small runs, to which new ones are added (default: experiments/reproduction.jsonl)",
    )
    reproduce.add_argument("--row", help="the run of the paper's scale to begin, or to go on with")
    reproduce.add_argument("--workdir", help="its run folder")
    reproduce.add_argument(
        "--config.FIELD=VALUE", action="store_true", help="change a field of its config, as `pretrain` does"
    )

    extract = _command(commands, "extract", _extract, "compute the features of every image under a folder")
    extract.add_argument("--model", required=True, help="a name of the zoo, a .keras file, a run folder, ...")
    extract.add_argument("--data", required=True, help="a folder of images, at any depth")
    extract.add_argument(
        "--out",
        required=True,
        help="NAME.npz or NAME.parquet, with --runner a folder; stopped, the same command goes on",
    )
    _image_size(extract, "of what the encoder sees of an image, its central square")
    extract.add_argument("--batch-size", type=int, default=64, help="images a step, at most (default: 64)")
    _memory(extract)
    extract.add_argument(
        "--runner", help="of Apache Beam, for shards of features: DirectRunner, FlinkRunner, SparkRunner, ..."
    )
    extract.add_argument(
        "--beam-options", help="of the pipeline: key=value,key=value,... (direct_num_workers=2)"
    )
    extract.add_argument("--shards", type=int, help="files in the folder (default: one for 8,192 images)")

    index = _command(commands, "index", _index, "make the features of many images searchable")
    index.add_argument(
        "--features", required=True, help="NAME.npz or NAME.parquet of `extract`, or its folder of shards"
    )
    index.add_argument("--out", required=True, help="the folder of the index; one that is there is replaced")

    search = _command(commands, "search", _search, "find the images of an index that are nearest to an image")
    search.add_argument("--index", required=True, help="a folder of `index`")
    search.add_argument("--image", required=True, help="a file, of the indexed images or another")
    search.add_argument(
        "--model",
        help="the encoder of the features, for an image that is not among them; as `extract` takes it",
    )
    search.add_argument("--count", type=int, default=10, help="neighbours to find (default: 10)")
    search.add_argument("--sheet", help="a picture of the image and its neighbours, NAME.png")

    export = _command(commands, "export", _export, "write an encoder as a SavedModel, .tflite or .onnx")
    export.add_argument("--model", required=True, help="a name of the zoo, a .keras file, a run folder, ...")
    export.add_argument("--out", required=True, help="NAME.tflite, NAME.onnx, or a folder for a SavedModel")
    _image_size(export, "that images are resized to")
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
    _command(commands, "methods", _methods, "list what an encoder can be trained with")
    return parser


def _evaluate_arguments(parser: argparse.ArgumentParser, settings: bool) -> None:
    """What `evaluate` takes: of its own, and a flag for every setting of every protocol and of the images it needs."""
    protocol = parser.add_argument(
        "protocol",
        nargs="?",
        metavar="PROTOCOL",
        help="knn, linear, finetune or another; `keras-sslhsic evaluate knn --help` names all of them and what can be set",
    )
    parser.set_defaults(print_help=parser.print_help)
    parser.add_argument(
        "--run", dest="run_folder", help="a run folder: its encoder, compared with the one it started from"
    )
    parser.add_argument("--encoder", help="a name of the zoo, a .keras file, or a folder of save_pretrained")
    parser.add_argument(
        "--data",
        help="`bundled`; a folder with the sub-folders train and test (where networks are trained, perhaps validation), a "
        "folder a class in each, or with a folder a class, which is split; or a data set of TensorFlow Datasets (transfer: one "
        "of the twelve sets); default: the images of the run, or bundled",
    )
    parser.add_argument(
        "--config",
        help="a Python file with get_config() that holds settings of the protocol, and may register protocols; settings given "
        "here come first",
    )
    parser.add_argument(
        "--out", help="file of JSON lines to add the result to (default: results.jsonl of the run, or here)"
    )
    if not settings:
        return
    from keras_sslhsic.evaluation import PROTOCOLS

    protocols = ", ".join(PROTOCOLS)
    protocol.help = (
        f"one of {protocols}; `all`: a table of the bundled images; none, with --run: what its config names"
    )
    flags = parser.add_argument_group("settings of protocols, and of their images")
    for name, uses in _settings().items():
        parse = next(iter(uses.values())).parse
        text = "; ".join(_help(uses, len(PROTOCOLS)))
        flags.add_argument(f"--{name.replace('_', '-')}", type=parse, help=text.replace("%", "%%"))


def _help(uses: dict[str, Any], of: int) -> Iterator[str]:
    """What a setting is to protocols, of so many, and its default with each."""
    for text in dict.fromkeys(setting.help for setting in uses.values()):
        own = {name: setting.default for name, setting in uses.items() if setting.help == text}
        defaults = {default: [name for name in own if own[name] == default] for default in own.values()}
        named = [f"{default} ({', '.join(names)})" for default, names in defaults.items() if default]
        shown = next(iter(defaults)) if len(defaults) == 1 else "; ".join(named)
        who = f" [{', '.join(own)}]" if len(own) < of else ""
        yield text + (f" (default: {shown})" if shown else "") + who


def _settings() -> dict[str, dict[str, Any]]:
    """Setting -> protocol -> the `Setting`, of every protocol and of the images it needs."""
    from keras_sslhsic.evaluation import PROTOCOLS

    found: dict[str, dict[str, Any]] = {}
    for protocol in PROTOCOLS.values():
        for name, setting in {**protocol.settings, **protocol.needs.settings}.items():
            found.setdefault(name, {})[protocol.name] = setting
    return found


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], summary: str, add_help: bool = True
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        allow_abbrev=False,
        add_help=add_help,
    )
    parser.set_defaults(run=run)
    return parser


def _memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory-mb", type=int, default=1024, help="memory for images, in 2^20 bytes (default: 1024)"
    )


def _image_size(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--image-size", type=int, help=f"side {what} (default: that it was trained at, where it is known)"
    )


def _override(parser: argparse.ArgumentParser, argument: str, options: argparse.Namespace) -> str:
    """`epochs=5` of `--config.epochs=5`."""
    given = getattr(options, "config", None) or options.command in ("pretrain", "reproduce")
    changes_field = argument.startswith("--config.") and "=" in argument
    if changes_field and not given and hasattr(options, "config"):
        parser.error(f"{argument} changes a field of a config: name the file with --config")
    if not changes_field or not given:
        parser.error(
            f"unrecognized argument: {argument} (fields of a config are changed with --config.FIELD=VALUE)"
        )
    return argument.removeprefix("--config.")


def _few_threads_an_operation() -> None:
    # The networks of a step, online and target on each view, run beside each other on a CPU: that keeps small ones
    # busier than sharing every operation out among all cores.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))


def _pretrain(options: argparse.Namespace) -> None:
    _few_threads_an_operation()
    from keras_sslhsic.files import is_leftover
    from keras_sslhsic.runs import folder, pretrain
    from keras_sslhsic.runs.evaluate import format_table

    settings = _run_config(options)
    finished = options.resume and folder.is_finished(options.workdir)
    before = folder.read_summary(options.workdir) if finished else None
    try:
        summary = pretrain.run(settings, options.workdir, options.resume)
    except KeyboardInterrupt:
        print("\nFinished epochs are saved; the same command with --resume goes on.", file=sys.stderr)
        raise
    if summary["results"]:
        print(format_table(summary["results"]))
        print(f"`keras-sslhsic report {display(options.workdir)}` prints them with their 95 % intervals.")
    if summary == before:
        print("The run was finished before; nothing was changed.")
    files = (p for p in Path(options.workdir).iterdir() if p.is_file() and not is_leftover(p))
    print(f"The run is in {display(options.workdir)}: {', '.join(sorted(display(p.name) for p in files))}.")


def _run_config(options: argparse.Namespace) -> Any:
    """The config of a run that a command describes."""
    from keras_sslhsic.runs import config, defaults, folder

    going_on = options.resume and (Path(options.workdir) / folder.CONFIG).exists()
    before = folder.load_config(options.workdir) if going_on else None
    if not (options.config or options.data or before):
        there = (Path(options.workdir) / folder.CONFIG).exists()
        shown, found = display(options.workdir), ""
        if options.resume:
            found = f"{shown} holds no run to go on with: name the folder of one. To begin one, say"
        elif there:
            found = f"{shown} holds a run: add --resume to go on with it. To begin another, say"
        raise ValueError(
            f"{found or 'Say'} what to train on: --data with a folder of images or a data set of TensorFlow Datasets, or "
            "--config."
        )
    flags = {"method": options.method, "epochs": options.epochs, "init": options.init}
    overrides = [f"{name}={value!r}" for name, value in flags.items() if value is not None]
    if before and not options.config and not options.data:
        settings = before
    elif options.config:
        settings = config.read(options.config)
        if options.data:
            overrides += [
                f"data.{name}={value!r}" for name, value in defaults.of_data(options.data).data.items()
            ]
    else:
        settings = defaults.of_data(options.data)
        settings.name = Path(options.workdir).name
    if options.image_size:
        overrides.append(f"views.size={options.image_size}")

    def say(line: str) -> None:
        """A line of what was chosen, with what was given otherwise."""
        section = f"{line.partition(':')[0].strip()}."
        own = [given for given in options.overrides if given.startswith(section) and section != "views."]
        print(f"{line}, but {', '.join(own)}" if own else line)

    return config.overridden(
        settings, overrides + options.overrides, lambda settings: defaults.suited(settings, before, say)
    )


def _config(options: argparse.Namespace) -> None:
    from keras_sslhsic.runs import config, schema

    values = config.completed(config.load(options.config, options.overrides)) if options.config else None
    if values is not None:
        config.check(values)
    print("\n".join(schema.describe(values and values.to_dict())), end="")


def _evaluate(options: argparse.Namespace) -> None:
    from keras_sslhsic.evaluation import PROTOCOLS
    from keras_sslhsic.evaluation.compare import BUNDLED, raw_pixels
    from keras_sslhsic.evaluation.loading import FOR_FEATURES
    from keras_sslhsic.evaluation.reporting import table
    from keras_sslhsic.evaluation.settings import checked, flags, layered
    from keras_sslhsic.runs import config, evaluate

    if (options.run_folder is None) == (options.encoder is None):
        raise ValueError("Give either --run with a run folder, or --encoder with an encoder.")
    name = options.run_folder or options.encoder
    out = options.out or Path(options.run_folder or ".") / "results.jsonl"
    given = {key: value for key in _settings() if (value := getattr(options, key)) is not None}
    if options.protocol in (None, "all"):
        if options.protocol is None and options.run_folder is None:
            raise ValueError(f"Give a protocol with --encoder: one of {', '.join(PROTOCOLS)}, all.")
        extra = {*given} | {key for key in ("data", "out") if getattr(options, key)}
        if options.protocol == "all":
            extra -= {"seed", "out"} | ({"data"} if options.data == "bundled" else set())
        if extra:
            goes = "goes" if len(extra) == 1 else "go"
            raise ValueError(f"{flags(extra)} {goes} with one protocol: name one of {', '.join(PROTOCOLS)}.")
    if options.protocol is None:
        rows = evaluate.evaluate_run(name, verbose=True)
        if not rows:
            raise ValueError(
                f"The config of {display(name)} names no evaluation: name a protocol and --data."
            )
        print(evaluate.format_table(rows))
        return
    if options.protocol == "all":
        encoders = (
            evaluate.encoders_of(name)
            if options.run_folder
            else {name: _load(name), "raw pixels": raw_pixels}
        )
        if (channels := next(iter(encoders.values())).input_shape[-1]) != 1:
            raise ValueError(
                f"`all` measures on the bundled images, which have 1 channel, and {display(name)} reads {channels}: name a "
                "protocol and --data."
            )
        images, seed = FOR_FEATURES.load("bundled"), given.get("seed", 0)
        print(
            table(evaluate.measure(encoders, BUNDLED, images, out, data="bundled", seed=seed, verbose=True))
        )
        return
    protocol = PROTOCOLS[options.protocol]
    data, lie = (options.data, {}) if options.data else _own_data(options)
    given = layered(
        protocol.settings,
        config.load(options.config).to_dict() if options.config else {},
        dict(map(config.parse, options.overrides)),
        given,
    )
    of_images = {key for other in PROTOCOLS.values() for key in other.needs.settings} - {*protocol.settings}
    where = {key: value for key, value in lie.items() if key in protocol.needs.settings}
    where |= {key: value for key, value in given.items() if key in of_images}
    settings = {key: value for key, value in given.items() if key not in of_images}
    # Before anything is loaded.
    where = checked(protocol.name, protocol.needs.settings, where)
    protocol.arguments_of(settings)
    encoder = _load(name)
    if "image_size" in protocol.needs.settings:
        size = encoder.spec.size_for(where.get("image_size")) or encoder.spec.working_size
        where |= {"image_size": size} if size else {}
    splits = protocol.needs.load(data, channels=encoder.spec.channels, **where)
    evals = {protocol.name: settings}
    [result] = evaluate.measure({name: encoder}, evals, splits, out, data=data, verbose=True)
    at = f" at {side} pixels" if (side := result.recipe.get("image_size")) else ""
    for measure in result.measures():
        print(
            f"{protocol.name} on {display(data)}{at}: {measure.metric} {measure.text()}, the 95 % interval in brackets"
        )
    print(f"Added to {display(out)}.")
    if settings.get("save_to"):
        print(f"The classifier is in {display(settings['save_to'])}.")


def _own_data(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The images that are measured on where none are named, and what has to be known to load them."""
    from keras_sslhsic.runs import evaluate, folder

    if not options.run_folder:
        return "bundled", {}
    config = folder.load_config(options.run_folder)
    # A folder with train and test is named by its evaluation.
    named = [given["data"] for given in config.evals.values() if given.get("data")]
    if named and config.data.source != "bundled":
        return named[0], {"data_dir": config.data.get("data_dir")}
    return evaluate.own_data(config)


def _report(options: argparse.Namespace) -> None:
    from keras_sslhsic import evaluation

    print(evaluation.report(options.path, options.out))


def _reproduce(options: argparse.Namespace) -> None:
    _few_threads_an_operation()
    from keras_sslhsic.runs import claims, reproduce, tables

    if not re.fullmatch(r"\d+(,\d+)*", options.seeds):
        raise ValueError(f"--seeds are integers such as 1,2,3, found {options.seeds!r}.")
    check_writable(Path(options.records))
    records, seeds = Path(options.records), [int(seed) for seed in options.seeds.split(",")]
    large = options.row, options.workdir, *options.overrides
    if options.scale == "small" and any(large):
        raise ValueError("--row, --workdir and fields of a config go with --scale paper.")
    if options.table == "claims":
        print("\n".join(claims.lines(claims.recorded(records, run=True))))
        return
    of = tables.table(options.table)
    if options.scale == "small":
        reproduce.run_small(of, records, seeds)
        print("\n".join(reproduce.small_lines(of, records)))
    elif options.row is None:
        print("\n".join(reproduce.large_lines(of)))
    elif options.workdir is None:
        raise ValueError("--row wants the folder of its run: give --workdir.")
    else:
        reproduce.run_large(of, options.row, Path(options.workdir), options.overrides)
        print(f"The run is in {display(options.workdir)}.")


def _extract(options: argparse.Namespace) -> None:
    settings = options.batch_size, options.memory_mb, options.image_size
    if options.runner:
        from keras_sslhsic.zoo.shards import extract_shards

        extracted = extract_shards(
            options.model,
            options.data,
            options.out,
            options.runner,
            [f"--{option}" for option in (options.beam_options or "").split(",") if option],
            options.shards,
            *settings,
        )
    elif options.beam_options or options.shards:
        raise ValueError("--beam-options and --shards go with --runner, such as --runner DirectRunner.")
    else:
        from keras_sslhsic.zoo.extract import extract

        extracted = extract(options.model, options.data, options.out, *settings)
    out, data = display(extracted.out), display(options.data)
    size = f", of images of {extracted.image_size} pixels" if extracted.image_size else ""
    print(f"{extracted.rows} rows in {out}, {extracted.computed} of them computed now{size}.")
    if extracted.gone:
        print(f"{extracted.gone} images are no longer under {data}: their rows were left out.")
    if extracted.broken:
        named = f"{out}/*.broken.txt name" if options.runner else f"{out}.broken.txt names"
        count = "1 image" if len(extracted.broken) == 1 else f"{len(extracted.broken)} images"
        print(f"{count} could not be read; {named} them.")


def _index(options: argparse.Namespace) -> None:
    from keras_sslhsic.zoo import nearest

    collection = nearest.index(options.features, options.out)
    print(
        f"{len(collection.names)} images are in {display(options.out)}. keras-sslhsic search --index {display(options.out)} "
        "--image FILE finds the nearest to one."
    )


def _search(options: argparse.Namespace) -> None:
    from keras_sslhsic.data.inspect import check_sheet
    from keras_sslhsic.zoo import nearest

    collection = nearest.load(options.index)
    if options.sheet:
        check_sheet(collection.origin.folder, options.sheet)
    encoder = _load(options.model) if options.model else None
    found = nearest.search(collection, options.image, encoder, options.count)
    for file, similarity in found:
        print(f"{similarity:.4f}  {display(file)}")
    if not found:
        print("The index has no other image.")
    if options.sheet:
        nearest.draw(collection, options.image, found, options.sheet)
        print(f"A picture of them is in {display(options.sheet)}.")


def _export(options: argparse.Namespace) -> None:
    from keras_sslhsic import export

    export.write(_load(options.model), options.out, options.keep_batch_norm, options.image_size)
    print(f"Wrote {display(options.out)}.")


def _convert(options: argparse.Namespace) -> None:
    from keras_sslhsic.zoo.convert import convert

    noted = convert(options.source, options.to, heads=options.heads, expect=options.expect)
    for key, value in noted.items():
        print(f"{key}: {display(value)}")
    print(f"Wrote {display(options.to)}.")


def _inspect(options: argparse.Namespace) -> None:
    from keras_sslhsic.data import inspect_folder
    from keras_sslhsic.data.inspect import check_sheet
    from keras_sslhsic.files import write_json

    check_sheet(options.path, options.sheet)
    report = inspect_folder(
        options.path, channels=options.channels, verbose=True, memory_mb=options.memory_mb
    )
    print(report)
    report.save_contact_sheet(options.sheet)
    print(f"A contact sheet is in {display(options.sheet)}.")
    if options.json:
        write_json(options.json, report.to_dict())


def _models(options: argparse.Namespace) -> None:
    from keras_sslhsic.zoo import registry

    print(registry.format_table())


def _methods(options: argparse.Namespace) -> None:
    from keras_sslhsic.methods import METHODS

    for name, method in METHODS.items():
        print(f"{name:<14}{(method.__doc__ or '').partition(chr(10))[0]} {method.reference}")


def _load(name: str) -> Any:
    from keras_sslhsic.zoo import load_pretrained

    return load_pretrained(name)


if __name__ == "__main__":
    sys.exit(main())
