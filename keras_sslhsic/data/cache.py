"""Keeps what was read or decoded, in memory or on disk. Views are never kept: every epoch draws its own."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from keras_sslhsic import checks, files
from keras_sslhsic.data import decode, npy


class Cache:
    """Keeps uint8 arrays by a string, up to a number of bytes.

    When it is full it keeps what it has. Each epoch asks for every image once, in another order: then a fixed
    part is found as often as possible, while replacing the oldest finds next to nothing.

    Args:
        limit: bytes that are kept at most.
        directory: folder that holds the arrays, for this run and later ones; None keeps them in memory.
    """

    def __init__(self, limit: int, directory: str | Path | None = None) -> None:
        self.limit = limit
        self.directory = None if directory is None else Path(directory)
        self._arrays: dict[str, np.ndarray] = {}
        self._lock = threading.Lock()
        self.size = 0
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            for folder in self.directory.iterdir():
                files.sweep(folder)
            self.size = sum(entry.stat().st_size for entry in self.directory.glob("*/*.npy"))

    def get(self, key: str, shape: tuple[int | None, ...], hold: Callable[[int], None]) -> np.ndarray | None:
        """The array kept under this key, or None. An entry on disk that is damaged, or of another shape, is removed.

        None in a place of the shape is free; `hold` is called with the bytes of an entry on disk before it is read.
        """
        if self.directory is None:
            return self._arrays.get(key)
        entry = self._entry(key)
        try:
            with files.open_regular(entry, decode.MAX_BYTES) as stream:
                size = os.fstat(stream.fileno()).st_size
                hold(size)
                array = npy.read(stream, size)
        except OSError:
            return None
        except ValueError:
            array = np.empty(0, bool)
        sides = zip(shape, array.shape, strict=False)
        fits = len(shape) == array.ndim and all(wanted in (None, side) for wanted, side in sides)
        if array.dtype == np.uint8 and fits:
            return array
        self._remove(entry)
        return None

    def put(self, key: str, array: np.ndarray) -> None:
        """Keeps the array, if there is room."""
        with self._lock:
            if self.size + array.nbytes > self.limit or key in self._arrays:
                return
            self.size += array.nbytes
            if self.directory is None:
                self._arrays[key] = array
        if self.directory is not None:
            with (
                contextlib.suppress(OSError),  # a full disk ends the caching, not the run
                files.written_whole(self._entry(key), sweep=False, flush=False) as temporary,
                temporary.open("wb") as stream,
            ):
                np.save(stream, array)

    def _entry(self, key: str) -> Path:
        assert self.directory is not None
        name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        return self.directory / name[:2] / f"{name}.npy"

    def _remove(self, entry: Path) -> None:
        """Makes room for what takes the place of an entry that is of no use."""
        with contextlib.suppress(OSError), self._lock:
            size = entry.lstat().st_size
            entry.unlink()
            self.size -= size


def make(kind: str | None, kinds: Sequence[str], directory: str | Path | None, limit: int) -> Cache | None:
    """The cache that the arguments `cache`, `cache_dir` and `cache_bytes` of a source ask for, or None.

    Raises:
        ValueError: for a kind that is none of `kinds`, a folder without a kind, or a limit below one byte.
    """
    names = ", ".join(f'"{name}"' for name in kinds)
    if kind is not None and kind not in kinds:
        raise ValueError(f"cache must be {names} or None, found {kind!r}.")
    if kind is None and directory is not None:
        raise ValueError(
            f"cache_dir is '{files.display(directory)}', but nothing is cached: say what with "
            f"cache={names.replace(', ', ' or ')}."
        )
    checks.integer("cache_bytes", limit, 1, most=2**63 - 1)
    return None if kind is None else Cache(limit, directory)
