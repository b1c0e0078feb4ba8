"""Files of models, the note that goes into them, and what a file may ask for.

A file of a stranger may declare far more than it holds, and Keras allocates what is declared. What is declared is
compared with the bytes that are there before anything is made of it.
"""

import contextlib
import errno
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import keras
import numpy as np

from keras_sslhsic import compat, files
from keras_sslhsic.encoders import Encoder
from keras_sslhsic.files import display

LARGEST = 2**34  # bytes of a model file: four times the largest that was published
_WEIGHTS = "model.weights.h5"  # member of a .keras file
_TEXT = 2**22  # bytes of a member that is JSON: twenty times those of a ResNet-50
_EXPANSION, _FLOOR = 10, 2**20  # what is declared is at most so many times the bytes of the file, or so many
_UNSAVED = 64, 2**20  # arrays and numbers that a model may have beyond those of its file
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.ENOENT}


def count_parameters(model: keras.Model) -> int:
    """Counts the trainable parameters, whether or not they are frozen at the moment: all but statistics."""
    return sum(int(np.prod(v.shape)) for v in model.weights if not v.name.startswith("moving_"))


def save_model(model: keras.Model, target: str | os.PathLike, note: Mapping[str, Any]) -> None:
    """Saves a model to ``NAME.keras``, or its weights to ``NAME.weights.h5``, with a note; never half.

    Raises:
        OSError: if it cannot be written; the message names `target`.
    """
    if Path(target).suffix != ".keras":
        content = compat.weights_file(model, note)
    elif isinstance(model, Encoder):
        content = model.archive(note)
    else:
        content = compat.archive(model, note)
    files.write_bytes(target, content)


def read_note(path: str | os.PathLike) -> dict[str, Any]:
    """Reads the note that `save_model` put into a file; empty if there is none.

    Raises:
        OSError: if there is no such file, or it is no regular one.
        ValueError: if the file is damaged or of another kind.
    """
    with _opened(path, "is not a readable model file") as content:
        if isinstance(content, zipfile.ZipFile):
            member = f"{compat.NOTE}.json"
            text = content.read(member) if member in content.namelist() else "{}"
        else:
            text = content.attrs.get(compat.NOTE, "{}")
        note = json.loads(text)
        if not isinstance(note, dict):
            raise ValueError(f"its note is a {type(note).__name__}, expected a mapping")
    return note


def load(path: str | os.PathLike) -> keras.Model:
    """Loads a ``.keras`` file, without its optimizer.

    Raises:
        OSError: if there is no such file, or it is no regular one.
        ValueError: if it is damaged, declares more than its size allows, holds code (safe mode) or weights that are not
            finite.
    """
    with within_bounds(path, "is not a readable Keras model"):
        model = keras.models.load_model(path, compile=False, safe_mode=True)
    check_finite(model, path)
    return model


@contextlib.contextmanager
def within_bounds(path: str | os.PathLike, problem: str) -> Iterator[None]:
    """Within it, a ``.keras`` or ``.weights.h5`` file is made a model of, as large as its bytes allow.

    Raises:
        OSError: if there is no such file, or it is no regular one.
        ValueError: if the file declares more than its size allows, if variables of more numbers than it has are made,
            and for whatever else goes wrong; the message says the `problem` of the file.
    """
    with _opened(path, problem) as content:
        if isinstance(content, zipfile.ZipFile):
            with content.open(_WEIGHTS) as weights, h5py.File(io.BytesIO(weights.read()), "r") as file:
                found = _count(file, content.getinfo(_WEIGHTS).file_size)
        else:
            found = _count(content, os.path.getsize(path))
        with compat.variables_within(*np.add(found, _UNSAVED).tolist()):
            yield


def check_finite(model: keras.Model, path: str | os.PathLike) -> None:
    """Raises ValueError for NaN or infinity, or a negative variance, in a model that was read from `path`; names the first."""
    for variable in model.variables:
        value = np.asarray(variable)
        if value.dtype.kind not in "biu" and not np.isfinite(value.astype(np.float32, copy=False)).all():
            raise ValueError(
                f"{display(path)} holds NaN or infinity in {display(variable.path)}: take weights from before it diverged."
            )
        if variable.name == "moving_variance" and (value < 0).any():
            raise ValueError(
                f"{display(path)} holds negative variances in {display(variable.path)}: it is damaged."
            )


def reason(error: Exception) -> str:
    """The first line of another library's error, without its full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return display(lines[0][:300]).rstrip(".:")


@contextlib.contextmanager
def _opened(path: str | os.PathLike, problem: str) -> Iterator[zipfile.ZipFile | h5py.File]:
    """The members of a .keras file, or the datasets of an HDF5 file; errors name the file."""
    advice = ""
    with files.open_regular(path, LARGEST) as file:
        try:
            with _members(file) if str(path).endswith(".keras") else h5py.File(file, "r") as content:
                advice = _advice(content)
                yield content
        except Exception as error:  # both formats, and the layers of a model, raise whatever they like
            if (
                isinstance(error, OSError) and error.errno in _NO_ROOM
            ):  # Keras unpacks: the file is open already
                raise OSError(
                    f"{display(path)} cannot be unpacked where temporary files go: {os.strerror(error.errno)}. Make room "
                    "there, or set TMPDIR to another folder."
                ) from error
            raise ValueError(f"{display(path)} {problem}: {reason(error)}.{advice}") from error


def _advice(content: zipfile.ZipFile | h5py.File) -> str:
    """What may help if a file does not load: a version of Keras not older than the one that wrote it."""
    if not isinstance(content, zipfile.ZipFile) or "metadata.json" not in content.namelist():
        return ""
    written = str(json.loads(content.read("metadata.json")).get("keras_version", ""))
    if not re.fullmatch(r"\d+(\.\d+)+", written) or _numbers(written) <= _numbers(keras.__version__):
        return ""
    return (
        f" Keras {written} wrote it, and this is Keras {keras.__version__}: pip install 'keras>={written}'."
    )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _members(file: BinaryIO) -> zipfile.ZipFile:
    """Opens a zip archive that inflates to no more than its size allows."""
    content = zipfile.ZipFile(file)
    size = os.fstat(file.fileno()).st_size
    declared = sum(member.file_size for member in content.infolist())
    if declared > _most(size):
        raise ValueError(f"its {size:,} bytes would inflate to {declared:,}")
    for member in content.infolist():
        if member.filename.endswith(".json") and member.file_size > _TEXT:
            raise ValueError(f"its {member.filename} has {member.file_size:,} bytes, more than {_TEXT:,}")
    return content


def _count(file: h5py.File, size: int) -> tuple[int, int]:
    """(arrays, numbers) in an HDF5 file, where they take no more bytes than its size allows."""
    link = file.visititems_links(lambda name, link: None if isinstance(link, h5py.HardLink) else name)
    if link is not None:
        raise ValueError(f"its {link} is a link, expected an array or a group")
    datasets: list[h5py.Dataset] = []
    file.visititems(lambda name, item: datasets.append(item) if isinstance(item, h5py.Dataset) else None)
    if any(dataset.external or dataset.is_virtual for dataset in datasets):
        raise ValueError("its weights lie in other files")
    declared = sum(int(dataset.size or 0) * dataset.dtype.itemsize for dataset in datasets)
    if declared > _most(size):
        raise ValueError(f"its {size:,} bytes declare arrays of {declared:,}")
    return len(datasets), sum(int(dataset.size or 0) for dataset in datasets)


def _most(size: int) -> int:
    return max(_FLOOR, _EXPANSION * size)
