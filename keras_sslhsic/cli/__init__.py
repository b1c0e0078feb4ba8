"""The command line.

keras-sslhsic pretrain | config | reproduce | evaluate | report | extract | index | search | inspect | export | convert |
models | methods
"""

import argparse
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from keras_sslhsic import checks
from keras_sslhsic.cli import evaluation, images, interrupts, models, training
from keras_sslhsic.files import FULL, check_writable, display
from keras_sslhsic.version import __version__

# Each command imports what it needs: help, and what a look at the arguments refuses, come without TensorFlow.

TRACEBACK = "KERAS_SSLHSIC_TRACEBACK"

# Flags that are natural numbers, and the largest of each.
_NUMBERS = {
    "image_size": 2**14,
    **dict.fromkeys(("epochs", "batch_size", "memory_mb", "count"), 2**31 - 1),
}

# Flags of files and folders that are read -> what may be the name of something else.
_ENCODER = r"\w+|.+://.+"
_READ = {
    **dict.fromkeys(("config", "path", "source", "run_folder", "features", "index", "image"), ""),
    **dict.fromkeys(("model", "encoder", "init"), _ENCODER),
    "data": r"\w+(/[\w.+-]+)?(:[\w.*]+)?",  # of a data set of TensorFlow Datasets
}

# What bad input raises, beside TensorFlow's errors.
UNUSABLE = (ValueError, OSError, ImportError, FloatingPointError, RuntimeError)


def main(arguments: Sequence[str] | None = None, prepare: Callable[[], None] = lambda: None) -> int:
    """Runs a command; returns the exit status: 0, 2 for input that cannot be used, 130 for Ctrl-C.

    Args:
        arguments: words of the command; None: those of the process.
        prepare: is called before anything of the package but `cli` is imported.
    """
    options = argparse.Namespace(command="", traceback=False)
    try:
        with interrupts.kept():
            try:
                _run(options, arguments, prepare)
            except SystemExit:  # of help
                _flush()
                raise
            _flush()
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads the output, as `head`, has enough
        _drop_output()
        return 128 + signal.SIGPIPE
    except Exception as error:
        if not isinstance(error, UNUSABLE) and not _is_op_error(error):
            raise
        if options.traceback or os.environ.get(TRACEBACK) == "1":
            traceback.print_exception(error)
            return 2
        reason = "\n".join(map(display, _explain(error).split("\n")))
        hint = "" if _is_ours(error) else f" (keras-sslhsic --traceback {options.command} ... shows where.)"
        _drop_output()
        command = f"keras-sslhsic {options.command}".rstrip()
        print(f"{command}: {reason}{hint}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace, arguments: Sequence[str] | None, prepare: Callable[[], None]) -> None:
    """Runs a command, whose options are put into `options`."""
    parser = _parser()
    _, rest = parser.parse_known_args(arguments, options)
    if options.command == "evaluate" and not options.protocol and {"-h", "--help"} & {*rest}:
        options.print_help()
        return
    if options.command != "evaluate":
        options.overrides = [_override(parser, argument, options) for argument in rest]
    _check(options)
    prepare()
    if options.command == "evaluate":
        if options.config:
            # It may register a protocol, whose settings are flags then.
            from keras_sslhsic.runs import config

            config.load(options.config)
        parser = _parser(settings_of=options.protocol or "all")
        options, rest = parser.parse_known_args(arguments)
        options.overrides = [_override(parser, argument, options) for argument in rest]
        _check(options)
    options.run(options)


def _flush() -> None:
    """Prints what is still to be: at its exit, Python could but complain that it fails."""
    print(end="", flush=True)


def _drop_output() -> None:
    """Drops what is still to be printed if that fails."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _check(options: argparse.Namespace) -> None:
    """Raises ValueError for an empty value or a number that cannot be, and OSError for a file or folder that there is not, or
    where the output could not be written in the end."""
    os.getcwd()  # raises where it was deleted
    for name, value in vars(options).items():
        if value == "":
            raise ValueError(f"the value of {name} is empty.")
    checks.integer("seed", getattr(options, "seed", None), 0, optional=True)
    for name, most in _NUMBERS.items():
        number = getattr(options, name, None)
        if number is not None and options.command != "evaluate":  # whose settings check themselves
            checks.integer(name, number, 1, most=most)
    written = (getattr(options, name, None) for name in ("out", "to", "sheet", "json"))
    for path in map(Path, filter(None, written)):
        of_one_file = options.command == "export" and path.suffix.lower() in (".tflite", ".onnx")
        of_folder = options.command in ("export", "report", "index") or getattr(options, "runner", None)
        check_writable(path, folder=bool(of_folder) and not of_one_file)
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
    prepared = os.path.expanduser(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")
    if name not in known and not os.path.isdir(os.path.join(prepared, name)):
        raise ValueError(
            f"{display(given)} is no folder, and TensorFlow Datasets has no data set of that name."
        )


def _explain(error: Exception) -> str:
    """What an error says, as a sentence."""
    if isinstance(error, FileNotFoundError) and error.errno and not error.filename:
        if "temporary directory" in str(error):  # TensorFlow's import asks for it
            return "no folder takes temporary files: make room on the disk, or set TMPDIR to one that can be written to."
        return "the current folder was deleted: change to one that exists."  # of `os.getcwd`
    if isinstance(error, OSError) and error.errno in FULL and not error.filename:
        return f"what is printed, or a file, cannot be written: {error.strerror}."
    if isinstance(error, FileNotFoundError) and error.errno:
        return f"there is no file or folder {display(error.filename)}; give one that exists."
    if isinstance(error, OSError) and error.filename:
        return f"{display(error.filename)}: {error.strerror}."
    if _is_op_error(error) and "Collective ops is aborted" in str(error):
        return (
            "another worker has ended, or cannot be reached: start all of them again, pretrain with --resume."
        )
    if _is_op_error(error):  # the reason, its type, and a traceback of what a pipeline ran
        graph = r"Graph execution error:\n(.*\n)*?<stack traces unavailable>\n"
        where = (
            rf"^({graph})?(\{{\{{.*?\}}\}} )?(Error in user-defined function .*? Iterator::\S+: )?[\w.]+: "
        )
        of_node = r"^\{\{.*?\}\} | \[Op:\w+\]( name: )?$"  # of an operation that is run by itself
        return re.sub(of_node, "", re.sub(where, "", str(error).split("\nTraceback")[0]))
    return str(error)


def _is_ours(error: Exception) -> bool:
    """Whether the sentence was written here: by `_explain`, or by code of this package (in a pipeline, in its traceback)."""
    if isinstance(error, OSError) and error.filename:
        return True
    raised_in = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if _is_op_error(error):
        raised_in = re.findall(r'^  File "(.*?)", line', str(error), re.MULTILINE)
    return bool(raised_in) and Path(__file__).parents[1] in Path(raised_in[-1]).parents


def _is_op_error(error: Exception) -> bool:
    return "OpError" in (kind.__name__ for kind in type(error).__mro__)


def _parser(settings_of: str | None = None) -> argparse.ArgumentParser:
    """The parser; with the settings of protocols, which are known once these are imported, and help on those of one, or of
    "all"."""
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
    training.add(commands)
    evaluation.add(commands, settings_of)
    images.add(commands)
    models.add(commands)
    return parser


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
