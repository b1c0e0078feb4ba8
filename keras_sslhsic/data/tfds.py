"""Batches from a prepared TensorFlow Datasets data set."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from keras_sslhsic import views
from keras_sslhsic.data import batches, decode
from keras_sslhsic.data.cache import Cache
from keras_sslhsic.data.order import Order

# The SSL-HSIC paper, like BYOL, holds out 10,000 training images and takes the official validation set for
# testing.
SPLITS: Mapping[str, Mapping[str, str]] = {
    "imagenet2012": {"TRAIN": "train[10000:]", "VALID": "train[:10000]", "TEST": "validation"},
}


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
    """The stream of (epoch, ids, records), without reading the past.

    TFRecords cannot be read in any order, so the shuffle has two levels, both drawn from (seed, epoch): the
    files are permuted, and a window of successive files is read whole, as undecoded bytes, and permuted in
    memory. To start in the middle, only the window that holds the first example is read from its beginning.
    """

    def __init__(self, pieces: list[_Piece], plan: Order, window: int) -> None:
        self.plan = plan
        self.files = tf.constant([piece.file for piece in pieces])
        # Columns: skip, take, first.
        self.ranges = tf.constant([[piece.skip, piece.take, piece.first] for piece in pieces], tf.int64)
        self.examples = sum(piece.take for piece in pieces)
        self.per_window = max(1, round(window * len(pieces) / self.examples))
        self.windows = -(-len(pieces) // self.per_window)

    def batches(self) -> tf.data.Dataset:
        steps = self.plan.steps_per_epoch
        first_epoch = self.plan.start[0] + self.plan.start[1] // steps
        last = tf.int64.max if self.plan.epochs is None else self.plan.epochs
        return tf.data.Dataset.range(first_epoch, last).flat_map(self._epoch)

    def _epoch(self, epoch: tf.Tensor) -> tf.data.Dataset:
        plan, steps = self.plan, self.plan.steps_per_epoch
        files, ranges = self.files, self.ranges
        seed = tf.stack([tf.constant(plan.seed, tf.int64), epoch])
        if plan.shuffle:
            order = _permutation(tf.shape(files)[0], seed)
            files, ranges = tf.gather(files, order), tf.gather(ranges, order)
        edges = tf.concat([[0], tf.cumsum(ranges[:, 1])], 0)
        edges = tf.concat([edges[: -1 : self.per_window], edges[-1:]], 0)

        first_epoch, first_step = plan.start[0] + plan.start[1] // steps, plan.start[1] % steps
        first = tf.where(epoch == first_epoch, tf.constant(first_step * plan.batch_size, tf.int64), 0)
        last = steps * plan.batch_size if plan.drop_remainder else self.examples
        first_window = tf.searchsorted(edges, first[None], side="right")[0] - 1

        def load(window: tf.Tensor) -> tf.data.Dataset:
            part = slice(window * self.per_window, (window + 1) * self.per_window)
            pieces = tf.data.Dataset.from_tensor_slices((files[part], ranges[part]))
            files_at_once = 16 if plan.shuffle else 1
            records = pieces.interleave(
                _read,
                cycle_length=files_at_once,
                num_parallel_calls=min(files_at_once, 4),
                deterministic=True,
            )
            return records.batch(tf.reduce_sum(ranges[part, 1]))

        def shuffle(window: tf.Tensor, ids: tf.Tensor, records: tf.Tensor) -> tf.data.Dataset:
            if plan.shuffle:
                order = _permutation(tf.shape(ids)[0], tf.random.fold_in(seed, window, alg="philox"))
                ids, records = tf.gather(ids, order), tf.gather(records, order)
            return tf.data.Dataset.from_tensor_slices((ids, records))

        windows = tf.data.Dataset.range(tf.cast(first_window, tf.int64), self.windows)
        loaded = windows.flat_map(lambda w: load(w).map(lambda ids, records: (w, ids, records))).prefetch(1)
        examples = loaded.flat_map(shuffle).skip(first - edges[first_window]).take(last - first)
        return examples.batch(plan.batch_size, plan.drop_remainder).map(lambda *batch: (epoch, *batch))


def _permutation(count: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    keys = tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.int64, alg="philox")
    return tf.argsort(keys, stable=True)


def _read(file: tf.Tensor, part: tf.Tensor) -> tf.data.Dataset:
    """(ids, records) of a piece."""
    return tf.data.TFRecordDataset(file).skip(part[0]).take(part[1]).enumerate(part[2])


def prepared_builder(name: str, data_dir: str | Path | None = None) -> Any:
    """The TFDS builder of a data set that has been prepared as TFRecords.

    Raises:
        FileNotFoundError: it has not; the message says how to prepare it.
        ValueError: it was prepared in another file format.
    """
    import tensorflow_datasets as tfds  # here, since it takes seconds

    builder = tfds.builder(name, data_dir=data_dir, try_gcs=False)
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
        **order: `seed=0`, `shuffle=True`, `drop_remainder=True`, `start=(0, 0)`, `epochs=None`, `shard=(0,
            1)`: see `keras_sslhsic.data.Order`.

    Returns:
        A dataset of `{"image": uint8 [B, S, S, C]}`, or of `{"view1", "view2", ...: uint8 [B, V, V, C]}` for
        host crops of side V; with `"label": int64 [B]`. Its attributes: `steps_per_epoch`; `class_names`, a
        list or None.

    Raises:
        FileNotFoundError: the data set is not prepared; says how to.
        ValueError: no such split or feature, or fewer examples than one batch. Images that cannot be decoded
            raise an error that names the example while the dataset is read.
    """
    if cache not in (None, "decoded"):
        raise ValueError(f'cache must be "decoded" or None, found {cache!r}')
    builder = prepared_builder(name, data_dir)
    features = builder.info.features
    missing = {image_key, *([label_key] if labels else [])} - set(features)
    if missing:
        raise ValueError(
            f"{name} has no feature {' or '.join(map(repr, sorted(missing)))}, it has {sorted(features)}: "
            "pass image_key, label_key or labels=False"
        )
    info = builder.info.splits[SPLITS.get(builder.name, {}).get(split, split)]
    plan = Order(info.num_examples, batch_size, **order)
    index, count = plan.shard
    start = index * (plan.num_examples // count) + min(index, plan.num_examples % count)
    pieces = _pieces(info.file_instructions, start, start + plan.examples_per_epoch)
    policy = None if host_crops is None else views.get(host_crops)
    decoding = batches.Decoding(image_size, channels, policy, max_pixels)
    store = None if cache is None else Cache(cache_bytes, cache_dir)
    pool = batches.thread_pool(workers)
    spec = {image_key: tf.io.FixedLenFeature([], tf.string)}
    if labels:
        spec[label_key] = tf.io.FixedLenFeature([], tf.int64)

    def parse(epoch: tf.Tensor, ids: tf.Tensor, records: tf.Tensor) -> tuple[tf.Tensor, ...]:
        parsed = tf.io.parse_example(records, spec)
        return epoch, ids, *(parsed[key] for key in spec)

    def decode_batch(
        epoch: np.ndarray, ids: np.ndarray, contents: np.ndarray, *rest: np.ndarray
    ) -> list[np.ndarray]:
        def images(number: np.int64, content: bytes) -> tuple[np.ndarray, ...]:
            key = f"{builder.data_path} {split} {number} {decoding.shape} {policy is None}"
            try:
                image = batches.cached(store, key, lambda: decoding.image(content))
            except decode.DecodeError as error:
                raise decode.DecodeError(f"{name}, {split}, example {number}: {error}") from error
            return decoding.arrays(image, (plan.seed, int(epoch), int(number)))

        return [*batches.stack(list(pool.map(images, ids, contents)), decoding), *rest]

    records = _Records(pieces, plan, window).batches().map(parse)
    dataset = batches.map_python(records, decode_batch, decoding, labels)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(plan.cardinality))
    dataset.steps_per_epoch = plan.steps_per_epoch
    dataset.class_names = getattr(features[label_key], "names", None) if labels else None
    return dataset
