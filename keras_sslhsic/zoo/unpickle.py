"""Reading pickled checkpoints as data.

`pickle_machine` carries out the pickle on inert nodes: it names the threats, and what may be named. When it has ended,
the tree of nodes is read here, and the values that we know are made of it: arrays out of a shape, a dtype of a short
list and bytes, mappings, and `Record` for other containers. All is checked before anything is allocated. The value, with each
part counted as often as it occurs, is bounded by the size of the file, so that whoever walks through it comes to an end.
"""

import io
import math
import os
import re
from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np

from keras_sslhsic.files import display, open_regular
from keras_sslhsic.zoo.pickle_machine import (
    BrokenPickleError,
    Call,
    Name,
    UnsafePickleError,
    is_name,
    kind,
    run,
    shown,
)

__all__ = ["BrokenPickleError", "Record", "UnsafePickleError", "load", "loads"]

MAX_BYTES = 2**36  # of a file: many times the largest released one
MAX_NESTING = 100
MAX_SIDE = 2**32  # of an array: bounds the arithmetic with shapes

# Fields of the named tuples in the released checkpoints: a pickle names the class, not its fields.
FIELDS = {
    "_ByolExperimentState": ("online_params", "target_params", "online_state", "target_state", "opt_state"),
    "_ExperimentState": (
        "online_params",
        "target_params",
        "online_state",
        "target_state",
        "kernel_params",
        "kernel_opt_state",
        "opt_state",
    ),
    "_EMAState": ("online_params", "kernel_params", "ema_params", "ema_state"),
}
ITEM_SIZES = {"b1": 1, "i1": 1, "i2": 2, "i4": 4, "i8": 8, "u1": 1, "u2": 2, "u4": 4, "u8": 8}
ITEM_SIZES |= {"f2": 2, "f4": 4, "f8": 8, "c8": 8, "c16": 16}  # of the dtypes, as NumPy writes them

_NPY_MAGIC = b"\x93NUMPY"
_STARTS = (b"\x80", _NPY_MAGIC[:1])
_NPY_HEADER = re.compile(
    rb"\x93NUMPY(?:\x01\x00..|[\x02\x03]\x00....)"
    rb"\{'descr': '([<>|=]?\w{1,8})', 'fortran_order': (?:True|False), 'shape': \([\d, ]{0,99}\), \} {0,99}\n",
    re.DOTALL,
)


