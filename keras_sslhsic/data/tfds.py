"""Batches from a prepared TensorFlow Datasets data set."""

import collections
import dataclasses
import itertools
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic import checks, views
from keras_sslhsic.data import batches, decode
from keras_sslhsic.data.cache import make as make_cache
from keras_sslhsic.data.memory import Budget
from keras_sslhsic.data.order import Order
from keras_sslhsic.data.python_map import map_python
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

    def __init__(self, pieces: list[_Piece], plan: Order, window: int) -> None:
        self.pieces, self.plan = pieces, plan
        self.examples = sum(piece.take for piece in pieces)
        self.per_window = max(1, round(window * len(pieces) / self.examples))
        self.windows = -(-len(pieces) // self.per_window)
        self._loading: collections.OrderedDict[tuple[int, int], Future] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._files = ThreadPoolExecutor(4, "files")
        self._ahead = ThreadPoolExecutor(1, "windows")

    def positions(self) -> tf.data.Dataset:
        """The stream from the plan's start on: the epoch, and the positions in it of a batch."""
        plan = self.plan
        examples = plan.steps_per_epoch * plan.batch_size if plan.drop_remainder else self.examples
        return dataclasses.replace(plan, num_examples=examples, shuffle=False, shard=(0, 1)).batches()

    def take(self, epoch: int, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(ids int64 [B], records object [B]) at ascending positions; reads the next window meanwhile."""
        sizes = [piece.take for piece in self._order(epoch)]
        edges = np.cumsum([0, *sizes])[:: self.per_window]
        windows = np.searchsorted(edges, positions, side="right") - 1
        ids, records = [], []
        for window in map(int, np.unique(windows)):
            loaded = self._window(epoch, window).result()
            rows = positions[windows == window] - edges[window]
            ids.append(loaded[0][rows])
            records.append(loaded[1][rows])
        following = epoch + (window + 1) // self.windows, (window + 1) % self.windows
        if self.plan.epochs is None or following[0] < self.plan.epochs:
            self._window(*following)
        return np.concatenate(ids), np.concatenate(records)

    def _order(self, epoch: int) -> list[_Piece]:
        if not self.plan.shuffle:
            return self.pieces
        rng = np.random.default_rng((self.plan.seed, epoch))
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
        pieces = self._order(epoch)[window * self.per_window : (window + 1) * self.per_window]
        records = np.concatenate(list(self._files.map(_read, pieces)))
        ids = np.concatenate([np.arange(piece.first, piece.first + piece.take) for piece in pieces])
        if not self.plan.shuffle:
            return ids, records
        order = np.random.default_rng((self.plan.seed, epoch, window)).permutation(len(ids))
        return ids[order], records[order]


def _read(piece: _Piece) -> np.ndarray:
    """The records of a piece, bytes, as an object array [take]."""
    # A tf.data pipeline takes 25 ms to make, as long as a hundred records, and needs TensorFlow's threads, which
    # all may be waiting for this.
    records = itertools.islice(_tf_record_iterator(piece.file), piece.skip, piece.skip + piece.take)
    try:
        found = list(records)
    except tf.errors.DataLossError as error:
        raise ValueError(f"{piece.file} is damaged: {error.message}; prepare the data set again") from None
    if len(found) != piece.take:
        raise ValueError(
            f"{piece.file}: dataset_info.json states {piece.take} examples from number {piece.skip} on, found "
            f"{len(found)}: prepare the data set again"
        )
    return np.array(found, object)


def prepared_builder(name: str, data_dir: str | Path | None = None) -> Any:
    """The TFDS builder of a data set that has been prepared as TFRecords.

    Raises:
        FileNotFoundError: there is none of that name, or it has not; the message says how to prepare it.
        ValueError: it was prepared in another file format.
    """
    import tensorflow_datasets as tfds  # here, since it takes seconds

    try:
        builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
    except ValueError as error:  # its message lists a thousand names, or the grammar of names
        if not isinstance(error, tfds.core.DatasetNotFoundError) and "Parsing builder name" not in str(error):
            raise
        where = "" if data_dir is None else f", nor has {data_dir} one"
        raise FileNotFoundError(
            f"{name} is no folder, and TensorFlow Datasets has no data set of that name{where}."
        ) from None
    if not builder.is_prepared():
        option = "" if data_dir is None else f" --data_dir={data_dir}"
        message = (
            f"{name} is not prepared in {builder.data_dir}. Prepare it once, where there is network access, "
            f"with `tfds build {name}{option}`, or pass the data_dir that holds it (a local folder or gs://...)."
        )
        if builder.MANUAL_DOWNLOAD_INSTRUCTIONS:
            message += f" First download by hand: {builder.MANUAL_DOWNLOAD_INSTRUCTIONS.strip()}"
        raise FileNotFoundError(message)
    if builder.info.file_format != tfds.core.FileFormat.TFRECORD:
        raise ValueError(
            f"{name} in {builder.data_dir} is stored as {builder.info.file_format.value}, expected tfrecord: "
            "convert it with `tfds convert_format`"
        )
    return builder


def from_tfds(
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
) -> tf.data.Dataset:
    """Batches of a TensorFlow Datasets data set that has been prepared, read from its TFRecords.

        dataset = from_tfds("imagenet2012", "TRAIN", batch_size=512, data_dir="gs://bucket/tfds")
        model.fit(dataset, epochs=1000, steps_per_epoch=dataset.steps_per_epoch)

    The stream is infinite unless `epochs` is given, each epoch in an order of its own; started at `(epoch,
    step)` it yields what an uninterrupted run would have seen. Files are permuted, and `window` examples at a
    time; hosts take consecutive shares of the split, so that each reads only its own files.

    Args:
        name: name of the data set, with its config if any: "imagenet2012", "imagenet2012_subset/1pct",
            "cifar10".
        split: any TFDS split, "train[:90%]" too; for imagenet2012 also the paper's "TRAIN" (all but 10,000
            training images), "VALID" (those 10,000) and "TEST" (the official validation set).
        batch_size: examples in a batch (of this host).
        image_size: side S of the images, central squares resized; None if all have one size already, as in
            CIFAR.
        channels: 1, 3 or 4.
        host_crops: a view policy, or its name: random crops are made on the host and sent in place of the
            image.
        labels: whether batches hold labels.
        data_dir: where the data set was prepared, a local folder or gs://; None is TFDS's own default.
        image_key: name of the image among the features.
        label_key: name of the integer label among the features.
        max_pixels: larger images raise an error.
        cache: "decoded" keeps the decoded images; None keeps nothing.
        cache_dir: folder of the cache; None caches in memory.
        cache_bytes: size of the cache.
        window: examples that are permuted in memory; about three times as many are held, undecoded.
        workers: threads that decode; None: as many as there are cores.
        memory_mb: memory, in 2^20 bytes, that images take while they are decoded and cropped, beside the batches and
            the windows. An image that needs more is decoded nevertheless.
        **order: `seed=0`, `shuffle=True`, `drop_remainder=True`, `start=(0, 0)`, `epochs=None`, `shard=(0,
            1)`: see `keras_sslhsic.data.Order`.

    Returns:
        A dataset of `{"image": uint8 [B, S, S, C]}`, or of `{"view1", "view2", ...: uint8 [B, V, V, C]}` for
        host crops of side V; with `"label": int64 [B]`. Its attributes: `steps_per_epoch`; `num_examples`; `class_names`, a
        list or None.

    Raises:
        FileNotFoundError: the data set is not prepared; says how to.
        ValueError: no such split or feature, or fewer examples than one batch. Images that cannot be decoded
            raise an error that names the example while the dataset is read.
    """
    checks.flag("labels", labels)
    checks.integer("window", window, 1)
    builder = prepared_builder(name, data_dir)
    features = builder.info.features
    missing = {image_key, *([label_key] if labels else [])} - set(features)
    if missing:
        raise ValueError(
            f"{name} has no feature {' or '.join(map(repr, sorted(missing)))}, it has {sorted(features)}: "
            "from_tfds, and the data of a config, take image_key, label_key and labels=False"
        )
    info = builder.info.splits[SPLITS.get(builder.name, {}).get(split, split)]
    plan = Order(info.num_examples, batch_size, **order)
    index, count = plan.shard
    start = index * (plan.num_examples // count) + min(index, plan.num_examples % count)
    pieces = _pieces(info.file_instructions, start, start + plan.examples_per_epoch)
    policy = None if host_crops is None else views.get(host_crops)
    decoding = batches.Decoding(image_size, channels, policy, max_pixels)
    store = make_cache(cache, ("decoded",), cache_dir, cache_bytes)
    memory = Budget(memory_mb)
    pool = batches.thread_pool(workers)
    records = _Records(pieces, plan, window)

    def decode_batch(epoch: np.ndarray, positions: np.ndarray) -> list[np.ndarray]:
        def example(number: np.int64, record: bytes) -> tuple[tuple[np.ndarray, ...], int]:
            feature = tf.train.Example.FromString(record).features.feature
            label = feature[label_key].int64_list.value[0] if labels else 0
            key = f"{builder.data_path} {split} {number} {decoding.shape} {policy is None}"
            content = feature[image_key].bytes_list.value[0]
            with memory.lease() as lease:
                try:
                    image = batches.cached(
                        store, key, decoding, lease.hold, lambda: decoding.image(content, lease.hold)
                    )
                except decode.DecodeError as error:
                    raise decode.DecodeError(
                        f"{name}, {split}, example {number}: {display(error)}"
                    ) from error
                return decoding.arrays(image, (plan.seed, int(epoch), int(number))), label

        found = pool.map(example, *records.take(int(epoch), positions))
        images, numbers = zip(*found, strict=True)
        columns = batches.stack(list(images), decoding)
        return [*columns, np.array(numbers, np.int64)] if labels else columns

    positions = records.positions()
    size = positions.element_spec[1].shape[0]
    dataset = map_python(positions, decode_batch, decoding.specs(size, labels))
    dataset.steps_per_epoch = plan.steps_per_epoch
    dataset.num_examples = plan.num_examples
    dataset.class_names = getattr(features[label_key], "names", None) if labels else None
    return dataset
