"""Programs out of valid instructions, and damaged checkpoints: each ends in a value or in an error of ours.

Programs are drawn by a seeded generator, which is much cheaper than drawing each part with Hypothesis: that draws the
seeds. A failure prints the program.
"""

import collections
import contextlib
import itertools
import math
import pickle
import pickletools
import random
import struct
import sys
import tracemalloc
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from keras_sslhsic.zoo import official, pickle_machine, unpickle

CONTAINERS = [
    *(
        ("haiku._src.data_structures", "FlatMapping"),
        ("optax", "TraceState"),
        ("byol", "_ByolExperimentState"),
    ),
]
NAMES = [
    *(tuple(path.rpartition(".")[::2]) for path in pickle_machine.KINDS),
    *(
        *CONTAINERS,
        ("builtins", "getattr"),
        ("numpy", "memmap"),
        ("os", "system"),
        ("haiku", "a.b"),
        ("", ""),
    ),
]
CODES = [
    "f4",
    "f8",
    "i1",
    "i8",
    "u2",
    "b1",
    "c8",
    "O",
    "O8",
    "V8",
    "U1",
    "M8",
    "f4,O",
    "(2,)f4",
    "b",
    "",
    "f" + "9" * 99,
]
INTS = [0, 1, 2, 3, 4, 8, 63, 255, 256, 65535, 2**31 - 1, 2**31, 2**32, 2**61 - 1, 2**63, 2**64, 10**40]
TEXTS = [
    "",
    "a",
    "w",
    "b",
    "C",
    "F",
    "K",
    "<",
    ">",
    "|",
    "latin1",
    "rot13",
    "__dict__",
    "__setstate__",
    "é\n",
    "\ud800",
]
LENGTHS = [0, 1, 4, 8, 255, 2**16, 2**31 - 1, 2**32 - 1]
PLAIN_STATE = (3, "<", None, None, None, -1, -1, 0)
STATES = [
    PLAIN_STATE,
    *((3, order, None, None, None, -1, -1, flags) for order in (">", "|", "=", "!", 5) for flags in (0, 63)),
    *((4, *PLAIN_STATE[1:], {}), (3, "|", None, ("a",), {"a": 1}, 1, 1, 0), (3, "<", (2,), None, None, 10**9, 1, 0), (), None),
]  # fmt: skip


def steps(value, protocol):
    """The instructions of a plain value in a protocol, without those of the memo."""
    try:
        data = pickle.dumps(value, protocol)
    except UnicodeError:
        return [b"N"]
    starts = [place for _, _, place in pickletools.genops(data)]
    code = [data[start:end] for start, end in itertools.pairwise(starts)]
    return [step for step in code if step[:1] not in b"\x80\x95\x94qpr"]


