"""What might make the training step faster on a GPU, beside the step as it is.

Each candidate changes how the step is traced, and not what it computes: results equal the plain step's to rounding,
and variables keep their shapes. One replica, one model without classifier or weight average beside the target.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic.losses import Hiddens
from keras_sslhsic.training import lars

PIXELS = 28 * 28  # of a map, from which on fewer bytes are worth more kernels


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
        made_of, *kernel = _EXPANDED.pop(inputs.ref(), (inputs,))
        views = tf.reshape(made_of, [count, -1, *made_of.shape[1:]])
        normalized = expand if kernel else normalize
        output, *moments = normalized(views, *kernel, layer.gamma.value, layer.beta.value, layer.epsilon)
        for moving, values in zip((layer.moving_mean, layer.moving_variance), moments, strict=True):
            new = moving.value
            for value in values:
                new = new * layer.momentum + value * (1.0 - layer.momentum)
            moving.assign(new)
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
        (views, mean, variance): the moments, float32 [C] of each view, pass no gradient.
    """
    axes = range(1, len(views.shape) - 1)
    number = float(np.prod(views.shape[1:-1]))

    # Lists over the views, each of the shape of a moving statistic: XLA puts into one kernel what has one shape.
    def means(x, y):
        total = tf.reduce_sum(tf.complex(x, y), axes)
        return [[part(one) / number for one in tf.unstack(total)] for part in (tf.math.real, tf.math.imag)]

    @tf.custom_gradient
    def normalized(views, gamma, beta):
        x = tf.cast(views, tf.float32)
        mean, square = means(x, x * x)
        variance = [tf.maximum(s - m * m, 0.0) for m, s in zip(mean, square, strict=True)]
        inverse = [tf.math.rsqrt(v + epsilon) for v in variance]
        scale = [gamma * i for i in inverse]
        offset = [beta - m * s for m, s in zip(mean, scale, strict=True)]

        def gradient(upstream, *_):
            g = tf.cast(upstream, tf.float32)
            x = tf.cast(views, tf.float32)  # anew: the map is kept as it came
            shift, product = means(g, g * x)
            slope = [(p - m * s) * i for p, m, s, i in zip(product, mean, shift, inverse, strict=True)]
            turn = [-a * i * s for a, i, s in zip(scale, inverse, slope, strict=True)]
            constant = [-(a * s + t * m) for a, s, t, m in zip(scale, shift, turn, mean, strict=True)]
            to_views = of_views(scale, g) * g + of_views(turn, x) * x + of_views(constant, x)
            to_gamma, to_beta = (number * tf.add_n(m) for m in (slope, shift))
            return tf.cast(to_views, views.dtype), to_gamma, to_beta

        output = x * of_views(scale, x) + of_views(offset, x)
        return (tf.cast(output, views.dtype), mean, variance), gradient

    return normalized(views, gamma, beta)


def of_views(values: Sequence[tf.Tensor], views: tf.Tensor) -> tf.Tensor:
    """[C] of each view, so that it multiplies views [V, B, ..., C]."""
    view = tf.reshape(tf.range(len(values)), [-1, *[1] * (len(views.shape) - 1)])
    found = values[-1]
    for number, one in enumerate(values[:-1]):
        found = tf.where(view == number, one, found)
    return found


# Outputs of convolutions whose normalisation takes them apart again -> (inputs, kernel).
_EXPANDED: dict[Any, tuple[tf.Tensor, tf.Tensor]] = {}


def _expansions(model) -> list[tuple]:
    """The normalisation after a 1x1 convolution to more channels knows its sums from products of the smaller map.

    What it computes backwards is taken through the convolution by hand too: the larger map is not read for sums, and no
    gradient with respect to it is written.
    """
    layers = [
        layer for network in (model.encoder, model.target_encoder) if network for layer in network.layers
    ]
    changed = [layer for layer in layers if isinstance(layer, keras.layers.Conv2D) and _expands(layer)]
    return [*_complex_sums(model), *((layer, "call", remembering(layer)) for layer in changed)]


def _expands(layer: keras.layers.Conv2D) -> bool:
    _, height, width, channels = layer.input.shape
    large = height is None or width is None or height * width >= PIXELS
    alone = layer.kernel_size == layer.strides == (1, 1) and not layer.use_bias
    return alone and layer.filters >= 2 * channels and large


def remembering(layer: keras.layers.Conv2D) -> Callable:
    """`call` of a convolution, for the normalisation that follows."""
    call = layer.call

    def remember(inputs):
        outputs = call(inputs)
        _EXPANDED[outputs.ref()] = inputs, tf.convert_to_tensor(layer.kernel)[0, 0]
        return outputs

    return remember


