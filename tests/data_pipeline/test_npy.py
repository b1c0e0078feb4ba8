"""Reading .npy files: what NumPy writes, and nothing else."""

import contextlib
import io
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_sslhsic.data import npy


def written(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def read(content):
    return npy.read(io.BytesIO(content), len(content))


@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "<f4", "<f8", "?", "<U3"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 4)])
def test_arrays_are_read_back(dtype, shape):
    array = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    for order in "CF":
        found = read(written(np.asarray(array, order=order)))
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def header(text):
    text = text.encode() + b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def declared(shape, descr="'|u1'"):
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x09\x00" + bytes(100),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        header("(" * 5000),
        header("{'descr': '|u1'}"),
        header("\xff"),
        declared("(1000000000000,)"),
        declared("(10, 10)") + bytes(99),
        declared("(10, 10)") + bytes(101),
        declared("(-1, -100)") + bytes(100),
        declared("(0, 1000000000000000000000000)", "'<f8'") + bytes(8),
        declared("(1,)", "'<U1000000000'") + bytes(4),
        declared("(1,)", "'|V8'") + bytes(8),
        declared("(1,)", "[('a', '|u1'), ('b', '|O')]") + bytes(9),
        written(np.array([print], object), allow_pickle=True),
        written(np.zeros(3, "u1,f4")),
    ],
)
def test_anything_else_is_refused_before_memory_is_taken(content):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"\.npy file|an array of shape"):
            read(content)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


@given(st.data())
def test_damage_is_found_or_leaves_an_array_of_plain_numbers(data):
    content = bytearray(written(np.arange(20, dtype=np.uint8)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        assert read(bytes(content)).nbytes == 20
