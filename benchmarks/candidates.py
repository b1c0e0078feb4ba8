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
import numpy as np
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
        def sent(below, right):
            """What each pixel of 2x2 gets from the window that begins there, or so many windows before."""
            row, column = np.ogrid[2 * below : 2 * below + 2, 2 * right : 2 * right + 2]
            tap = np.where((row < 3) & (column < 3), 3 * row + column, 255).astype(np.uint8)

            def spread(x):
                x = tf.pad(x, [[0, 0], [below, 0], [right, 0], [0, 0]])
                return x[:, : height // 2, None, : width // 2, None]

            found = spread(place) == tap[:, None, :, None]
            return tf.where(found, spread(upstream), tf.zeros([], upstream.dtype))

        pixels = functools.reduce(tf.add, [sent(*by) for by in itertools.product((0, 1), repeat=2)])
        return tf.reshape(pixels, [-1, height, width, channels])

    return maximum, gradient


def _one_pass(model) -> list[tuple]:
    """All views of a batch in one pass through each network, with BatchNorm statistics of each view."""
    hiddens = model.hiddens

    def joined_hiddens(image_views, training):
        count = len(image_views)
        with mock.patch.object(keras.layers.BatchNormalization, "call", normalization(count)):
            joined, features = hiddens([tf.concat(image_views, 0)], training)

        def by_view(z):
            return z if z is None else tf.transpose(tf.reshape(z, [count, -1, z.shape[-1]]), [1, 0, 2])

        return Hiddens(by_view(joined.online), by_view(joined.target), count), features[
            : features.shape[0] // count
        ]

    return [(model, "hiddens", joined_hiddens)]


def _complex_sums(model) -> list[tuple]:
    """Both sums that a BatchNormalization takes of a map, forward and backward, as the parts of one complex sum.

    XLA reduces a map in two kernels, and takes a third one for a second sum. With one sum, what makes its operand (the
    gradient of a ReLU and of the sum before it) goes into the first.
    """
    return [(keras.layers.BatchNormalization, "call", normalization(1))]


def normalization(count: int) -> Callable:
    """`call` of a BatchNormalization whose batch is `count` views, each with statistics of its own.

    The moving statistics are updated as by one call a view, in the order of the views.
    """

    def call(layer, inputs, training=None, mask=None):
        if not training:
            raise NotImplementedError("A normalization with complex sums is for training.")
        views = tf.reshape(inputs, [count, -1, *inputs.shape[1:]])
        output, *moments = normalize(views, layer.gamma.value, layer.beta.value, layer.epsilon)
        for moving, values in zip((layer.moving_mean, layer.moving_variance), moments, strict=True):
            for value in tf.unstack(tf.reshape(values, [count, -1])):
                moving.assign(moving * layer.momentum + value * (1.0 - layer.momentum))
        return tf.reshape(output, [-1, *inputs.shape[1:]])

    return call


def normalize(views: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float):
    """Normalises each view by its own moments.

    Args:
        views: [V, B, ..., C].
        gamma: float32 [C].
        beta: float32 [C].
        epsilon: added to the variance.

    Returns:
        (views, mean, variance): the moments, float32 [V, 1, ..., 1, C], pass no gradient.
    """
    axes = range(1, len(views.shape) - 1)
    number = float(np.prod(views.shape[1:-1]))

    def means(x, y):
        total = tf.reduce_sum(tf.complex(x, y), axes, keepdims=True)
        return tf.math.real(total) / number, tf.math.imag(total) / number

    @tf.custom_gradient
    def normalized(views, gamma, beta):
        x = tf.cast(views, tf.float32)
        mean, square = means(x, x * x)
        variance = tf.maximum(square - mean * mean, 0.0)
        inverse = tf.math.rsqrt(variance + epsilon)
        scale = gamma * inverse

        def gradient(upstream, *_):
            g = tf.cast(upstream, tf.float32)
            x = tf.cast(views, tf.float32)  # anew: the map is kept as it came
            shift, product = means(g, g * x)
            slope = (product - mean * shift) * inverse
            turn = -scale * inverse * slope
            to_views = scale * g + turn * x - (scale * shift + turn * mean)
            to_gamma, to_beta = (number * tf.reduce_sum(m, range(len(m.shape) - 1)) for m in (slope, shift))
            return tf.cast(to_views, views.dtype), to_gamma, to_beta

        return (tf.cast(x * scale + (beta - mean * scale), views.dtype), mean, variance), gradient

    return normalized(views, gamma, beta)


def _relu_by_output(model) -> list[tuple]:
    """The gradient of each block's last ReLU asks its output, which is kept anyway, and not the two maps added.

    XLA takes `max(x, 0) > 0` for `x > 0`, and computes x once more; `max(x, 0) != 0` it leaves.
    """
    layers = [
        layer for network in (model.encoder, model.target_encoder) if network for layer in network.layers
    ]
    relus = [layer for layer in layers if isinstance(layer, keras.layers.ReLU) and _follows_a_sum(layer)]
    return [(layer, "call", relu) for layer in relus]


def _follows_a_sum(layer) -> bool:
    return isinstance(layer.input._keras_history.operation, keras.layers.Add)


@tf.custom_gradient
def relu(x: tf.Tensor):
    """ReLU whose gradient is written with its output."""
    output = tf.nn.relu(x)
    return output, lambda upstream: tf.where(output != 0, upstream, tf.zeros([], upstream.dtype))


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
    "complex_sums": _complex_sums,
    "relu_by_output": _relu_by_output,
    "one_pass": _one_pass,
    "grouped_norms": _grouped_norms,
    "all": _all,
}