class Programs:
    """Draws programs as lists of instructions: values of checkpoints with odd parts, then odd instructions among them."""

    known: ClassVar = {}  # instructions of plain values

    def __init__(self, seed):
        self.random = random.Random(seed)

    def program(self):
        self.memo = 0
        code = self.value(0)
        for _ in range(self.random.choice([0, 0, 0, 0, 1, 1, 2, 10])):
            place = self.random.randrange(len(code) + 1)
            change = self.random.choice([self.insert, self.insert, self.delete, self.repeat, self.move])
            change(code, place)
        program = b"".join(code) + b"."
        if self.random.random() < 0.05:
            program = program[: self.random.randrange(len(program))]
        if self.random.random() < 0.05:
            place = self.random.randrange(len(program) + 1)
            program = program[:place] + self.random.randbytes(self.random.randrange(4)) + program[place + 1 :]
        return program

    def insert(self, code, place):
        code[place:place] = self.value(3) if self.random.random() < 0.3 else [self.instruction()]

    def delete(self, code, place):
        del code[place : place + self.random.choice([1, 1, 3])]

    def repeat(self, code, place):
        times = self.random.choice([2, 3, 300])
        code[place:place] = code[place : place + self.random.choice([1, 3])] * times

    def move(self, code, place):
        other = self.random.randrange(len(code) + 1)
        code[place:place] = code[other : other + self.random.choice([1, 5])]

    def instruction(self):
        """Any instruction of any protocol, with a plausible argument."""
        choice = self.random.choice
        opcode = choice(pickletools.opcodes)
        code, reader = opcode.code.encode("latin1"), opcode.arg
        if reader is None:
            return code
        number = choice(INTS)
        if reader.n > 0:  # of a fixed size
            return code + (number % 256**reader.n).to_bytes(reader.n, choice(["little", "big"]))
        if reader.n == pickletools.UP_TO_NEWLINE:
            line = choice(
                [
                    str(number),
                    f"{number}L",
                    "01",
                    "-1",
                    "1e999",
                    "nan",
                    "'x'",
                    "a\\u20ac",
                    "'\\x'",
                    "numpy\ndtype",
                ]
            )
            return code + line.encode() + b"\n" + choice([b"", b"system\n"])
        size = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT8U: 8}.get(reader.n, 4)
        content = self.random.randbytes(choice([0, 1, 4, 8]))
        length = len(content) if self.random.random() < 0.8 else choice([*LENGTHS, 2**63 - 1, 2**64 - 1])
        return code + (length % 256**size).to_bytes(size, "little") + content

    def value(self, depth):
        kinds = [
            self.leaf,
            self.leaf,
            self.shared,
            self.array,
            self.array,
            self.scalar,
            self.buffer,
            self.encoded,
        ]
        if depth < 3:
            kinds += [self.items, self.items, self.mapping, self.mapping, self.made, self.state, self.named]
        code = self.random.choice(kinds)(depth)
        if self.random.random() < 0.3:
            self.memo += 1
            code.append(b"\x94")
        return code

    def leaf(self, depth):
        value = self.random.choice(
            [None, True, 1.5, -1, *INTS, *TEXTS, b"", bytes(4), bytes(8), bytearray(8)]
        )
        return self.plain(value)

    def plain(self, value):
        protocol = self.random.randrange(6)
        key = repr(value), protocol
        if key not in self.known:
            self.known[key] = steps(value, protocol)
        return list(self.known[key])

    def shared(self, depth):
        choice = self.random.choice
        place = self.random.randrange(self.memo) if self.memo and self.random.random() < 0.9 else choice(INTS)
        return [choice([b"2", b"h" + bytes([place % 256]), b"j" + struct.pack("<I", place % 2**32)])]

    def items(self, depth):
        many = range(self.random.choice([0, 1, 1, 2, 3]))
        inner = [step for _ in many for step in self.value(depth + 1)]
        return self.random.choice(
            [[b"(", *inner, b"t"]] * 3 + [[b"(", *inner, b"l"], [b"]", b"(", *inner, b"e"]]
        )

    def pairs(self, depth):
        code = []
        for _ in range(self.random.choice([0, 1, 1, 2, 3])):
            odd = self.random.random() < 0.05
            code += (
                self.value(depth + 1)
                if odd
                else self.plain(self.random.choice(["a", "b", "w", "_mapping", 1]))
            )
            code += self.value(depth + 1)
        return code

    def mapping(self, depth):
        pairs = [b"(", *self.pairs(depth)]
        if self.random.random() < 0.2:
            return [*pairs, b"d"]
        start = (
            [b"}"] if self.random.random() < 0.7 else [*self.name("collections", "OrderedDict"), b")", b"R"]
        )
        return [*start, *pairs, b"u"]

    def name(self, *path):
        module, last = path or self.random.choice(NAMES)
        if self.random.random() < 0.5:
            return [f"c{module}\n{last}\n".encode()]
        return [*self.plain(module), *self.plain(last), b"\x93"]

    def made(self, depth):
        name = self.name() if self.random.random() < 0.3 else self.name(*self.random.choice(CONTAINERS))
        kind = self.random.random()
        arguments = (
            [b")"] if kind < 0.2 else self.items(depth) if kind < 0.6 else [*self.mapping(depth), b"\x85"]
        )
        return [*name, *arguments, self.random.choice([b"R", b"R", b"\x81"])]

    def named(self, depth):
        fields = self.plain(self.random.choice(["a b", ("a", "b"), ["a"], "", 3]))
        made = [
            *self.name("dill._dill", "_create_namedtuple"),
            b"(",
            *self.plain("T"),
            *fields,
            *self.plain("m"),
            b"t",
            b"R",
        ]
        return [*made, *self.items(depth), b"\x81"]

    def state(self, depth):
        of = self.made(depth) if self.random.random() < 0.7 else self.value(depth + 1)
        return [*of, *self.mapping(depth), b"b"]

    def dtype(self):
        if self.random.random() < 0.1:
            return self.value(4)
        likely = self.random.random() < 0.7
        code, state = (
            ("f4", PLAIN_STATE) if likely else (self.random.choice(CODES), self.random.choice(STATES))
        )
        return [
            *self.name("numpy", "dtype"),
            *self.plain((code, False, True)),
            b"R",
            *self.plain(state),
            b"b",
        ]

    def shape_and_bytes(self):
        shape = self.random.choice([(), (1,), (2,), (1, 2), (0, 3), (2, 3, 1), (3, 0, 10**9)])
        data = bytes(4 * math.prod(shape))
        if self.random.random() < 0.15:
            shape = self.random.choice(
                [(-1,), (2**62,), (2**40, 2**40), (1,) * 40, (True,), (1.0,), [1], 5, (0, 2**70)]
            )
        if self.random.random() < 0.1:
            return self.plain(shape), self.value(4)
        return self.plain(shape), self.plain(data)

    def array(self, depth):
        shape, data = self.shape_and_bytes()
        dtype, order = self.dtype(), self.plain(self.random.choice([False, False, True, 2]))
        if self.random.random() < 0.1:  # the wrapper of np.save
            shape, dtype = (
                self.plain(()),
                [*self.name("numpy", "dtype"), *self.plain(("O8", False, True)), b"R"],
            )
            data = [b"]", *self.value(depth + 1), b"a"]
        function = self.name(f"numpy.{self.random.choice(['core', '_core'])}.multiarray", "_reconstruct")
        arguments = [*self.name("numpy", "ndarray"), *self.plain((0,)), *self.plain(b"b"), b"\x87"]
        state = [b"(", *self.plain(1), *shape, *dtype, *order, *data, b"t"]
        if self.random.random() < 0.1:
            return [
                *self.name("jax._src.array", "_reconstruct_array"),
                b"(",
                *function,
                *arguments,
                *state,
                b"}",
                b"t",
                b"R",
            ]
        return [*function, *arguments, b"R", *state, b"b"]

    def scalar(self, depth):
        data = self.plain(bytes(self.random.choice([4, 4, 4, 0, 8])))
        return [*self.name("numpy._core.multiarray", "scalar"), *self.dtype(), *data, b"\x86", b"R"]

    def buffer(self, depth):
        shape, data = self.shape_and_bytes()
        order = self.plain(self.random.choice(["C", "C", "F", "K", None]))
        name = self.name("numpy.core.numeric", "_frombuffer")
        return [*name, b"(", *data, *self.dtype(), *shape, *order, b"t", b"R"]

    def encoded(self, depth):
        codec = self.plain(self.random.choice(["latin1", "latin1", "utf-8", "rot13", "unicode_escape", 3]))
        return [
            *self.name("_codecs", "encode"),
            *self.plain(self.random.choice(TEXTS)),
            *codec,
            b"\x86",
            b"R",
        ]


