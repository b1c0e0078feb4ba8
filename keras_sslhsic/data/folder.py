"""Batches from a folder of images."""

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks, views
from keras_sslhsic.data import batches, decode
from keras_sslhsic.data.broken import BrokenFiles
from keras_sslhsic.data.cache import make as make_cache
from keras_sslhsic.data.memory import Budget
from keras_sslhsic.data.order import Order
from keras_sslhsic.data.python_map import map_python
from keras_sslhsic.files import display, open_regular

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"})


def list_images(path: str | Path) -> list[str]:
    """Lists the image files under a folder, at any depth, in the order of their paths.

    Image files have one of `EXTENSIONS`, in upper or lower case, or the first bytes of an image whatever
    their name. Hidden files and folders are left out; links are followed, and each folder is read once.

    Raises:
        FileNotFoundError: the folder does not exist, or holds no images.
        NotADirectoryError: the path is a file.
    """
    root = Path(path)
    if not root.exists():
        raise FileNotFoundError(f"the folder {display(root)} does not exist")
    if not root.is_dir():
        raise NotADirectoryError(f"{display(root)} is a file: expected a folder of images")
    files = [file for file in walk(root) if is_image(file)]
    if not files:
        raise FileNotFoundError(f"{display(root)} holds no images ({', '.join(sorted(EXTENSIONS))})")
    return files


def walk(root: str | Path) -> Iterator[str]:
    """The files under a folder in the order of their paths, links followed, each folder once, hidden ones left out."""
    seen = set()
    for folder, subfolders, names in os.walk(root, followlinks=True):
        status = os.stat(folder)
        identity = (status.st_dev, status.st_ino)
        if identity in seen:  # a link that leads back up, or to a folder that another link led to
            subfolders.clear()
            continue
        seen.add(identity)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield from (os.path.join(folder, name) for name in sorted(names) if not name.startswith("."))


def is_image(file: str) -> bool:
    """Whether a file has the extension, or the first bytes, of an image."""
    if os.path.splitext(file)[1].lower() in EXTENSIONS:
        return True
    try:
        with open_regular(file) as stream:
            return decode.looks_like_image(stream.read(12))
    except OSError:
        return False


def class_labels(path: str | Path, files: list[str]) -> tuple[np.ndarray, list[str]] | None:
    """Labels files by the sub-folder of `path` that they lie in, at any depth.

    Returns:
        int64 labels [N] and the sorted names of the classes; None if all files lie in `path` itself, or in a
        single sub-folder.

    Raises:
        ValueError: some files lie in sub-folders and some beside them.
    """
    parts = [os.path.relpath(file, path).split(os.sep) for file in files]
    beside = [file for file, part in zip(files, parts, strict=True) if len(part) == 1]
    names = sorted({part[0] for part in parts if len(part) > 1})
    if len(names) < 2 and (not names or not beside):
        return None
    if beside:
        raise ValueError(
            f"{display(path)} has images in sub-folders ({display(', '.join(names[:3]))}, ...) and {len(beside)} beside "
            f"them, such as {display(beside[0])}, which have no class: move them into one, or use the folder without "
            "labels (labels=False)"
        )
    index = {name: label for label, name in enumerate(names)}
    return np.array([index[part[0]] for part in parts], np.int64), names


class _Folder:
    """Makes batches of the files with given indices; called from the threads of tf.data."""

    def __init__(self, files, labels, decoding, broken, cache, cached, plan, workers, memory_mb):
        self.files, self.labels, self.decoding, self.broken = files, labels, decoding, broken
        self.cache, self.cached, self.plan = cache, cached, plan
        self.memory = Budget(memory_mb)
        self.pool = batches.thread_pool(workers)

    def batch(self, epoch: np.ndarray, indices: np.ndarray) -> list[np.ndarray]:
        def attempt(index: int) -> tuple[np.ndarray, ...] | None:
            return self.images(int(epoch), int(index))

        images: list[Any] = list(self.pool.map(attempt, indices))
        if self.plan.drop_remainder:
            indices, images = self.replace_broken(int(epoch), indices, images)
        else:
            indices = indices[[image is not None for image in images]]
            images = [image for image in images if image is not None]
        if images:
            columns = batches.stack(images, self.decoding)
        else:
            shape = [side or 0 for side in self.decoding.shape]
            columns = [np.zeros([0, *shape], np.uint8) for _ in self.decoding.names]
        return columns if self.labels is None else [*columns, self.labels[indices]]

    def replace_broken(self, epoch, indices, images):
        """Puts another file, none of this batch, where one is broken: batches keep their size.

        Which one depends on this batch alone, so that resumed runs see the same. Moving up the next files
        instead would make every later batch depend on the past.
        """
        indices = indices.copy()
        used = set(indices.tolist())
        for row in [row for row, image in enumerate(images) if image is None]:
            first = indices[row] + len(self.files) // 2
            others = ((first + k) % len(self.files) for k in range(len(self.files)))
            for other in others:
                if other not in used and (image := self.images(epoch, int(other))) is not None:
                    break
            else:
                raise RuntimeError(
                    f"no file is left to take the place of {display(self.files[indices[row]])}: "
                    f"{len(self.broken.reasons)} of {len(self.files)} are broken, a batch has {len(indices)}"
                )
            indices[row], images[row] = other, image
            used.add(other)
        return indices, images

    def images(self, epoch: int, index: int) -> tuple[np.ndarray, ...] | None:
        """The image or crops of a file; None if it is broken."""
        with self.memory.lease() as lease:
            try:
                image = self.image(self.files[index], lease.hold)
            except (OSError, decode.DecodeError) as error:
                self.broken.report(self.files[index], error)
                return None
            return self.decoding.arrays(image, (self.plan.seed, epoch, index))

    def image(self, file: str, hold: batches.Hold) -> np.ndarray:
        def opened() -> BinaryIO:
            return open_regular(file, decode.MAX_BYTES)

        def decoded() -> np.ndarray:
            with opened() as stream:
                return self.decoding.image(stream, hold)

        if self.cache is None:
            return decoded()
        status = os.stat(file)
        key = f"{os.path.abspath(file)} {status.st_size} {status.st_mtime_ns}"
        if self.cached == "decoded":
            key += f" {self.decoding.shape} {self.decoding.host_crops is None}"
            return batches.cached(self.cache, key, self.decoding, hold, decoded)
        content = self.cache.get(key, (None,), hold)
        if content is None:
            with opened() as stream:
                hold(status.st_size)
                content = np.frombuffer(stream.read(decode.MAX_BYTES), np.uint8)
            self.cache.put(key, content)
        return self.decoding.image(io.BytesIO(content), lambda size: hold(size + content.nbytes))


