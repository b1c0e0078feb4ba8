"""What might make the training step faster on a GPU, beside the step as it is.

Each candidate changes how the step is traced, and not what it computes: results equal the plain step's to rounding,
and variables keep their shapes. One replica, one model without classifier or weight average beside the target.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import keras
import tensorflow as tf

from keras_sslhsic.losses import Hiddens
from keras_sslhsic.training import lars


@contextlib.contextmanager
def use(name: str, model: keras.Model) -> Iterator[None]:
    """Has steps that are traced inside of this context computed in another way.

    Args:
        name: one of `OPTIONS`.
        model: a compiled `SSLHSIC`.

    Raises:
        ValueError: for another name, or a model that has nothing for the option to change.
    """
    if name not in OPTIONS:
        raise ValueError(f"The option must be one of {', '.join(OPTIONS)}, found {name!r}.")
    with contextlib.ExitStack() as stack:
        for target, attribute, replacement in OPTIONS[name](model):
            stack.enter_context(mock.patch.object(target, attribute, replacement))
        yield


def _space_to_depth(model) -> list[tuple]:
    """The stem's convolution of 7x7 and stride 2 as one of 4x4 and stride 1 on blocks of 2x2 pixels."""
    networks = (model.encoder, model.target_encoder)
    stems = [network.get_layer("stem_conv") for network in networks if network is not None]
    for stem in stems:
        if (stem.kernel_size, stem.strides, stem.padding) != ((7, 7), (2, 2), "same"):
            raise ValueError(f"space_to_depth needs a stem of 7x7 and stride 2, found {stem.kernel_size}.")
    return [(stem, "convolution_op", convolve_blocks) for stem in stems]


