"""Files of features, a row for each image: .npz and .parquet."""

import json
import os
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from keras_sslhsic import files
from keras_sslhsic.data import npy
from keras_sslhsic.encoders import identity
from keras_sslhsic.files import display, is_utf8

ENDINGS = (".npz", ".parquet")
# As `data.central` does it; earlier versions had bilinear squares, or such of JPEGs at a fraction of their size.
RESIZED = "bicubic, of all pixels"
_SHARD = re.compile(r"features-(\d{5,})-of-(\d{5,})\.parquet")
_EXPANDED = 64  # bytes of a .parquet file's rows for one of the file: features are hardly compressed


class Origin(NamedTuple):
    """What the rows of a file were made with."""

    encoder: str  # its hash
    folder: str  # of the images
    image_size: str = ""  # side of the squares that they were made; empty where the encoder saw all of them
    resized: str = ""  # how they were made so: `RESIZED`
    class_names: tuple[str, ...] = ()  # of features that are probabilities

    @property
    def is_current(self) -> bool:
        """Whether images are made squares as they were."""
        return self.resized == (RESIZED if self.image_size else "")


class Row(NamedTuple):
    """What is known of an image: its features, or why there are none."""

    stamp: tuple[int, int]  # bytes and time of change, ns: another stamp, another image
    features: np.ndarray | None
    reason: str = ""


def read(paths: list[Path], encoder_id: str, image_size: str = "") -> tuple[dict[str, Row], set[str]]:
    """Reads the rows of files, of which some may be missing, and the folders of their images.

    Raises:
        ValueError: if another program wrote one of them, or this one with another encoder or images of another size, or a
            version that cannot tell; if one is damaged, or states more than it holds.
    """
    rows: dict[str, Row] = {}
    folders = set()
    for path in filter(Path.exists, paths):
        found, origin = load(path)
        if origin.encoder != encoder_id:
            raise ValueError(
                f"{display(path)} was written with another encoder: remove it, or choose another output."
            )
        if origin.image_size != image_size:
            sizes = (
                f"{size} pixels" if size else "the size that they have"
                for size in (origin.image_size, image_size)
            )
            raise ValueError(
                "{} holds features of images of {}, and those to come are of {}: give the size of before, choose another "
                "output, or remove it.".format(display(path), *sizes)
            )
        rows |= found
        folders.add(origin.folder)
    return rows, folders


def load(path: Path) -> tuple[dict[str, Row], Origin]:
    """Reads the rows of a file, whatever they were made with.

    Raises:
        ValueError: if another program wrote it, or a version that knew encoders by less; if it is damaged, or states more than
            it holds.
    """
    try:
        with files.open_regular(path) as file:
            found, origin = (_read_parquet if path.suffix.lower() == ".parquet" else _read_npz)(file)
    except (ImportError, FileNotFoundError):
        raise
    except Exception as error:  # zipfile and pyarrow raise many types for damaged files
        reason = f"it has no {error.args[0]}" if isinstance(error, KeyError) else display(error).rstrip(".")
        raise ValueError(
            f"{display(path)} was not written by keras-sslhsic extract: choose another file ({reason})."
        ) from error
    if not identity.tells_operations(origin.encoder):
        raise ValueError(
            f"{display(path)} was written by an earlier version, which knew encoders by their layers and weights alone, so "
            "that it may be of one with other operations: remove it to compute all of it again, or choose another output."
        )
    if not origin.is_current:
        raise ValueError(
            f"{display(path)} was written by an earlier version, which resized images otherwise: remove it to compute all of "
            "it again, or choose another output."
        )
    return found, origin


def shards(folder: Path) -> list[Path]:
    """The files of a folder that `extract_shards` wrote, in the order of their numbers."""
    return sorted(path for path in folder.glob("features-*-of-*.parquet") if _SHARD.fullmatch(path.name))


def shard(folder: Path, number: int, count: int) -> Path:
    """The file of shard `number` of `count`."""
    return folder / f"features-{number:05d}-of-{count:05d}.parquet"


def load_all(path: Path) -> tuple[dict[str, Row], Origin]:
    """`load` of a file, or of all shards in a folder.

    Raises:
        ValueError: as `load`; if the shards are not all there, or of several encoders.
    """
    if not path.is_dir():
        return load(path)
    found = shards(path)
    if not found:
        raise ValueError(
            f"{display(path)} holds no shards of features, as keras-sslhsic extract writes them."
        )
    if found != [shard(path, number, len(found)) for number in range(len(found))]:
        raise ValueError(
            f"{display(path)} holds {len(found)} shards of features, not all of them: go on with keras-sslhsic extract."
        )
    parts = [load(file) for file in found]
    if len(origins := {origin for _, origin in parts}) > 1:
        raise ValueError(
            f"The shards in {display(path)} were made with {len(origins)} encoders, folders or sizes: make them anew."
        )
    return {name: row for rows, _ in parts for name, row in rows.items()}, parts[0][1]


def write(path: Path, rows: dict[str, Row], origin: Origin, width: int) -> None:
    """Writes rows, whose features are `width` numbers, to ``NAME.npz`` or ``NAME.parquet``, all or nothing."""
    (_write_npz if path.suffix.lower() == ".npz" else _write_parquet)(path, rows, origin, width)


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that .parquet cannot hold."""
    for name in names:
        if not is_utf8(name):
            raise ValueError(
                f"The file name {os.fsencode(name)!r} is not UTF-8, as .parquet needs: rename it, or write NAME.npz, without "
                "--runner."
            )


def _columns(rows: dict[str, Row], width: int) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names, features and stamps of the images that have features."""
    names = [name for name, row in rows.items() if row.features is not None]
    features = np.array([rows[name].features for name in names], np.float32).reshape(-1, width)
    return names, features, _stamps(rows, names)


