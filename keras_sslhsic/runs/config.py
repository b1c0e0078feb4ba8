"""Experiments as Python files: loading `get_config()`, changing fields from the command line, filling in defaults."""

import contextlib
import dataclasses
import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from keras_sslhsic import checks, views
from keras_sslhsic.data.sources import SOURCES
from keras_sslhsic.encoders.spec import LARGEST_SIDE
from keras_sslhsic.evaluation.compare import QUICK
from keras_sslhsic.files import display
from keras_sslhsic.losses import LOSSES
from keras_sslhsic.methods import METHODS
from keras_sslhsic.runs import schema
from keras_sslhsic.words import warn


def load(path: str | Path, overrides: Sequence[str] = ()) -> ConfigDict:
    """Loads a config file and applies overrides: see `read` and `overridden`."""
    return overridden(read(path), overrides)


def read(path: str | Path) -> ConfigDict:
    """Loads a config file.

    Args:
        path: a Python file that defines `get_config() -> ml_collections.ConfigDict`.

    Returns:
        The config, locked: no field can be added to it.

    Raises:
        ValueError: for a file that is no Python, cannot be run, or has no `get_config` that returns a ConfigDict (or a dict).
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
        # A frozen one can be changed then; a value that is required and missing raises.
        if isinstance(config, (dict, ConfigDict)):
            config = ConfigDict(config).copy_and_resolve_references()
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
    return config.lock()


def overridden(
    config: ConfigDict,
    overrides: Sequence[str],
    filled: Callable[[ConfigDict], ConfigDict] = lambda config: config,
) -> ConfigDict:
    """A config with some fields changed.

    Args:
        config: of a run, or settings of a protocol.
        overrides: `field=value` or `field.sub=value`, values as Python literals; a word that is none is a string. Of a run,
            fields that the file leaves out too. A choice (method, loss.name, data.source, optimizer.name) leaves out what
            the file has for the former one and the new one does not take, with a warning; data.path and data.name choose the
            source too.
        filled: is called once the images, the method and the numbers of the run itself are set, for what is left out then.

    Raises:
        ValueError: for an unknown field, or a value of another type.
    """
    given = dict(map(parse, overrides))
    for name, source in (("path", "folder"), ("name", "tfds")):
        if f"data.{name}" in given and not _takes(config, name):
            given.setdefault("data.source", source)
    config = config.copy_and_resolve_references().unlock()
    # Choices come first: they say which other fields there are.
    fields = sorted(given, key=lambda field: (*_FIRST, field).index(field))
    before = [field for field in fields if "." not in field or field.startswith("data.")]
    if "views" not in config and config.get("data"):
        # What is filled in goes by the size alone.
        if isinstance(given.get("views"), str):
            config["views"] = ConfigDict({"size": views.get(given["views"]).size})
            before.remove("views")
        elif "views.size" in given:
            config["views"] = ConfigDict({"size": given.pop("views.size")})
            fields.remove("views.size")
    for field in before:
        set_field(config, field, given[field])
    config = filled(config)
    # Views last: while some of their fields are set, there may be none that have the others.
    for field in sorted(fields, key=lambda field: field.startswith("views.")):
        if field not in before:
            set_field(config, field, given[field])
    return config.lock()


# Fields that say which others there are: the part of the config that has those, and the names of a choice -> the fields.
_GOVERNED: Mapping[str, tuple[str, Callable[[str], schema.Fields]]] = {
    "data.source": ("data", schema.source_fields),
    "method": ("model", schema.method_fields),
    "loss.name": ("loss", schema.loss_fields),
    # What suits one optimizer is far from what suits another.
    "optimizer.name": (
        "optimizer",
        lambda name: schema.fields_of(schema.Optimizer, "learning_rate", "weight_decay"),
    ),
}
# They are set first, in this order; presets of views before single fields.
_FIRST = (*_GOVERNED, "views")


def completed(config: ConfigDict) -> ConfigDict:
    """A copy of a run's config with the defaults of fields that it leaves out.

    Raises:
        ValueError: for a field of the run that is unknown or of another type. `check` sees to the others.
    """
    given = config.to_dict()
    schema.check("", schema.fields_of(schema.Run), given)
    data = given["data"] = {**given.get("data", {})}
    data.setdefault("source", "folder" if "path" in data else "tfds" if "name" in data else "bundled")
    for section, part in (("optimizer", schema.Optimizer), ("checkpoints", schema.Checkpoints)):
        schema.check(section, schema.fields_of(part), given.get(section, {}))
        given[section] = dataclasses.asdict(part(**given.get(section, {})))
    if given.get("evals") is None:
        given["evals"] = dict(QUICK) if data["source"] == "bundled" else {}
    run = dataclasses.asdict(schema.Run(**given))
    try:
        policy = views.get(run["views"])
        checks.integer("size", policy.size, 1, most=LARGEST_SIDE)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"The views of the config cannot be made: {error}") from error
    run["views"] = policy.to_dict()
    new = {"name": "r18_1x", "input_shape": (None, None, len(policy.mean))} | run["encoder"]
    run["encoder"] = {} if run["init"] else new
    if run["loss"] and run["method"] in METHODS:
        run["loss"].setdefault("name", schema.loss_of(run["method"]))
    if data["source"] in SOURCES and "channels" in schema.source_fields(data["source"]):
        data.setdefault("channels", len(policy.mean))
    return ConfigDict(run | {"data": data}).lock()


def check(config: ConfigDict) -> None:
    """Raises ValueError for a field of a completed config that is missing, unknown or of another type."""
    for section, fields in _sections(config).items():
        values: Any = config
        for name in filter(None, section.split(".")):
            values = values[name]
        if values is not None:
            schema.check(section, fields, values)


def _sections(config: ConfigDict) -> dict[str, schema.Fields]:
    loss = config.loss.get("name") if config.loss else None
    return schema.sections(
        config.data.source, config.method, loss or schema.loss_of(config.method), config.init
    )


def _takes(config: ConfigDict, name: str) -> bool:
    """Whether the source of a config's data takes a field, or follows from it."""
    data = config.get("data", {})
    return name in data or name in schema.source_fields(data.get("source", "bundled"))


