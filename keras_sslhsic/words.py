"""Words for messages."""

import sys
import warnings

_BELOW = {"keras_sslhsic", "keras", "tensorflow", "contextlib"}


def counted(number: int, noun: str) -> str:
    """ "1 image", "2,000 images"."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def warn(message: str) -> None:
    """Warns, as of the line that called this package, Keras or TensorFlow.

    Python shows a warning of one line once, and one of a line of a notebook each time that its cell is run: were it of a line
    in here, a training that is run again would not be warned of again.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BELOW:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)
