"""Reading and writing files so that a kill, a full disk or an odd file does no harm.

What is written gets its name by one rename, when all of it is on the disk: whoever finds it finds all of it. What a
killed process leaves behind is known by its name, ``.NAME.HOST-PID-RANDOM.partial``, and is removed by the next one that
writes NAME. What is read is a regular file, of a size that was asked for.
"""

import contextlib
import ctypes
import errno
import hashlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HOST = re.sub(r"[^A-Za-z0-9_]", "_", socket.gethostname())
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<host>\w*)-(?P<pid>\d+)-[0-9a-f]{8}\.(partial|earlier)(\.\w+)*")
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
_in_use: set[Path] = set()  # this process's temporary files and folders


def sha256(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file, in hexadecimal; raises as `open_regular`."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


# Reading ------------------------------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike, limit: int | None = None) -> io.BufferedReader:
    """Opens a file to read its bytes, if it is a regular file: a named pipe would wait, a device never end.

    Args:
        path: the file, or a link to it.
        limit: bytes that it may have at most.

    Raises:
        OSError: if it cannot be opened, is no regular file, or is larger than `limit`.
    """
    # Opening a named pipe waits for a writer unless it is asked not to.
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{display(path)} is {_kind(status.st_mode)}: expected a regular file.")
        if limit is not None and status.st_size > limit:
            raise OSError(f"{display(path)} has {status.st_size:,} bytes, more than the limit of {limit:,}.")
        return os.fdopen(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_regular(path: str | os.PathLike, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; raises as `open_regular`."""
    with open_regular(path, limit) as file:
        # It may have grown since it was opened; as many bytes as are asked for are allocated.
        content = file.read(min(os.fstat(file.fileno()).st_size, limit) + 1)
    if len(content) > limit:
        raise OSError(f"{display(path)} has more bytes than the limit of {limit:,}.")
    return content


def read_json(path: str | os.PathLike, limit: int = 2**24) -> dict[str, Any]:
    """Reads a mapping from a JSON file.

    Raises:
        OSError: as `open_regular`.
        ValueError: if it holds something else.
    """
    content = read_regular(path, limit)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{display(path)} is not readable JSON: {error}. Restore or remove it.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{display(path)} holds a {type(value).__name__}: expected a mapping in JSON.")
    return value


def display(name: object) -> str:
    """A path or name as it may stand in a message or a line of text: control characters and line breaks escaped."""
    text = os.fsdecode(name) if isinstance(name, (bytes, os.PathLike)) else str(name)
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )


def is_utf8(name: str | os.PathLike) -> bool:
    """Whether a name is UTF-8, as TensorFlow and Parquet take text."""
    try:
        os.fspath(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    kinds |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")
    return kinds.get(stat.S_IFMT(mode), "no file")


# Writing ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def written_whole(
    target: str | os.PathLike, suffix: str = "", sweep: bool = True, flush: bool = True
) -> Iterator[Path]:
    """Gives a temporary path beside `target` that replaces it at the end, or is removed after an error.

    Args:
        target: the file to write. Its folder is made if need be; a link stays, and the file that it leads to is written.
        suffix: what the temporary name must end in.
        sweep: whether to remove what killed processes left of `target`, which lists its folder.
        flush: whether to wait until it is on the disk. What need not outlast a power failure is written many times faster.

    Raises:
        OSError: if it cannot be written, or is no regular file; the message names it.
    """
    target = _destination(target)
    with named(target):
        if target.exists() and not target.is_file():
            raise OSError(f"{display(target)} is {_kind(target.stat().st_mode)}: give the name of a file.")
    with _beside(target, "partial" + suffix, sweep) as temporary:
        # With the mode of the umask.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        if flush:
            _flush(temporary)
        os.replace(temporary, target)
        if flush:
            _flush(target.parent)


def write_bytes(target: str | os.PathLike, content: bytes) -> None:
    """Writes a file, all or nothing; see `written_whole`."""
    with written_whole(target) as temporary:
        temporary.write_bytes(content)


def write_text(target: str | os.PathLike, text: str) -> None:
    """Writes a UTF-8 file, all or nothing; names that are not UTF-8 keep their bytes."""
    write_bytes(target, text.encode("utf-8", "surrogateescape"))


def write_json(target: str | os.PathLike, content: Any) -> None:
    """Writes a JSON file, all or nothing."""
    write_text(target, json.dumps(content, indent=2) + "\n")


def append_line(target: str | os.PathLike, line: bytes, flush: bool = True) -> None:
    """Adds a line, whose end is put to it, to a file, made with its folders if missing.

    It is written by one call: several processes may do so, and a kill leaves no half of one. After a line that was cut short,
    as by a full disk, it begins a new one.

    Args:
        target: the file.
        line: its bytes.
        flush: as of `written_whole`.

    Raises:
        OSError: if not all of it can be written.
    """
    line, target = line + b"\n", Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab+", buffering=0) as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = b"\n" + line
        written = file.write(line)
        if flush:
            os.fsync(file.fileno())
    if written != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def replaced_folder(target: str | os.PathLike, keep: bool = False) -> Iterator[Path]:
    """Gives an empty folder beside `target` that takes its name at the end, or is removed after an error.

    The change is one rename, so that at any moment `target` is the earlier folder or the new one. Where the file system
    cannot exchange two names, it is two: a kill between them leaves the earlier folder under another name, which the next
    call puts back.

    Of a link, it is the folder that it leads to. With `keep`, files of the earlier folder that the new one has not are kept.

    Raises:
        OSError: if it cannot be written, or is no folder; the message names it.
        ValueError: if it is the current folder, or the current one lies in it.
    """
    target = _destination(target)
    if Path.cwd().is_relative_to(target):
        raise ValueError(f"{display(target)} holds the current folder and would be replaced: leave it first.")
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{display(target)} is a file: give the name of a folder.")
    with _beside(target, "partial") as new:
        new.mkdir()
        yield new
        if keep and target.is_dir():
            _link_missing(target, new)
        for file in new.rglob("*"):
            _flush(file)
        _exchange(new, target)
        _flush(target.parent)


@contextlib.contextmanager
def _beside(target: Path, ending: str, sweep: bool = True) -> Iterator[Path]:
    """A temporary name beside `target`, which errors name instead; nothing of that name is left at the end."""
    with named(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if sweep:
            remove_leftovers(target)
        temporary = _temporary(target, ending)
        _in_use.add(temporary)
        try:
            yield temporary
        finally:
            _in_use.discard(temporary)
            _remove(temporary)


def remove_leftovers(target: str | os.PathLike) -> None:
    """Removes what killed processes of this machine left of `target`, and puts back a folder that one was replacing."""
    target = Path(target)
    for path, found in _left_behind(target.parent):
        if found["name"] != short_name(target.name):
            continue
        if found[4] == "earlier" and not target.exists():
            os.rename(path, target)
        else:
            _remove(path)


def sweep(folder: str | os.PathLike) -> None:
    """Removes what killed processes of this machine left of any file in a folder that is written by this library alone."""
    for path, found in _left_behind(Path(folder)):
        if found[4] == "partial":
            _remove(path)


def _left_behind(folder: Path) -> list[tuple[Path, re.Match]]:
    """What killed processes of this machine left in a folder, with the parts of its name."""
    paths = list(folder.iterdir()) if folder.is_dir() else []
    matches = [(path, _LEFTOVER.fullmatch(path.name)) for path in paths]
    return [(path, found) for path, found in matches if found is not None and _is_dead(path, found)]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def is_leftover(path: str | os.PathLike) -> bool:
    """Whether a file or folder has the name of something half-written, or of a lock."""
    name = Path(path).name
    return _LEFTOVER.fullmatch(name) is not None or (name.startswith(".") and name.endswith(".lock"))


def check_writable(target: str | os.PathLike, folder: bool = False) -> None:
    """Raises OSError if no file, or no folder, could be made at `target`: to be asked before long work. Makes nothing."""
    target = Path(target).absolute()
    if target.is_dir() and not folder:
        raise IsADirectoryError(f"{display(target)} is a folder: give the name of a file.")
    if folder and target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{display(target)} is a file: give the name of a folder.")
    above = next(parent for parent in target.parents if parent.exists() or parent.is_symlink())
    with named(target):
        try:
            with tempfile.TemporaryFile(dir=above):
                pass
        except OSError as error:
            error.filename = None  # of a temporary file
            raise


def check_appendable(target: str | os.PathLike) -> None:
    """`check_writable` of a file that lines are added to: one that is there has to take them itself."""
    target = Path(target)
    if not target.exists():
        return check_writable(target)
    with named(target), target.open("ab"):
        pass


@contextlib.contextmanager
def named(target: str | os.PathLike) -> Iterator[None]:
    """Errors of writing name the file that was asked for, not a temporary one."""
    try:
        yield
    except OSError as error:
        # HDF5, TensorFlow and this function within itself tell the reason in words alone, and NumPy the numbers.
        full = next((e for e in FULL if error.errno == e or os.strerror(e) in str(error)), None)
        if re.fullmatch(r"\d+ requested and \d+ written", str(error)):
            full = errno.ENOSPC
        of_ours = error.filename is not None and is_leftover(os.fsdecode(error.filename))
        if full is not None:
            reason = os.strerror(full)
        elif error.errno is not None and (of_ours or error.filename is None or _concerns(error, target)):
            reason = os.strerror(error.errno)
        else:
            raise
        raise OSError(f"{display(target)} cannot be written: {reason}.") from error


def _concerns(error: OSError, target: str | os.PathLike) -> bool:
    path = Path(os.fsdecode(error.filename))
    return path == Path(target) or path in Path(target).absolute().parents


def _destination(target: str | os.PathLike) -> Path:
    """Where a link leads to; other paths as they are."""
    target = Path(target)
    if not target.is_symlink():
        return target.absolute()
    try:
        return target.resolve()
    except (OSError, RuntimeError) as error:  # a link to itself
        raise OSError(f"{display(target)} is a link that leads nowhere: remove it.") from error


def _temporary(target: Path, ending: str) -> Path:
    process = f"{_HOST}-{os.getpid()}-{secrets.token_hex(4)}"
    return target.with_name(f".{short_name(target.name)}.{process}.{ending}")


def short_name(name: str) -> str:
    """The name, or its hash if a temporary name or a lock's, made of it, would be longer than file systems take."""
    content = os.fsencode(name)
    return name if len(content) <= 120 else hashlib.sha256(content).hexdigest()


def _is_dead(path: Path, found: re.Match) -> bool:
    """Whether the process that made a temporary file is gone; not known of another machine's."""
    if found["host"] != _HOST:
        return False
    if int(found["pid"]) == os.getpid():
        return path not in _in_use
    try:
        os.kill(int(found["pid"]), 0)
    except OSError as error:
        return isinstance(error, ProcessLookupError)  # else it is another user's
    return False


def _flush(path: Path) -> None:
    """Puts a file's bytes, or a folder's names, on the disk."""
    with contextlib.suppress(PermissionError, IsADirectoryError):  # folders, on some systems
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _link_missing(source: Path, folder: Path) -> None:
    """Puts what `folder` has not into it, as hard links where they can be made."""

    def link(old: str, new: str) -> None:
        try:
            os.link(old, new, follow_symlinks=False)
        except OSError:
            shutil.copy2(old, new, follow_symlinks=False)

    for path in source.iterdir():
        if (folder / path.name).exists() or is_leftover(path):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, folder / path.name, symlinks=True, copy_function=link)
        else:
            link(str(path), str(folder / path.name))


def _exchange(new: Path, target: Path) -> None:
    """Gives `new` the name of `target`, which gets that of `new` if it is there."""
    if not target.exists():
        os.rename(new, target)
    elif not _exchange_names(new, target):
        aside = _temporary(target, "earlier")
        os.rename(target, aside)
        os.rename(new, target)
        os.rename(aside, new)


def _exchange_names(one: Path, other: Path) -> bool:
    """Exchanges two names in one step, as Linux does on most file systems; whether it was done."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0
