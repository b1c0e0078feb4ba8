"""What `fit`, `evaluate` and `predict` read, in whatever form it is given."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import GeneratorType
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.data import from_arrays
from keras_sslhsic.data.images import Images, unpack
from keras_sslhsic.words import warn

# A handle, or what Keras reads as it is.
Given: TypeAlias = Images | tf.data.Dataset | tf.distribute.DistributedDataset | compat.Batches

STREAMS = (
    Images,
    tf.data.Dataset,
    tf.distribute.DistributedDataset,
    keras.utils.PyDataset,
    GeneratorType,
)
_NO_BATCH = "Expected batches of images, found none: the dataset is empty."
_NO_END = (
    "Expected an end of the {}, found none: give steps_per_epoch to fit, or steps to evaluate and predict{}."
)
_NOT_FINITE = "The images or crops hold NaN or infinite values: find out where they come from"


def given(x: Any, y: Any = None, steps: int | None = None, epochs: int = 1, **arrays: Any) -> Given:
    """Images in one of the forms that a trainer reads.

    Args:
        x: `data.Images`; images or crops in arrays, or a dict of them; a `tf.data.Dataset`, a `keras.utils.PyDataset` or a
            generator of batches.
        y: labels of arrays, int [N], or None.
        steps: batches to read in an epoch; None reads all.
        epochs: how often they are read.
        **arrays: how arrays become a handle; see `data.from_arrays`.

    Raises:
        ValueError: for anything else; for labels beside a handle or a dataset, no batch, or, without `steps`, no end.
    """
    if is_array(x) or (isinstance(x, dict) and x):
        for array in flat(unpack(x)[0]):
            check_array(array)
        return from_arrays(x, y, **arrays)
    if not isinstance(x, STREAMS):
        check_array(x)
    if y is not None:
        raise ValueError(
            f"Expected labels in the batches, found y beside the {type(x).__name__}: give them to the handle when it is made, "
            "or make a dataset of (images, labels)."
        )
    if isinstance(x, keras.utils.PyDataset | GeneratorType):
        return batches_of(x, steps, epochs)
    if isinstance(x, tf.data.Dataset):
        if steps is None and x.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(_NO_END.format("dataset", ", or the handle of keras_sslhsic.data itself"))
        if x.cardinality() == 0:
            raise ValueError(_NO_BATCH)
    return x


def one_batch(x: Any, y: Any = None) -> Images:
    """Images or crops in arrays, or a dict of them, as a handle of one batch; raises a ValueError for anything else."""
    images = flat(unpack(x)[0])
    for array in images:
        check_array(array)
    return from_arrays(x, y, batch_size=len(images[0]), shuffle=False)


def batches_of(x: Any, steps: int | None = None, epochs: int = 1) -> compat.Batches:
    """A PyDataset or a generator, and its first batch, which is not lost."""
    if isinstance(x, GeneratorType):
        if steps is None and epochs > 1:
            raise ValueError(
                f"Expected batches for {epochs} epochs, found a generator, which can be read once: give steps_per_epoch, or a "
                "keras.utils.PyDataset."
            )
        first = next(x, None)
        # Keras takes tuples alone.
        x = (tuple(batch) if isinstance(batch, tuple | list) else (batch,) for batch in chain([first], x))
    else:
        if steps is None and x.num_batches is None:
            raise ValueError(_NO_END.format(type(x).__name__, ""))
        first = None if x.num_batches == 0 else x[0]
    if first is None:
        raise ValueError(_NO_BATCH)
    for array in flat(unpack(first)[0]):
        check_array(array)
    for name, column in first.items() if isinstance(first, dict) else ():
        if not tf.is_tensor(column) and (found := np.asarray(column).dtype).kind in "OSU":
            raise ValueError(
                f"Expected batches of numbers, found {name!r} of {found}: leave it out of the batches."
            )
    return compat.Batches(x, first)


def is_array(x: Any) -> bool:
    """Whether something is one array: of NumPy, TensorFlow or a file."""
    return hasattr(x, "__array__") and hasattr(x, "shape") and not isinstance(x, tf.RaggedTensor)


def check_array(x: Any) -> None:
    """Raises a ValueError for what is no array, with what could be meant by it."""
    if is_array(x):
        return
    found = f"{x!r}" if x is None or isinstance(x, dict) else f"a {type(x).__name__}"
    if isinstance(x, list):
        found += ": np.stack(images)"
    elif isinstance(x, tuple):
        found += ": give the labels as y"
    elif isinstance(x, tf.RaggedTensor):
        found += ": resize the images to one size"
    elif isinstance(x, str):
        found = f"{x!r:.80}: read files by keras_sslhsic.data.from_folder"
    elif isinstance(x, Iterable) and not isinstance(x, dict):
        found += ": give a generator of its batches, NumPy arrays [B, H, W, C] in [0, 255]"
    raise ValueError(
        f"Images must be one uint8 array [N, H, W, C], a dict with one, or a dataset, found {found}."
    )


def flat(images: Any) -> tuple[Any, ...]:
    """The crops of a batch, or its images alone."""
    return images if isinstance(images, tuple) else (images,)


def first_batch(x: Given, labels: bool) -> Any:
    """The first batch, where it says more than the spec: of what range the values are, how many, whether there is one at all.

    None for handles, which know their images; and for datasets of a known number of uint8 batches of one size, whose labels,
    where `labels` are read, are integers [B].

    Raises:
        ValueError: if there is none.
    """
    if isinstance(x, compat.Batches):
        return x.first
    if not isinstance(x, tf.data.Dataset):
        return None
    images, classes = unpack(x.element_spec)
    known = x.cardinality() != tf.data.UNKNOWN_CARDINALITY
    known &= all(image.dtype == tf.uint8 and image.shape[0] is not None for image in flat(images))
    if labels and classes is not None:
        known &= classes.dtype.is_integer and classes.shape[1:].num_elements() == 1
    if known:
        return None
    batch = next(iter(x.take(1)), None)
    if batch is None:
        raise ValueError(_NO_BATCH)
    return batch


def of_one_size(x: compat.Batches) -> compat.Batches:
    """The batches that are as large as the first, in shapes that are static: the last of a PyDataset is often smaller.

    Raises:
        ValueError: if the last is larger, or the images of the first ones are of several sizes.

    Warns:
        UserWarning: once for each size of others, which are left out.
    """
    shapes = [np.shape(image) for image in flat(unpack(x.first)[0])]
    for spec, shape in zip(flat(unpack(x.element_spec)[0]), shapes, strict=True):
        if None in spec.shape[1:]:  # of the batches that Keras has looked at
            raise ValueError(
                f"Expected images of one size, found batches of {' x '.join(map(str, shape[1:]))} and of others: resize "
                "or crop them."
            )

    def shaped(*batch: Any) -> dict[str, tf.Tensor]:
        images, labels = unpack(batch)
        crops = [tf.ensure_shape(image, shape) for image, shape in zip(flat(images), shapes, strict=True)]
        columns = (
            {f"view{n}": crop for n, crop in enumerate(crops, 1)} if len(crops) > 1 else {"image": crops[0]}
        )
        return columns if labels is None else columns | {"label": labels}

    size, steps = shapes[0][0], x.num_batches
    last = len(flat(unpack(x.source[steps - 1])[0])[0]) if steps else size
    if last > size:
        raise ValueError(
            f"Expected batches of one size, found {size} images in the first and {last} in the last: make them all of "
            "one size; the last alone may be smaller, and is left out."
        )
    if steps and last < size:
        steps -= 1
    left_out = {last}

    def warn_once(count: np.ndarray) -> np.bool_:
        if int(count) not in left_out:
            left_out.add(int(count))
            warn(
                f"Batches of {count} images are left out: the first has {size}, and batches of one size are trained on. Make "
                "them all of one size."
            )
        return np.bool_(False)

    def kept(*batch: Any) -> tf.Tensor:
        count = _count(batch)
        return tf.cond(
            count == size,
            lambda: True,
            lambda: tf.ensure_shape(tf.numpy_function(warn_once, [count], tf.bool), []),
        )

    return x.become(x.dataset.filter(kept).map(shaped), steps)


def to_train(x: Given, step: int, strategy: tf.distribute.Strategy) -> Any:
    """What Keras trains on from a step on; of several workers each reads its own part of every batch."""
    if not isinstance(x, Images):
        return _changed(x, lambda dataset: _shared(_finite(dataset)))
    if not compat.has_workers(strategy):
        return x.batches(step=step)

    def of_worker(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = x.batches(step=step, share=(context.input_pipeline_id, context.num_input_pipelines))
        if (replicas := context.num_replicas_in_sync) > context.num_input_pipelines:
            # Every replica takes a batch of its own from the worker's.
            batches = batches.rebatch(x.batch_size // replicas, drop_remainder=True)
        return batches

    return strategy.distribute_datasets_from_function(of_worker)


def to_evaluate(x: Given, replicas: int) -> Any:
    """What Keras evaluates: once through the images, but for those that no measurement is made of.

    HSIC needs 2 images, and the replicas as many each: what is over is left out.
    """
    least = max(2, replicas)

    def measured(dataset: tf.data.Dataset) -> tf.data.Dataset:
        size = flat(unpack(dataset.element_spec)[0])[0].shape[0]
        if size is not None and size % replicas == 0:
            return _shared(dataset)

        def even(*batch: Any) -> Any:
            kept = _count(batch) // replicas * replicas
            batch = tf.nest.map_structure(lambda column: column[:kept], batch)
            return batch if len(batch) > 1 else batch[0]

        return _shared(dataset.filter(lambda *batch: _count(batch) >= least).map(even))

    if isinstance(x, Images):
        too_few = x.num_examples % x.batch_size < least <= x.batch_size <= x.num_examples
        x = x.ordered(drop_remainder=too_few).batches(epochs=1)
    return _changed(x, measured)


def to_predict(x: Given, replicas: int) -> Any:
    """What Keras computes features of: images in their order; over several replicas (images, which of them are real).

    There, batches are filled up to what the replicas can share: of no images, oneDNN gives features of another size.
    """

    def images_of(*batch: Any) -> Any:
        images = unpack(batch)[0]
        if (images.shape[0] or replicas - 1) % replicas == 0:
            return images
        size = tf.shape(images)[0]
        filled = tf.concat([images, tf.repeat(images[-1:], -size % replicas, axis=0)], axis=0)
        return filled, tf.range(tf.shape(filled)[0]) < size

    if isinstance(x, Images):
        x = x.ordered(shuffle=False, drop_remainder=False).batches(epochs=1)
    return _changed(x, lambda dataset: _shared(dataset.map(images_of)))


def _count(batch: Any) -> tf.Tensor:
    return tf.shape(flat(unpack(batch)[0])[0])[0]


def _changed(x: Any, change: Callable[[tf.data.Dataset], tf.data.Dataset]) -> Any:
    if isinstance(x, compat.Batches):
        return x.become(change(x.dataset), x.num_batches)
    return change(x) if isinstance(x, tf.data.Dataset) else x


def _shared(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Has a strategy of several workers give each of them its own part of every global batch.

    TensorFlow would divide the files instead where it finds some, and then batches are not those of one machine. A
    data set whose options name a way of sharding keeps it.
    """
    policy = tf.data.experimental.AutoShardPolicy
    options = tf.data.Options()
    if dataset.options().experimental_distribute.auto_shard_policy == policy.AUTO:
        options.experimental_distribute.auto_shard_policy = policy.DATA
    return dataset.with_options(options)


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Raises ValueError for a batch in which `to_train` finds NaN or infinities; TensorFlow makes another error of it."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if _NOT_FINITE in error.message:
            raise ValueError(f"{_NOT_FINITE}.") from error
        raise


def _finite(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The same batches, floats looked at before a step trains on them: one NaN would spoil every weight."""

    def is_float(tensor: Any) -> bool:
        return getattr(tensor, "dtype", tf.uint8).is_floating

    def looked_at(*batch: Any) -> Any:
        batch = tf.nest.map_structure(
            lambda x: tf.debugging.check_numerics(x, _NOT_FINITE) if is_float(x) else x, batch
        )
        return batch if len(batch) > 1 else batch[0]

    if not any(map(is_float, tf.nest.flatten(dataset.element_spec))):
        return dataset
    return dataset.map(looked_at, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
