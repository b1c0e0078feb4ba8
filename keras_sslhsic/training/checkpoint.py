"""Checkpoints of a training run: one file each, written whole, from which `fit` goes on exactly."""

import contextlib
import hashlib
import io
import json
import os
import re
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_sslhsic import compat
from keras_sslhsic.data.images import Images
from keras_sslhsic.encoders import copying
from keras_sslhsic.files import display, open_regular, written_whole
from keras_sslhsic.lock import held
from keras_sslhsic.training import older_files, state
from keras_sslhsic.version import __version__
from keras_sslhsic.words import warn

_NAME = "checkpoint-{:06d}.npz"
_PATTERN = re.compile(r"checkpoint-(\d{6,})\.npz")
_META = "meta.json"
_FORMAT = 3  # see older_files for those before


class Checkpoint(keras.callbacks.Callback):
    """Saves the whole state of training after every epoch, and lets `fit` go on from it.

    The state is every variable of the model (networks, target, moving averages, seeds of Dropout, step), of the loss (such
    as its kernel scale) and of their optimizers, by name, and the epoch. Views and feature draws are functions of the seed
    and the step. So with arrays, or a data set of `keras_sslhsic.data`, which goes on at any epoch, a run that was killed
    and started again ends with the same weights as one that was not. Any other data set starts again at its own
    beginning, and `fit` warns of it.

    Training stands still while the state is copied to the memory of the host; it is written meanwhile, by one thread, and
    `fit` ends when the last file is on the disk. What goes wrong with a file is raised at the next one, or at that end.

    Whoever finds a file finds all of it (see `files.written_whole`), and one process at a time trains into a directory. A
    file that is damaged all the same, which its digest tells, is passed over with a warning, and the one before it taken.
    Weights that are not finite are never saved.

    With several workers, the chief writes and all of them read, so the directory must be one that they share.

    Args:
        directory: where the files go, `checkpoint-<epoch>.npz`; made if it is missing.
        keep: how many of the newest files stay, >= 1.
        best: a name in the logs, such as "online_accuracy" or the "knn_top1" of a probe before this one in the list of
            callbacks: the file of the epoch with the largest value stays too, or with the least of one that ends in "loss", and
            `restore_best` takes it.

    Attributes:
        seconds: for which training stood still at the end of the last epoch.
        best_epoch: epochs that the best file has finished; None if no epoch has logged `best` yet.

    Raises:
        ValueError: if keep < 1.
        FloatingPointError: at the end of an epoch that left NaN or infinities in a variable.

    Example:
        model.fit(dataset, epochs=100, callbacks=[Checkpoint("runs/a/checkpoints")])   # again after a crash
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 2, best: str | None = None):
        super().__init__()
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}.")
        self.directory = Path(directory)
        self.keep, self.best = keep, best
        self.best_epoch: int | None = None
        self.best_value = self._worst
        self.seconds = 0.0
        self.num_images: int | None = None
        self._data: str | None = None  # digest of the images
        self._damaged: set[Path] = set()  # files that were warned of
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    @property
    def _worst(self) -> float:
        return np.inf if self.best is not None and self.best.endswith("loss") else -np.inf

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        began, logs = time.monotonic(), logs or {}
        if np.isfinite(float(logs.get("loss", 0.0))):  # else the last good checkpoint stays the last
            value = float(logs.get(self.best, np.nan)) if self.best else np.nan
            better = np.less if self._worst > 0 else np.greater
            if better(value, self.best_value):
                self.best_epoch, self.best_value = epoch + 1, value
            self._begin(self.model, epoch + 1)
        self.seconds = time.monotonic() - began

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._end()
        # Workers that go on at once find the chief's last file.
        compat.of_all_replicas(self.model.distribute_strategy, 0)
        if self.best is not None and self.best_epoch is None:
            warn(
                f"No epoch has logged {self.best!r}, of which the best checkpoint was to be kept: the logs hold "
                f"{', '.join(logs or {})}. A probe that measures it comes before the Checkpoint in the list of callbacks.",
            )

    def save(self, model: keras.Model, epoch: int) -> Path:
        """Writes the state of a model that has finished `epoch` epochs, on the chief; returns the file.

        Raises:
            FloatingPointError: if a variable is not finite; nothing is written then.
            OSError: if it cannot be written.
        """
        file = self._begin(model, epoch)
        self._end()
        return file

    def _begin(self, model: keras.Model, epoch: int) -> Path:
        """Copies the state, and has it written meanwhile."""
        self._end()  # one copy at a time
        values = state.arrays(state.variables(model))
        if name := state.not_finite(values):
            last = f"the last checkpoint is of epoch {self.epoch}" if self.epoch else "there is no checkpoint"
            raise FloatingPointError(
                f"{name} became NaN or infinite in epoch {epoch}, which is therefore not saved; {last}. Lower the learning "
                "rate or warm up for longer."
            )
        file = self.directory / _NAME.format(epoch)
        if model.distribute_strategy.extended.should_checkpoint:
            meta = {
                "format": _FORMAT,
                "version": __version__,
                "epoch": epoch,
                "step": int(model.step.numpy()),
                "seed": model.seed,
                "images": self.num_images,
                "data": self._data,
            }
            if self.best_epoch is not None:
                meta["best"] = {"of": self.best, "epoch": self.best_epoch, "value": self.best_value}
            self._writing = self._writer.submit(self._write, file, meta, values, self.best_epoch)
        return file

    def _write(
        self, file: Path, meta: dict[str, Any], values: dict[str, np.ndarray], best: int | None
    ) -> None:
        _write(file, meta, values)
        for old in self.files()[: -self.keep]:
            if _epoch(old) != best:
                old.unlink(missing_ok=True)

    def _end(self) -> None:
        """Waits for what is being written; raises what went wrong with it, once."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def files(self) -> list[Path]:
        """The checkpoints in the directory, oldest first."""
        if not self.directory.is_dir():
            return []
        return sorted(
            (p for p in self.directory.iterdir() if _PATTERN.fullmatch(p.name) and p.is_file()), key=_epoch
        )

    @property
    def epoch(self) -> int:
        """The epochs that the newest file has finished; 0 if there is none."""
        return max(map(_epoch, self.files()), default=0)

    def restore(self, model: keras.Model) -> int:
        """Puts the newest whole checkpoint into a compiled model.

        Returns:
            The number of epochs that it has finished; 0 if there is no checkpoint.

        Raises:
            ValueError: if none is whole; if the checkpoint is of another model, seed or newer version; or if the workers of
                one run do not find the same one.
        """
        epoch = self._restore_newest(model)
        found = compat.of_all_replicas(model.distribute_strategy, epoch)
        if len(set(found)) > 1:
            raise ValueError(
                f"The workers would go on from different epochs, {found}: this one found {epoch} in "
                f"{display(self.directory)}. Give all of them one directory on a file system that they share."
            )
        return epoch

    def restore_best(self, model: keras.Model) -> int:
        """Puts the best checkpoint of the directory into a compiled model, as the newest file names it.

        Returns:
            The number of epochs that it has finished; 0 if there is none of `best`.

        Raises:
            ValueError: as `restore`.
        """
        if self.best_epoch is None and (newest := self._newest()):
            self._note_best(newest[1])
        if self.best_epoch is None:
            return 0
        file = self.directory / _NAME.format(self.best_epoch)
        try:
            meta, values = _read(file)
        except _DamagedError as error:
            raise ValueError(
                f"{display(file)}, the best checkpoint, cannot be read: {error}. Take the last one."
            ) from error
        return self._put(model, file, meta, values)

    def _restore_newest(self, model: keras.Model) -> int:
        self.num_images = self._data = self.best_epoch = None
        self.best_value = self._worst
        newest = self._newest()
        if newest is None:
            return 0
        _, meta, _ = newest
        self._put(model, *newest)
        self.num_images, self._data = meta.get("images"), meta.get("data")
        self._note_best(meta)
        return meta["epoch"]

    def _note_best(self, meta: dict[str, Any]) -> None:
        best = meta.get("best", {})
        if best.get("of") == self.best is not None:
            self.best_epoch, self.best_value = best["epoch"], best["value"]

    def _put(
        self, model: keras.Model, file: Path, meta: dict[str, Any], values: dict[str, np.ndarray]
    ) -> int:
        if meta["seed"] != model.seed:
            raise ValueError(
                f"{display(file)} was trained with the seed {meta['seed']}, and the model has {model.seed}: it would see "
                "other views. Give another directory, or the seed of before."
            )
        try:
            if meta["format"] < _FORMAT:
                values = older_files.checkpoint_values(values, meta["format"], model)
            state.assign(state.variables(model), values)
            for network in model.layers:
                copying.settle(network)
        except ValueError as error:
            raise ValueError(
                f"{display(file)} is the checkpoint of another model or optimizer: {display(error)}. Give another directory, "
                "or the configuration that wrote it."
            ) from error
        return meta["epoch"]

    def _newest(self) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]] | None:
        """The newest whole file, what it says of itself, and its arrays; None if there is no file."""
        files = self.files()
        for file in reversed(files):
            try:
                return file, *_read(file)
            except _DamagedError as error:
                if file not in self._damaged:
                    warn(
                        f"{display(file)} cannot be read ({error}); trying the checkpoint before it.",
                    )
                self._damaged.add(file)
        if files:
            raise ValueError(
                f"None of the {len(files)} checkpoints in {display(self.directory)} is whole. Put a good copy there; or remove "
                "them, to train from the beginning."
            )
        return None

    def train_on(self, images: Images | None) -> None:
        """Notes which images are trained on, where it is known.

        Raises:
            ValueError: if the restored checkpoint was trained on others.
        """
        number, digest = (None, None) if images is None else (images.num_examples, images.digest())
        if number is not None and self.num_images not in (None, number):
            differ = f"on {self.num_images:,} images, and there are {number:,} now"
        elif digest is not None and self._data not in (None, digest):
            differ = f"on other images: there are {number:,} too now, of other names, sizes or contents"
        else:
            self.num_images, self._data = number, digest
            return
        raise ValueError(
            f"The checkpoint in {display(self.directory)} was trained {differ}. Batches would not be those that come next: "
            "give the images of before, or another directory to begin anew."
        )

    @contextlib.contextmanager
    def alone(self, model: keras.Model) -> Iterator[None]:
        """Keeps the directory to this process, if it is the one that writes, until all is written.

        Raises:
            lock.InUseError: on entering, if another process trains into it.
        """
        writes = model.distribute_strategy.extended.should_checkpoint
        with held(self.directory) if writes else contextlib.nullcontext():
            try:
                yield
            finally:
                self._end()


