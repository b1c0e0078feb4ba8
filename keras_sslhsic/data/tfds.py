"""Images from a prepared TensorFlow Datasets data set."""

import collections
import dataclasses
import functools
import itertools
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.data import decode
from keras_sslhsic.data.batches import Decoding, crops, thread_pool
from keras_sslhsic.data.cache import make as make_cache
from keras_sslhsic.data.images import Images, Read, digest, part
from keras_sslhsic.data.memory import Budget
from keras_sslhsic.data.order import Order
from keras_sslhsic.files import display

# To evaluate, the SSL-HSIC paper holds out 10,000 training images and tests on the official validation set (appendix
# D.2); its code pretrains on all training images, "train". Which 10,000 is the released code's choice.
SPLITS: Mapping[str, Mapping[str, str]] = {
    "imagenet2012": {"TRAIN": "train[10000:]", "VALID": "train[:10000]", "TEST": "validation"},
}

# Without its warning that graphs of TensorFlow 1 should use tf.data.
_tf_record_iterator = tf.compat.v1.io.tf_record_iterator.__wrapped__


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Records `skip` ... `skip + take - 1` of a file; the first is example number `first` of the split."""

    file: str
    skip: int
    take: int
    first: int


def _pieces(instructions: list[Any], start: int, stop: int) -> list[_Piece]:
    """The examples start ... stop - 1 of a split, given what TFDS says of its files."""
    pieces, first = [], 0
    for instruction in instructions:
        low, high = max(start, first), min(stop, first + instruction.take)
        if low < high:
            pieces.append(_Piece(str(instruction.filename), instruction.skip + low - first, high - low, low))
        first += instruction.take
    return pieces


class _Records:
    """The records of an epoch by their position in it, without reading the past.

    TFRecords cannot be read in any order, so the shuffle has two levels, both drawn from (seed, epoch): the
    files are permuted, and a window of successive files is read whole, as undecoded bytes, and permuted in
    memory. To start in the middle, only the window that holds the first example is read from its beginning.

    Windows stay in Python, where permuting them and cutting them into batches copies no bytes.
    """

    KEPT = 3  # windows: the one being read ahead, and two that batches on either side of an edge may want

    def __init__(
        self,
        pieces: list[_Piece],
        order: Order,
        window: int,
        epochs: int | None,
        files: ThreadPoolExecutor,
        ahead: ThreadPoolExecutor,
    ) -> None:
        self.pieces, self.order, self.epochs = pieces, order, epochs
        self.per_window = max(1, round(window * len(pieces) / sum(piece.take for piece in pieces)))
        self.windows = -(-len(pieces) // self.per_window)
        self._loading: collections.OrderedDict[tuple[int, int], Future] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._files, self._ahead = files, ahead

    def take(self, epoch: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids int64 [B], records object [B]) at ascending positions; reads the next window meanwhile."""
        sizes = [piece.take for piece in self._permuted(epoch)]
        edges = np.cumsum([0, *sizes])[:: self.per_window]
        windows = np.searchsorted(edges, positions, side="right") - 1
        ids, records = [], []
        for window in map(int, np.unique(windows)):
            loaded = self._window(epoch, window).result()
            rows = positions[windows == window] - edges[window]
            ids.append(loaded[0][rows])
            records.append(loaded[1][rows])
        following = epoch + (window + 1) // self.windows, (window + 1) % self.windows
        if self.epochs is None or following[0] < self.epochs:
            self._window(*following)
        return np.concatenate(ids), np.concatenate(records)

    def _permuted(self, epoch: int) -> list[_Piece]:
        if not self.order.shuffle:
            return self.pieces
        rng = np.random.default_rng((self.order.seed, epoch))
        return [self.pieces[i] for i in rng.permutation(len(self.pieces))]

    def _window(self, epoch: int, window: int) -> Future:
        key = epoch, window
        with self._lock:
            if key not in self._loading:
                self._loading[key] = self._ahead.submit(self._load, *key)
            self._loading.move_to_end(key)
            if len(self._loading) > self.KEPT:
                self._loading.popitem(last=False)
            return self._loading[key]

    def _load(self, epoch: int, window: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, records) of a window, permuted."""
        pieces = self._permuted(epoch)[window * self.per_window : (window + 1) * self.per_window]
        records = np.concatenate(list(self._files.map(_read, pieces)))
        ids = np.concatenate([np.arange(piece.first, piece.first + piece.take) for piece in pieces])
        if not self.order.shuffle:
            return ids, records
        order = np.random.default_rng((self.order.seed, epoch, window)).permutation(len(ids))
        return ids[order], records[order]


def _read(piece: _Piece) -> np.ndarray:
    """The records of a piece, bytes, as an object array [take]."""
    # A tf.data pipeline takes 25 ms to make, as long as a hundred records, and needs TensorFlow's threads, which
    # all may be waiting for this.
    records = itertools.islice(_tf_record_iterator(piece.file), piece.skip, piece.skip + piece.take)
    try:
        found = list(records)
    except tf.errors.DataLossError as error:
        raise ValueError(f"{piece.file} is damaged: {error.message}. Prepare the data set again.") from None
    if len(found) != piece.take:
        raise ValueError(
            f"{piece.file} is not whole: dataset_info.json states {piece.take} examples from number {piece.skip} on, found "
            f"{len(found)}. Prepare the data set again."
        )
    return np.array(found, object)


def library() -> Any:
    """The module tensorflow_datasets; raises ImportError, which says how to install it."""
    try:
        import tensorflow_datasets  # here, since it takes seconds
    except ImportError as error:
        raise ImportError(
            "Data sets of TensorFlow Datasets are read by that library: pip install 'keras_sslhsic[tfds]'."
        ) from error
    return tensorflow_datasets


def prepared_builder(name: str, data_dir: str | Path | None = None) -> Any:
    """The TFDS builder of a data set that has been prepared as TFRecords.

    Raises:
        FileNotFoundError: there is none of that name, or it has not; the message says how to prepare it.
        ValueError: it was prepared in another file format.
        ImportError: tensorflow-datasets is not installed.
    """
    try:
        tfds = library()
    except ImportError as error:
        raise ImportError(f"{display(Path(name).absolute())} is no folder. {error}") from error
    try:
        builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
    except ValueError as error:  # its message lists a thousand names, or the grammar of names
        if not isinstance(error, tfds.core.DatasetNotFoundError) and "Parsing builder name" not in str(error):
            raise
        where = "" if data_dir is None else f", nor has {data_dir} one"
        raise FileNotFoundError(
            f"{display(Path(name).absolute())} is no folder, and TensorFlow Datasets has no data set {name}{where}."
        ) from None
    if not builder.is_prepared():
        option = "" if data_dir is None else f", data_dir={str(data_dir)!r}"
        message = (
            f"{name} is not prepared in {builder.data_dir}. Prepare it once in Python, where there is network access, by "
            f"`tensorflow_datasets.builder({name!r}{option}).download_and_prepare()`, or pass the data_dir that holds it (a "
            "local folder or gs://...)."
        )
        if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
            message += f" First download by hand: {builder.MANUAL_DOWNLOAD_INSTRUCTIONS.strip()}"
        raise FileNotFoundError(message)
    if builder.info.file_format != tfds.core.FileFormat.TFRECORD:
        raise ValueError(
            f"{name} in {builder.data_dir} is stored as {builder.info.file_format.value}, expected tfrecord: "
            "prepare it again, into another data_dir."
        )
    return builder


def check_features(
    name: str,
    features: Mapping[str, Any],
    image_key: str,
    label_keys: Iterable[str],
    remedy: str = ".",
    several: bool = False,
) -> None:
    """Raises ValueError for features that are missing, or are no image and integers; `several`: or sequences of classes."""
    tfds = library()
    if missing := {image_key, *label_keys} - set(features):
        raise ValueError(
            f"{name} has no feature {' or '.join(map(repr, sorted(missing)))}, it has {sorted(features)}{remedy}"
        )
    if not isinstance(features[image_key], tfds.features.Image):
        raise ValueError(f"{name} has no image in {image_key!r}, but {features[image_key]}{remedy}")
    if (dtype := np.dtype(features[image_key].np_dtype)) not in (np.uint8, np.uint16):
        # TFDS writes the bits of a float as four colours.
        raise ValueError(
            f"{name} has images of {dtype} in {image_key!r}, and those of uint8 or uint16 are read{remedy}"
        )
    for key in label_keys:
        of_classes = several and isinstance(getattr(features[key], "feature", None), tfds.features.ClassLabel)
        whole = features[key].shape == () and np.dtype(features[key].np_dtype).kind in "biu"
        if not (whole or of_classes):
            raise ValueError(f"{name} has no integer in {key!r}, but {features[key]}{remedy}")


def split_info(builder: Any, split: str) -> Any:
    """What TFDS says of a split of its own, or of `SPLITS`."""
    return builder.info.splits[SPLITS.get(builder.name, {}).get(split, split)]


def has_labels(builder: Any, split: str, label_key: str) -> bool:
    """Whether the examples of a split have labels, by the first of its first and of its last file.

    Those without have -1, as all in "unlabelled" and some in "train+unlabelled" of stl10.
    """
    files = split_info(builder, split).file_instructions
    firsts = [_read(_Piece(str(file.filename), file.skip, 1, 0))[0] for file in files[:1] + files[-1:]]
    examples = [tf.train.Example.FromString(record).features.feature for record in firsts]
    return all(label >= 0 for example in examples for label in example[label_key].int64_list.value)


def shared(builder: Any, *splits: str) -> int:
    """How many examples two splits have in common."""
    first, second = (split_info(builder, split).file_instructions for split in splits)
    return sum(
        max(0, min(a.skip + a.take, b.skip + b.take) - max(a.skip, b.skip))
        for a in first
        for b in second
        if a.filename == b.filename
    )


class TfdsImages(Images):
    """The images of a TensorFlow Datasets data set that has been prepared, read from its TFRecords.

        images = keras_sslhsic.data.from_tfds("imagenet2012", "TRAIN", batch_size=512, data_dir="gs://bucket/tfds")
        model.fit(images, epochs=1000)

    Batches are as those of `FolderImages`. Files are permuted, and `window` examples at a time. Several workers take
    consecutive shares of the split, so that each reads only its own files; their batches are therefore others than those of
    a single machine.

    Args:
        name: name of the data set, with its config if any: "imagenet2012", "imagenet2012_subset/1pct", "cifar10".
        split: any TFDS split, "train[:90%]" too; for imagenet2012 also the paper's "TRAIN" (all but 10,000 training
            images), "VALID" (those 10,000) and "TEST" (the official validation set).
        batch_size: as this, image_size, channels, host_crops, cache_dir, cache_bytes, workers, memory_mb and order in
            `FolderImages`.
        image_size: None if all images have one size already, as in CIFAR.
        channels: 1, 3 or 4.
        host_crops: a view policy, or its name, or None.
        labels: whether batches hold labels.
        data_dir: where the data set was prepared, a local folder or gs://; None is TFDS's own default.
        image_key: name of the image among the features.
        label_key: name of the integer label among the features.
        max_pixels: larger images raise an error.
        cache: "decoded" keeps the decoded images; None keeps nothing.
        cache_dir: folder of the cache, or None.
        cache_bytes: size of the cache.
        window: examples that are permuted in memory; about three times as many are held, undecoded, beside `memory_mb`.
        workers: threads that decode, or None.
        memory_mb: in 2^20 bytes.
        **order: see `keras_sslhsic.data.Order`.

    Raises:
        FileNotFoundError: the data set is not prepared; says how to.
        ValueError: no such split or feature, a label that is no integer, or fewer examples than one batch. Images that cannot
            be decoded raise an error that names the example while batches are read.
    """

    def __init__(
        self,
        name: str,
        split: str = "train",
        *,
        batch_size: int,
        image_size: int | None = 256,
        channels: int = 3,
        host_crops: Any = None,
        labels: bool = True,
        data_dir: str | Path | None = None,
        image_key: str = "image",
        label_key: str = "label",
        max_pixels: int = decode.MAX_PIXELS,
        cache: str | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int = 2**30,
        window: int = 8192,
        workers: int | None = None,
        memory_mb: int = 1024,
        **order: Any,
    ) -> None:
        checks.flag("labels", labels)
        checks.integer("window", window, 1)
        builder = prepared_builder(name, data_dir)
        features = builder.info.features
        # What a batch holds beside the images: integers of the features.
        self._image_key, self._beside = image_key, {"label": label_key} if labels else {}
        remedy = ": from_tfds, and the data of a config, take image_key, label_key and labels=False."
        check_features(name, features, image_key, [*self._beside.values()], remedy)
        self._full_name = builder.info.full_name
        info = split_info(builder, split)
        self._instructions = info.file_instructions
        stored = (*features[image_key].shape[:2], None, None)[:2]
        self._decoding = Decoding(image_size, channels, crops(host_crops), max_pixels, stored)
        beside = dict.fromkeys(self._beside, tf.TensorSpec([], tf.int64))
        names = getattr(features[label_key], "names", None) if labels else None
        plan = Order(info.num_examples, batch_size, **order)
        super().__init__(plan, self._decoding.columns | beside, names)
        self._name, self._key, self._window = f"{name}, {split}", f"{builder.data_path} {split}", window
        self._cache = make_cache(cache, ("decoded",), cache_dir, cache_bytes)
        self._pool, self._memory = thread_pool(workers), Budget(memory_mb)
        self._files, self._ahead = ThreadPoolExecutor(4, "files"), ThreadPoolExecutor(1, "windows")

    def sample(self, n: int) -> np.ndarray:
        pieces = _pieces(self._instructions, 0, min(n, self.num_examples))
        decoding = self._decoding.of_samples()
        numbered = ((number, record) for p in pieces for number, record in enumerate(_read(p), p.first))
        found = [self._example(decoding, 0, number, record)[0] for number, record in numbered]
        return decoding.stack(found)["image"]

    def digest(self) -> str:
        """Of the name and version of the data set, and of the parts of its files that the split takes."""
        pieces = [(file.filename.rsplit("/")[-1], file.skip, file.take) for file in self._instructions]
        return digest(self._full_name, repr(pieces))

    def _reading(self, share: tuple[int, int], epochs: int | None) -> tuple[Order, Read]:
        # Consecutive parts of the split, so that each worker reads its own files alone.
        own = part(self.num_examples, share)
        pieces = _pieces(self._instructions, own.start, own.stop)
        records = _Records(pieces, self.order, self._window, epochs, self._files, self._ahead)
        size = self.batch_size // share[1]
        examples = self.steps_per_epoch * size if self.order.drop_remainder else own.stop - own.start
        order = dataclasses.replace(self.order, num_examples=examples, batch_size=size, shuffle=False)

        def read(epoch: np.ndarray, positions: np.ndarray) -> dict[str, np.ndarray]:
            example = functools.partial(self._example, self._decoding, int(epoch))
            found = self._pool.map(example, *records.take(int(epoch), positions))
            images, beside = zip(*found, strict=True)
            numbers = np.array(beside, np.int64).reshape(len(beside), -1).T
            return self._decoding.stack(images) | dict(zip(self._beside, numbers, strict=True))

        return order, read

    def _example(
        self, decoding: Decoding, epoch: int, number: int, record: bytes
    ) -> tuple[tuple[np.ndarray, ...], list[int]]:
        """The image or crops of a record, and the numbers beside it."""
        feature = tf.train.Example.FromString(record).features.feature
        content = feature[self._image_key].bytes_list.value[0]
        with self._memory.lease() as lease:

            def decoded() -> np.ndarray:
                return decoding.image(content, lease.hold)

            try:
                image = decoding.cached(self._cache, f"{self._key} {number}", lease.hold, decoded)
            except decode.DecodeError as error:
                raise decode.DecodeError(
                    f"{self._name}, example {number} cannot be decoded: {display(error)}. Prepare the data set again."
                ) from error
            images = decoding.arrays(image, (self.order.seed, epoch, int(number)))
        return images, [feature[key].int64_list.value[0] for key in self._beside.values()]


from_tfds = TfdsImages