PLAIN_TYPES = {type(None), bool, int, float, str, bytes, bytearray}


def is_inert(value):
    """Whether a value is made of plain values, arrays of numbers that own their memory, and our containers."""
    if isinstance(value, (np.ndarray, np.generic)):
        plain = value.dtype.isbuiltin and value.dtype.kind in "fiubc" and value.dtype.isnative
        return plain and (isinstance(value, np.generic) or value.flags.owndata)
    if type(value) is dict:
        return all(type(key) in (str, int) for key in value) and all(map(is_inert, value.values()))
    if type(value) in (list, tuple, unpickle.Record):
        return all(map(is_inert, value)) and set(getattr(value, "__dict__", ())) <= {"fields"}
    return type(value) in PLAIN_TYPES


def surroundings():
    """What a program could change: the namespaces of the modules and classes that read it."""
    spaces = [
        pickle_machine,
        unpickle,
        unpickle.Record,
        pickle_machine.Name,
        pickle_machine.Call,
        pickletools,
    ]
    functions = [unpickle.loads, pickle_machine.run, pickle_machine.shown]
    state = [{k: v for k, v in vars(s).items() if k != "__warningregistry__"} for s in spaces]
    state += [dict(pickle_machine.KINDS), dict(unpickle.ITEM_SIZES)]
    return state, [(f.__defaults__, f.__code__, f.__kwdefaults__, dict(vars(f))) for f in functions]


