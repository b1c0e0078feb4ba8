"""The fields of a run's config: name, type, default and meaning of each.

Those of the run itself stand here. The others are the arguments of what the config names (an encoder, a data source, a
method, a loss), whose signatures and docstrings say them.
"""

import dataclasses
import difflib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from keras_sslhsic import checks
from keras_sslhsic.data.order import Order
from keras_sslhsic.data.sources import SOURCES
from keras_sslhsic.encoders import build_encoder
from keras_sslhsic.losses import LOSSES
from keras_sslhsic.methods import METHODS
from keras_sslhsic.training.callbacks import ViewSizes
from keras_sslhsic.views import ViewPolicy

REQUIRED = inspect.Parameter.empty


# The learning rate for 256 images and the weight decay of each optimizer, where a config says neither: the paper's, the
# default run's, and SimSiam's (whose decay of 1e-4 goes through a momentum of 0.9, which Keras's does not).
RATES = {"lars": (0.4, 1e-6), "adamw": (8e-3, 0.0), "sgd": (0.05, 1e-3)}


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What trains the networks; the learning rate is warmed up, and goes to zero on a cosine.

    Attributes:
        name: a key of `runs.build.OPTIMIZERS`.
        learning_rate: the peak for a batch of 256; the peak itself is in proportion to the batch. None: 0.4 for lars, 0.008
            for adamw, 0.05 for sgd.
        weight_decay: of everything but biases and BatchNorm. None: 1e-6 for lars, 0.001 for sgd, else 0.
        warmup_epochs: until the peak.
    """

    name: str = "lars"
    learning_rate: float | None = None
    weight_decay: float | None = None
    warmup_epochs: int = 10

    def __post_init__(self) -> None:
        rate, decay = RATES.get(self.name, (None, 0.0))
        if self.learning_rate is None:
            object.__setattr__(self, "learning_rate", rate)
        if self.weight_decay is None:
            object.__setattr__(self, "weight_decay", decay)
        if self.learning_rate is not None:
            checks.number("optimizer.learning_rate", self.learning_rate)
        checks.number("optimizer.weight_decay", self.weight_decay)
        checks.integer("optimizer.warmup_epochs", self.warmup_epochs, 0)


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """Which of the checkpoints, one an epoch, stay; a run goes on with the newest.

    Attributes:
        keep: how many of the newest.
        best: what is logged, and more of which is better: online_accuracy, or the measure of an evaluation with "every", such
            as knn_top1. The checkpoint of the epoch with the largest value stays too, and the run ends with its encoder in
            best_encoder.keras. None: the newest alone.
    """

    keep: int = 2
    best: str | None = None

    def __post_init__(self) -> None:
        checks.integer("checkpoints.keep", self.keep, 1)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run: what is trained, on what, and for how long.

    Attributes:
        name: of the run, for its summary.
        seed: of the weights, the order of the images and the views.
        epochs: passes over the images.
        batch_size: images of a step, on all devices together.
        strategy: the machines, as `keras_sslhsic.strategy` takes them.
        precision: Keras's dtype policy: float32, mixed_bfloat16 or mixed_float16.
        steps_per_execution: steps in one call of the device program, at most: as many as divide an epoch; more keep a fast
            device busier.
        chunks: parts of a device's share of the batch that go through the networks one after the other, where the whole does
            not fit into its memory; the loss stays that of the whole batch.
        data: the images.
        encoder: the network that is trained: an r18_1x for images of the views' channels, where nothing else is said.
        init: an encoder that the training starts from, with its network and weights in the place of `encoder`: a run folder,
            a name of the zoo or a file. None: a new network.
        method: which networks follow the encoder, and how views are compared.
        model: arguments of the method.
        views: what is done to an image to make its views; the fields below, or the name of a preset.
        view_sizes: sides of views from small to large, for equal parts of the epochs one after the other, the last of them
            that of the views: training on small views first takes less time. None given: one size throughout.
        loss: the loss and its arguments; None is the method's own.
        optimizer: the optimizer and its learning rate.
        target_ema: decay of the target network's moving average at the beginning; it rises to 1, but MoCo's, which stays.
        evals: label -> evaluation at the end: its "protocol" where that is not the label, "data" where it measures on other
            images than those of the run, "every" so many epochs while it trains, and settings of the protocol; {} for none.
            None: kNN and a linear classifier on the bundled images, none on others.
        checkpoints: which checkpoints stay.
    """

    name: str = "run"
    seed: int = 0
    epochs: int = 100
    batch_size: int = 256
    strategy: str = "auto"
    precision: str = "float32"
    steps_per_execution: int = 1
    chunks: int = 1
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    encoder: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    init: str | None = None
    method: str = "ssl_hsic"
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    views: str | Mapping[str, Any] | None = "byol"
    view_sizes: Sequence[int] = ()
    loss: Mapping[str, Any] | None = None
    optimizer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    target_ema: float = 0.99
    evals: Mapping[str, Any] | None = None
    checkpoints: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, 0)
        checks.number("target_ema", self.target_ema, most=1.0)
        for name in ("epochs", "batch_size", "steps_per_execution", "chunks"):
            checks.integer(name, getattr(self, name), 1)
        checks.choice("precision", self.precision, ("float32", "mixed_bfloat16", "mixed_float16"))
        if self.view_sizes:
            ViewSizes(self.view_sizes)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a config.

    Attributes:
        type: its annotation.
        default: `REQUIRED` where it has none.
        help: what it means.
    """

    type: Any
    default: Any = REQUIRED
    help: str = ""

    def __str__(self) -> str:
        if _is_part(self):
            return f"(a mapping): {self.help}"
        default = "required" if self.default is REQUIRED else f"default {self.default!r}"
        return f"({_said(self.type)}, {default}): {self.help}".removesuffix(": ")


Fields = dict[str, Field]


def fields_of(thing: Callable[..., Any], *left_out: str, inherited: bool = False) -> Fields:
    """The arguments of a class or a function as fields.

    Args:
        thing: the class or function.
        left_out: arguments that a config does not give.
        inherited: whether `**options` of a class are the arguments of its bases, up to those of Keras.
    """
    makers: list[Any] = [thing]
    if inherited and isinstance(thing, type):
        own = (cls for cls in thing.__mro__ if not cls.__module__.startswith(("keras.", "builtins")))
        makers = [cls for cls in own if "__init__" in vars(cls)] or [thing]
    found: Fields = {}
    for maker in makers:
        parameters = inspect.signature(maker).parameters.values()
        hints, meanings = _hints(maker), _meanings(maker)
        for p in parameters:
            if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in (*left_out, *found):
                default = p.default
                if dataclasses.is_dataclass(maker):
                    default = _default(maker, p.name, default)
                kind, meaning = hints.get(p.name, Any), meanings.get(p.name, "")
                if dataclasses.is_dataclass(kind):
                    meaning = " ".join((inspect.getdoc(kind) or "").split())
                found[p.name] = Field(kind, default, meaning)
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    return found


def _default(cls: Any, name: str, default: Any) -> Any:
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    return default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _hints(thing: Any) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(vars(thing)["__init__"] if isinstance(thing, type) else thing)
    except (KeyError, NameError, TypeError):  # annotations of somebody's module that name what is not there
        return {}


def _meanings(thing: Any) -> dict[str, str]:
    """What a docstring says of arguments and attributes."""
    found: dict[str, str] = {}
    inside, name = False, ""
    for line in (inspect.getdoc(thing) or "").splitlines():
        if line and not line.startswith(" "):
            inside, name = line in ("Args:", "Attributes:"), ""
        elif inside and (match := re.match(r" {4}(\w+): (.*)", line)):
            name = match[1]
            found[name] = match[2]
        elif inside and line.startswith(" " * 5) and name:
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return found


_SOURCE = Field(
    str,
    "bundled",
    "a key of `data.sources.SOURCES`; where there is a `path` it is folder, with a `name` tfds.",
)
_LOSS = Field(str, REQUIRED, "a key of `losses.LOSSES`.")


def source_fields(name: str) -> Fields:
    """Those of `data`, for a data source; `batch_size` and `seed` are the run's."""
    own = fields_of(SOURCES[name], "batch_size", "seed", "error_log")
    order = fields_of(Order, "num_examples", "batch_size", "seed")
    return {"source": dataclasses.replace(_SOURCE, default=name)} | own | order


