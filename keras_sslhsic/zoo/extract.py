"""Features of a folder of images in one file, a row for each image."""

import os
import shutil
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_sslhsic.data import decode, folder
from keras_sslhsic.evaluation.features import encoder_hash
from keras_sslhsic.zoo import files
from keras_sslhsic.zoo.encoder import encoder_of, sides_seen
from keras_sslhsic.zoo.pretrained import load_pretrained

PART = 1024  # files between two saves


class Extracted(NamedTuple):
    """What `extract` wrote: the file, its rows, and the broken images with the reason."""

    out: Path
    rows: int
    broken: dict[str, str]


def extract(
    model: keras.Model | str | os.PathLike,
    data: str | os.PathLike,
    out: str | os.PathLike,
    batch_size: int = 64,
) -> Extracted:
    """Computes the features of every image under a folder.

    Stopped at any moment, the same call goes on where it was; once done, it adds the images that are new.

    Args:
        model: an encoder of pixels, or what `load_pretrained` takes.
        data: folder of images, at any depth.
        out: ``NAME.npz`` (arrays ``files`` [N] and ``features`` float32 [N, F]) or ``NAME.parquet`` (columns
            ``file`` and ``features``). Rows are in the order of the paths, which are relative to `data`.
            Broken images are left out and listed in a file of that name with ``.broken.txt`` added.
        batch_size: images a step.

    Returns:
        The file, its number of rows, and the broken images.

    Raises:
        ValueError: for another kind of `out`, or one that another encoder or another program wrote; if no image
            can be read.
        FileNotFoundError: if `data` is missing or holds no images.
        ImportError: for ``.parquet`` without pyarrow.
    """
    out = Path(out)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, found {batch_size}.")
    if out.suffix not in (".npz", ".parquet"):
        raise ValueError(f"The output must end in .npz or .parquet, found {out.name!r}.")
    if out.suffix == ".parquet":
        _pyarrow()
    encoder = encoder_of(model) if isinstance(model, keras.Model) else load_pretrained(model)
    root = Path(data)
    names = [os.path.relpath(file, root) for file in folder.list_images(root)]
    parts = out.with_name(f"{out.name}.parts")
    encoder_id = encoder_hash(encoder)
    done, broken = _done([out, *sorted(parts.glob("*.npz"))], encoder_id)

    todo = [name for name in names if name not in done and name not in broken]
    with tqdm(total=len(names), initial=len(names) - len(todo), unit="image", desc=out.name) as bar:
        for start in range(0, len(todo), PART):
            part = todo[start : start + PART]
            features, failed = _features(encoder, root, part, batch_size, bar)
            done.update(features)
            broken.update(failed)
            if start + PART < len(todo):
                _write_npz(parts / f"{len(done) + len(broken):09d}.npz", features, failed, encoder_id)

    rows = {name: done[name] for name in names if name in done}
    if not rows:
        shutil.rmtree(parts, ignore_errors=True)
        raise ValueError(
            f"None of the {len(names)} images under {root} can be read: {next(iter(broken.values()))}"
        )
    if out.suffix == ".npz":
        _write_npz(out, rows, {}, encoder_id)
    else:
        _write_parquet(out, rows, encoder_id)
    shutil.rmtree(parts, ignore_errors=True)
    listed = out.with_name(f"{out.name}.broken.txt")
    if broken:
        with files.written_whole(listed) as temporary:
            temporary.write_text("".join(f"{name}\t{reason}\n" for name, reason in sorted(broken.items())))
    else:
        listed.unlink(missing_ok=True)
    return Extracted(out, len(rows), broken)


def _features(encoder, root, names, batch_size, bar) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Features of some files by name, and why the others have none."""
    height, width, channels = sides_seen(encoder)

    def read(name: str) -> np.ndarray | str:
        try:
            image = decode.decode((root / name).read_bytes(), channels)
        except (decode.DecodeError, OSError) as error:
            return str(error)
        return image if height is None else tf.image.resize(image, (height, width)).numpy()

    features: dict[str, np.ndarray] = {}
    failed: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:
        read_files = zip(names, pool.map(read, names), strict=True)
        for batch in _batches(read_files, batch_size, failed):
            values = encoder.predict_on_batch(np.stack([image for _, image in batch]))
            features.update(zip((name for name, _ in batch), np.asarray(values, np.float32), strict=True))
            bar.update(len(batch))
    bar.update(len(failed))
    return features, failed


def _batches(read_files, batch_size: int, failed: dict[str, str]) -> Iterator[list[tuple[str, np.ndarray]]]:
    """Groups neighbours of one size; notes the files that could not be read."""
    batch: list[tuple[str, np.ndarray]] = []
    for name, image in read_files:
        if isinstance(image, str):
            failed[name] = image
            continue
        if batch and (len(batch) == batch_size or batch[0][1].shape != image.shape):
            yield batch
            batch = []
        batch.append((name, image))
    if batch:
        yield batch


def _done(paths: list[Path], encoder_id: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The rows and the failures in files of earlier calls."""
    done: dict[str, np.ndarray] = {}
    broken: dict[str, str] = {}
    for path in paths:
        if not path.exists():
            continue
        try:
            read = _read_parquet if path.suffix == ".parquet" else _read_npz
            names, features, failed, found = read(path)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"{path} was not written by this command: remove it, or choose another output ({error})."
            ) from error
        if found != encoder_id:
            raise ValueError(f"{path} was written with another encoder: remove it, or choose another output.")
        done.update(zip(names, features, strict=True))
        broken.update(failed)
    return done, broken


def _write_npz(path: Path, rows: dict[str, np.ndarray], failed: dict[str, str], encoder_id: str) -> None:
    with files.written_whole(path, ".npz") as temporary:
        np.savez(
            temporary,
            files=np.array(list(rows), np.str_),
            features=np.array(list(rows.values()), np.float32),
            broken=np.array(list(failed.items()), np.str_).reshape(-1, 2),
            encoder=encoder_id,
        )


def _read_npz(path: Path):
    with np.load(path) as archive:
        failed = dict(archive["broken"].tolist())
        return archive["files"].tolist(), archive["features"], failed, str(archive["encoder"])


def _write_parquet(path: Path, rows: dict[str, np.ndarray], encoder_id: str) -> None:
    pyarrow, parquet = _pyarrow()
    features = np.stack(list(rows.values()))
    column = pyarrow.FixedSizeListArray.from_arrays(features.ravel(), features.shape[1])
    table = pyarrow.table({"file": list(rows), "features": column}).replace_schema_metadata(
        {"encoder": encoder_id}
    )
    with files.written_whole(path) as temporary:
        parquet.write_table(table, temporary)


def _read_parquet(path: Path):
    _, parquet = _pyarrow()
    table = parquet.read_table(path)
    features = np.array(table["features"].to_pylist(), np.float32)
    return (
        table["file"].to_pylist(),
        features,
        {},
        (table.schema.metadata or {}).get(b"encoder", b"").decode(),
    )


def _pyarrow():
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("Writing .parquet needs pyarrow: pip install 'keras_sslhsic[parquet]'.") from error
    return pyarrow, parquet
