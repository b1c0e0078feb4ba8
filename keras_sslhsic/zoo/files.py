"""Files of models: hashes, atomic writing, and the note that goes into a model's file."""

import contextlib
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

NOTE = "keras_sslhsic"  # attribute of a .weights.h5 file, member of a .keras file: JSON


def sha256(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def count_parameters(model: keras.Model) -> int:
    """Counts the trainable parameters, whether or not they are frozen at the moment: all but statistics."""
    return sum(int(np.prod(v.shape)) for v in model.weights if not v.name.startswith("moving_"))


@contextlib.contextmanager
def written_whole(target: str | os.PathLike, suffix: str = "") -> Iterator[Path]:
    """Gives a temporary path beside `target` that replaces it at the end, or is removed after an error.

    Args:
        target: the file to write. Its folder is made if need be.
        suffix: what the temporary name must end in.
    """
    target = Path(target)
    with _named(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            prefix=f".{target.name}.", suffix=suffix or ".part", dir=target.parent
        )
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(target: str | os.PathLike, folder: bool = False) -> None:
    """Raises OSError if no file, or no folder, could be made at `target`: to be asked before long work. Makes nothing."""
    target = Path(target).absolute()
    if target.is_dir() and not folder:
        raise IsADirectoryError(f"{target} is a folder: give the name of a file to write.")
    above = next(parent for parent in target.parents if parent.exists() or parent.is_symlink())
    with _named(target), tempfile.TemporaryFile(dir=above):
        pass


@contextlib.contextmanager
def _named(target: Path) -> Iterator[None]:
    """Errors name the file that was asked for, not a temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{target} cannot be written: {error.strerror}.") from error


def save_model(model: keras.Model, target: str | os.PathLike, note: dict[str, Any]) -> None:
    """Saves a model to ``NAME.keras``, or its weights to ``NAME.weights.h5``, with a note; never half."""
    target = Path(target)
    if target.suffix == ".keras":
        with written_whole(target, ".keras") as temporary:
            model.save(temporary)
            with zipfile.ZipFile(temporary, "a") as archive:
                archive.writestr(f"{NOTE}.json", json.dumps(note))
    else:
        with written_whole(target, ".weights.h5") as temporary:
            model.save_weights(temporary)
            with h5py.File(temporary, "r+") as file:
                file.attrs[NOTE] = json.dumps(note)


def read_note(path: str | os.PathLike) -> dict[str, Any]:
    """Reads the note that `save_model` put into a file; empty if there is none.

    Raises:
        ValueError: if the file is damaged or of another kind.
    """
    try:
        if str(path).endswith(".keras"):
            with zipfile.ZipFile(path) as archive:
                member = f"{NOTE}.json"
                return json.loads(archive.read(member)) if member in archive.namelist() else {}
        with h5py.File(path, "r") as file:
            return json.loads(file.attrs.get(NOTE, "{}"))
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a readable model file: {error}") from error
