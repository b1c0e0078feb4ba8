"""Features of a folder of images in one file, a row for each image."""

import collections
import contextlib
import os
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_sslhsic import checks, files, lock
from keras_sslhsic.data import broken as broken_files
from keras_sslhsic.data import decode, folder
from keras_sslhsic.data.central import central_square
from keras_sslhsic.data.memory import Budget, Lease
from keras_sslhsic.encoders import Encoder, encoder_hash, encoder_of
from keras_sslhsic.encoders.preprocess import resizer
from keras_sslhsic.files import display
from keras_sslhsic.zoo import rows
from keras_sslhsic.zoo.load import load_pretrained
from keras_sslhsic.zoo.rows import Row

PART = 1024  # files between two saves


class Extracted(NamedTuple):
    """What `extract` wrote and left out.

    Attributes:
        out: the file.
        rows: how many it has.
        computed: how many of them this call computed; the others it found.
        gone: rows left out since their images are no longer there.
        broken: images that cannot be read, with the reason.
        image_size: side of the squares that images were made; None where the encoder saw all of them.
    """

    out: Path
    rows: int
    computed: int
    gone: int
    broken: dict[str, str]
    image_size: int | None


def extract(
    model: keras.Model | str | os.PathLike,
    data: str | os.PathLike,
    out: str | os.PathLike,
    batch_size: int = 64,
    memory_mb: int = 1024,
    image_size: int | None = None,
) -> Extracted:
    """Computes the features of every image under a folder.

    Stopped at any moment, the same call goes on where it was; once done, it computes the images that are new or
    changed (in size or time of change), and leaves out those that are gone.

    Args:
        model: what `encoders.encoder_of` takes, or `load_pretrained`.
        data: folder of images, at any depth.
        out: ``NAME.npz`` (arrays ``files`` [N] and ``features`` float32 [N, F]) or ``NAME.parquet`` (columns
            ``file`` and ``features``); both with the bytes and time of change of the images, and
            with the names of a classifier's classes, ``class_names``. Rows are in the
            order of the paths, which are relative to `data`. Broken images are left out and listed in a file of
            that name with ``.broken.txt`` added, a line ``file<TAB>reason`` each, with control characters escaped.
        batch_size: images a step, at most.
        memory_mb: memory, in 2^20 bytes, of images and of what the network makes of them, as estimated: fewer images go
            into a step if they are large. An image that needs more goes through alone.
        image_size: side of what the encoder sees of an image, its central square (`data.central.central_square`), as
            evaluations of features see it, or, of a classifier, the one that measured it. None: the side of the squares that it
            reads or resizes to, or else the size that it was trained at. Where neither is known it sees all of an image.

    Raises:
        ValueError: for another kind of `out`, or one that another encoder or another program wrote, or of other
            images, or images of another size; for a size that the encoder cannot be given; if no image can be read.
        InUseError: if another process writes `out`.
        FileNotFoundError: if `data` is missing or holds no images.
        OSError: if `out` cannot be written.
        ImportError: for ``.parquet`` without pyarrow.
    """
    out = Path(out)
    checks.integer("batch_size", batch_size, 1)
    checks.integer("memory_mb", memory_mb, 1)
    if out.suffix.lower() not in rows.ENDINGS:
        raise ValueError(f"The output must end in .npz or .parquet, found '{display(out.name)}'.")
    if out.suffix.lower() == ".parquet":
        rows.pyarrow_modules()
    files.check_writable(out)
    root = Path(data)
    listed = folder.list_images(root)
    encoder = encoder_of(model) if isinstance(model, keras.Model) else load_pretrained(model)
    image_size = encoder.spec.size_for(image_size)
    stamps = {os.path.relpath(file, root): stamp_of(file) for file in listed}
    if out.suffix.lower() == ".parquet":
        rows.check_names(stamps)
    with lock.held(out):
        return extract_into(Extractor(encoder, root, batch_size, memory_mb, image_size), stamps, out)


def features_of(encoder: Encoder, image: str | os.PathLike, image_size: int | None = None) -> np.ndarray:
    """The row that `extract` would write for an image, float32 [F].

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is no image that can be read.
    """
    file = Path(image)
    file.stat()
    extractor = Extractor(encoder, file.parent, 1, 1024, image_size)
    with tqdm(disable=True) as bar:
        row = extractor.compute({file.name: stamp_of(file)}, bar)[file.name]
    if row.features is None:
        raise ValueError(f"{display(image)} cannot be read: {row.reason.rstrip('.')}.")
    return row.features


