"""Convolutions on maps smaller than their kernel, as matrix products.

The last groups of a network see maps of one or two pixels when images are small. Most taps of a 3x3 kernel then meet
padding alone, and a convolution, forward and backward, spends its time on products with zero.
"""

import types
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import compat


def multiply_on_small_maps(network: keras.Model) -> None:
    """Makes the convolutions of a network matrix products, wherever the map is smaller than the kernel.

    Results and gradients are those of the convolution, to rounding. The layers stay Keras's own, with a method of their
    own: files load without this package, and copies (saved, cloned, folded, exported) convolve. A subclass of Conv2D
    would be neither. Maps whose size is not known when the network is traced, convolutions without SAME padding,
    dilated and grouped ones, subclasses, and layers whose operation was changed already are left as they are.

    Args:
        network: keras.Model; its ``keras.layers.Conv2D`` layers are changed in place.
    """
    for layer in compat.every_layer(network):
        if type(layer) is keras.layers.Conv2D and "convolution_op" not in vars(layer) and _fits(layer):
            layer.convolution_op = types.MethodType(_multiply_or_convolve, layer)


def placement(size: int, kernel: int, stride: int) -> np.ndarray:
    """Which tap of a kernel joins an input pixel to an output pixel along one axis, with SAME padding.

    Args:
        size: pixels of the input.
        kernel: taps.
        stride: step between outputs.

    Returns:
        float32 [kernel, size, ceil(size / stride)] of zeros and ones.
    """
    outputs = -(-size // stride)
    before = max((outputs - 1) * stride + kernel - size, 0) // 2
    tap, pixel, output = np.indices((kernel, size, outputs))
    return (pixel == output * stride - before + tap).astype(np.float32)


def _fits(layer: keras.layers.Conv2D) -> bool:
    return (layer.padding, layer.dilation_rate, layer.groups, layer.data_format) == (
        "same",
        (1, 1),
        1,
        "channels_last",
    )


def _multiply_or_convolve(layer: keras.layers.Conv2D, inputs: tf.Tensor, kernel: Any) -> tf.Tensor:
    (height, width), taps = inputs.shape[1:3], kernel.shape[:2]
    if height is None or width is None or height >= taps[0] or width >= taps[1]:
        return keras.layers.Conv2D.convolution_op(layer, inputs, kernel)
    return _multiply(inputs, tf.convert_to_tensor(kernel), layer.strides)


def _multiply(inputs: tf.Tensor, kernel: tf.Tensor, strides: tuple[int, int]) -> tf.Tensor:
    """[B, H, W, C] by [kernel, kernel, C, F] to [B, H', W', F]: one product of [B, H W C] and [H W C, H' W' F]."""
    height, width, channels = inputs.shape[1:]
    features = kernel.shape[-1]
    rows, columns = (
        placement(size, taps, stride)
        for size, taps, stride in zip((height, width), kernel.shape[:2], strides, strict=True)
    )
    outputs = [rows.shape[-1], columns.shape[-1]]
    taps = np.einsum("aip,bjq->ijpqab", rows, columns).reshape(-1, rows.shape[0] * columns.shape[0])
    matrix = tf.constant(taps, kernel.dtype) @ tf.reshape(kernel, [-1, channels * features])
    matrix = tf.reshape(matrix, [height * width, outputs[0] * outputs[1], channels, features])
    matrix = tf.reshape(tf.transpose(matrix, [0, 2, 1, 3]), [height * width * channels, -1])
    return tf.reshape(tf.reshape(inputs, [-1, matrix.shape[0]]) @ matrix, [-1, *outputs, features])
