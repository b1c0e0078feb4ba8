import collections
import io
import os
import pickle
import subprocess
import sys
import types

import numpy as np
import pytest

from keras_sslhsic.zoo import unpickle


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


def test_an_object_scalar_is_refused():
    data = b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(VO\nI0\nI1\ntRVx\ntR."
    with pytest.raises(unpickle.UnsafePickleError, match="object"):
        unpickle.loads(data)


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


def test_a_huge_array_is_refused():
    data = b"cnumpy\nndarray\n((L1000000000000000L\ntcnumpy\ndtype\n(Vf8\nI0\nI1\ntRtR."
    with pytest.raises((MemoryError, ValueError)):
        unpickle.loads(data)
