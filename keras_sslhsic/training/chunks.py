"""The gradient of a batch whose activations would not fit into memory together, chunk by chunk (a gradient cache).

A loss here depends on a network through its outputs z alone, a few megabytes for thousands of images. So a first pass makes
the z of each chunk of the batch and keeps nothing else, dL/dz is taken of all of them at once, and a second pass takes each
chunk's gradient of sum(z dL/dz), which by the chain rule add up to that of the loss. (Gao, Zhang, Han and Callan 2021,
"Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", arXiv:2101.06983, section 3.2.)
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.hsic import replicas
from keras_sslhsic.losses import Hiddens
from keras_sslhsic.training import ema
from keras_sslhsic.views.draws import ALL, Share


class Encoded(NamedTuple):
    """What the networks make of images.

    Attributes:
        hiddens: what the loss compares.
        features: [B, F] of the first view, for the online classifier, which sends them no gradient.
        of_layers: what layers add to the loss, float32 [].
    """

    hiddens: Hiddens
    features: tf.Tensor
    of_layers: tf.Tensor


Encode = Callable[[Any, Share], Encoded]
State = list[tf.Tensor]


def of_batch(
    model: keras.Model,
    encode: Encode,
    loss: Callable[[Encoded], tf.Tensor],
    images: Any,
    variables: Sequence[keras.Variable],
    chunks: int = 1,
) -> tuple[list[tf.Tensor | None], Encoded]:
    """The gradients of a loss of all images, and what the networks made of them.

    With several chunks, batch statistics are those of a chunk; moving statistics take one step, to the mean over the chunks,
    as over replicas. Both passes see the views of the whole batch, and the same random numbers in the layers.

    Args:
        model: whose layers keep moving statistics and states of random generators.
        encode: (images, which part of the batch they are) -> Encoded.
        loss: what is descended, float32 [], of `Encoded`.
        images: a batch [B, ...] or a tuple of them; `chunks` divides B.
        variables: to take the gradients of.
        chunks: parts of the batch; 1 takes it as a whole.

    Raises:
        ValueError: if a layer changes a variable that is neither a moving statistic of a BatchNorm nor the state of a random
            generator, with several chunks.
    """
    if chunks == 1:
        with tf.GradientTape() as tape:
            encoded = encode(images, ALL)
            total = loss(encoded)
        return tape.gradient(total, variables), encoded

    kept, states = ema.statistics(model), [state for _, state in compat.seeds(model)]
    before = [tf.identity(v.value) for v in kept]
    parts = tf.nest.map_structure(lambda x: tf.reshape(x, [chunks, -1, *x.shape[1:]]), images)

    def of_chunk(number: Any, state: State) -> tuple[Encoded, State, State]:
        """What the networks make of a chunk, with the statistics and the states after it; no variable changes."""
        values = [(v, v.value) for v in variables]
        with keras.StatelessScope(
            [*zip(kept, before, strict=True), *zip(states, state, strict=True), *values], collect_losses=True
        ) as scope:
            part = tf.nest.map_structure(lambda x: x[number], parts)
            encoded = encode(part, (number, chunks))
        _refuse_others(model, scope, [*kept, *states, *variables])
        after, state = ([scope.get_current_value(v) for v in vs] for vs in (kept, states))
        return encoded, after, state

    def forwards(number: Any, state: State, arrays: list[tf.TensorArray], sums: State) -> tuple[Any, ...]:
        encoded, after, state = of_chunk(number, state)
        tensors = _tensors(encoded)
        hiddens.append(encoded.hiddens)
        shapes[:] = [x.shape for x in tensors]
        arrays = [a.write(number, x) for a, x in zip(arrays, tensors, strict=True)]
        return state, arrays, [total + x for total, x in zip(sums, [encoded.of_layers, *after], strict=True)]

    def backwards(number: Any, state: State, sums: State) -> tuple[Any, ...]:
        with tf.GradientTape() as tape:
            encoded, _, state = of_chunk(number, state)
            total = tf.reduce_sum(
                encoded.hiddens.online * tf.reshape(of_online, [chunks, *shapes[0]])[number]
            )
            total += encoded.of_layers * of_layers / chunks
        found = tape.gradient(
            total, [v.value for v in variables], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return state, [a + tf.convert_to_tensor(x) for a, x in zip(sums, found, strict=True)]

    begin = [tf.identity(v.value) for v in states]
    hiddens: list[Hiddens] = []  # of a chunk, to see which there are: its tensors are gone
    shapes: list[tf.TensorShape] = []
    arrays = [tf.TensorArray(tf.float32, chunks) for _ in Encoded._fields]
    sums = [tf.zeros([]), *map(tf.zeros_like, before)]
    end, arrays, sums = _loop(chunks, forwards, (begin, arrays, sums))
    online, target, features = (
        tf.reshape(array.stack(), [chunks * first, *rest])
        for array, (first, *rest) in zip(arrays, shapes, strict=True)
    )
    whole = hiddens[0]._replace(online=online, target=None if hiddens[0].target is None else target)
    encoded = Encoded(whole, features, sums[0] / chunks)

    with tf.GradientTape() as tape:
        tape.watch([encoded.hiddens.online, encoded.of_layers])
        total = loss(encoded)
    sources = [online, encoded.of_layers, *(v.value for v in variables)]
    of_online, of_layers, *direct = tape.gradient(
        total, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    _, found = _loop(chunks, backwards, (begin, [tf.convert_to_tensor(x) for x in direct]))
    for variable, value in zip([*kept, *states], [*(x / chunks for x in sums[1:]), *end], strict=True):
        variable.assign(value)
    return found, encoded


def _tensors(encoded: Encoded) -> list[tf.Tensor]:
    """What is kept of a chunk, float32; nothing in the place of a target that there is not."""
    online, target, _ = encoded.hiddens
    return [
        tf.cast(x, tf.float32)
        for x in (online, tf.zeros([0]) if target is None else target, encoded.features)
    ]


def _loop(times: int, body: Callable[..., tuple[Any, ...]], carried: tuple[Any, ...]) -> tuple[Any, ...]:
    """Calls a body with 0, 1, ... and what it returned before, one call after the other."""
    if replicas.num_replicas() == 1:
        _, *carried = tf.while_loop(
            lambda number, *_: number < times,
            lambda number, *carried: (number + 1, *body(number, *carried)),
            (tf.constant(0), *carried),
            parallel_iterations=1,
            maximum_iterations=times,
        )
        return tuple(carried)
    # Replicas wait for each other in BatchNorm, which TensorFlow allows in no loop of its own.
    for number in range(times):
        with tf.control_dependencies(tf.nest.flatten(carried, expand_composites=True)):
            carried = body(tf.constant(number), *carried)
    return carried


def _refuse_others(model: keras.Model, scope: keras.StatelessScope, known: Sequence[keras.Variable]) -> None:
    """Raises a ValueError if a variable was changed that nobody would give its new value."""
    changed = scope.state_mapping.keys() - {id(v) for v in known}
    for variable in model.variables:
        if id(variable) in changed:
            raise ValueError(
                f"Expected layers that change moving statistics of BatchNorm and seeds alone, found one that changes "
                f"{variable.path}, and a batch in chunks cannot say to what: leave out chunks."
            )