def extract_into(
    extractor: "Extractor", stamps: dict[str, tuple[int, int]], out: Path, shard: bool = False
) -> Extracted:
    """Brings a file of features up to date, by the process that has it to itself; see `extract`.

    Args:
        extractor: computes them.
        stamps: of the images, by their names in the order of the rows.
        out: the file.
        shard: whether it holds a part of the images, which may have no row, and needs no progress bar.
    """
    parts = parts_of(out)
    for path in filter(files.is_leftover, _in_folder(parts)):  # of killed processes: this one holds the lock
        path.unlink()
    encoder_id = encoder_hash(extractor.encoder)
    origin = rows.Origin(
        encoder_id,
        str(extractor.root.resolve()),
        str(extractor.image_size or ""),
        rows.RESIZED if extractor.image_size else "",
        extractor.encoder.spec.class_names,
    )
    found, folders = rows.read([out, *_in_folder(parts)], encoder_id, origin.image_size)
    done = {name: row for name, row in found.items() if stamps.get(name) == row.stamp}
    if found and not done and origin.folder not in folders:
        raise ValueError(
            f"{display(out)} holds other images: none of its {len(found)} files is, unchanged, in {display(extractor.root)}, "
            f"and they were in {display(', '.join(sorted(folders)))}. Choose another output, or remove it to compute all of "
            "them again."
        )

    todo = [name for name in stamps if name not in done]
    with tqdm(
        total=len(stamps), initial=len(done), unit="image", desc=display(out.name), disable=shard
    ) as bar:
        for start in range(0, len(todo), PART):
            names = todo[start : start + PART]
            computed = extractor.compute({name: stamps[name] for name in names}, bar)
            done.update(computed)
            if start + PART < len(todo):
                rows.write(
                    parts / f"{len(done):09d}.npz", computed, origin, extractor.encoder.output_shape[-1]
                )

    done = {name: done[name] for name in stamps}
    broken = {name: row.reason for name, row in done.items() if row.features is None}
    if len(broken) == len(done) and not shard:
        _remove(parts)
        raise ValueError(
            f"None of the {len(done)} images under {display(extractor.root)} can be read: {next(iter(broken.values()))}"
        )
    if todo or found.keys() != done.keys() or not out.exists() or _in_folder(parts):
        rows.write(out, done, origin, extractor.encoder.output_shape[-1])
    listed = out.with_name(f"{out.name}.broken.txt")
    files.remove_leftovers(listed)
    if broken:
        files.write_text(listed, "".join(f"{broken_files.line(*item)}\n" for item in sorted(broken.items())))
    elif found:
        listed.unlink(missing_ok=True)
    _remove(parts)
    now = sum(name not in broken for name in todo)
    gone = len(found.keys() - stamps.keys())
    return Extracted(out, len(done) - len(broken), now, gone, broken, extractor.image_size)


def parts_of(out: Path) -> Path:
    """The folder that has what is computed of a file until that is whole."""
    return out.with_name(f"{out.name}.parts")


def _in_folder(parts: Path) -> list[Path]:
    """The rows that were saved between, and what is left of some that were not."""
    return sorted(parts.glob("*.npz"))


def _remove(parts: Path) -> None:
    """Removes what was saved between, and its folder if there is nothing else in it."""
    for part in _in_folder(parts):
        part.unlink()
    with contextlib.suppress(OSError):
        parts.rmdir()


GONE = (0, 0)


def stamp_of(file: str | os.PathLike) -> tuple[int, int]:
    """Bytes and time of change, ns, of a file; `GONE` for one that is not there."""
    try:
        status = os.stat(file)
    except OSError:  # reading it will say why
        return GONE
    return status.st_size, status.st_mtime_ns