def method_fields(name: str) -> Fields:
    """Those of `model`, for a method."""
    return fields_of(METHODS[name], "encoder", "views", "seed", inherited=True)


def loss_fields(name: str) -> Fields:
    """Those of `loss`, for a loss."""
    return {"name": _LOSS} | fields_of(LOSSES[name], "name", inherited=True)


def loss_of(method: str) -> str | None:
    """The name of the loss that a method has where a config names none; None if it is not registered."""
    default = METHODS[method].default_loss
    return next((name for name, loss in LOSSES.items() if loss is default), None)


def sections(source: str, method: str, loss: str | None, init: str | None = None) -> dict[str, Fields]:
    """The fields of every part of a config, "" for the config itself; with `init` there is none of a new network.

    Raises:
        ValueError: for an unknown source, method or loss.
    """
    views = fields_of(ViewPolicy)
    parts = {f"views.{name}": fields_of(part.type) for name, part in views.items() if _is_part(part)}
    return {
        "": fields_of(Run),
        "data": source_fields(source),
        **({} if init else {"encoder": fields_of(build_encoder)}),
        "model": method_fields(method),
        "views": views,
        **parts,
        **({"loss": loss_fields(loss)} if loss else {}),
        "optimizer": fields_of(Optimizer),
        "checkpoints": fields_of(Checkpoints),
    }


