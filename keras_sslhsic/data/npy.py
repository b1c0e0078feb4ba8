"""Arrays in .npy files, of which nothing is believed."""

import math
from typing import IO

import numpy as np
from numpy.lib import format as npy


def read(file: IO[bytes], size: int) -> np.ndarray:
    """Reads an array from a stream of `size` bytes, if its header tells of just these bytes; no objects.

    Raises:
        ValueError: for anything else, before memory is taken for it.
    """
    try:
        headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, fortran_order, dtype = headers[npy.read_magic(file)](file)
    except Exception as error:  # NumPy's, and those of Python's parser
        raise ValueError("not a .npy file, or a damaged one") from error
    left = size - file.tell()
    if dtype.kind not in "?biufU" or any(side < 0 for side in shape):
        raise ValueError(f"an array of shape {shape} and type {dtype.str}, which is not read")
    if math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"an array of shape {shape} and type {dtype.str} in {left:,} bytes")
    array = np.frombuffer(file.read(left), dtype)
    return array.reshape(shape, order="F" if fortran_order else "C")
