"""Features of many images, from any encoder: computed once, on all devices, kept on disk if wanted."""

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import GeneratorType
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_sslhsic import checks, compat, files
from keras_sslhsic.data.images import Images, unpack, warn_of_left_out
from keras_sslhsic.data.python_map import as_raised
from keras_sslhsic.encoders import encoder_hash
from keras_sslhsic.encoders.base import TrainsEncoder
from keras_sslhsic.encoders.checks import check_dataset, check_images
from keras_sslhsic.encoders.unlabelled import refuse_bare
from keras_sslhsic.training import streams

# A model that trains an encoder stands for its `serving_encoder()`.
AnyEncoder: TypeAlias = keras.Model | Callable[[tf.Tensor], tf.Tensor]


def extract_features(
    encoder: AnyEncoder,
    data: Any,
    *,
    batch_size: int = 256,
    verbose: bool = False,
    cache_dir: str | os.PathLike | None = None,
    data_version: str | None = None,
) -> np.ndarray:
    """Computes the encoder's features of all images, in their order.

    The encoder runs in inference mode: moving statistics of BatchNormalization are used and stay as they are.
    Under a tf.distribute strategy (the current one, or the one that the encoder was built in) each batch is
    split over its replicas.

    Args:
        encoder: keras.Model, or function, from uint8 or float images [B, H, W, C] in [0, 255] to features [B,
            F] (maps [B, h, w, F] are flattened); or a model that trains one.
        data: images [N, H, W, C], (images, labels) or {"image": images}; a finite tf.data.Dataset of such batches; or
            what `keras_sslhsic.data` reads; or a keras.utils.PyDataset or a generator of batches.
        batch_size: images a step, for arrays.
        verbose: whether to show a progress bar.
        cache_dir: folder that keeps the result, in a file named by `encoder_hash` and by the data. A second call reads
            it, unless it is damaged.
        data_version: name of the data in the cache's key, such as "imagenet2012:5.1.0/train/center_crop".
            Required to cache a dataset, of which only the shapes and the number of batches are known beside it; an array is
            known by its bytes too.

    Returns:
        float32 [N, F].

    Raises:
        ValueError: if the encoder is none (see `as_encoder`), the images do not fit it or are out of range (see
            `encoders.check_images`; those of a dataset batch by batch), there are none, or a cache is asked for that has
            no key.

    Warns:
        UserWarning: if files of a folder are broken, and have no row.

    Example:
        >>> features = extract_features(lambda x: tf.cast(x, tf.float32), np.zeros([4, 2, 2, 1], np.uint8))
        >>> features.shape
        (4, 4)
    """
    checks.integer("batch_size", batch_size, 1)
    encoder, handle, data = as_encoder(encoder), data, given(data)
    compute = lambda: _extract(encoder, data, batch_size, verbose)[0]  # noqa: E731
    if cache_dir is None:
        features = compute()
    else:
        features = _kept(
            Path(cache_dir) / f"{encoder_hash(encoder)}-{_data_hash(data, data_version)}.npy", compute
        )
    warn_of_left_out(handle, len(features))
    return features


def _kept(file: Path, compute: Callable[[], np.ndarray]) -> np.ndarray:
    """What a file holds, made if there is none."""
    if file.exists():
        with contextlib.suppress(ValueError, EOFError):  # a damaged one is written again
            return np.load(file)
    features = compute()
    with files.written_whole(file, ".npy") as temporary:
        np.save(temporary, features)
    return features


