"""What might make the training step faster on a GPU, beside the step as it is.

Each candidate changes how the step is traced, and not what it computes: results equal the plain step's to rounding,
and variables keep their shapes. One replica, one model without classifier or weight average beside the target.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import keras
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.training import averaging, lars


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


def _one_pass(model) -> list[tuple]:
    """All views of a batch in one pass through each network, with BatchNorm statistics of each view."""
    hiddens = model._hiddens

    def joined_hiddens(image_views, training):
        count = len(image_views)
        with mock.patch.object(keras.layers.BatchNormalization, "call", normalization_of_views(count)):
            z, features = hiddens([tf.concat(image_views, 0)], training)
        images, networks, size = z.shape[0] // count, *z.shape[1:]
        z = tf.transpose(tf.reshape(z, [count, images, networks, size]), [1, 2, 0, 3])
        return tf.reshape(z, [images, networks * count, size]), features[:images]

    return [(model, "_hiddens", joined_hiddens)]


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


def _grouped_updates(model) -> list[tuple]:
    """LARS and the moving averages, each on stacks of the variables of one size."""
    return [
        (lars.LARS, "_backend_update_step", grouped_lars),
        (averaging, "update", grouped_averages),
    ]


def grouped_lars(optimizer: lars.LARS, gradients: Sequence, variables: Sequence, learning_rate) -> None:
    """`LARS.update_step` of all variables."""

    def update(adapted, gradient, variable, momentum):
        if adapted:
            gradient += optimizer.coupled_weight_decay * variable
            norms = [tf.norm(x, axis=1, keepdims=True) for x in (variable, gradient)]
            trust = tf.math.divide_no_nan(optimizer.eta * norms[0], norms[1])
            gradient *= tf.where(trust > 0.0, trust, 1.0)
        momentum = optimizer.momentum * momentum + gradient
        return variable - tf.cast(learning_rate, variable.dtype) * momentum, momentum

    _update_groups(update, gradients, variables, optimizer.momenta, changed=2)


def grouped_averages(averages: Sequence, values: Sequence, decay) -> None:
    """`averaging.update` of all variables."""

    def update(_, value, average):
        return (average + (1.0 - decay) * (value - average),)

    _update_groups(update, values, averages, changed=1)


def _update_groups(function: Callable, *columns: Sequence, changed: int) -> None:
    """Assigns `function` of stacks [n, size] of tensors, n of one size and kind, to the last `changed` columns.

    Args:
        function: (whether the tensors are under adaptation, a stack of each column) -> the stacks to assign.
        *columns: tensors or variables, those of a row of one shape.
        changed: how many columns are assigned.
    """
    rows = [[compat.tensor(x) for x in row] for row in zip(*columns, strict=True)]
    groups: dict[tuple, list] = {}
    for row in rows:
        groups.setdefault((lars.is_adapted(row[0]), row[0].shape.num_elements()), []).append(row)
    for (adapted, size), group in groups.items():
        stacks = [tf.stack([tf.reshape(x, [size]) for x in column]) for column in zip(*group, strict=True)]
        results = [tf.unstack(stack) for stack in function(adapted, *stacks)]
        for row, new in zip(group, zip(*results, strict=True), strict=True):
            for variable, value in zip(row[-changed:], new, strict=True):
                variable.assign(tf.reshape(value, variable.shape))


OPTIONS = {"space_to_depth": _space_to_depth, "one_pass": _one_pass, "grouped_updates": _grouped_updates}
