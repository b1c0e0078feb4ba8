"""Features of a folder of images in one file, a row for each image."""

import collections
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from tqdm import tqdm

from keras_sslhsic import files
from keras_sslhsic.data import decode, folder
from keras_sslhsic.evaluation.features import encoder_hash
from keras_sslhsic.zoo import rows
from keras_sslhsic.zoo.encoder import encoder_of, resizer
from keras_sslhsic.zoo.pretrained import load_pretrained
from keras_sslhsic.zoo.rows import Row

PART = 1024  # files between two saves


class Extracted(NamedTuple):
    """What `extract` wrote.

    Attributes:
        out: the file.
        rows: how many it has.
        computed: how many of them this call computed; the others it found.
        gone: rows left out since their images are no longer there.
        broken: images that cannot be read, with the reason.
    """

    out: Path
    rows: int
    computed: int
    gone: int
    broken: dict[str, str]


def extract(
    model: keras.Model | str | os.PathLike,
    data: str | os.PathLike,
    out: str | os.PathLike,
    batch_size: int = 64,
) -> Extracted:
    """Computes the features of every image under a folder.

    Stopped at any moment, the same call goes on where it was; once done, it computes the images that are new or
    changed (in size or time of change), and leaves out those that are gone.

    Args:
        model: an encoder of pixels, or what `load_pretrained` takes.
        data: folder of images, at any depth.
        out: ``NAME.npz`` (arrays ``files`` [N] and ``features`` float32 [N, F]) or ``NAME.parquet`` (columns
            ``file`` and ``features``); both with the bytes and time of change of the images. Rows are in the
            order of the paths, which are relative to `data`. Broken images are left out and listed in a file of
            that name with ``.broken.txt`` added.
        batch_size: images a step.

    Returns:
        What was written and left out.

    Raises:
        ValueError: for another kind of `out`, or one that another encoder or another program wrote, or of other
            images; if no image can be read.
        FileNotFoundError: if `data` is missing or holds no images.
        OSError: if `out` cannot be written.
        ImportError: for ``.parquet`` without pyarrow.
    """
    out = Path(out)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, found {batch_size}.")
    if out.suffix.lower() not in rows.ENDINGS:
        raise ValueError(f"The output must end in .npz or .parquet, found {out.name!r}.")
    if out.suffix.lower() == ".parquet":
        rows.pyarrow_modules()
    files.check_writable(out)
    encoder = encoder_of(model) if isinstance(model, keras.Model) else load_pretrained(model)
    root = Path(data)
    stamps = {os.path.relpath(file, root): _stamp(file) for file in folder.list_images(root)}
    if out.suffix.lower() == ".parquet":
        rows.check_names(stamps)
    parts = out.with_name(f"{out.name}.parts")
    encoder_id = encoder_hash(encoder)
    origin = rows.Origin(encoder_id, str(root.resolve()))
    found, folders = rows.read([out, *sorted(parts.glob("*.npz"))], encoder_id)
    done = {name: row for name, row in found.items() if stamps.get(name) == row.stamp}
    if found and not done and origin.folder not in folders:
        raise ValueError(
            f"{out} holds other images: none of its {len(found)} files is in {root}, and they were in "
            f"{', '.join(sorted(folders))}. Choose another output, or remove it to compute all of them again."
        )

    todo = [name for name in stamps if name not in done]
    with tqdm(total=len(stamps), initial=len(done), unit="image", desc=out.name) as bar:
        for start in range(0, len(todo), PART):
            names = todo[start : start + PART]
            computed = _compute(encoder, root, {name: stamps[name] for name in names}, batch_size, bar)
            done.update(computed)
            if start + PART < len(todo):
                rows.write(parts / f"{len(done):09d}.npz", computed, origin)

    done = {name: done[name] for name in stamps}
    broken = {name: row.reason for name, row in done.items() if row.features is None}
    if len(broken) == len(done):
        _remove(parts)
        raise ValueError(
            f"None of the {len(done)} images under {root} can be read: {next(iter(broken.values()))}"
        )
    rows.write(out, done, origin)
    _remove(parts)
    listed = out.with_name(f"{out.name}.broken.txt")
    if broken:
        with files.written_whole(listed) as temporary:
            lines = (f"{name}\t{reason}\n" for name, reason in sorted(broken.items()))
            temporary.write_text("".join(lines), "utf-8", "surrogateescape")
    elif found:
        listed.unlink(missing_ok=True)
    now = sum(name not in broken for name in todo)
    return Extracted(out, len(done) - len(broken), now, len(found.keys() - stamps.keys()), broken)


def _remove(parts: Path) -> None:
    """Removes what was saved between, and its folder if there is nothing else in it."""
    for part in parts.glob("*.npz"):
        part.unlink()
    with contextlib.suppress(OSError):
        parts.rmdir()


def _stamp(file: str | os.PathLike) -> tuple[int, int]:
    try:
        status = os.stat(file)
    except OSError:  # reading it will say why
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _compute(encoder, root, stamps, batch_size, bar) -> dict[str, Row]:
    """Computes the rows of some files, by name."""
    channels, fit = encoder.input_shape[-1], resizer(encoder)

    def read(name: str) -> np.ndarray | str:
        try:
            image = decode.decode((root / name).read_bytes(), channels)
        except (decode.DecodeError, OSError) as error:
            return str(error)
        return fit(image).numpy()

    computed: dict[str, Row] = {}
    failed: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:
        read_files = zip(stamps, _map_ahead(pool, read, stamps, 2 * batch_size), strict=True)
        for batch in _batches(read_files, batch_size, failed):
            values = np.asarray(encoder.predict_on_batch(np.stack([image for _, image in batch])), np.float32)
            computed |= {name: Row(stamps[name], row) for (name, _), row in zip(batch, values, strict=True)}
            bar.update(len(batch))
    bar.update(len(failed))
    return computed | {name: Row(stamps[name], None, reason) for name, reason in failed.items()}


def _map_ahead(pool: ThreadPoolExecutor, function: Callable, items: Iterable, ahead: int) -> Iterator:
    """As `pool.map`, with no more than so many results waiting: a thousand photographs fill the memory."""
    waiting: collections.deque = collections.deque()
    for item in items:
        waiting.append(pool.submit(function, item))
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


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
