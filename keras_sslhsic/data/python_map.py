"""Python functions in pipelines of TensorFlow."""

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

# The last that functions raised, without their frames, which hold the functions.
_raised: list[Exception] = []


@contextlib.contextmanager
def as_raised() -> Iterator[None]:
    """Raises what a mapped function raised, of which TensorFlow makes an error of its own."""
    try:
        yield
    except tf.errors.OpError as error:
        for raised in _raised:
            if f"{type(raised).__name__}: {raised}" in error.message:
                _raised.remove(raised)  # it gets frames now
                raise raised from error
        raise


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function for `tf.numpy_function` whose errors `as_raised` finds."""

    def call(*members: np.ndarray) -> Any:
        try:
            return function(*members)
        except Exception as error:
            _record(error)
            raise

    return call


def _record(error: Exception) -> None:
    _raised[:] = [copy.copy(error), *_raised[:31]]  # calls run side by side


def map_python(
    dataset: tf.data.Dataset,
    function: Callable[..., Mapping[str, np.ndarray]],
    specs: Mapping[str, tf.TensorSpec],
    at_a_time: int = 2,
) -> tf.data.Dataset:
    """Maps a Python function over a stream; gives dicts, prefetched.

    Two results are in flight, so that the end of one does not leave the threads of a function idle; `at_a_time` is for one that
    has none. The function, and what it holds (arrays, caches, threads), ends with the data set: TensorFlow would keep it as
    long as the process lives.

    It takes the members of a tuple of the stream as arrays, and returns arrays by their names, as the specs say.
    """
    reference = weakref.ref(function)

    def while_it_lives(*members: np.ndarray) -> list[Any]:
        living = reference()
        if living is None:
            raise RuntimeError("The data set is gone while batches of it are read: keep a reference to it.")
        try:
            found = living(*members)
            return [found[name] for name in specs]
        except Exception as error:
            # The interpreter ends while batches are prefetched: no thread will decode, and nobody will look.
            if "cannot schedule new futures" not in str(error):
                _record(error)
                raise
            types = [spec.dtype.as_numpy_dtype for spec in specs.values()]
            sides = [[side or 0 for side in spec.shape] for spec in specs.values()]
            return list(map(np.zeros, sides, types))

    def call(*members: tf.Tensor) -> dict[str, tf.Tensor]:
        types = [spec.dtype for spec in specs.values()]
        columns = tf.numpy_function(while_it_lives, members, types, stateful=False)
        for column, spec in zip(columns, specs.values(), strict=True):
            column.set_shape(spec.shape)
        return dict(zip(specs, columns, strict=True))

    mapped = dataset.map(call, num_parallel_calls=at_a_time, deterministic=True)
    mapped.function = function  # data sets that are made of this one, and iterators, keep it
    return mapped.prefetch(2)