def _stamps(rows: dict[str, Row], names: list[str]) -> np.ndarray:
    return np.array([rows[name].stamp for name in names], np.int64).reshape(-1, 2)


def _write_npz(path: Path, rows: dict[str, Row], origin: Origin, width: int) -> None:
    names, features, stamps = _columns(rows, width)
    broken = [name for name, row in rows.items() if row.features is None]
    told = {name: value for name, value in origin._asdict().items() if value or name != "class_names"}
    with files.written_whole(path, ".npz") as temporary:
        np.savez(
            temporary,
            files=np.array(names, np.str_),
            features=features,
            bytes_and_changed_ns=stamps,
            broken=np.array([(name, rows[name].reason) for name in broken], np.str_).reshape(-1, 2),
            broken_bytes_and_changed_ns=_stamps(rows, broken),
            **told,
        )


def _read_npz(file: BinaryIO) -> tuple[dict[str, Row], Origin]:
    size = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        compressed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
        # As np.savez writes them: then none has more bytes than the file.
        if compressed or sum(member.file_size for member in members) > size:
            raise ValueError("its arrays are compressed, or overlap")
        arrays = {}
        for member in members:
            with archive.open(member) as stream:
                arrays[member.filename.removesuffix(".npy")] = npy.read(stream, member.file_size)
    names, features, stamps = (arrays[key] for key in ("files", "features", "bytes_and_changed_ns"))
    broken, broken_stamps = arrays["broken"], arrays["broken_bytes_and_changed_ns"]
    _check_columns(names, features, stamps)
    found = zip(names, stamps.tolist(), features, strict=True)
    rows = {str(name): Row(tuple(stamp), row) for name, stamp, row in found}
    for (name, reason), stamp in zip(broken, broken_stamps.tolist(), strict=True):
        rows[str(name)] = Row(tuple(stamp), None, str(reason))
    class_names = tuple(map(str, arrays.pop("class_names", ())))
    told: dict[str, Any] = {name: str(arrays[name]) for name in Origin._fields if name in arrays}
    return rows, Origin(**told | {"class_names": class_names})


def _check_columns(names: np.ndarray, features: np.ndarray, stamps: np.ndarray) -> None:
    whole = (names.ndim, features.ndim) == (1, 2) and names.dtype.kind == "U"
    if len(names) and not (whole and features.dtype == np.float32 and stamps.dtype == np.int64):
        raise ValueError("its arrays are not those of names, features and stamps")


def _write_parquet(path: Path, rows: dict[str, Row], origin: Origin, width: int) -> None:
    pyarrow, parquet = pyarrow_modules()
    names, features, stamps = _columns(rows, width)
    columns = {
        "file": pyarrow.array(names, pyarrow.string()),
        "features": pyarrow.FixedSizeListArray.from_arrays(features.ravel(), width),
        "bytes": stamps[:, 0],
        "changed_ns": stamps[:, 1],
    }
    broken = [[name, *row.stamp, row.reason] for name, row in rows.items() if row.features is None]
    told = origin._asdict() | {"broken": json.dumps(broken), "class_names": json.dumps(origin.class_names)}
    table = pyarrow.table(columns).replace_schema_metadata(told)
    with files.written_whole(path) as temporary:
        parquet.write_table(table, temporary)


def _read_parquet(file: BinaryIO) -> tuple[dict[str, Row], Origin]:
    _, parquet = pyarrow_modules()
    stored = parquet.ParquetFile(file)
    width = stored.schema_arrow.field("features").type.list_size
    groups = [stored.metadata.row_group(i) for i in range(stored.metadata.num_row_groups)]
    stated = stored.metadata.num_rows * width * 4 + sum(group.total_byte_size for group in groups)
    size = os.fstat(file.fileno()).st_size
    if not 0 <= stated <= _EXPANDED * size + 2**24:
        raise ValueError(f"it states {stated:,} bytes of rows in {size:,}")
    table = stored.read()
    stamps = zip(table["bytes"].to_pylist(), table["changed_ns"].to_pylist(), strict=True)
    features = table["features"].combine_chunks().flatten().to_numpy().reshape(-1, width)
    found = zip(table["file"].to_pylist(), stamps, features, strict=True)
    rows = {name: Row(stamp, row) for name, stamp, row in found}
    metadata = table.schema.metadata or {}
    for name, size, changed, reason in json.loads(
        metadata.get(b"broken", b"[]")
    ):  # not of an earlier version
        rows[str(name)] = Row((int(size), int(changed)), None, str(reason))
    class_names = tuple(json.loads(metadata.pop(b"class_names", b"[]")))
    told: dict[str, Any] = {
        n: metadata[n.encode()].decode() for n in Origin._fields if n.encode() in metadata
    }
    return rows, Origin(**told | {"class_names": class_names})


def pyarrow_modules() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet, or an ImportError that says how to get them."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("Writing .parquet needs pyarrow: pip install 'keras_sslhsic[parquet]'.") from error
    return pyarrow, parquet