def _is_part(field: Field) -> bool:
    return dataclasses.is_dataclass(field.type)


def check(section: str, fields: Fields, values: Mapping[str, Any]) -> None:
    """Raises ValueError for a value of `section` that is missing, unknown or of another type."""
    where = f"{section}." if section else ""
    for name, value in values.items():
        if name not in fields:
            raise ValueError(unknown(f"{where}{name}", [f"{where}{known}" for known in fields]))
        if not _is_part(fields[name]) and not _fits(value, fields[name].type):
            raise ValueError(
                f"The field {where}{name} of the config must be {_said(fields[name].type)}, found {value!r}."
            )
    for name, field in fields.items():
        if field.default is REQUIRED and name not in values:
            meaning = (field.help or _said(field.type)).split(". ")[0].rstrip(".")
            raise ValueError(f"The config lacks {where}{name} ({meaning}): give it.")


def unknown(field: str, known: Sequence[str]) -> str:
    """The sentence for a field that there is not."""
    nearest = difflib.get_close_matches(field, known, n=3, cutoff=0.4) or known
    return f"The config has no field {field!r}. The nearest ones: {', '.join(nearest)}."


_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "True or False", type(None): "None"}


def _said(kind: Any) -> str:
    """A type in words: "None or an integer"."""
    args = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        # None comes last in annotations, and reads better first.
        return " or ".join(dict.fromkeys(_said(a) for a in sorted(args, key=lambda a: a is not type(None))))
    if typing.get_origin(kind) in (tuple, list, Sequence):
        words = {int: "integers", float: "numbers"}.get((*args, None)[0])
        fixed = typing.get_origin(kind) is tuple and Ellipsis not in args
        several = f"{len(args)} {words}" if fixed else f"a list of {words}"
        return several if words else "a list"
    if typing.get_origin(kind) in (dict, Mapping) or _is_part(Field(kind)):
        return "a mapping"
    if kind in _WORDS:
        return _WORDS[kind]
    return "a path" if getattr(kind, "__name__", "") == "Path" else "any value"


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type; what an annotation leaves open fits."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin in (tuple, list, Sequence):
        if not isinstance(value, (list, tuple)):
            return False
        kinds = args if origin is tuple and Ellipsis not in args else args[:1] * len(value)
        return len(kinds) == len(value) and all(map(_fits, value, kinds))
    if origin in (dict, Mapping):
        return hasattr(value, "items")
    if kind in (int, float):
        return isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    if kind in (str, bool, type(None)):
        return isinstance(value, kind)
    return True


def describe(values: Mapping[str, Any] | None = None) -> Iterator[str]:
    """The lines of a Markdown page on every field.

    Args:
        values: of a completed config, to be shown beside its fields alone; None: all that there is.
    """
    if values is not None:
        loss = (values.get("loss") or {}).get("name") or loss_of(values["method"])
        parts = sections(values["data"]["source"], values["method"], loss, values["init"])
        for section, fields in parts.items():
            own: Any = values
            for name in filter(None, section.split(".")):
                own = own.get(name) or {}
            yield from _lines(section or "The run", fields, own)
        return
    parts = sections("bundled", "ssl_hsic", None)
    del parts["data"], parts["model"]
    kinds: tuple[tuple[str, Mapping[str, Any], Callable[[str], Fields]], ...] = (
        ("data, source", SOURCES, source_fields),
        ("model, method", METHODS, method_fields),
        ("loss, name", LOSSES, loss_fields),
    )
    for title, registry, fields_named in kinds:
        for name, thing in registry.items():
            if thing.__module__.startswith("keras_sslhsic."):
                parts[f"{title} {name}"] = fields_named(name)
    for section, fields in parts.items():
        yield from _lines(section or "The run", fields)


def _lines(title: str, fields: Fields, values: Mapping[str, Any] | None = None) -> Iterator[str]:
    yield from (f"## {title}", "")
    for name, field in fields.items():
        if values is not None and not _is_part(field) and not hasattr(values.get(name), "items"):
            yield f"- `{name}` = `{values.get(name, field.default)!r}` {field}"
        else:
            yield f"- `{name}` {field}"
    yield ""
