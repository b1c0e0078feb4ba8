"""Checks of single arguments, for every module that takes them."""

import ast
import math
from numbers import Integral, Real
from typing import Any

import numpy as np


def integer(name: str, value: Any, least: int, optional: bool = False, most: int = 2**31 - 1) -> None:
    """Raises ValueError unless `value` is an integer from `least` to `most`, or None where it is `optional`.

    The default of `most` is the largest int32, as TensorFlow counts.
    """
    if optional and value is None:
        return
    none = "None or " if optional else ""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise ValueError(f"{name} must be {none}an integer, found {value!r}.")
    if value < least:
        raise ValueError(f"{name} must be {none}at least {least}, found {value}.")
    if int(value) > most:
        raise ValueError(f"{name} must be {none}at most {most:,}, found {value:,}.")


def number(name: str, value: Any, least: float = 0.0, above: bool = False, most: float | None = None) -> None:
    """Raises ValueError unless `value` is a finite number of at least `least`, or `above` it, and at most `most`."""
    if not isinstance(value, Real) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, found {value!r}.")
    if value < least or (above and value == least):
        raise ValueError(f"{name} must be {'above' if above else 'at least'} {least:g}, found {value:g}.")
    if most is not None and float(value) > most:
        raise ValueError(f"{name} must be at most {most:g}, found {value:g}.")


def sides(name: str, value: Any) -> tuple[int, int]:
    """(height, width) of a side of both, or of two; raises ValueError for anything else."""
    two = list(value) if isinstance(value, tuple | list | np.ndarray) else [value, value]
    if len(two) != 2:
        raise ValueError(f"{name} must be an integer, or two, height and width, found {value!r}.")
    for side in two:
        integer(name, side, 1)
    return int(two[0]), int(two[1])


def flag(name: str, value: Any, optional: bool = False) -> None:
    """Raises ValueError unless `value` is True or False, or None where it is `optional`."""
    if not isinstance(value, (bool, np.bool_)) and not (optional and value is None):
        choices = "True, False or None" if optional else "True or False"
        raise ValueError(f"{name} must be {choices}, found {value!r}.")


def choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises ValueError unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, found {value!r}.")


def literal(text: str) -> Any:
    """What a text of a command line means: a Python literal; a word that is none is a string."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
