"""Kills a function at each of its operations on files, as SIGKILL would, in one process.

Python tells audit hooks of every file that it is about to open, rename, remove ... From the n-th such operation below a
folder on, each raises `Killed`, so that nothing, no `finally` either, changes the disk any more.
"""

import contextlib
import gc
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_sslhsic import files

# How many of an event's arguments are paths.
_OPERATIONS = {
    "open": 1, "os.rename": 2, "os.link": 2, "os.symlink": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1,
    "os.truncate": 1, "os.chmod": 1, "os.utime": 1,
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Killed(BaseException):
    """The process is dead, and only thinks that it is not."""


def points(function: Callable[[], object], folder: str | os.PathLike) -> Iterator[str]:
    """Kills `function` at each of its operations below `folder`; yields what it was about to do, for messages.

    Every time the folder is first as it was at the beginning. Where a file was opened for writing before the kill, the
    function is killed once more with half of what it wrote there. What the caller does between is done by a new process: it
    looks at what is left, and calls the function again.

    Example:
        >>> for point in crash.points(lambda: save(new, folder / "a"), folder):
        ...     assert load(folder / "a") in (old, new), point
        ...     save(new, folder / "a")
        ...     assert load(folder / "a") == new and not crash.leftovers(folder), point
    """
    folder = Path(folder).resolve()
    with tempfile.TemporaryDirectory() as backup:
        before = Path(backup, "before")
        shutil.copytree(folder, before, symlinks=True)
        for operation in itertools.count(1):
            for half in (False, True):
                _restore(before, folder)
                process = _Process(folder, operation)
                process.run(function)
                if not process.killed:
                    assert operation > 1, "The function did nothing to kill it at."
                    return
                writing = process.half_written()
                # A thread that writes beside may have got to another place this time.
                if half and writing is not None:
                    os.truncate(process.opened, writing)
                yield f"operation {operation}, {process.killed}{', the file before half written' if half else ''}"
                if writing is None:
                    break


def leftovers(folder: str | os.PathLike) -> list[str]:
    """What below a folder is named as something half-written, or a lock."""
    return sorted(
        str(path.relative_to(folder)) for path in Path(folder).rglob(".*") if files.is_leftover(path)
    )


class _Process:
    """Dies at its n-th operation below a folder."""

    def __init__(self, folder: Path, last: int):
        self.folder, self.left = str(folder), last
        self.killed = ""  # by which operation
        self.opened = ""  # the file that the operation before opened for writing
        self.size = 0  # of it, before

    def run(self, function: Callable[[], object]) -> None:
        global _running
        _hook()
        exchange_names = files._exchange_names

        def exchanged(one: Path, other: Path) -> bool:  # by the C library, of which no hook is told
            self.operation("exchange", (str(one), str(other)))
            return exchange_names(one, other)

        handles = self._handles()
        gc.freeze()  # so that what the process leaves is collected fast
        _running, files._exchange_names = self, exchanged
        try:
            with contextlib.suppress(Killed):
                function()
        except Exception:
            if not self.killed:  # else raised on the way out of it
                raise
        finally:
            _running, files._exchange_names = None, exchange_names
            gc.collect()
            gc.unfreeze()
        if self.killed:
            for handle in self._handles() - handles:  # and with them locks
                os.close(handle)
            files._in_use.clear()

    def operation(self, event: str, paths: tuple[str, ...]) -> None:
        if self.killed:
            raise Killed
        self.left -= 1
        if self.left == 0:
            self.killed = f"{event} {' '.join(os.path.relpath(path, self.folder) for path in paths)}"
            raise Killed
        self.opened = ""

    def audited(self, event: str, arguments: tuple) -> None:
        if event not in _OPERATIONS or (event == "open" and not arguments[2] & _WRITES):
            return
        given = arguments[: _OPERATIONS[event]]
        if not all(
            isinstance(path, (str, bytes, os.PathLike)) for path in given
        ):  # handles, counted when opened
            return
        # Those relative to a handle are of shutil.rmtree, which was given a path.
        of_handle = any(isinstance(value, int) and value > 0 for value in arguments[len(given) :])
        relative = event in ("os.remove", "os.rmdir") and of_handle
        paths = tuple(os.fsdecode(p) if relative else os.path.realpath(os.fsdecode(p)) for p in given)
        if relative or any(path.startswith(self.folder + os.sep) for path in paths):
            self.operation(event, paths)
            if event == "open":
                empty = arguments[2] & os.O_TRUNC or not os.path.isfile(paths[0])
                self.opened, self.size = paths[0], 0 if empty else os.path.getsize(paths[0])

    def half_written(self) -> int | None:
        """The size that half of what was written gives the file that was opened last; None if nothing was."""
        size = os.path.getsize(self.opened) if os.path.isfile(self.opened) else 0
        return self.size + (size - self.size) // 2 if size > self.size else None

    def _handles(self) -> set[int]:
        """This process's open files below the folder."""
        handles = set()
        for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith(self.folder + os.sep):
                    handles.add(int(name))
        return handles


_running: _Process | None = None
_hooked = False


def _hook() -> None:
    """Hooks cannot be taken away again: one for all."""
    global _hooked
    if not _hooked:
        sys.addaudithook(lambda event, arguments: _running and _running.audited(event, arguments))
        _hooked = True


def _restore(source: Path, folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    shutil.copytree(source, folder, symlinks=True, dirs_exist_ok=True)