# The file -----------------------------------------------------------------------------------------------------------


class _DamagedError(Exception):
    """A file that is not as it was written; the message says why."""


def _epoch(file: Path) -> int:
    found = _PATTERN.fullmatch(file.name)
    assert found is not None
    return int(found[1])


def _write(file: Path, meta: dict[str, Any], values: dict[str, np.ndarray]) -> None:
    text = json.dumps({**meta, "sha256": _digest(meta, values)}).encode()
    with written_whole(file) as temporary, open(temporary, "wb") as stream:
        np.savez(stream, **{**values, _META: np.frombuffer(text, np.uint8)})  # type: ignore[arg-type]


def _read(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a file says of itself, and its arrays.

    Raises:
        _DamagedError: if it is not as it was written.
        ValueError: if a newer version wrote it.
    """
    try:
        with open_regular(file) as stream, zipfile.ZipFile(stream) as archive:
            values = _members(archive, os.fstat(stream.fileno()).st_size)
        meta = json.loads(values.pop(_META).tobytes())
        digest, format_ = meta.pop("sha256", None), meta.setdefault("format", 1)
        newer = format_ > _FORMAT
        if not newer:
            if format_ > 1 and digest != _digest(meta, values):
                raise ValueError("its content is not that of its digest")
            if meta["epoch"] != _epoch(file) or not isinstance(meta["seed"], int):
                raise ValueError(f"it says that it is of epoch {meta['epoch']} and seed {meta['seed']}")
            if not isinstance(meta.get("images"), int | None) or not isinstance(meta.get("data"), str | None):
                raise ValueError(f"it says that it was trained on {meta['images']} images, {meta['data']}")
            if best := meta.get("best"):
                meta["best"] = {
                    "of": str(best["of"]),
                    "epoch": int(best["epoch"]),
                    "value": float(best["value"]),
                }
            if name := state.not_finite(values):
                raise ValueError(f"{name} is not finite")
    except Exception as error:  # damage makes zipfile, NumPy and JSON raise almost anything
        raise _DamagedError(display(f"{type(error).__name__}: {error}")) from error
    if newer:
        raise ValueError(
            f"{display(file)} was written by a newer version, {display(meta.get('version'))}, and this is {__version__}: "
            "install that one, or give another directory."
        )
    return meta, values


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, np.ndarray]:
    """The arrays of an .npz that is not compressed, without allocating more than its size."""
    members = archive.infolist()
    declared = sum(max(member.file_size, member.compress_size) for member in members)
    if any(member.compress_type != zipfile.ZIP_STORED for member in members) or declared > size:
        raise ValueError("its members are larger than the file")
    return {member.filename.removesuffix(".npy"): _array(archive.read(member)) for member in members}


def _array(content: bytes) -> np.ndarray:
    """The array of an .npy file, on its bytes."""
    header = io.BytesIO(content)
    if np.lib.format.read_magic(header) != (1, 0):
        raise ValueError("an array has another format")
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(header)
    values = np.frombuffer(content, dtype, offset=header.tell())
    return values.reshape(shape, order="F" if fortran_order else "C")


def _digest(meta: dict[str, Any], values: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode())
    for name in sorted(values):
        value = values[name]
        digest.update(f"{name} {value.dtype.str} {value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()