class Extractor:
    """Computes the features of files."""

    def __init__(
        self, encoder: Encoder, root: Path, batch_size: int, memory_mb: int, image_size: int | None
    ) -> None:
        self.encoder, self.root, self.batch_size, self.image_size = encoder, root, batch_size, image_size
        self.short_side = encoder.spec.short_side_for(image_size) if image_size else None
        self.fit, self.channels = resizer(encoder.spec), encoder.spec.channels
        # One half for the images that are decoded and wait, one for those that go through the network.
        self.memory = Budget(-(-memory_mb // 2))
        self.pixels = memory_mb * 2**20 // 2 // _network_bytes(encoder)

    def compute(self, stamps: dict[str, tuple[int, int]], bar: tqdm) -> dict[str, Row]:
        """The rows of some files, by name."""
        computed: dict[str, Row] = {}
        failed: dict[str, str] = {}
        with (
            ThreadPoolExecutor() as pool,
            contextlib.closing(self.read_ahead(pool, stamps)) as read_images,
        ):
            for batch in self.batches(read_images, failed):
                names, images = zip(*batch, strict=True)
                values = np.asarray(self.encoder.predict_on_batch(np.stack(images)), np.float32)
                computed |= {name: Row(stamps[name], row) for name, row in zip(names, values, strict=True)}
                bar.update(len(batch))
        bar.update(len(failed))
        return computed | {name: Row(stamps[name], None, reason) for name, reason in failed.items()}

    def read_ahead(
        self, pool: ThreadPoolExecutor, names: Iterable[str]
    ) -> Generator[tuple[str, np.ndarray | str]]:
        """Each file's image, or what is wrong with it, in order; no more are read than two batches ahead."""
        waiting: collections.deque = collections.deque()

        def first() -> tuple[str, np.ndarray | str]:
            name, lease, future = waiting.popleft()
            with lease:
                return name, future.result()

        try:
            for name in names:
                # Made here, in the order in which they end: nobody waits for a later one.
                lease = self.memory.lease()
                waiting.append((name, lease, pool.submit(self.read, name, lease)))
                if len(waiting) > 2 * self.batch_size:
                    yield first()
            while waiting:
                yield first()
        finally:  # after an error, threads wait for one another's memory no more
            for _, lease, future in waiting:
                future.cancel()
                lease.end()

    def read(self, name: str, lease: Lease) -> np.ndarray | str:
        resizing = 4 * self.channels * 3  # bytes a pixel, as floats

        def hold(size: int) -> None:
            lease.hold(size + size * resizing // decode.BYTES_PER_PIXEL)

        try:
            with files.open_regular(self.root / name, decode.MAX_BYTES) as stream:
                # All of a JPEG too, as evaluations see it: at a fraction of its size objects lie elsewhere, if by little.
                image = decode.decode(stream, self.channels, hold=hold)
        except (decode.DecodeError, OSError) as error:
            return broken_files.reason(error, str(self.root / name))
        if self.image_size:
            image = central_square(image, self.image_size, self.short_side)
        fitted = self.fit(image).numpy()
        lease.hold(fitted.nbytes)
        return fitted

    def batches(
        self, images: Iterable[tuple[str, np.ndarray | str]], failed: dict[str, str]
    ) -> Iterator[list[tuple[str, np.ndarray]]]:
        """Groups neighbours of one size; notes the files that could not be read."""
        batch: list[tuple[str, np.ndarray]] = []
        for name, image in images:
            if isinstance(image, str):
                failed[name] = image
                continue
            most = min(self.batch_size, self.pixels // (image.shape[0] * image.shape[1]))
            if batch and (len(batch) >= most or batch[0][1].shape != image.shape):
                yield batch
                batch = []
            batch.append((name, image))
        if batch:
            yield batch


def _network_bytes(encoder: Encoder) -> int:
    """Bytes that a network takes for a pixel: of its largest layer's input, output and one more, and of images."""
    count = 7  # images, by which their tensors are told from weights
    height, width, channels = encoder.spec.shape_seen
    shape = count, height or 256, width or 256, channels
    graph = tf.function(encoder).get_concrete_function(tf.TensorSpec(shape)).graph
    tensors = [tensor for operation in graph.get_operations() for tensor in operation.outputs]
    largest = max(
        tensor.shape.num_elements() * tensor.dtype.size
        for tensor in tensors
        if tensor.shape.is_fully_defined() and tensor.shape.rank and tensor.shape[0] == count
    )
    return 3 * largest // (count * shape[1] * shape[2]) + 3 * 4 * channels