def from_folder(
    path: str | Path,
    *,
    batch_size: int,
    image_size: int | None = 256,
    channels: int = 3,
    host_crops: Any = None,
    labels: bool | None = None,
    on_error: str = "skip",
    max_broken: float = 0.01,
    error_log: str | Path = "broken_images.log",
    max_pixels: int = decode.MAX_PIXELS,
    cache: str | None = None,
    cache_dir: str | Path | None = None,
    cache_bytes: int = 2**30,
    workers: int | None = None,
    memory_mb: int = 1024,
    **order: Any,
) -> tf.data.Dataset:
    """Batches of the images in a folder: class sub-folders, or unlabelled images; at any depth.

        dataset = from_folder("photos", batch_size=256, image_size=256)
        model.fit(dataset, epochs=100, steps_per_epoch=dataset.steps_per_epoch)

    The stream is infinite unless `epochs` is given, each epoch in an order of its own; started at `(epoch,
    step)` it yields what an uninterrupted run would have seen.

    A broken file is skipped: another file of the folder takes its place, or, with `drop_remainder=False`, the
    batch is smaller by one.

    Args:
        path: the folder. JPEG, PNG, WebP, BMP and GIF (first frame) are decoded by their content, upright;
            see `keras_sslhsic.data.decode.decode`.
        batch_size: examples in a batch (of this host).
        image_size: side S of the images, central squares resized; None if all files have one size already.
        channels: 1, 3 or 4.
        host_crops: a view policy, or its name: random crops are made on the host and sent in place of the
            image.
        labels: True for labels from the sub-folders, False for none; None finds out.
        on_error: "skip", or "raise" an error that names the file and the reason.
        max_broken: share of broken files, in [0, 1], above which the run stops with a summary.
        error_log: file in which broken files are named.
        max_pixels: larger images count as broken.
        cache: "encoded" keeps the bytes of the files, "decoded" the decoded images; None keeps nothing.
        cache_dir: folder of the cache; None caches in memory.
        cache_bytes: size of the cache.
        workers: threads that decode; None: as many as there are cores.
        memory_mb: memory, in 2^20 bytes, that images take while they are decoded and cropped, beside the batches. An
            image that needs more is decoded nevertheless.
        **order: `seed=0`, `shuffle=True`, `drop_remainder=True`, `start=(0, 0)`, `epochs=None`, `shard=(0,
            1)`: see `keras_sslhsic.data.Order`.

    Returns:
        A dataset of `{"image": uint8 [B, S, S, C]}`, or of `{"view1", "view2", ...: uint8 [B, V, V, C]}` for
        host crops of side V; with `"label": int64 [B]` if there are classes. Its attributes:
        `steps_per_epoch`; `num_examples`; `class_names`, a list or None; `files`, the paths; `broken`, the `BrokenFiles`
        found so far.

    Raises:
        FileNotFoundError: no such folder, or no images in it.
        ValueError: fewer images than one batch; labels asked for but no class sub-folders; an option of another
            type or range.
    """
    checks.flag("labels", labels, optional=True)
    files = list_images(path)
    classes = None if labels is False else class_labels(path, files)
    if labels and classes is None:
        raise ValueError(
            f"labels=True, but {display(path)} has no two sub-folders of images to take classes from"
        )
    plan = Order(len(files), batch_size, **order)
    broken = BrokenFiles(len(files), on_error, max_broken, error_log)
    policy = None if host_crops is None else views.get(host_crops)
    decoding = batches.Decoding(image_size, channels, policy, max_pixels)
    store = make_cache(cache, ("encoded", "decoded"), cache_dir, cache_bytes)
    source = _Folder(files, classes and classes[0], decoding, broken, store, cache, plan, workers, memory_mb)
    indices = plan.batches()
    size = indices.element_spec[1].shape[0]
    dataset = map_python(indices, source.batch, decoding.specs(size, labels=classes is not None))
    if not plan.drop_remainder:  # a last batch of broken files alone
        dataset = dataset.filter(lambda batch: tf.shape(next(iter(batch.values())))[0] > 0)
    dataset.steps_per_epoch = plan.steps_per_epoch
    dataset.num_examples = plan.num_examples
    dataset.class_names = classes and classes[1]
    dataset.files = files
    dataset.broken = broken
    return dataset