def extract_labelled_features(
    encoder: AnyEncoder, dataset: tf.data.Dataset | Images, *, verbose: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Computes features and collects labels in one pass over a dataset.

    Args:
        encoder: as in `extract_features`.
        dataset: finite tf.data.Dataset of batches (images, labels) or {"image", "label"}, or what `keras_sslhsic.data` reads.
        verbose: whether to show a progress bar.

    Returns:
        float32 [N, F] and the labels [N, ...] in their own dtype.

    Raises:
        ValueError: as `extract_features`, and if the dataset has no labels.
    """
    dataset = given(dataset) if isinstance(dataset, Images) else dataset
    if not isinstance(dataset, tf.data.Dataset):
        raise ValueError(
            f"Expected a tf.data.Dataset of batches with labels, found a {type(dataset).__name__}: give arrays to "
            "extract_features."
        )
    features, labels = _extract(as_encoder(encoder), dataset, 0, verbose)
    if labels is None:
        raise ValueError(
            f"Labels are missing: batches must be (images, labels) or hold 'image' and 'label', "
            f"found {dataset.element_spec}."
        )
    return features, labels


def as_encoder(encoder: AnyEncoder) -> AnyEncoder:
    """The serving encoder of a model that trains one; other models and functions as they are.

    Raises:
        ValueError: for what cannot be called, a model of several inputs or outputs, or a network of `build_encoder`, which
            reads normalised pixels.
    """
    if isinstance(encoder, TrainsEncoder):
        return encoder.serving_encoder()
    if not callable(encoder) or isinstance(encoder, type):
        raise ValueError(
            f"An encoder is a keras.Model or a function from images to features, found {encoder!r:.80}: load one with "
            "keras_sslhsic.load_pretrained."
        )
    if isinstance(encoder, keras.Model):
        refuse_bare(encoder)
        inputs, output = getattr(encoder, "inputs", None) or [None], compat.output_of(encoder)
        if len(inputs) > 1 or not (output is None or keras.utils.is_keras_tensor(output)):
            shapes = keras.tree.map_structure(lambda tensor: list(tensor.shape), (inputs, output))
            raise ValueError(
                f"An encoder has one input and one output, found the shapes {shapes[0]} and {shapes[1]}."
            )
    return encoder


def given(data: Any) -> Any:
    """A dataset as it is; that of a handle, in order; of arrays, in any form that `extract_features` takes, the images."""
    if isinstance(data, Images):
        return data.ordered(shuffle=False, drop_remainder=False).batches(epochs=1)
    if isinstance(data, keras.utils.PyDataset | GeneratorType):
        return streams.batches_of(data).dataset
    return stacked(unpack(data)[0] if isinstance(data, dict | tuple) else data)


def stacked(images: Any) -> Any:
    """A list of images as one array; anything else as it is."""
    if not isinstance(images, list):
        return images
    try:
        return np.stack(images)
    except ValueError as error:
        raise ValueError(f"Expected images of one shape: {error}.") from None


def feature_step(encoder: AnyEncoder) -> tuple[tf.distribute.Strategy, Callable]:
    """The frozen encoder as a function of one batch, which is split over the replicas if there are several.

    Args:
        encoder: what `as_encoder` gives.

    Returns:
        The strategy that batches must be distributed by, and a function of a batch that returns features
        float32 [B, F] and labels [B] (None without), of all replicas, in order.
    """
    strategy = getattr(encoder, "distribute_strategy", None) or tf.distribute.get_strategy()

    def on_replica(batch: Any) -> tuple[tf.Tensor, Any]:
        images, labels = unpack(batch)
        images = tf.ensure_shape(images, [None, *shape_read(encoder)])  # of a dataset whose spec says less
        count = tf.shape(images)[0]
        if strategy.num_replicas_in_sync > 1:
            # Of no images, which the last batch leaves for some replicas, oneDNN gives features of another size.
            images = tf.pad(images, [[0, tf.cast(count == 0, tf.int32)], *[[0, 0]] * (images.shape.rank - 1)])
        outputs = encoder(images, training=False) if isinstance(encoder, keras.Model) else encoder(images)
        if not tf.is_tensor(outputs):
            raise ValueError(f"An encoder gives one tensor of features, found a {type(outputs).__name__}.")
        outputs = tf.cast(outputs, tf.float32)
        return tf.reshape(outputs, [tf.shape(outputs)[0], -1])[:count], labels

    def step(batch: Any) -> tuple[tf.Tensor, tf.Tensor | None]:
        features, labels = strategy.run(on_replica, args=(batch,))
        features = tf.concat(strategy.experimental_local_results(features), axis=0)
        if labels is not None:
            labels = tf.concat(strategy.experimental_local_results(labels), axis=0)
        return features, labels

    return strategy, step


def shape_read(encoder: AnyEncoder) -> tuple[int | None, ...]:
    """(height, width, channels) of the images that an encoder reads; None in a place is free, or not known."""
    shape, _ = compat.shapes_of(encoder)
    return shape[1:] if isinstance(shape, tuple) and len(shape) == 4 else (None, None, None)


@as_raised()
def _extract(encoder: Any, data: Any, batch_size: int, verbose: bool) -> tuple[np.ndarray, np.ndarray | None]:
    shape, looked_at = shape_read(encoder), not isinstance(data, tf.data.Dataset)
    (check_images if looked_at else check_dataset)(data, shape)
    batches = _batches(data, batch_size) if looked_at else data
    total = int(batches.cardinality())
    strategy, step = feature_step(encoder)
    if strategy.num_replicas_in_sync > 1:
        batches = strategy.experimental_distribute_dataset(batches)
    step = tf.function(step, input_signature=[batches.element_spec])
    if strategy.num_replicas_in_sync == 1:
        step = (
            step.get_concrete_function()
        )  # else TensorFlow warns of functions that are made anew for every encoder

    features: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    progress = tqdm(
        batches, total=total if total >= 0 else None, unit="batch", desc="features", disable=not verbose
    )
    for batch in progress:
        for images in () if looked_at else strategy.experimental_local_results(unpack(batch)[0]):
            if len(images):
                check_images(images, shape)
        found, own = step(batch)
        features.append(found.numpy())
        if own is not None:
            labels.append(own.numpy())
    if not features:
        raise ValueError("Expected batches of images, found none: the dataset is empty.")
    return np.concatenate(features), np.concatenate(labels) if labels else None


def _batches(images: np.ndarray, batch_size: int) -> tf.data.Dataset:
    # A generator: slices of an array would copy it whole into a tensor, also one mapped from disk.
    starts = range(0, images.shape[0], batch_size)
    dataset = tf.data.Dataset.from_generator(
        lambda: (images[start : start + batch_size] for start in starts),
        output_signature=tf.TensorSpec((None, *images.shape[1:]), images.dtype),
    )
    return dataset.apply(tf.data.experimental.assert_cardinality(len(starts))).prefetch(2)


def _data_hash(data: Any, version: str | None) -> str:
    digest = hashlib.sha256((version or "").encode())
    if isinstance(data, tf.data.Dataset):
        if version is None:
            raise ValueError("To cache the features of a dataset, name it with data_version.")
        digest.update(f"{data.element_spec} {int(data.cardinality())}".encode())
    else:
        array = np.ascontiguousarray(data)
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
