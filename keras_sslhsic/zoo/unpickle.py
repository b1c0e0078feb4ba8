"""Reading pickled checkpoints without running what they ask for.

A pickle is a program: loading one may call any function of any module. The unpickler here knows a short list
of names. NumPy arrays are rebuilt; JAX arrays become NumPy arrays; the containers of Haiku, optax and the
training codes become inert records. Everything else is refused by name, and nothing is imported.
"""

import collections
import io
import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

NPY_MAGIC = b"\x93NUMPY"

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
CONTAINER_PACKAGES = ("haiku", "optax", "byol", "ssl_hsic", "jaxline")
MAPPINGS = ("FlatMapping", "FlatMap", "FlatMappingProxy", "frozendict", "FrozenDict")


# What a damaged pickle may raise.
_BROKEN = (
    pickle.UnpicklingError,
    EOFError,
    AttributeError,
    IndexError,
    KeyError,
    TypeError,
    ValueError,
    ImportError,
    MemoryError,
    OverflowError,
)


class BrokenPickleError(pickle.UnpicklingError, ValueError):
    """The file is no pickle, or a damaged one."""


class UnsafePickleError(pickle.UnpicklingError, ValueError):
    """The pickle asks for something outside the allow-list; nothing of it was run."""


class Record(tuple):
    """Stands in for a container of another library: its arguments, with field names where they are known."""

    fields: tuple[str, ...] = ()

    def __new__(cls, *args):
        return super().__new__(cls, args)

    def __setstate__(self, state):
        """Drops the attributes that the original object kept beside its arguments."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields by name, for the named tuples in `FIELDS`."""
        return dict(zip(self.fields, self, strict=False))


class Mapping(dict):
    """Stands in for Haiku's immutable mappings, which pickle their items as argument or attribute."""

    def __setstate__(self, state):
        """Takes the items from the attribute that held them."""
        for value in state.values():
            if isinstance(value, dict):
                self.update(value)


def load(path: str | Path) -> Any:
    """Reads a pickle, or a .npy file that holds one, without running code from it.

    Args:
        path: a pickle of any protocol, or the file that ``np.save`` makes of an object.

    Returns:
        The object, with NumPy arrays for arrays, dict for mappings and `Record` for other containers.

    Raises:
        FileNotFoundError: if there is no such file.
        UnsafePickleError: if it names anything outside the allow-list; the message gives the name.
        BrokenPickleError: if it is not a pickle, or is cut short.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            _skip_npy_header(file)
            return _unwrap(_Unpickler(file).load())
        except UnsafePickleError as error:
            raise UnsafePickleError(f"{path}: {error}") from None
        except _BROKEN as error:
            raise BrokenPickleError(f"{path} is not a readable checkpoint: {error}") from error


def loads(data: bytes) -> Any:
    """`load` for bytes in memory."""
    return _unwrap(_Unpickler(io.BytesIO(data)).load())


def _skip_npy_header(file: BinaryIO) -> None:
    """Goes past the header that `np.save` writes, to the pickle; a bare pickle has none."""
    magic = file.read(len(NPY_MAGIC))
    file.seek(0)
    if magic != NPY_MAGIC:
        return
    version = npy.read_magic(file)
    _, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(file)
    if not dtype.hasobject:
        raise BrokenPickleError(f"it holds a plain {dtype} array")


def _unwrap(value):
    """Takes the object out of the 0-dimensional object array in which `np.save` puts it."""
    if isinstance(value, np.ndarray) and value.dtype == object and value.ndim == 0:
        return value.item()
    return value


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        allowed = _ALLOWED.get((module, name))
        if allowed is not None:
            return allowed
        if module.split(".")[0] in CONTAINER_PACKAGES and name.isidentifier():
            return type(name, (Mapping,), {}) if name in MAPPINGS else _record(name)
        raise UnsafePickleError(
            f"refused to load {module}.{name}: it is not on the allow-list, and a pickle may run code."
        )

    def persistent_load(self, pid: Any) -> Any:
        raise UnsafePickleError(f"refused a reference to outside data ({pid!r}).")


def _record(name: str, fields: tuple[str, ...] = ()) -> type:
    # A fresh class each time: a pickle may set attributes on what it is given.
    return type(name, (Record,), {"fields": fields or FIELDS.get(name, ())})


def _named_tuple(name: str, fields, module: str = "") -> type:
    """Stands in for dill's named tuples, whose fields the pickle does give."""
    names = fields.replace(",", " ").split() if isinstance(fields, str) else fields
    return _record(str(name), tuple(map(str, names)))


def _array(constructor, arguments, state, *unused) -> np.ndarray:
    """Stands in for JAX's array constructor: NumPy's arguments and state, then what JAX adds."""
    del constructor, unused
    array = _reconstruct(*arguments)
    array.__setstate__(state)
    return array


def _reconstruct(subtype, shape, dtype) -> np.ndarray:
    del subtype, shape, dtype  # always an empty array, whose contents follow in its state
    return np.ndarray((0,), np.int8)


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Stands in for `_codecs.encode`, with which protocol 2 writes bytes."""
    if encoding not in ("latin1", "latin-1", "utf-8"):
        raise UnsafePickleError(f"refused the codec {encoding!r}.")
    return text.encode(encoding)


def _bytes() -> bytes:
    """Stands in for `bytes`, with which protocol 2 writes the empty one."""
    return b""


def _frombuffer(data: bytes, dtype: np.dtype, shape: tuple[int, ...], order: str) -> np.ndarray:
    if np.dtype(dtype).hasobject:
        raise UnsafePickleError("refused a NumPy array of objects in raw bytes.")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if order == "F" else "C")


def _scalar(dtype: np.dtype, data: bytes | str = b"") -> np.generic:
    if isinstance(data, str):
        data = data.encode("latin1")
    if np.dtype(dtype).hasobject:
        raise UnsafePickleError("refused a NumPy scalar that holds an object.")
    return np.frombuffer(data, dtype, count=1)[0]


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("_codecs", "encode"): _encode,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
    ("builtins", "tuple"): tuple,
    ("builtins", "bytes"): _bytes,
    ("__builtin__", "bytes"): _bytes,
    ("dill._dill", "_create_namedtuple"): _named_tuple,
    ("dill.dill", "_create_namedtuple"): _named_tuple,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): _scalar for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _frombuffer for core in ("core", "_core")},
    ("jax._src.array", "_reconstruct_array"): _array,
    ("jax._src.device_array", "reconstruct_device_array"): _array,
    ("jax.interpreters.xla", "reconstruct_device_array"): _array,
}
