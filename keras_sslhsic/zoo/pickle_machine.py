"""A machine that carries out a pickle's instructions without doing what they ask for.

A pickle is a program for a stack machine, and Python's own unpickler, however few names it is allowed, lets that program
call and change the objects behind them: a NumPy dtype with a forged state turns bytes into pointers. So no unpickler of
Python runs here. ``pickletools.genops`` decodes the instructions, and `run` carries out the few that a checkpoint is
written with, on None, numbers, text, bytes, tuples, lists, dictionaries and two nodes of its own: `Name`, what the file
names, and `Call`, what it wants made of it. Nothing is imported, and no instruction reaches a function, a class or an
object of another library.

Time and memory are bounded by the size of the file: each instruction takes constant time or copies what it reads, there are
at most `MAX_INSTRUCTIONS` of them, and what is hashed cannot be made to collide.
"""

import dataclasses
import io
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any, NoReturn

from keras_sslhsic.files import display

MAX_INSTRUCTIONS = 1_000_000  # nine times those of a ResNet-200 with its target and optimizer
MAX_NAME = 256  # characters: names of parameters take up to about a hundred

CONTAINER_PACKAGES = ("haiku", "optax", "byol", "ssl_hsic", "jaxline")
MAPPINGS = ("FlatMapping", "FlatMap", "FlatMappingProxy", "frozendict", "FrozenDict")
# What the names outside the container packages stand for.
KINDS = {
    "numpy.ndarray": "ndarray",
    "numpy.dtype": "dtype",
    "collections.OrderedDict": "mapping",
    "builtins.dict": "mapping",
    "_codecs.encode": "encode",
    "builtins.bytes": "bytes",
    "__builtin__.bytes": "bytes",
    "dill._dill._create_namedtuple": "named tuple",
    "dill.dill._create_namedtuple": "named tuple",
    **{f"numpy.{core}.multiarray._reconstruct": "array" for core in ("core", "_core")},
    **{f"numpy.{core}.multiarray.scalar": "scalar" for core in ("core", "_core")},
    **{f"numpy.{core}.numeric._frombuffer": "buffer" for core in ("core", "_core")},
    "jax._src.array._reconstruct_array": "jax array",
    "jax._src.device_array.reconstruct_device_array": "jax array",
    "jax.interpreters.xla.reconstruct_device_array": "jax array",
}