def outcome(read, program):
    """How a program ends: "value", "unsafe" or "broken"; AssertionError with the program for anything else."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        value = read(program)
        assert is_inert(value), f"{program!r} ends in {value!r}."
        end = "value"
    except unpickle.UnsafePickleError as error:
        assert str(error).endswith("."), f"{program!r}: {error}"
        end = "unsafe"
    except unpickle.BrokenPickleError as error:
        assert str(error).endswith(".") and "memory" not in str(error), f"{program!r}: {error}"
        end = "broken"
    except Exception as error:
        raise AssertionError(f"{program!r} ends in {error!r}.") from error
    peak = tracemalloc.get_traced_memory()[1] - before
    # The budget of values, and for each byte a node, a dictionary, their values and their places; what a process keeps.
    assert peak < 4 * len(program) + 600 * len(program) + 2**21, f"{program!r} takes {peak} bytes."
    return end


@pytest.fixture
def limited_memory():
    """Allocations are counted, and fail where they would take more than a gigabyte beside what the process has."""
    tracemalloc.start()
    limits = None
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, limits[1]))
    try:
        yield
    finally:
        if limits is not None:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        tracemalloc.stop()


def run_programs(examples, each):
    """Runs `examples` times `each` programs; counts how they end."""
    ends = collections.Counter()

    @settings(max_examples=examples, deadline=None, phases=[Phase.generate], database=None)
    @given(st.integers(0, 2**64))
    def run(seed):
        programs = Programs(seed)
        ends.update(outcome(unpickle.loads, programs.program()) for _ in range(each))

    before = surroundings()
    run()
    assert surroundings() == before
    return ends


@pytest.mark.parametrize("examples", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_every_program_ends_in_a_value_or_an_error_of_ours(examples, limited_memory):
    ends = run_programs(examples, each=1000)
    assert ends.total() >= examples * 1000
    assert min(ends["value"], ends["unsafe"], ends["broken"]) > ends.total() / 20, ends


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["tiny", "bottleneck"])
def test_every_damaged_checkpoint_ends_in_a_value_or_an_error_of_ours(
    name, count, data_folder, tmp_path, limited_memory
):
    content = (data_folder / f"checkpoint_{name}.npy").read_bytes()
    start = content.index(b"\n") + 1
    opcodes = pickletools.genops(content[start:])
    # Most of the bytes are those of arrays: flips are put among the instructions.
    places = [*range(start), *(start + place + i for _, _, place in opcodes for i in range(3))]
    draw = random.Random(count)
    path = tmp_path / "damaged.npy"

    def read(program):
        path.write_bytes(program)
        return unpickle.load(path)

    ends = collections.Counter()
    for _ in range(count):
        damaged = bytearray(content)
        for _ in range(draw.choice([1, 1, 2, 10])):
            damaged[min(draw.choice(places), len(damaged) - 1)] ^= 1 << draw.randrange(8)
        if draw.random() < 0.3:
            del damaged[draw.randrange(len(damaged)) :]
        ends[outcome(read, bytes(damaged))] += 1
        with contextlib.suppress(ValueError):
            official.read_checkpoint(path)
    assert ends["broken"] > 0
    assert ends["value"] > 0
