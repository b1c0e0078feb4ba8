"""What several commands share: flags, and the encoder that a flag names."""

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


def command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], summary: str, add_help: bool = True
) -> argparse.ArgumentParser:
    """Adds a command; `run` gets what it is called with."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        allow_abbrev=False,
        add_help=add_help,
    )
    parser.set_defaults(run=run)
    return parser


def memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory-mb", type=int, default=1024, help="memory for images, in 2^20 bytes (default: 1024)"
    )


def image_size(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--image-size",
        type=int,
        help=f"side {what} (default: that it reads, resizes to or was trained at, where it is known)",
    )


@contextlib.contextmanager
def saying_what_is_saved(said: Callable[[], str]) -> Iterator[None]:
    """Of what Ctrl-C stops, prints what is saved and how to go on, if there is something to say."""
    try:
        yield
    except KeyboardInterrupt:
        if text := said():
            print(f"\n{text}", file=sys.stderr)
        raise


def load(name: str) -> Any:
    from keras_sslhsic.zoo import load_pretrained

    return load_pretrained(name)
