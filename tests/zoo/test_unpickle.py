import collections
import copyreg
import io
import os
import pickle
import subprocess
import sys
import tracemalloc
import types
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from keras_sslhsic.zoo import pickle_machine, unpickle


class Call:
    """Pickles as a call of a function, as an attacker would have it."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def exploit_by_state():
    """A dictionary whose item is a call, beside honest arrays."""
    return {"experiment_state": {"w": np.zeros(3), "x": Call(os.system, "touch pwned")}}


EXPLOITS = {
    "os.system": Call(os.system, "touch pwned"),
    "subprocess": Call(subprocess.check_output, ["touch", "pwned"]),
    "eval": Call(eval, "open('pwned', 'w')"),
    "exec": Call(exec, "open('pwned', 'w')"),
    "open": Call(open, "pwned", "w"),
    "getattr": Call(getattr, "a", "upper"),
    "import": Call(__import__, "os"),
    "nested": exploit_by_state(),
    "map": Call(map, print, ["x"]),
    "numpy.load": Call(np.load, "pwned"),
    "numpy.memmap": Call(np.memmap, "pwned", np.uint8, "w+", 0, (4,)),
    "type": Call(type, "X", (), {}),
    "pickle.loads": Call(pickle.loads, b"cos\nsystem\n(S'touch pwned'\ntR."),
}


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"


@pytest.mark.parametrize(
    "content", [PNG, b"hello\nworld\n", b"PK\x03\x04\xa3", b"\x89HDF\r\n\x1a\n", b"[1]", b""]
)
def test_files_of_another_kind_are_no_checkpoints(content, tmp_path):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npy is no checkpoint: it is neither a pickle nor a \.npy file"):
        unpickle.load(tmp_path / "a.npy")


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", EXPLOITS)
def test_calls_outside_the_list_are_refused_and_not_run(name, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(EXPLOITS[name], protocol)
    with pytest.raises(unpickle.UnsafePickleError, match="refused to load"):
        unpickle.loads(data)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("data", "refused"),
    [
        (b"cos\nsystem\n(S'touch pwned'\ntR.", "os.system"),
        (b"cposix\nsystem\n(S'touch pwned'\ntR.", "posix.system"),
        (b"(S'touch pwned'\nios\nsystem\n.", "os.system"),  # INST
        (b"(cos\nsystem\nS'touch pwned'\no.", "os.system"),  # OBJ
        (b"cnumpy\nos.system\n.", "numpy.os.system"),
        (b"\x80\x04\x8c\x05numpy\x8c\x09os.system\x93.", "numpy.os.system"),  # dotted STACK_GLOBAL
        (b"chaiku\n__class__.__base__\n.", "haiku.__class__.__base__"),
        (b"cbuiltins\ngetattr\n.", "builtins.getattr"),
        (b"c__builtin__\neval\n.", "__builtin__.eval"),
        (b"ctorch\nload\n.", "torch.load"),
        (b"chaiku_evil\nrun\n.", "haiku_evil.run"),
        (b"cnumpy.core.multiarray\n_fromfile\n.", "numpy.core.multiarray._fromfile"),
        (b"cdill._dill\n_create_function\n.", "dill._dill._create_function"),
        (b"cdill._dill\n_import_module\n.", "dill._dill._import_module"),
        (b"ccodecs\nopen\n.", "codecs.open"),
    ],
)
def test_hand_written_exploits_are_refused_by_name(data, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(unpickle.UnsafePickleError, match=refused.replace(".", r"\.")):
        unpickle.loads(data)
    assert not (tmp_path / "pwned").exists()


def test_containers_are_never_imported(monkeypatch):
    module = types.ModuleType("haiku")
    module.run = lambda: pytest.fail("the module was used")
    monkeypatch.setitem(sys.modules, "haiku", module)
    record = unpickle.loads(b"chaiku\nrun\n(tR.")
    assert isinstance(record, unpickle.Record)


def test_outside_references_and_odd_codecs_are_refused():
    with pytest.raises(unpickle.UnsafePickleError, match="outside data"):
        unpickle.loads(b"P0\n.")
    with pytest.raises(unpickle.UnsafePickleError, match="rot13"):
        unpickle.loads(b"c_codecs\nencode\n(Vx\nVrot13\ntR.")


@pytest.mark.parametrize("protocol", range(6))
def test_honest_values_survive_every_protocol(protocol):
    rng = np.random.default_rng(0)
    value = {
        "array": rng.normal(size=(2, 3)).astype(np.float32),
        "fortran": np.asfortranarray(rng.normal(size=(3, 4))),
        "scalar": np.float64(0.5),
        "zero": np.array(7, np.int32),
        "empty": np.zeros((0, 3)),
        "ordered": collections.OrderedDict(a=1),
        "plain": [1, (2.5, "x"), None, True, b"\xff"],
    }
    loaded = unpickle.loads(pickle.dumps(value, protocol))
    assert list(loaded) == list(value)
    for key in ("array", "fortran", "scalar", "zero", "empty"):
        np.testing.assert_array_equal(loaded[key], value[key])
        assert loaded[key].dtype == value[key].dtype
    assert loaded["ordered"] == {"a": 1}
    assert loaded["plain"] == value["plain"]


def fake_module(monkeypatch, name, **contents):
    module = types.ModuleType(name)
    for key, value in contents.items():
        value.__module__ = name
        value.__qualname__ = key
        setattr(module, key, value)
    parts = name.split(".")
    for end in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(parts[0]))
    monkeypatch.setitem(sys.modules, name, module)


class _FlatMapping(collections.abc.Mapping):
    def __init__(self, items):
        self._mapping = dict(items)

    def __getitem__(self, key):
        return self._mapping[key]

    def __iter__(self):
        return iter(self._mapping)

    def __len__(self):
        return len(self._mapping)


class _ReducingMapping(_FlatMapping):
    def __reduce__(self):
        return type(self), (self._mapping,)


@pytest.mark.parametrize("mapping", [_FlatMapping, _ReducingMapping])
@pytest.mark.parametrize("protocol", [2, 4])
def test_haiku_mappings_become_dictionaries(mapping, protocol, monkeypatch):
    copy = type("FlatMapping", (mapping,), {})
    fake_module(monkeypatch, "haiku._src.data_structures", FlatMapping=copy)
    data = pickle.dumps(copy({"linear": {"w": np.ones(2)}}), protocol)
    loaded = unpickle.loads(data)
    assert isinstance(loaded, dict)
    np.testing.assert_array_equal(loaded["linear"]["w"], np.ones(2))


def test_jax_arrays_become_numpy(monkeypatch):
    value = np.arange(6, dtype=np.float32).reshape(2, 3)

    def _reconstruct_array(function, arguments, state, aval):
        raise AssertionError("never called")

    fake_module(monkeypatch, "jax._src.array", _reconstruct_array=_reconstruct_array)
    function, arguments, state = value.__reduce__()
    data = pickle.dumps(Call(_reconstruct_array, function, arguments, state, {"weak_type": False}))
    np.testing.assert_array_equal(unpickle.loads(data), value)


def test_named_tuples_get_their_fields(monkeypatch):
    state = collections.namedtuple("_ByolExperimentState", unpickle.FIELDS["_ByolExperimentState"])
    fake_module(monkeypatch, "byol.byol_experiment", _ByolExperimentState=state)
    record = unpickle.loads(pickle.dumps(state(1, 2, 3, 4, 5), 2))
    assert record.as_dict() == state(1, 2, 3, 4, 5)._asdict()


def test_npy_and_pickle_files_hold_the_same(tmp_path):
    value = {"a": np.arange(3)}
    np.save(tmp_path / "a.npy", value)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value))
    for name in ("a.npy", "a.pkl"):
        np.testing.assert_array_equal(unpickle.load(tmp_path / name)["a"], value["a"])


def test_a_malicious_npy_is_refused_by_path_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("evil.npy", np.array(exploit_by_state(), dtype=object), allow_pickle=True)
    with pytest.raises(unpickle.UnsafePickleError, match=r"evil\.npy: refused to load posix\.system"):
        unpickle.load("evil.npy")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("keep", [0, 1, 10, 200])
def test_a_cut_file_is_an_error(keep, tmp_path):
    buffer = io.BytesIO()
    np.save(buffer, np.array({"a": np.arange(100)}, dtype=object), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes(buffer.getvalue()[:keep])
    with pytest.raises(unpickle.BrokenPickleError, match=r"cut\.npy"):
        unpickle.load(tmp_path / "cut.npy")


def test_a_plain_array_is_no_checkpoint(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    with pytest.raises(unpickle.BrokenPickleError, match="plain float64 array"):
        unpickle.load(tmp_path / "a.npy")


# Attacks ------------------------------------------------------------------------------------------------------------

PLAIN = b"(I3\nV<\nNNNI-1\nI-1\nI0\nt"  # the state of a plain dtype


def dtype(code=b"f4", state=PLAIN):
    return b"cnumpy\ndtype\n(V" + code + b"\nI00\nI01\ntR" + (state + b"b" if state else b"")


def array(shape=b"(I2\nt", of=None, data=b"C\x08" + bytes(8), order=b"I00\n"):
    state = b"(I1\n" + shape + (of or dtype()) + order + data + b"t"
    return b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntVb\ntR" + state + b"b"


def scalar(of=None, data=b"C\x04" + bytes(4)):
    return b"cnumpy.core.multiarray\nscalar\n(" + (of or dtype()) + data + b"tR"


def test_the_parts_of_the_attacks_are_valid():
    np.testing.assert_array_equal(unpickle.loads(array() + b"."), np.zeros(2, np.float32))
    assert unpickle.loads(scalar() + b".") == np.float32(0)


OBJECT_WITHOUT_OBJECTS = dtype(b"O", b"(I3\nV|\nNNNI-1\nI-1\nI0\nt")
FIELDS_OUTSIDE = dtype(b"V1", b"(I3\nV|\nN(Va\nt}Va\n(" + dtype(b"f8") + b"I4096\ntsI1\nI1\nI0\nt")
MANY_SIDES = b"(" + b"I1\n" * 33 + b"t"
UNSAFE = {
    "object pointers out of text, 94 bytes": (
        b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(VO\nI00\nI01\ntR(I3\nV|\nNNNI-1\nI-1\nI0\ntbVAAAAAAAA\ntR.",
        "dtype O",
    ),
    "object scalar": (scalar(dtype(b"O", b"")) + b".", "dtype O"),
    "object array of bytes": (array(of=OBJECT_WITHOUT_OBJECTS) + b".", "dtype O"),
    "object array never filled": (array(b"(I5\nt", dtype(b"O8"), b"]") + b".", "dtype O8"),
    "object array in bytes": (
        b"cnumpy.core.numeric\n_frombuffer\n(C\x08" + bytes(8) + OBJECT_WITHOUT_OBJECTS + b"(I1\ntVC\ntR.",
        "dtype O",
    ),
    "fields outside the item": (array(of=FIELDS_OUTSIDE) + b".", "dtype V1"),
    "fields of a float": (array(of=dtype(state=b"(I3\nV<\nN(Va\nt}I4\nI1\nI0\nt")) + b".", "dtype f4"),
    "item size of the file": (array(of=dtype(state=b"(I3\nV<\nNNNI999\nI-1\nI0\nt")) + b".", "dtype f4"),
    "flags of the file": (array(of=dtype(state=b"(I3\nV<\nNNNI-1\nI-1\nI63\nt")) + b".", "dtype f4"),
    "dtype without state": (array(of=dtype(state=b"")) + b".", "dtype f4"),
    "dtype by expression": (array(of=dtype(b"(2,3)f4,O")) + b".", r"dtype \(2,3\)f4,O"),
    "dtype by name": (array(of=b"V<f4\n") + b".", "in place of a dtype"),
    **{f"dtype {code}": (array(of=dtype(code.encode())) + b".", code) for code in ("U2", "S8", "V8", "M8", "f16", "b")},
    "dtype as value": (dtype() + b".", "an object of dtype"),
    "array by its class": (
        b"cnumpy\nndarray\n((I2\nt" + dtype() + b"C\x08" + bytes(8) + b"I0\n(I0\nttR.",
        "an object of ndarray",
    ),
    "array never filled": (array()[: array().index(b"(I1\n")] + b".", "an object of _reconstruct"),
    "function as value": (b"c_codecs\nencode\n.", "the name encode"),
    "state of a function": (b"c_codecs\nencode\n(N}V__defaults__\n(Vrot13\ntstb.", "state of the name encode"),
    "state of a class": (b"chaiku\nFlatMapping\n(N}V__init__\nNstb.", "state of the name FlatMapping"),
    "state of a type of dtypes": (b"cnumpy\ndtype\n}Va\nNsb.", "state of the name dtype"),
    "state of a dict": (b"}}Va\nNsb.", "state of a value of type dict"),
    "state of a list": (b"]}Va\nNsb.", "state of a value of type list"),
    "state of a text": (b"Va\n}Va\nNsb.", "state of a value of type str"),
    "state of a number": (b"I1\n}Va\nNsb.", "state of a value of type int"),
    "second state": (array() + PLAIN + b"b.", "state of an object of _reconstruct"),
    "state of a scalar": (scalar() + b"}b.", "an object of scalar"),
    "state of bytes": (b"c_codecs\nencode\n(Va\nVlatin1\ntR}b.", "an object of encode"),
    "items of a name": (b"cbuiltins\ndict\nVa\nNs.", "set an item of the name dict"),
    "items of a record": (b"chaiku\nx\n)RVa\nNs.", "set an item of an object of x"),
    "items of an array": (array() + b"(I0\nI1\nu.", "set an item of an object of _reconstruct"),
    "items of a tuple": (b")I0\nNs.", "set an item of a value of type tuple"),
    "items of a list": (b"]I0\nNs.", "set an item of a value of type list"),
    "append to a name": (b"cbuiltins\ndict\nNa.", "append to the name dict"),
    "append to an array": (array() + b"(Ne.", "append to an object of _reconstruct"),
    "append to bytes": (b"\x96\x01\x00\x00\x00\x00\x00\x00\x00aNa.", "append to a value of type bytearray"),
    "call of a text": (b"Vprint\n(Vx\ntR.", "call a value of type str"),
    "call with a list": (b"chaiku\nx\n]R.", "with a value of type list"),
    "call of an array": (array() + b")R.", "an object of _reconstruct as a type"),
    "new object of a text": (b"Vprint\n)\x81.", "call a value of type str"),
    "keywords": (b"chaiku\nx\n)}\x92.", "NEWOBJ_EX"),
    "old class": (b"(chaiku\nx\no.", "OBJ"),
    "registered extension": (b"\x82\x01.", "EXT1"),
    "registered extension of two bytes": (b"\x83\x01\x00.", "EXT2"),
    "registered extension of four bytes": (b"\x84\x01\x00\x00\x00.", "EXT4"),
    "outside data": (b"Nq\x00Q.", "outside data"),
    "outside buffer": (b"\x97.", "NEXT_BUFFER"),
    "outside buffer read-only": (b"N\x98.", "READONLY_BUFFER"),
    "set": (b"\x8f(N\x90.", "EMPTY_SET"),
    "frozen set": (b"(N\x91.", "FROZENSET"),
    "jax function": (b"cjax._src.array\n_reconstruct_array\n(c_codecs\nencode\n(Vx\nt)NtR.", "_reconstruct_array"),
}  # fmt: skip


@pytest.mark.parametrize("attack", UNSAFE)
def test_no_object_of_a_library_is_made_called_or_changed(attack):
    data, message = UNSAFE[attack]
    with pytest.raises(unpickle.UnsafePickleError, match=f"^refused .*{message}.*[.]$"):
        unpickle.loads(data)


def test_registered_extensions_are_not_looked_up(monkeypatch):
    monkeypatch.setattr(copyreg, "_extension_cache", {1: lambda: pytest.fail("it was called")})
    with pytest.raises(unpickle.UnsafePickleError, match="EXT1"):
        unpickle.loads(b"\x82\x01)R.")


BROKEN = {
    "memo of gigabytes, 7 bytes": (b"Nr\xff\xff\xff\x7f.", "place 2147483647"),
    "memo of gigabytes, in text": (b"Np2147483647\n.", "place 2147483647"),
    "memo below zero": (b"Np-1\n.", "place -1"),
    "memo of many digits": (b"Np" + b"9" * 4000 + b"\n.", "place a value of type int"),
    "memo never filled": (b"h\x05.", "no place 5"),
    "text of 4 GB": (b"X\xff\xff\xff\xff.", "4294967295 bytes"),
    "text of 2**63 bytes": (b"\x8d" + b"\xff" * 7 + b"\x7f.", "bytes"),
    "bytes of 4 GB": (b"B\xff\xff\xff\xff.", "4294967295 bytes"),
    "bytes of 2**63": (b"\x8e" + b"\xff" * 7 + b"\x7f.", "bytes"),
    "bytes of 2**64": (b"\x8e" + b"\xff" * 8 + b".", "bytes"),
    "byte array of 2**63": (b"\x96" + b"\xff" * 7 + b"\x7f.", "bytes"),
    "number of 2 GB": (b"\x8b\xff\xff\xff\x7f.", "long4"),
    "number of a million digits": (b"L" + b"9" * 10**6 + b"L\n.", "digits"),
    "array of a petabyte": (array(b"(L281474976710656L\nt") + b".", "no tuple of at most 32 sizes"),
    "array larger than its bytes": (array(b"(I3\nt") + b".", r"8 bytes for an array of shape \(3,\)"),
    "array smaller than its bytes": (array(b"(I1\nt") + b".", r"8 bytes for an array of shape \(1,\)"),
    "array of repeated bytes": (array(b"(I1000\nI1000\nt") + b".", r"8 bytes for an array of shape \(1000, 1000\)"),
    "array of overflowing size": (array(b"(L4294967296L\nL4294967296L\nt", data=b"C\x00") + b".", "0 bytes for an array"),
    "array below zero": (array(b"(I-1\nI-2\nt") + b".", "no tuple"),
    "array of true sizes": (array(b"(I01\nI2\nt") + b".", "no tuple"),
    "array of many sides": (array(MANY_SIDES, data=b"C\x04" + bytes(4)) + b".", "at most 32 sizes"),
    "array of a list of sizes": (array(b"](I2\ne") + b".", "no tuple"),
    "array in an odd order": (
        b"cnumpy.core.numeric\n_frombuffer\n(C\x08" + bytes(8) + dtype() + b"(I2\ntVK\ntR.", "order K"),
    "array of an odd flag": (array(order=b"Va\n") + b".", "state that NumPy does not write"),
    "scalar of two": (scalar(data=b"C\x08" + bytes(8)) + b".", "8 bytes"),
    "deep lists": (b"]" * 10**4 + b"a" * (10**4 - 1) + b".", "nested deeper than 100"),
    "deep tuples": (b")" + b"\x85" * 10**4 + b".", "nested deeper than 100"),
    "deep mappings": (b"}" + b"Va\n}" * 10**4 + b"s" * 10**4 + b".", "nested deeper than 100"),
    "deep records": (b")" + b"chaiku\nx\n" * 10**4 + b")" + b"R\x85" * 10**4 + b".", "nested deeper than 100"),
    "deep marks": (b"(" * 10**4 + b"N" + b"t" * 10**4 + b".", "nested deeper than 100"),
    "a list in itself": (b"]q\x00h\x00a.", "contains itself"),
    "a dict in itself": (b"}q\x00Va\nh\x00s.", "contains itself"),
    "a record in itself": (b"chaiku\nx\n(]q\x00tRq\x01h\x00h\x01a0.", "contains itself"),
    "a mapping in itself": (b"chaiku\nFlatMapping\n(}q\x00tRq\x01h\x00Va\nh\x01s0.", "contains itself"),
    "a mapping in its own state": (b"chaiku\nFlatMapping\n)Rq\x00}Va\nh\x00sb.", "contains itself"),
    "two to the hundredth lists": (b"]" + b"q\x000](h\x00h\x00e" * 90 + b".", "as often as it occurs"),
    "two to the hundredth tuples": (b")" + b"2\x86" * 90 + b".", "as often as it occurs"),
    "one array a hundred thousand times": (
        b"(" + array(b"(I64\nt", data=b"B\x00\x01\x00\x00" + bytes(256)) + b"q\x00" + b"h\x00" * 10**5 + b"t.",
        "as often as it occurs"),
    "one buffer in many arrays": (
        b"(B\x00\x00\x01\x00" + bytes(2**16) + b"q\x00" + array(b"(I16384\nt", data=b"h\x00") * 200 + b"t.",
        "as often as it occurs"),
    "one dict in many mappings": (
        b"(}(" + b"".join(b"V%d\nN" % i for i in range(1000)) + b"uq\x00chaiku\nFlatMap\nq\x010"
        + b"h\x01h\x00\x85R" * 10**4 + b"t.",
        "as often as it occurs"),
    "one state in many mappings": (
        b"(}(" + b"".join(b"V%d\nN" % i for i in range(1000)) + b"uq\x00chaiku\nFlatMap\nq\x010"
        + b"h\x01)Rh\x00b" * 10**4 + b"t.",
        "as often as it occurs"),
    "keys whose hashing takes for ever": (b")" + b"2\x86" * 90 + b"q\x00}h\x00Ns.", "a key is a value of type tuple"),
    "keys without hash": (b"}]Ns.", "a key is a value of type list"),
    "keys that are names": (b"}cnumpy\ndtype\nNs.", "a key is the name dtype"),
    "keys that are objects": (b"}chaiku\nx\n)RNs.", "a key is an object of x"),
    "keys of one hash": (b"}\x8a\x09" + (5 * (2**61 - 1)).to_bytes(9, "little") + b"Ns.", "a key is"),
    "keys not equal to themselves": (b"}Fnan\nNs.", "a key is a value of type float"),
    "a key of a megabyte": (b"}V" + b"x" * 2**20 + b"\nNs.", "at most 256"),
    "a key of two lines": (b"}Va\\u000ab\nNs.", "printable"),
    "a key without value": (b"}(Va\nu.", "no value"),
    "a mapping of a list": (b"chaiku\nFlatMapping\n(]tR.", "expected a mapping"),
    "nothing": (b"", "STOP"),
    "no value": (b".", "IndexError"),
    "only a mark": (b"(.", "IndexError"),
    "value under a mark": (b"N(R.", "REDUCE finds 0 values"),
    "too few values": (b"N\x86.", "TUPLE2 finds 1 values"),
    "no mark": (b"Nt.", "IndexError"),
    "name of numbers": (b"I1\nI2\n\x93.", "a name in it is no text"),
    "text that is no UTF-8": (b"X\x01\x00\x00\x00\xff.", "utf-8"),
    "bytes that are no Latin": (b"c_codecs\nencode\n(V\\u20ac\nVlatin1\ntR.", "latin-1"),
    "no instruction": (b"\xff.", "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("attack", BROKEN)
def test_damage_and_bombs_are_errors_in_bounded_memory(attack):
    data, message = BROKEN[attack]
    tracemalloc.start()
    try:
        with pytest.raises(unpickle.BrokenPickleError, match=message) as caught:
            unpickle.loads(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory_bound(data)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def memory_bound(data):
    """The budget of values, and for each instruction of a byte a node, a dictionary, their values and their places."""
    return 4 * len(data) + 2**20 + len(data) * 600 + 2**20


def test_the_number_of_instructions_is_limited(monkeypatch):
    assert unpickle.loads(b"N" + b"0N" * 1000 + b".") is None
    monkeypatch.setattr(pickle_machine, "MAX_INSTRUCTIONS", 2000)
    with pytest.raises(unpickle.BrokenPickleError, match="more than 2,000 instructions"):
        unpickle.loads(b"N" + b"0N" * 1000 + b".")


def test_odd_escapes_are_errors_of_ours_under_strict_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            assert isinstance(unpickle.loads(b"S'\\q'\n."), str)
        except unpickle.BrokenPickleError as error:
            assert "escape" in str(error)


def test_little_memory_is_an_error_of_ours(monkeypatch):
    def full(*arguments):
        raise MemoryError

    monkeypatch.setattr(unpickle, "run", full)
    with pytest.raises(unpickle.BrokenPickleError, match="not enough memory"):
        unpickle.loads(b"N.")


def test_names_in_messages_are_short_and_on_one_line(tmp_path):
    path = tmp_path / "two\nlines.pkl"
    path.write_bytes(b"\x80\x04\x8c\x06os\x1b[2J\x8c\x03a\nb\x93.")
    with pytest.raises(
        unpickle.UnsafePickleError, match=r"two\\nlines\.pkl: refused to load os\\x1b\[2J\.a\\nb:"
    ):
        unpickle.load(path)
    path.write_bytes(b"X\xa0\x86\x01\x00" + b"a" * 100_000 + b"\x8c\x01b\x93.")
    with pytest.raises(unpickle.UnsafePickleError) as caught:
        unpickle.load(path)
    assert len(str(caught.value)) < 500 + len(str(path))


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': [('a', '|O')], 'fortran_order': False, 'shape': (), }",
        b"{'descr': '|O', 'fortran_order': False, 'shape': (" + b"(" * 900 + b"), }",
        b"-" * 60_000,
        b"",
    ],
)
def test_only_the_headers_of_numpy_are_read(header, tmp_path):
    path = tmp_path / "odd.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\nN.")
    with pytest.raises(unpickle.BrokenPickleError, match=r"odd\.npy.*header"):
        unpickle.load(path)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_numpy_headers_is_read(version, tmp_path):
    value = np.empty((), object)
    value[()] = {"a": np.arange(3)}
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, value, version)
    np.testing.assert_array_equal(unpickle.load(tmp_path / "a.npy")["a"], np.arange(3))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_named_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.pkl")
    with pytest.raises(OSError, match=r"pipe\.pkl is a named pipe"):
        unpickle.load(tmp_path / "pipe.pkl")


# Honest values ------------------------------------------------------------------------------------------------------

CODES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]
NUMBERS = st.sampled_from(CODES).flatmap(
    lambda code: arrays.arrays(code, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
)
LEAVES = st.one_of(
    NUMBERS,
    NUMBERS.map(np.asfortranarray),
    NUMBERS.filter(lambda a: a.size > 0).map(lambda a: a.flat[0]),
    NUMBERS.map(lambda a: a.astype(a.dtype.newbyteorder(">"))),
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
)
TREES = st.recursive(
    LEAVES,
    lambda tree: st.one_of(
        *(st.lists(tree, max_size=3), st.lists(tree, max_size=3).map(tuple)),
        st.dictionaries(
            st.one_of(st.from_regex(r"[a-z/~_]{1,9}", fullmatch=True), st.integers(0, 99)), tree, max_size=3
        ),
    ),
    max_leaves=8,
)


def assert_same(found, expected):
    if isinstance(expected, (np.ndarray, np.generic)):
        assert type(found) is type(expected)
        assert found.dtype == expected.dtype.newbyteorder("=")
        assert found.shape == expected.shape
        if isinstance(found, np.ndarray):
            assert found.flags.writeable
            assert found.flags.fnc == expected.flags.fnc
        np.testing.assert_array_equal(found, expected)
    elif isinstance(expected, dict):
        assert type(found) is dict
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert type(found) is type(expected)
        assert found == expected or found != found


@given(TREES, st.integers(0, 5))
def test_honest_values_are_those_that_python_reads(tree, protocol):
    data = pickle.dumps(tree, protocol)
    assert_same(unpickle.loads(data), pickle.loads(data))
    buffer = io.BytesIO()
    wrapped = np.empty((), object)
    wrapped[()] = tree
    np.save(buffer, wrapped)
    assert_same(unpickle.loads(buffer.getvalue()), tree)


def test_bytes_of_other_computers_are_turned():
    loaded = unpickle.loads(pickle.dumps(np.arange(3, dtype=">i4")))
    assert loaded.dtype == np.int32
    assert loaded.dtype.isnative
    np.testing.assert_array_equal(loaded, [0, 1, 2])


def test_truth_values_are_zero_or_one():
    loaded = unpickle.loads(array(b"(I3\nt", dtype(b"b1"), b"C\x03\x00\x01\x07") + b".")
    np.testing.assert_array_equal(loaded.view(np.uint8), [0, 1, 1])


def test_shared_parts_stay_shared():
    shared = {"w": np.ones(2)}
    loaded = unpickle.loads(pickle.dumps({"a": shared, "b": shared}))
    assert loaded["a"] is loaded["b"]


@pytest.mark.parametrize("fields", [b"Va b\n", b"(Va\nVb\nt", b"(Va\nVb\nl"])
def test_named_tuples_made_by_dill_get_their_fields(fields):
    made = b"cdill._dill\n_create_namedtuple\n(Vstate\n" + fields + b"Vbyol\ntR"
    record = unpickle.loads(made + b"(I1\nI2\nt\x81.")
    assert record == (1, 2)
    assert record.as_dict() == {"a": 1, "b": 2}
    with pytest.raises(unpickle.UnsafePickleError, match="_create_namedtuple"):
        unpickle.loads(made + b".")


def test_attributes_of_records_are_dropped():
    record = unpickle.loads(b"coptax\nState\n(I1\ntR}V__class__\nNsVas_dict\nNsb.")
    assert record == (1,)
    assert type(record) is unpickle.Record
    assert record.as_dict() == {}


@given(st.binary(max_size=200))
def test_any_bytes_end_in_a_value_or_an_error_of_ours(data):
    try:
        unpickle.loads(data)
    except (unpickle.BrokenPickleError, unpickle.UnsafePickleError) as error:
        assert str(error).endswith(".")


def test_the_allow_list_holds_no_object():
    assert all(type(kind) is str for kind in pickle_machine.KINDS.values())