def parse(override: str) -> tuple[str, Any]:
    """The field and the value of `field=value`; see `load`."""
    field, equals, text = override.partition("=")
    if not equals:
        raise ValueError(f"An override is field=value, found {override!r}.")
    return field, checks.literal(text)


def set_field(config: ConfigDict, field: str, value: Any) -> None:
    """Sets a field of a config by its dotted name; see `load`."""
    leaves = flatten(config)
    *parents, name = field.split(".")
    preset = field == "views" and isinstance(value, str)
    if field not in leaves and not preset:
        if inside := [leaf for leaf in leaves if leaf.startswith(f"{field}.")]:
            if field == "evals" and value == {}:
                with config.unlocked():
                    config.evals = ConfigDict()
                return
            none = (
                "; evals.PROTOCOL.SETTING adds one, and evals={} leaves all out" if field == "evals" else ""
            )
            raise ValueError(
                f"The field {field} holds others, which are set one by one: {', '.join(inside)}{none}."
            )
        known = [*dict.fromkeys([*leaves, *_fields_left_out(config)])]
        if field not in known and parents[:1] != ["evals"]:
            raise ValueError(schema.unknown(field, known))
    if field in _GOVERNED and value != _chosen(config, field):
        _leave_out(config, field, value)
    with config.unlocked():
        if preset or (parents[:1] == ["views"] and not isinstance(config.get("views"), ConfigDict)):
            policy = views.get(value if preset else config.get("views", "byol"))
            with config.ignore_type():
                config.views = ConfigDict(policy.to_dict())
        if preset:
            return
        if parents == ["loss"] and name != "name" and not config.get("loss"):
            config.loss = ConfigDict({"name": schema.loss_of(config.get("method", "ssl_hsic"))})
        for parent in parents:
            if config.get(parent) is None:
                config[parent] = ConfigDict()
            config = config[parent]
        if isinstance(config.get(name), tuple) and isinstance(value, (list, tuple)):
            value = tuple(value)
        try:
            config[name] = value
        except TypeError as error:
            raise ValueError(
                f"The field {field} is {type(config[name]).__name__} ({config[name]!r}); {value!r} is {type(value).__name__}."
            ) from error


def _fields_left_out(config: ConfigDict) -> list[str]:
    """The dotted names of all fields that a run of this config may have; none if it is the config of something else."""
    try:
        sections = _sections(completed(config))
    except ValueError:
        if isinstance(config.get("data"), ConfigDict):  # of a run, which cannot be made
            raise
        return []
    names = [f"{section}.{name}" for section, fields in sections.items() for name in fields]
    return [name for name in (name.removeprefix(".") for name in names) if name not in sections]


def _chosen(config: ConfigDict, choice: str) -> Any:
    """What a config has for a choice, be it by default."""
    with contextlib.suppress(ValueError):
        config = completed(config)
    return flatten(config).get(choice)


def _leave_out(config: ConfigDict, choice: str, value: Any) -> None:
    """Removes what a config has for its former choice, and the new one does not take; says so."""
    section, fields = _GOVERNED[choice]
    takes, model = fields(value), config.get("model") or {}
    gone = [f"{section}.{name}" for name in config.get(section) or {} if name not in takes]
    if choice == "data.source":
        gone.append("model.num_classes")
    elif choice == "method":
        gone += ["model.target", "model.predictor"]
        if config.get("loss") and config.loss.name != schema.loss_of(value):
            gone.append("loss")
    elif choice == "loss.name":
        needs = {part: getattr(LOSSES[value], f"needs_{part}") for part in ("target", "predictor")}
        gone += [f"model.{part}" for part, need in needs.items() if need not in (None, model.get(part))]
    gone = [field for field in dict.fromkeys(gone) if field in flatten(config) or field == "loss"]
    with config.unlocked():
        for field in gone:
            *parents, name = field.split(".")
            del functools.reduce(ConfigDict.__getitem__, parents, config)[name]
    if gone:
        warn(
            f"{choice}={value}: what the config says for another one is left out: {', '.join(gone)}.",
        )


def flatten(config: ConfigDict) -> dict[str, Any]:
    """{dotted name: value} of every leaf."""
    leaves = {}
    for name, value in config.items():
        if isinstance(value, ConfigDict) and len(value):
            leaves.update({f"{name}.{sub}": v for sub, v in flatten(value).items()})
        else:
            leaves[name] = value
    return leaves
