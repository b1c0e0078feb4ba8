"""Keeps what was read or decoded, in memory or on disk. Views are never kept: every epoch draws its own."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_sslhsic import checks


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
            self.size = sum(entry.stat().st_size for entry in self.directory.glob("*/*.npy"))

    def get(self, key: str) -> np.ndarray | None:
        """The array kept under this key, or None."""
        if self.directory is None:
            return self._arrays.get(key)
        try:
            return np.load(self._file(key))
        except (OSError, ValueError, EOFError):  # not there, or cut off by a full disk
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
            self._write(self._file(key), array)

    def _file(self, key: str) -> Path:
        assert self.directory is not None
        name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:40]
        return self.directory / name[:2] / f"{name}.npy"

    def _write(self, file: Path, array: np.ndarray) -> None:
        file.parent.mkdir(exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        with contextlib.suppress(OSError):  # a full disk ends the caching, not the run
            with partial.open("wb") as stream:
                np.save(stream, array)
            os.replace(partial, file)


def make(kind: str | None, kinds: Sequence[str], directory: str | Path | None, limit: int) -> Cache | None:
    """The cache that the arguments `cache`, `cache_dir` and `cache_bytes` of a source ask for; None for none.

    Args:
        kind: what is kept, or None for nothing.
        kinds: what the source can keep.
        directory: as in `Cache`.
        limit: as in `Cache`.

    Raises:
        ValueError: for an unknown kind, a folder without a kind, or a limit below one byte.
    """
    names = ", ".join(f'"{name}"' for name in kinds)
    if kind is not None and kind not in kinds:
        raise ValueError(f"cache must be {names} or None, found {kind!r}.")
    if kind is None and directory is not None:
        raise ValueError(
            f"cache_dir is {str(directory)!r}, but nothing is cached: say what with cache={names.replace(', ', ' or ')}."
        )
    checks.integer("cache_bytes", limit, 1)
    return None if kind is None else Cache(limit, directory)
