"""Images from a folder."""

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks, pictures
from keras_sslhsic.data import decode
from keras_sslhsic.data.batches import Decoding, Hold, crops, thread_pool
from keras_sslhsic.data.broken import LOG, BrokenFiles
from keras_sslhsic.data.cache import make as make_cache
from keras_sslhsic.data.images import Images, Read, digest, part, spread
from keras_sslhsic.data.memory import Budget
from keras_sslhsic.data.order import Order
from keras_sslhsic.files import display, open_regular
from keras_sslhsic.words import warn

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"})
_SPLITS = frozenset({"test", "train", "val", "valid", "validation"})
_SYSTEM = "lost+found"  # at the top of a file system, and its own


def list_images(path: str | Path) -> list[str]:
    """Lists the image files under a folder, at any depth, in the order of their paths.

    Image files have one of `EXTENSIONS`, in upper or lower case, or the first bytes of an image whatever
    their name. Hidden files and folders are left out, and, with a warning, pictures that commands of this package wrote
    (`pictures.is_own`); links are followed, and each folder is read once.

    Raises:
        FileNotFoundError: the folder does not exist, or holds no images.
        NotADirectoryError: the path is a file.
        OSError: a folder cannot be listed, or a link may be one that leads nowhere: without it classes have other numbers.
    """
    root = Path(path)
    if not root.exists():
        # As a whole: that of a run's config is relative to where the run was begun.
        raise FileNotFoundError(f"The folder {display(root.absolute())} does not exist.")
    if not root.is_dir():
        raise NotADirectoryError(f"{display(root)} is a file: expected a folder of images.")
    found = list(walk(root))
    files = [file for file in found if is_image(file)]
    if own := [file for file in found if pictures.is_own(file)]:
        warn(
            f"Left out what keras_sslhsic wrote itself, {len(own)} pictures under {display(root)}, such as {display(own[0])}.",
        )
    if not files:
        raise FileNotFoundError(f"{display(root)} holds no images ({', '.join(sorted(EXTENSIONS))}).")
    return files


def walk(root: str | Path) -> Iterator[str]:
    """The files under a folder in the order of their paths, links followed, each folder once, hidden ones left out.

    Raises:
        OSError: a folder cannot be listed.
    """
    seen = set()
    for folder, subfolders, names in os.walk(root, onerror=_not_listed, followlinks=True):
        status = os.stat(folder)
        identity = (status.st_dev, status.st_ino)
        if identity in seen:  # a link that leads back up, or to a folder that another link led to
            subfolders.clear()
            continue
        seen.add(identity)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith(".") and name != _SYSTEM)
        yield from (os.path.join(folder, name) for name in sorted(names) if not name.startswith("."))


def _not_listed(error: OSError) -> None:
    raise type(error)(
        f"The folder {display(error.filename)} cannot be listed ({error.strerror}): without its images the others would be "
        "numbered anew. Make it readable, or move it away."
    ) from error


def is_image(file: str) -> bool:
    """Whether a file has the extension, or the first bytes, of an image, and is no picture that a command wrote.

    Raises:
        OSError: a link that may be one to a folder leads nowhere.
    """
    if os.path.splitext(file)[1].lower() in EXTENSIONS:
        return not pictures.is_own(file)
    try:
        with open_regular(file) as stream:
            return decode.looks_like_image(stream.read(12))
    except OSError as error:
        if os.path.islink(file) and not os.path.exists(file):
            raise OSError(
                f"The link {display(file)} leads nowhere, and may be one to a folder of images, without which the others would "
                "be numbered anew. Restore what it leads to, or remove it."
            ) from error
        return False