# Instructions whose argument is the value.
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# How many values an instruction takes off the stack; None: those above the last mark.
_OPERANDS = {
    **{"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "TUPLE": None},
    **{"EMPTY_LIST": 0, "LIST": None, "APPEND": 1, "APPENDS": None},
    **{"EMPTY_DICT": 0, "DICT": None, "SETITEM": 2, "SETITEMS": None},
    **{"STACK_GLOBAL": 2, "REDUCE": 2, "NEWOBJ": 2, "BUILD": 1, "POP_MARK": None},
}


class BrokenPickleError(pickle.UnpicklingError, ValueError):
    """The file is no pickle, a damaged one, or none of a checkpoint."""


class UnsafePickleError(pickle.UnpicklingError, ValueError):
    """The pickle asks for something outside the allow-list; nothing of it was run."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Name:
    """What the file calls by a name: one of `KINDS`, "mapping" or "record", and the name's last part."""

    kind: str
    name: str


@dataclasses.dataclass(eq=False, slots=True)
class Call:
    """What the file wants made: a name or a made type, its arguments, and what BUILD and SETITEMS added."""

    callee: "Name | Call"
    arguments: tuple
    state: Any = None
    items: dict[str | int, Any] = dataclasses.field(default_factory=dict)


def run(file: io.BytesIO) -> Any:
    """Carries out a pickle's instructions up to STOP.

    Returns:
        The value on the stack, of the plain types and nodes that the module names. Parts may be shared, and lists,
        dictionaries and calls may contain themselves. Keys of dictionaries are short text or small whole numbers.

    Raises:
        UnsafePickleError: for a name outside the allow-list, or an instruction that a checkpoint does not need.
        Exception: of many types, for a damaged pickle.
    """
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks under the marks
    memo: dict[int, Any] = {}
    argument: Any
    for count, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if count == MAX_INSTRUCTIONS:
            raise BrokenPickleError(
                f"it has more than {MAX_INSTRUCTIONS:,} instructions, more than any checkpoint."
            )
        name = opcode.name
        items: list[Any] = []
        if name in _OPERANDS:
            number = _OPERANDS[name]
            if number is None:
                items, stack = stack, below.pop()
            elif number > len(stack):
                raise BrokenPickleError(f"{name} finds {len(stack)} values, expected {number}.")
            elif number:
                items = stack[-number:]
                del stack[-number:]
        match name:
            case _ if name in _VALUES:
                stack.append(argument)
            case _ if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3" | "TUPLE":
                stack.append(tuple(items))
            case "EMPTY_LIST" | "LIST":
                stack.append(items)
            case "APPEND" | "APPENDS":
                _list(stack[-1]).extend(items)
            case "EMPTY_DICT" | "DICT":
                stack.append(dict(_pairs(items)))
            case "SETITEM" | "SETITEMS":
                _items(stack[-1]).update(_pairs(items))

            case "PUT" | "BINPUT" | "LONG_BINPUT" | "MEMOIZE":
                place = len(memo) if argument is None else argument
                if not 0 <= place <= count:  # picklers count from 0; other numbers could be made to collide
                    raise BrokenPickleError(f"its memo has a place {shown(place)} that no pickler gives.")
                memo[place] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                if argument not in memo:
                    raise BrokenPickleError(f"its memo has no place {shown(argument)}.")
                stack.append(memo[argument])

            case "STACK_GLOBAL":
                stack.append(_name(*items))
            case "GLOBAL":
                stack.append(_name(*argument.split(" ", 1)))
            case "INST":
                _refuse(argument.replace(" ", "."))
            case "REDUCE" | "NEWOBJ":
                callee, arguments = items
                if type(callee) not in (Name, Call) or type(arguments) is not tuple:
                    raise UnsafePickleError(f"refused to call {kind(callee)} with {kind(arguments)}.")
                stack.append(Call(callee, arguments))
            case "BUILD":
                if type(stack[-1]) is not Call or stack[-1].state is not None:
                    raise UnsafePickleError(f"refused to change the state of {kind(stack[-1])}.")
                [stack[-1].state] = items
            case "PERSID" | "BINPERSID":
                place = argument if name == "PERSID" else stack[-1]
                raise UnsafePickleError(f"refused a reference to outside data ({shown(place)}).")

            case "MARK":
                below.append(stack)
                stack = []
            case "POP":
                if stack:
                    stack.pop()
                else:
                    stack = below.pop()
            case "DUP":
                stack.append(stack[-1])
            case "STOP":
                break
            case "PROTO" | "FRAME" | "POP_MARK":
                pass
            case _:
                raise UnsafePickleError(f"refused the instruction {name}, which no checkpoint needs.")
    return stack[-1]


def kind(node: Any) -> str:
    """What a node is, for a message."""
    if type(node) is Name:
        return f"the name {shown(node.name)}"
    if type(node) is Call:
        return f"an object of {shown(node.callee.name)}" if type(node.callee) is Name else "a made object"
    return f"a value of type {type(node).__name__}"


def is_name(value: Any) -> bool:
    """Whether a value is the name of a class or a field."""
    return type(value) is str and value.isidentifier() and len(value) <= MAX_NAME


def shown(value: object) -> str:
    """A value of the file for a message: short, on one line, and in no more time than the file takes to read."""
    plain = isinstance(value, (str, Exception)) or (isinstance(value, int) and abs(value) < 2**64)
    text = str(value) if plain else kind(value)
    return display(text if len(text) <= 200 else f"{text[:200]} ...")


def _name(module: Any, last: Any) -> Name:
    if type(module) is not str or type(last) is not str:
        raise BrokenPickleError("a name in it is no text.")
    path = f"{module}.{last}"
    if path in KINDS and "." not in last:
        return Name(KINDS[path], last)
    if module.split(".")[0] in CONTAINER_PACKAGES and is_name(last):
        return Name("mapping" if last in MAPPINGS else "record", last)
    _refuse(path)


def _refuse(path: str) -> NoReturn:
    raise UnsafePickleError(
        f"refused to load {shown(path)}: it is not on the allow-list, and a pickle may run code."
    )


def _list(node: Any) -> list:
    if type(node) is not list:
        raise UnsafePickleError(f"refused to append to {kind(node)}.")
    return node


def _items(node: Any) -> dict:
    if type(node) is Call and type(node.callee) is Name and node.callee.kind == "mapping":
        return node.items
    if type(node) is not dict:
        raise UnsafePickleError(f"refused to set an item of {kind(node)}.")
    return node


def _pairs(items: list[Any]) -> Iterator[tuple[str | int, Any]]:
    """Keys and values in turn. Python salts the hashes of text, and small whole numbers are their own."""
    if len(items) % 2:
        raise BrokenPickleError("the last key of a mapping has no value.")
    for key, value in zip(items[::2], items[1::2], strict=True):
        text = type(key) is str and len(key) <= MAX_NAME and key.isprintable()
        if not text and not (type(key) is int and abs(key) < 2**32):
            raise BrokenPickleError(
                f"a key is {kind(key)}: expected at most {MAX_NAME} printable characters or a small whole number."
            )
        yield key, value