def expand(views: tf.Tensor, kernel: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float):
    """`normalize` of the products y = views kernel, a 1x1 convolution.

    With the means s of x and G of x x^T over the pixels of a view, y has mean W^T s and mean square diag(W^T G W). Backwards,
    with the mean P of x g^T, that of y g is diag(W^T P); what a normalisation sends to y, a g + b y + c with a, b, c of
    each channel, is to x (W a) g + (W b W^T) x + W c, and to W as many times P a + G W b + s c^T as there are pixels.

    Args:
        views: x [V, B, ..., C].
        kernel: W [C, D].
        gamma: float32 [D].
        beta: float32 [D].
        epsilon: added to the variance.

    Returns:
        (views [V, B, ..., D], mean, variance): the moments, float32 [D] of each view, pass no gradient.
    """
    count, *sides, channels = views.shape
    number = float(np.prod(sides))

    def product(x, y):
        """Means of x y^T over the pixels of each view, float32."""
        return tf.matmul(x, y, transpose_a=True, output_type=tf.float32) / number

    def mean_of(x):
        return tf.reduce_sum(tf.cast(x, tf.float32), 1) / number

    @tf.custom_gradient
    def expanded(views, kernel, gamma, beta):
        x = tf.reshape(views, [count, -1, channels])
        flat = tf.reshape(views, [-1, *sides[1:], channels])
        y = tf.nn.conv2d(flat, tf.cast(kernel, x.dtype)[None, None], 1, "SAME")
        y = tf.reshape(y, [count, *sides, -1])
        w = tf.cast(kernel, tf.float32)
        average, gram_w = mean_of(x), product(x, x) @ w
        mean = tf.reduce_sum(w * average[:, :, None], 1)
        variance = tf.maximum(tf.reduce_sum(w * gram_w, 1) - mean * mean, 0.0)
        inverse = tf.math.rsqrt(variance + epsilon)
        scale = gamma * inverse
        offset = beta - mean * scale

        def gradient(upstream, *_):
            g = tf.reshape(upstream, [count, -1, upstream.shape[-1]])
            shift, cross = mean_of(g), product(x, g)
            slope = (tf.reduce_sum(w * cross, 1) - mean * shift) * inverse
            turn = -scale * inverse * slope
            constant = -(scale * shift + turn * mean)
            through = tf.cast(scale[:, None] * w, g.dtype)
            own = tf.cast(tf.matmul(turn[:, None] * w, w[None], transpose_b=True), g.dtype)
            same = tf.cast(tf.reduce_sum(constant[:, None] * w, 2), g.dtype)
            to_views = tf.matmul(g, through, transpose_b=True) + tf.matmul(x, own) + same[:, None]
            to_w = cross * scale[:, None] + gram_w * turn[:, None] + average[:, :, None] * constant[:, None]
            to_w, to_gamma, to_beta = (number * tf.reduce_sum(m, 0) for m in (to_w, slope, shift))
            return tf.reshape(to_views, views.shape), tf.cast(to_w, kernel.dtype), to_gamma, to_beta

        output = tf.cast(y, tf.float32) * of_views(tf.unstack(scale), y) + of_views(tf.unstack(offset), y)
        return (tf.cast(output, views.dtype), tf.unstack(mean), tf.unstack(variance)), gradient

    return expanded(views, kernel, gamma, beta)


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
    """The norms of LARS of all tensors of one size at once, those of a weight and its update as a complex sum; the norm of all
    gradients of one vector; updates of vectors.

    What is done element by element, XLA already puts into a few kernels for all variables; reductions it does not. Of
    vectors it cannot choose a layout, such as that of a convolution's gradient, from which all else is copied.
    """

    def global_norm(tensors):
        return tf.norm(tf.concat([tf.reshape(x, [-1]) for x in tensors], 0))

    return [
        (lars.LARS, "_backend_update_step", update_with_grouped_norms),
        (tf.linalg, "global_norm", global_norm),
    ]