class Record(tuple):
    """Stands in for a container of another library: its arguments, with field names where they are known."""

    fields: tuple[str, ...]

    def __new__(cls, values: Iterable[Any], fields: tuple[str, ...] = ()) -> "Record":
        record = super().__new__(cls, values)
        record.fields = fields
        return record

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields by name, for the named tuples in `FIELDS`."""
        return dict(zip(self.fields, self, strict=False))


def load(path: str | os.PathLike) -> Any:
    """Reads a pickle, or a .npy file that holds one, without running code from it.

    Args:
        path: a pickle of any protocol, or the file that ``np.save`` makes of an object; of at most 64 GiB.

    Returns:
        The object: NumPy arrays (writable, of native byte order) for arrays, dict for mappings and `Record` for other
        containers; None, numbers, text, bytes, tuples and lists as they are.

    Raises:
        OSError: if there is no such file, or it is no regular one.
        UnsafePickleError: if it asks for anything outside the allow-list; the message says for what.
        BrokenPickleError: if it is not a pickle, is cut short, or holds what no checkpoint holds.
    """
    with open_regular(path, MAX_BYTES) as file:
        start = file.read(1)
        file.seek(0)
        try:
            return _read(file)
        except (UnsafePickleError, BrokenPickleError) as error:
            # Pickles of the oldest protocols begin with a letter or a sign, as texts do.
            perhaps = start in _STARTS or (start < b"\x80" and isinstance(error, UnsafePickleError))
            if not perhaps:
                raise BrokenPickleError(
                    f"{display(path)} is no checkpoint: it is neither a pickle nor a .npy file that holds one."
                ) from error
            if isinstance(error, UnsafePickleError):
                raise UnsafePickleError(f"{display(path)}: {error}") from None
            raise BrokenPickleError(f"{display(path)} is not a readable checkpoint: {error}") from error


def loads(data: bytes) -> Any:
    """`load` for bytes in memory."""
    return _read(io.BytesIO(data))


def _read(file: BinaryIO) -> Any:
    try:
        content = io.BytesIO(file.read())
        size = len(content.getbuffer())
        _skip_npy_header(content)
        tree = run(content)
        del content  # before as much memory is taken for the arrays
        # Parts are shared: a moving average that is still the network itself, names in several mappings.
        return _Builder(budget=4 * size + 2**20).value(tree)
    except (OSError, UnsafePickleError, BrokenPickleError):
        raise
    except MemoryError as error:
        raise BrokenPickleError("there is not enough memory for it.") from error
    except Exception as error:
        # Decoding has no closed list of errors: ValueError, IndexError, struct.error, warnings made errors ...
        reason = shown(error) if isinstance(error, ValueError) else f"{type(error).__name__}, {shown(error)}"
        raise BrokenPickleError(f"it is no pickle, or a damaged one ({reason}).") from error


def _skip_npy_header(file: io.BytesIO) -> None:
    """Goes past the header that `np.save` writes, to the pickle; a bare pickle has none."""
    head = file.read(1024)
    file.seek(0)
    if not head.startswith(_NPY_MAGIC):
        return
    header = _NPY_HEADER.match(head)
    if header is None:
        raise BrokenPickleError("its NumPy header is none of those that np.save writes of an object.")
    descr = header[1].decode("latin1")
    if descr != "|O":
        name = np.dtype(descr[1:]).name if descr[1:] in ITEM_SIZES else shown(descr)
        raise BrokenPickleError(f"it holds a plain {name} array, expected the pickle of a checkpoint.")
    file.seek(header.end())


class _Builder:
    """Makes values of a finished tree. Containers that contain themselves are refused.

    Args:
        budget: bytes and nodes that the value may have, each counted as often as it occurs.
    """

    def __init__(self, budget: int):
        self._budget = budget
        self._spent = 0
        # The value made of a node, by the node's id, and its cost.
        self._done: dict[int, tuple[Any, int]] = {}

    def value(self, node: Any, depth: int = 0) -> Any:
        """Makes the value of a node, once for all its occurrences."""
        if node is None or isinstance(node, (bool, int, float)):
            self._spend(1)
            return node
        if isinstance(node, (str, bytes, bytearray)):
            self._spend(1 + len(node))
            return node
        if id(node) in self._done:
            value, cost = self._done[id(node)]
            self._spend(cost)
            return value
        if depth > MAX_NESTING:
            raise BrokenPickleError(f"it is nested deeper than {MAX_NESTING} levels, or contains itself.")
        before = self._spent
        self._spend(1)
        if type(node) is dict:
            value = self._mapping(node, depth)
        elif type(node) is Call:
            value = self._made(node, depth)
        elif type(node) is Name:
            raise UnsafePickleError(f"refused {kind(node)} as a value: it stands for code.")
        else:
            value = type(node)([self.value(item, depth + 1) for item in node])
        self._done[id(node)] = value, self._spent - before
        return value

    def _spend(self, cost: int) -> None:
        self._spent += cost
        if self._spent > self._budget:
            raise BrokenPickleError(
                "the value in it, with each part counted as often as it occurs, is more than four times its size."
            )

    def _mapping(self, node: dict, depth: int) -> dict:
        self._spend(sum(1 + len(str(key)) for key in node))
        return {key: self.value(item, depth + 1) for key, item in node.items()}

    def _made(self, call: Call, depth: int) -> Any:
        """Makes what a call stands for."""
        if isinstance(call.callee, Call):
            return self._record(call, self._fields(call.callee), depth)
        match call.callee.kind, call.arguments, call.state:
            case "record", _, _:
                return self._record(call, FIELDS.get(call.callee.name, ()), depth)
            case "mapping", _, None | dict():
                return self._merged(call, depth)
            case "array", (Name("ndarray"), _, _), (_, _, _, _, _) as state:
                return self._array(state, depth)
            case "jax array", (Name("array"), (Name("ndarray"), _, _), (_, _, _, _, _) as state, *_), None:
                return self._array(state, depth)
            case "buffer", (data, dtype, shape, order), None:
                return self._numbers(shape, self._dtype(dtype), order, self._bytes(data))
            case "scalar", (dtype, data), None:
                return self._numbers((), self._dtype(dtype), "C", self._bytes(data))[()]
            case (("encode" | "bytes"), _, None):
                return self._bytes(call)
        raise UnsafePickleError(f"refused {kind(call)}: no checkpoint has it with such arguments.")

    def _record(self, call: Call, fields: tuple[str, ...], depth: int) -> Record:
        """A container of another library; attributes that it had beside its arguments are dropped."""
        return Record([self.value(item, depth + 1) for item in call.arguments], fields)

    def _fields(self, call: Call) -> tuple[str, ...]:
        """The fields of a named tuple that dill makes."""
        match call:
            case Call(Name("named tuple"), (str(), names, *_), None):
                names = names.replace(",", " ").split() if type(names) is str else names
                if type(names) in (tuple, list) and all(map(is_name, names)):
                    self._spend(sum(1 + len(name) for name in names))
                    return tuple(names)
        raise UnsafePickleError(f"refused {kind(call)} as a type.")

    def _merged(self, call: Call, depth: int) -> dict:
        """Haiku's immutable mappings: they pickle their items as argument, as attribute, or one by one."""
        state = call.state or {}
        self._spend(len(state))
        attributes = [value for value in state.values() if type(value) in (dict, Call)]
        merged: dict[str | int, Any] = {}
        for part in (*call.arguments, *attributes):
            value = self.value(part, depth + 1)
            if not isinstance(value, dict):
                raise BrokenPickleError(f"{kind(call)} is made of {kind(part)}, expected a mapping.")
            merged |= value
        return merged | self._mapping(call.items, depth)

    def _array(self, state: Any, depth: int) -> Any:
        """An array of the state that NumPy writes; the object, of the array in which `np.save` wraps one."""
        match state:
            case int(), (), Call(Name("dtype"), ("O8" | "O4" | "O", *_)), bool(), [item]:
                return self.value(item, depth + 1)
            case int(), shape, dtype, bool(fortran), data:
                return self._numbers(shape, self._dtype(dtype), "F" if fortran else "C", self._bytes(data))
        raise BrokenPickleError("an array in it has a state that NumPy does not write.")

    def _dtype(self, node: Any) -> str:
        """Byte order and code of a numeric dtype, in the form that NumPy writes."""
        match node:
            case Call(
                Name("dtype"),
                (str(code), *_),
                (3, ("<" | ">" | "|" | "=") as order, None, None, None, -1, -1, 0),
            ) if code in ITEM_SIZES:
                return order + code
            case Call(Name("dtype"), (code, *_)):
                raise UnsafePickleError(
                    f"refused an array or number of dtype {shown(code)}, an object or an unusual type: expected plain "
                    "numbers, whose dtype is in the form that NumPy writes."
                )
        raise UnsafePickleError(f"refused {kind(node)} in place of a dtype.")

    def _bytes(self, node: Any) -> bytes | bytearray:
        """Bytes, also as protocols 0 to 2 write them."""
        match node:
            case bytes() | bytearray():
                data = node
            case Call(Name("encode"), (str(text), "latin1"), None):
                data = text.encode("latin1")
            case Call(Name("encode"), (str(), codec), None):
                raise UnsafePickleError(f"refused the codec {shown(codec)}.")
            case Call(Name("bytes"), (), None):
                data = b""
            case _:
                raise UnsafePickleError(f"refused {kind(node)} in place of bytes.")
        self._spend(1 + len(data))
        return data

    def _numbers(self, shape: Any, dtype: str, order: Any, data: bytes | bytearray) -> np.ndarray:
        """An array of our own, in native byte order; its bytes are as many as its shape says."""
        if not (type(shape) is tuple and len(shape) <= 32 and all(map(_is_side, shape))):
            raise BrokenPickleError("the shape of an array in it is no tuple of at most 32 sizes.")
        code = dtype[1:]
        if math.prod(shape) * ITEM_SIZES[code] != len(data):
            raise BrokenPickleError(
                f"it has {len(data)} bytes for an array of shape {shape} and dtype {dtype}."
            )
        if order not in ("C", "F"):
            raise BrokenPickleError(f"an array in it is in the order {shown(order)}, expected C or F.")
        # To NumPy, a byte other than 0 and 1 is no truth value.
        stored = np.ndarray(shape, "u1" if code == "b1" else dtype, data, order=order)
        return stored.astype(code)


def _is_side(size: Any) -> bool:
    return type(size) is int and 0 <= size <= MAX_SIDE