def convolve_blocks(images: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """A convolution of stride 2 with SAME padding, on blocks of 2x2 pixels.

    SAME puts two pixels before an even side: one whole block, so that tap 2a + b of the kernel meets row b of block
    a. An eighth tap of zero fills the last block.

    Args:
        images: [B, H, W, C], H and W even.
        kernel: [7, 7, C, F].

    Returns:
        [B, H/2, W/2, F].
    """
    channels, features = images.shape[-1], kernel.shape[-1]
    blocks = tf.pad(tf.cast(kernel, images.dtype), [[0, 1], [0, 1], [0, 0], [0, 0]])
    blocks = tf.transpose(tf.reshape(blocks, [4, 2, 4, 2, channels, features]), [0, 2, 1, 3, 4, 5])
    blocks = tf.reshape(blocks, [4, 4, 4 * channels, features])
    return tf.nn.conv2d(tf.nn.space_to_depth(images, 2), blocks, 1, [[0, 0], [1, 2], [1, 2], [0, 0]])


def _pool_by_place(model) -> list[tuple]:
    """The stem's pooling with the place of each maximum kept in a byte.

    XLA keeps four indices of 32 bits for each, and adds the gradients one by one where they point.
    """
    networks = (model.encoder, model.target_encoder)
    pools = [network.get_layer("stem_pool") for network in networks if network is not None]
    return [(pool, "call", max_pool) for pool in pools]


@tf.custom_gradient
def max_pool(images: tf.Tensor):
    """Maximum pooling of 3x3 and stride 2 with SAME padding; the first of equal maxima gets the gradient.

    Args:
        images: [B, H, W, C], H and W even.

    Returns:
        [B, H/2, W/2, C].
    """
    _, height, width, channels = images.shape
    padded = tf.pad(images, [[0, 0], [0, 1], [0, 1], [0, 0]], constant_values=images.dtype.min)
    places = list(itertools.product(range(3), repeat=2))
    seen = [padded[:, row : row + height - 1 : 2, column : column + width - 1 : 2] for row, column in places]
    maximum = functools.reduce(tf.maximum, seen)
    place = tf.fill(tf.shape(maximum), tf.constant(8, tf.uint8))
    for k in reversed(range(8)):
        place = tf.where(seen[k] == maximum, tf.constant(k, tf.uint8), place)

    def gradient(upstream):
        def sent(row, column):
            """What windows give to their pixel there, at the window before which that pixel lies."""
            found = tf.where(place == 3 * row + column, upstream, tf.zeros_like(upstream))
            below, right = row // 2, column // 2  # the third pixel is the first one of the next window
            padded = tf.pad(found, [[0, 0], [below, 0], [right, 0], [0, 0]])
            return padded[:, : height // 2, : width // 2]

        ways = {0: (0, 2), 1: (1,)}  # places in windows of even and of odd pixels
        pixels = [
            [tf.add_n([sent(*at) for at in itertools.product(ways[row], ways[column])]) for column in (0, 1)]
            for row in (0, 1)
        ]
        return tf.reshape(tf.stack([tf.stack(row, 3) for row in pixels], 2), [-1, height, width, channels])

    return maximum, gradient


def _one_pass(model) -> list[tuple]:
    """All views of a batch in one pass through each network, with BatchNorm statistics of each view."""
    hiddens = model.hiddens

    def joined_hiddens(image_views, training):
        count = len(image_views)
        with mock.patch.object(keras.layers.BatchNormalization, "call", normalization_of_views(count)):
            joined, features = hiddens([tf.concat(image_views, 0)], training)

        def by_view(z):
            return z if z is None else tf.transpose(tf.reshape(z, [count, -1, z.shape[-1]]), [1, 0, 2])

        return Hiddens(by_view(joined.online), by_view(joined.target), count), features[
            : features.shape[0] // count
        ]

    return [(model, "hiddens", joined_hiddens)]


def normalization_of_views(count: int) -> Callable:
    """`call` of a BatchNormalization whose batch is that of each view, one after the other.

    The moving statistics are updated as by one call a view, in the order of the views.
    """

    def call(layer, inputs, training=None, mask=None):
        if not training:
            raise NotImplementedError("One pass for all views is for training.")
        x = tf.reshape(tf.cast(inputs, tf.float32), [count, -1, *inputs.shape[1:]])
        mean, variance = keras.ops.moments(
            x, list(range(1, len(x.shape) - 1)), keepdims=True, synchronized=layer.synchronized
        )
        for moving, values in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
            for value in tf.unstack(tf.reshape(values, [count, -1])):
                moving.assign(moving * layer.momentum + value * (1.0 - layer.momentum))
        x = tf.nn.batch_normalization(x, mean, variance, layer.beta, layer.gamma, layer.epsilon)
        return tf.cast(tf.reshape(x, [-1, *inputs.shape[1:]]), layer.compute_dtype)

    return call


def _grouped_norms(model) -> list[tuple]:
    """The norms of LARS and of the gradients, of all tensors of one size at once.

    What is done element by element, XLA already puts into a few kernels for all variables; reductions it does not.
    """
    return [
        (lars.LARS, "_backend_update_step", update_with_grouped_norms),
        (tf.linalg, "global_norm", lambda tensors: tf.norm(tf.stack(norms(tensors)))),
    ]


def norms(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The norm of each tensor, float []; tensors of one size are reduced together."""
    groups: dict[int, list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(tensor.shape.num_elements(), []).append(index)
    results = {}
    for size, group in groups.items():
        stack = tf.stack([tf.reshape(tensors[index], [size]) for index in group])
        results.update(zip(group, tf.unstack(tf.norm(stack, axis=1)), strict=True))
    return [results[index] for index in range(len(tensors))]


def update_with_grouped_norms(optimizer: lars.LARS, gradients: Sequence, variables: Sequence, rate) -> None:
    """`LARS.update_step` of all variables."""
    variables = [v.value for v in variables]
    adapted = [i for i, variable in enumerate(variables) if lars.is_adapted(variable)]
    updates = list(gradients)
    for i in adapted:
        updates[i] += optimizer.coupled_weight_decay * variables[i]
    parameter_norms = norms([tf.convert_to_tensor(variables[i]) for i in adapted])
    update_norms = norms([updates[i] for i in adapted])
    for i, parameter_norm, update_norm in zip(adapted, parameter_norms, update_norms, strict=True):
        trust = tf.math.divide_no_nan(optimizer.eta * parameter_norm, update_norm)
        updates[i] *= tf.where(trust > 0.0, trust, 1.0)
    for update, variable, momentum in zip(updates, variables, optimizer.momenta, strict=True):
        momentum.assign(optimizer.momentum * momentum + update)
        variable.assign_sub(rate * momentum)


def _all(model) -> list[tuple]:
    return [change for name in OPTIONS if name != "all" for change in OPTIONS[name](model)]


OPTIONS: dict[str, Callable] = {
    "space_to_depth": _space_to_depth,
    "pool_by_place": _pool_by_place,
    "one_pass": _one_pass,
    "grouped_norms": _grouped_norms,
    "all": _all,
}