def class_labels(path: str | Path, files: list[str]) -> tuple[np.ndarray, list[str]] | None:
    """Labels files by the sub-folder of `path` that they lie in, at any depth.

    Returns:
        int64 labels [N] and the sorted names of the classes; None if all files lie in `path` itself, or in a single sub-folder.

    Raises:
        ValueError: some files lie in sub-folders and some beside them.

    Warns:
        UserWarning: if the classes are "train", "test" and the like.
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
            "labels (labels=False)."
        )
    if _SPLITS.issuperset(names):
        warn(
            f"The classes of {display(path)} are {display(', '.join(names))}: if these are parts of a data set, give "
            f"the folder of one, such as {display(os.path.join(path, names[-1]))}."
        )
    index = {name: label for label, name in enumerate(names)}
    return np.array([index[part[0]] for part in parts], np.int64), names


def own_test_folder(path: str | Path) -> Path | None:
    """The folder `test` beside a folder `train`, if its sub-folders are classes to measure on."""
    test = Path(path).parent / "test"
    if Path(path).name != "train" or not test.is_dir():
        return None
    with contextlib.suppress(FileNotFoundError, ValueError):  # no images, or some that have no class
        return test if class_labels(test, list_images(test)) else None
    return None


class FolderImages(Images):
    """The images in a folder: class sub-folders, or unlabelled images; at any depth.

        model.fit(keras_sslhsic.data.from_folder("photos", batch_size=256), epochs=100)

    Batches are `{"image": uint8 [B, S, S, C]}`, or `{"view1", "view2", ...: uint8 [B, V, V, C]}` for host crops of side V;
    with `"label": int64 [B]` if there are classes. A broken file is skipped: another file of the folder takes its place, or,
    with `drop_remainder=False`, the batch is smaller by one.

    Args:
        path: the folder. JPEG, PNG, WebP, BMP and GIF (first frame) are decoded by their content, upright; see
            `keras_sslhsic.data.decode.decode`.
        batch_size: examples in a batch.
        image_size: side S of the images, central squares resized; None if all files have one size already.
        channels: 1, 3 or 4.
        host_crops: a view policy, or its name: random crops are made on the host and sent in place of the image.
        labels: True for labels from the sub-folders, False for none; None finds out.
        on_error: "skip", or "raise" an error that names the file and the reason.
        max_broken: share of broken files, in [0, 1], above which the run stops with a summary (`TooManyBrokenFiles`;
            of a loop of one's own over `batches` TensorFlow makes a tf.errors.OpError of it, in the same words).
        error_log: file in which broken files are named.
        max_pixels: larger images count as broken.
        cache: "encoded" keeps the bytes of the files, "decoded" the decoded images; None keeps nothing.
        cache_dir: folder of the cache; None caches in memory.
        cache_bytes: size of the cache.
        workers: threads that decode; None: as many as there are cores.
        memory_mb: memory, in 2^20 bytes, that images take while they are decoded and cropped, beside the batches. An image
            that needs more is decoded nevertheless.
        **order: `seed=0`, `shuffle=True`, `drop_remainder=True`: see `keras_sslhsic.data.Order`.

    Attributes:
        files: their paths, in the order of their numbers.
        broken: the `BrokenFiles` found so far.

    Raises:
        FileNotFoundError: no such folder, or no images in it.
        OSError: as `list_images`.
        ValueError: fewer images than one batch; labels asked for but no class sub-folders; an option of another type or range.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        batch_size: int,
        image_size: int | None = 256,
        channels: int = 3,
        host_crops: Any = None,
        labels: bool | None = None,
        on_error: str = "skip",
        max_broken: float = 0.01,
        error_log: str | Path = LOG,
        max_pixels: int = decode.MAX_PIXELS,
        cache: str | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int = 2**30,
        workers: int | None = None,
        memory_mb: int = 1024,
        **order: Any,
    ) -> None:
        checks.flag("labels", labels, optional=True)
        self._root, self.files = str(Path(path)), list_images(path)
        classes = None if labels is False else class_labels(path, self.files)
        if labels and classes is None:
            raise ValueError(
                f"Expected two sub-folders of images or more in {display(path)} to take classes from, since labels=True, "
                "found none: move the images of each class into one, or leave labels out."
            )
        # What a batch holds beside the images: a column with a row for each file.
        self.labels = None if classes is None else classes[0]
        self._beside = {} if self.labels is None else {"label": self.labels}
        self._decoding = Decoding(image_size, channels, crops(host_crops), max_pixels)
        beside = {name: tf.TensorSpec(col.shape[1:], col.dtype) for name, col in self._beside.items()}
        plan = Order(len(self.files), batch_size, **order)
        super().__init__(plan, self._decoding.columns | beside, classes and classes[1])
        self.broken = BrokenFiles(len(self.files), on_error, max_broken, error_log)
        self._cache, self._cached = make_cache(cache, ("encoded", "decoded"), cache_dir, cache_bytes), cache
        self._pool, self._memory = thread_pool(workers), Budget(memory_mb)

    def batches(
        self, epoch: int = 0, step: int = 0, *, epochs: int | None = None, share: tuple[int, int] = (0, 1)
    ) -> tf.data.Dataset:
        dataset = super().batches(epoch, step, epochs=epochs, share=share)
        if not self.order.drop_remainder:  # a last batch of broken files alone
            dataset = dataset.filter(lambda batch: tf.shape(next(iter(batch.values())))[0] > 0)
        return dataset

    def sample(self, n: int) -> np.ndarray:
        decoding, found, count = self._decoding.of_samples(), [], len(self.files)
        for number in spread(count, n):
            images = (self._arrays((number + k) % count, decoding, ()) for k in range(count))
            if (image := next(filter(None, images), None)) is None:
                raise ValueError(self.broken.summary())
            found.append(image)
        return decoding.stack(found)["image"]

    def digest(self) -> str:
        """Of the names of all files in the folder, and of the sizes of up to 1,024 spread over them."""
        names = (file.removeprefix(self._root).replace(os.sep, "/") for file in self.files)
        few = (self.files[number] for number in spread(len(self.files), 1024))
        return digest("\n".join(names), " ".join(str(_size(file)) for file in few))

    def _reading(self, share: tuple[int, int], epochs: int | None) -> tuple[Order, Read]:
        def read(epoch: np.ndarray, examples: np.ndarray) -> dict[str, np.ndarray]:
            return self._batch(int(epoch), examples, examples[part(len(examples), share)])

        return self.order, read

    def _batch(self, epoch: int, batch: np.ndarray, mine: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of those files of a batch that are `mine`."""

        def attempt(number: int) -> tuple[np.ndarray, ...] | None:
            return self._arrays(int(number), self._decoding, (self.order.seed, epoch, int(number)))

        images: list[Any] = list(self._pool.map(attempt, mine))
        if self.order.drop_remainder:
            mine, images = self._replace_broken(batch, mine, images, attempt)
        else:
            mine = mine[[image is not None for image in images]]
            images = [image for image in images if image is not None]
        return self._decoding.stack(images) | {name: column[mine] for name, column in self._beside.items()}

    def _replace_broken(
        self, batch: np.ndarray, mine: np.ndarray, images: list[Any], attempt: Callable[[int], Any]
    ) -> tuple[np.ndarray, list[Any]]:
        """Puts another file, none of this batch, where one is broken: batches keep their size.

        Which one depends on this batch alone, so that resumed runs see the same. Moving up the next files
        instead would make every later batch depend on the past.
        """
        mine, used, count = mine.copy(), set(batch.tolist()), len(self.files)
        for row in [row for row, image in enumerate(images) if image is None]:
            first = int(mine[row]) + count // 2
            for other in ((first + k) % count for k in range(count)):
                if other not in used and (image := attempt(other)) is not None:
                    break
            else:
                raise RuntimeError(
                    f"No file is left to take the place of {display(self.files[mine[row]])}: {len(self.broken.reasons)} of "
                    f"{count} are broken, a batch has {len(batch)}. Repair them, or use a smaller batch_size."
                )
            mine[row], images[row] = other, image
            used.add(other)
        return mine, images

    def _arrays(
        self, number: int, decoding: Decoding, seed: tuple[int, ...]
    ) -> tuple[np.ndarray, ...] | None:
        """The image or crops of a file; None if it is broken."""
        with self._memory.lease() as lease:
            try:
                image = self._image(self.files[number], decoding, lease.hold)
            except (OSError, decode.DecodeError) as error:
                self.broken.report(self.files[number], error)
                return None
            return decoding.arrays(image, seed)

    def _image(self, file: str, decoding: Decoding, hold: Hold) -> np.ndarray:
        def decoded() -> np.ndarray:
            with open_regular(file, decode.MAX_BYTES) as stream:
                return decoding.image(stream, hold)

        if self._cache is None:
            return decoded()
        status = os.stat(file)
        key = f"{os.path.abspath(file)} {status.st_size} {status.st_mtime_ns}"
        if self._cached == "decoded":
            return decoding.cached(self._cache, key, hold, decoded)
        content = self._cache.get(key, (None,), hold)
        if content is None:
            with open_regular(file, decode.MAX_BYTES) as stream:
                hold(status.st_size)
                content = np.frombuffer(stream.read(decode.MAX_BYTES), np.uint8)
            self._cache.put(key, content)
        return decoding.image(io.BytesIO(content.tobytes()), lambda size: hold(size + content.nbytes))


def _size(file: str) -> int:
    try:
        return os.stat(file).st_size
    except OSError:  # it will count as broken
        return 0


from_folder = FolderImages
