"""The command line: keras-sslhsic pretrain | evaluate | extract | export | convert | inspect | models | report."""

import argparse
import sys
from collections.abc import Sequence

from keras_sslhsic.version import __version__

# TensorFlow takes seconds to import, so each command imports what it needs, and --help needs nothing.


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit status: 0, or 2 for input that cannot be used."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    options.overrides = [_override(parser, argument, options) for argument in rest]
    try:
        options.run(options)
    except (ValueError, FileNotFoundError, FloatingPointError, RuntimeError) as error:
        print(f"keras-sslhsic: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped. Finished epochs are saved; add --resume to go on.", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="keras-sslhsic",
        description="Self-supervised learning with kernel dependence maximisation (SSL-HSIC), for Keras.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    pretrain = _command(commands, "pretrain", _pretrain, "train an encoder without labels")
    pretrain.add_argument("--config", required=True, help="a Python file with get_config(), such as configs/fashion_small.py")
    pretrain.add_argument("--config.FIELD", metavar="VALUE", help="change a field of the config, e.g. --config.epochs=5")
    pretrain.add_argument("--workdir", required=True, help="the run folder; made if it is missing")
    pretrain.add_argument("--resume", action="store_true", help="go on with the run that the folder holds")
    return parser


def _command(commands, name, run, summary, **keywords):
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".", **keywords)
    parser.set_defaults(run=run)
    return parser


def _override(parser, argument, options):
    """`epochs=5` of `--config.epochs=5`."""
    if not hasattr(options, "config") or not argument.startswith("--config.") or "=" not in argument:
        parser.error(f"unrecognized argument: {argument} (a field of the config is changed with --config.field=value)")
    return argument.removeprefix("--config.")


def _pretrain(options):
    from keras_sslhsic import config, experiment

    settings = config.load(options.config, options.overrides)
    summary = experiment.pretrain(settings, options.workdir, options.resume)
    if summary["results"]:
        print(experiment.format_table(summary["results"]))
    print(f"The run is in {options.workdir}: curves.png, views.png, features.png, encoder.keras, summary.json.")


if __name__ == "__main__":
    sys.exit(main())