def pairs_of_norms(first: Sequence[tf.Tensor], second: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
    """The norms of each two tensors of one size; all tensors of that size are reduced together.

    Args:
        first: floats [n], of several n.
        second: of the same sizes.

    Returns:
        [norm, norm] of each two.
    """
    groups: dict[int, list[int]] = {}
    for index, tensor in enumerate(first):
        groups.setdefault(tensor.shape[0], []).append(index)
    results = {}
    for group in groups.values():
        x, y = (tf.square(tf.stack([tensors[index] for index in group])) for tensors in (first, second))
        total = tf.reduce_sum(tf.complex(x, y), axis=1)
        both = tf.sqrt(tf.stack([tf.math.real(total), tf.math.imag(total)], axis=1))
        results.update((index, tf.unstack(pair)) for index, pair in zip(group, tf.unstack(both), strict=True))
    return [results[index] for index in range(len(first))]


def update_with_grouped_norms(optimizer: lars.LARS, gradients: Sequence, variables: Sequence, rate) -> None:
    """`LARS.update_step` of all variables."""
    values, updates, momenta = (
        [tf.reshape(x, [-1]) for x in tensors] for tensors in (variables, gradients, optimizer.momenta)
    )
    adapted = [i for i, variable in enumerate(variables) if lars.is_adapted(variable)]
    for i in adapted:
        updates[i] += optimizer.coupled_weight_decay * values[i]
    found = pairs_of_norms([values[i] for i in adapted], [updates[i] for i in adapted])
    for i, (parameter_norm, update_norm) in zip(adapted, found, strict=True):
        trust = tf.math.divide_no_nan(optimizer.eta * parameter_norm, update_norm)
        updates[i] *= tf.where(trust > 0.0, trust, 1.0)
    for i, (variable, momentum) in enumerate(zip(variables, optimizer.momenta, strict=True)):
        new_momentum = optimizer.momentum * momenta[i] + updates[i]
        momentum.assign(tf.reshape(new_momentum, momentum.shape))
        variable.assign(tf.reshape(values[i] - rate * new_momentum, variable.shape))


def _philox(model) -> list[tuple]:
    """Random bits as operations on each word, which XLA fuses; it splits its own generator's into several kernels a draw.

    So are the seeds that are split from others.
    """

    def split(seed, num=2, alg="philox"):
        return bits([num, 2], seed, dtype=seed.dtype)

    def fold_in(seed, data, alg="philox"):
        return tf.stack([bits([], seed, dtype=seed.dtype), tf.cast(data, seed.dtype)])

    changed = {"stateless_uniform": bits, "split": split, "fold_in": fold_in}
    return [(tf.random, name, function) for name, function in changed.items()]


def bits(shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox") -> tf.Tensor:
    """`tf.random.stateless_uniform` of integers without bounds: Philox4x32-10 (Salmon et al. 2011).

    The seed is a counter under a key of TensorFlow's own, which gives key and counter of the draw; a count of every four
    numbers is added.

    Args:
        shape: static.
        seed: int32 [2].
        minval: None.
        maxval: None.
        dtype: int32 or uint32.
        alg: that of the draws, "philox".

    Returns:
        Integers of the shape, each as likely as any other.
    """
    words = tf.reshape(tf.bitcast(tf.cast(seed, tf.int64), tf.uint32), [4])
    mixed = rounds((0x3EC8F720, 0x02461E29), tf.unstack(words))
    number = math.prod(shape)
    count = tf.cast(tf.range(-(-number // 4)), tf.uint32)
    drawn = tf.stack(rounds(mixed[:2], [count, tf.constant(0, tf.uint32), *mixed[2:]]), axis=1)
    return tf.bitcast(tf.reshape(tf.reshape(drawn, [-1])[:number], shape), dtype)


def rounds(key: Sequence, counter: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Ten rounds of Philox4x32 on four words uint32, under a key of two."""

    def upper(word, factor):
        """The upper half of a product of 64 bits."""
        half = tf.bitwise.right_shift(tf.cast(word, tf.uint64) * factor, tf.constant(32, tf.uint64))
        return tf.cast(half, tf.uint32)

    a, b, c, d = counter
    first, second = (tf.convert_to_tensor(part, tf.uint32) for part in key)
    for _ in range(10):
        a, c, b, d = (
            upper(c, 0xCD9E8D57) ^ b ^ first,
            upper(a, 0xD2511F53) ^ d ^ second,
            c * 0xCD9E8D57,
            a * 0xD2511F53,
        )
        first, second = first + 0x9E3779B9, second + 0xBB67AE85
    return [a, b, c, d]


def _all(model) -> list[tuple]:
    return [change for name in OPTIONS if name != "all" for change in OPTIONS[name](model)]


OPTIONS: dict[str, Callable] = {
    "space_to_depth": _space_to_depth,
    "pool_by_place": _pool_by_place,
    "complex_sums": _complex_sums,
    "expansions": _expansions,
    "relu_by_output": _relu_by_output,
    "one_pass": _one_pass,
    "grouped_norms": _grouped_norms,
    "philox": _philox,
    "all": _all,
}
