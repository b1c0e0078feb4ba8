"""Experiments as Python files: loading `get_config()`, and changing fields from the command line."""

import difflib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from keras_sslhsic import checks
from keras_sslhsic.evaluation.compare import QUICK
from keras_sslhsic.files import display


def load(path: str | Path, overrides: Sequence[str] = ()) -> ConfigDict:
    """Loads a config file and applies overrides.

    Args:
        path: a Python file that defines `get_config() -> ml_collections.ConfigDict`.
        overrides: `field=value` or `field.sub=value`, values as Python literals; a word that is none is a string.

    Returns:
        The config, locked: no field can be added to it.

    Raises:
        ValueError: for a file that is no Python, cannot be run, or has no `get_config` that returns a ConfigDict (or a
            dict); an unknown field; or a value of another type.
    """
    path = Path(path)
    if not path.is_file() or path.suffix != ".py":
        raise ValueError(
            f"There is no config file {display(path)}. Configs are Python files (.py) with a function get_config()."
        )
    # Named as `import` would name it: a model file of a method defined here then loads after either.
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while it runs.
    added = sys.modules.setdefault(path.stem, module) is module
    try:
        spec.loader.exec_module(module)
        config = module.get_config() if hasattr(module, "get_config") else None
        config = ConfigDict(config) if isinstance(config, dict) else config
    except Exception as error:
        raise ValueError(
            f"The config {display(path)} cannot be run: {type(error).__name__}: {display(error)}"
        ) from error
    finally:
        if added:
            del sys.modules[path.stem]
    if not isinstance(config, ConfigDict):
        raise ValueError(
            f"{display(path)} defines no get_config() that returns a ConfigDict; a config is such a function."
        )
    if unnamed := [name for name in config if not isinstance(name, str)]:
        raise ValueError(f"The fields of a config have names, found {unnamed[0]!r} in {display(path)}.")
    config.lock()
    for override in overrides:
        set_field(config, *parse(override))
    return config


def completed(config: ConfigDict) -> ConfigDict:
    """A copy of a run's config with the fields that came after the first runs: they were all of SSL-HSIC, and those of the
    bundled images ended with two evaluations. A config file may leave the fields out likewise.

    Raises:
        AttributeError: if it lacks a field that every config has.
    """
    evals = dict(QUICK) if config.data.source == "bundled" else {}
    return ConfigDict({"method": "ssl_hsic", "evals": evals} | config.to_dict()).lock()


def parse(override: str) -> tuple[str, Any]:
    """The field and the value of `field=value`; see `load`."""
    field, equals, text = override.partition("=")
    if not equals:
        raise ValueError(f"An override is field=value, found {override!r}.")
    return field, checks.literal(text)


def set_field(config: ConfigDict, field: str, value: Any) -> None:
    """Sets a field of a config by its dotted name; see `load`."""
    known = list(flatten(config))
    if field not in known:
        if inside := [name for name in known if name.startswith(f"{field}.")]:
            raise ValueError(
                f"The field {field} holds others, which are set one by one: {', '.join(inside)}."
            )
        nearest = difflib.get_close_matches(field, known, n=3, cutoff=0.4) or known
        raise ValueError(f"The config has no field {field!r}. The nearest ones: {', '.join(nearest)}.")
    *parents, name = field.split(".")
    for parent in parents:
        config = config[parent]
    if isinstance(config[name], tuple) and isinstance(value, (list, tuple)):
        value = tuple(value)
    try:
        config[name] = value
    except TypeError as error:
        raise ValueError(
            f"The field {field} is {type(config[name]).__name__} ({config[name]!r}); {value!r} is {type(value).__name__}."
        ) from error


def flatten(config: ConfigDict) -> dict[str, Any]:
    """{dotted name: value} of every leaf."""
    leaves = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict) and len(value):
            leaves.update({f"{name}.{sub}": v for sub, v in flatten(value).items()})
        else:
            leaves[name] = value
    return leaves
