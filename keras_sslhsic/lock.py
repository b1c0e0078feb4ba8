"""One process at a time in a folder or at a file."""

import contextlib
import datetime
import errno
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from keras_sslhsic.files import display, named, short_name


class InUseError(RuntimeError):
    """Another process works there; the message names it."""


@contextlib.contextmanager
def held(target: str | os.PathLike) -> Iterator[None]:
    """Keeps `target`, a file or a folder that is written, to this process, by a lock on ``.NAME.lock`` beside it.

    Folders that are missing are made, and removed in the end if nothing is in them. The lock ends with the process,
    however it ends. Nothing but the lock file is written: a link or anything else under its name is refused. Systems
    without such locks (Windows, some network file systems) are not protected.

    Raises:
        InUseError: if another process holds it.
        OSError: if nothing can be written beside `target`, or what has the name of the lock is no lock.
    """
    if fcntl is None:
        yield
        return
    target = Path(target).resolve()
    made = [folder for folder in target.parents if not folder.exists()]
    path = target.with_name(f".{short_name(target.name)}.lock")
    with named(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = _locked(path, target)
    try:
        program = f"{Path(sys.argv[0]).name} {' '.join(sys.argv[1:2])}".strip() or "python"
        since = datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")
        holder = f"process {os.getpid()} on {socket.gethostname()} ({program}, since {since})"
        with contextlib.suppress(OSError):  # on a full disk: it is held all the same
            os.ftruncate(handle, 0)
            os.pwrite(handle, holder.encode("utf-8", "replace"), 0)
        yield
    finally:
        try:
            path.unlink(missing_ok=True)  # before it is released: whoever waits sees that its name is gone
        finally:
            os.close(handle)
        with contextlib.suppress(OSError):  # what was locked is in it
            for folder in made:
                folder.rmdir()


def _locked(path: Path, target: Path) -> int:
    """A handle on the lock file, locked."""
    while True:
        handle = _opened(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 500, 0).decode("utf-8", "replace") or "another process"
            os.close(handle)
            raise InUseError(
                f"{display(target)} is in use by {display(holder)}: wait until it ends, or choose another place."
            ) from None
        except OSError:  # a file system without locks
            return handle
        # The holder before may have removed the file between the two calls.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)


def _opened(path: Path) -> int:
    """A handle on the lock file, made if it is missing; refuses a link or second name, whose file would be overwritten."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags, 0o666)
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:  # 0: its holder removed it just now
            return handle
        os.close(handle)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a folder, a socket
            raise
    raise OSError(f"{display(path)} has the name of a lock, and is a link or no regular file: remove it.")
