"""Residual encoders, as SSL-HSIC and BYOL train them.

ResNet v1.5 (He et al. 2016, the stride on the 3x3 convolution of a bottleneck block) with TensorFlow's SAME
padding, no convolution bias, a projection on the shortcut of the first block of every group, and batch
normalisation with decay 0.9 and epsilon 1e-5. ``keras.applications`` differs in padding, stride, biases and
epsilon, so it cannot hold these weights.
"""

from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

import keras

from keras_sslhsic.registries import Registry

BATCH_NORM = {"momentum": 0.9, "epsilon": 1e-5, "synchronized": True}
WIDEST_VECTOR = 16  # float32 numbers in a register of AVX-512; those of AVX2 hold 8
SMALL_IMAGE = 64  # below this side the 7x7 stem and its pooling leave too few pixels


class Architecture(NamedTuple):
    """Shape of a residual network: blocks in each group, channels out of each group, kind of block."""

    blocks: Sequence[int]
    channels: Sequence[int]
    bottleneck: bool
    stem_channels: int = 64

    def scaled(self, width: float) -> "Architecture":
        """Returns the same network with every channel count multiplied by `width`, rounded, at least 1."""

        def scale(channels: int) -> int:
            return max(1, round(width * channels))

        return self._replace(
            channels=tuple(scale(c) for c in self.channels), stem_channels=scale(self.stem_channels)
        )


_R18 = Architecture((2, 2, 2, 2), (64, 128, 256, 512), bottleneck=False)
_R50 = Architecture((3, 4, 6, 3), (256, 512, 1024, 2048), bottleneck=True)
_R200 = Architecture((3, 24, 36, 3), (256, 512, 1024, 2048), bottleneck=True)

ARCHITECTURES: Registry[tuple[Architecture, int]] = Registry("encoder")
ARCHITECTURES.add("r18_1x", (_R18, 1))
ARCHITECTURES.add("r50_1x", (_R50, 1))
ARCHITECTURES.add("r50_2x", (_R50, 2))
ARCHITECTURES.add("r50_4x", (_R50, 4))
ARCHITECTURES.add("r200_2x", (_R200, 2))


def architecture(name: str, width: float | None = None) -> Architecture:
    """Looks up a named architecture.

    Args:
        name: one of ``ARCHITECTURES``.
        width: multiplier of the base channel counts, replacing the one in the name.

    Raises:
        ValueError: if the name is unknown (the nearest one is suggested) or `width` is not positive.
    """
    base, named_width = ARCHITECTURES[name]
    if width is not None and not (isinstance(width, Real) and width > 0):
        raise ValueError(f"width must be positive, found {width!r}.")
    return base.scaled(named_width if width is None else width)


def fan_in_normal(fan_in: int) -> keras.initializers.Initializer:
    """Normal of standard deviation 1/sqrt(fan_in), cut at two of them.

    As in Haiku, the cut is not compensated: the draws have a standard deviation of 0.88/sqrt(fan_in).
    """
    return keras.initializers.TruncatedNormal(stddev=fan_in**-0.5)


def build_encoder(
    name: str,
    input_shape: Sequence[int | None] | None = None,
    stem: str | None = None,
    width: float | None = None,
) -> keras.Model:
    """Builds an untrained encoder.

    Args:
        name: ``r18_1x``, ``r50_1x``, ``r50_2x``, ``r50_4x`` or ``r200_2x``.
        input_shape: (height, width, channels) of one image; None in a place leaves that side free.
            (None, None, 3) by default.
        stem: ``"imagenet"`` (7x7 convolution of stride 2 and 3x3 maximum pooling of stride 2), ``"small"``
            (3x3 convolution, no pooling), or None: small if a given side is under 64 pixels.
        width: multiplier of the base channel counts, replacing the one in the name; it may be a fraction.

    Returns:
        keras.Model from normalised float images [B, H, W, C] to float32 features [B, F], F = 2048 x width
        (512 x width for ``r18``). The features are float32 under mixed precision too.

    Raises:
        ValueError: for an unknown name or stem, a width that is not positive, or an unusable input shape; and where Keras is
            set to channels first.

    Example:
        >>> encoder = build_encoder("r18_1x", input_shape=(28, 28, 1), width=0.25)
        >>> encoder.output_shape
        (None, 128)
    """
    return resnet(architecture(name, width), input_shape=input_shape, stem=stem, name=name)


def resnet(
    architecture: Architecture,
    input_shape: Sequence[int | None] | None = None,
    stem: str | None = None,
    name: str = "resnet",
) -> keras.Model:
    """Builds a residual network of any shape; see `build_encoder` for the arguments and the result."""
    shape = (None, None, 3) if input_shape is None else tuple(input_shape)
    if len(shape) != 3 or shape[-1] is None or any(side is not None and side < 1 for side in shape):
        raise ValueError(f"input_shape must be (height, width, channels) with known channels, found {shape}.")
    if (order := keras.config.image_data_format()) != "channels_last":
        raise ValueError(
            f"Channels come last here, and Keras is set to {order}: keras.config.set_image_data_format('channels_last')."
        )
    if stem is None:
        stem = "small" if any(side is not None and side < SMALL_IMAGE for side in shape[:2]) else "imagenet"

    images = keras.Input(shape, name="image")
    x = _stem(images, architecture.stem_channels, stem)
    for group, (blocks, channels) in enumerate(zip(architecture.blocks, architecture.channels, strict=True)):
        for block in range(blocks):
            stride = 2 if group > 0 and block == 0 else 1
            x = _block(x, channels, stride, architecture.bottleneck, block == 0, f"group{group}_block{block}")
    features = keras.layers.GlobalAveragePooling2D(dtype="float32", name="features")(x)
    return keras.Model(images, features, name=name)


def _stem(images: keras.KerasTensor, channels: int, stem: str) -> keras.KerasTensor:
    if stem == "small":
        return _conv_bn_relu(images, channels, 3, 1, "stem")
    if stem == "imagenet":
        x = _conv_bn_relu(images, channels, 7, 2, "stem")
        return keras.layers.MaxPooling2D(3, strides=2, padding="same", name="stem_pool")(x)
    raise ValueError(f"stem must be 'imagenet' or 'small', found {stem!r}.")


def _conv_bn_relu(
    x: keras.KerasTensor, channels: int, size: int, stride: int, prefix: str, suffix: str = ""
) -> keras.KerasTensor:
    x = _conv(x, channels, size, stride, f"{prefix}_conv{suffix}")
    x = keras.layers.BatchNormalization(name=f"{prefix}_bn{suffix}", **BATCH_NORM)(x)
    return keras.layers.ReLU(name=f"{prefix}_relu{suffix}")(x)


def _conv(x: keras.KerasTensor, channels: int, size: int, stride: int, name: str) -> keras.KerasTensor:
    return keras.layers.Conv2D(
        channels,
        size,
        strides=stride,
        padding="same",
        use_bias=False,
        kernel_initializer=fan_in_normal(size * size * x.shape[-1]),
        name=name,
    )(x)


def _block(
    x: keras.KerasTensor, channels: int, stride: int, bottleneck: bool, project: bool, name: str
) -> keras.KerasTensor:
    shortcut = x
    if project:
        step = stride
        if step > 1 and x.shape[-1] < WIDEST_VECTOR:
            # In the gradient of such a kernel, of 1x1, a stride and fewer channels than fill a vector register, oneDNN
            # writes past its memory.
            shortcut = keras.layers.MaxPooling2D(1, strides=step, name=f"{name}_shortcut_pixels")(shortcut)
            step = 1
        shortcut = _conv(shortcut, channels, 1, step, f"{name}_shortcut_conv")
        shortcut = keras.layers.BatchNormalization(name=f"{name}_shortcut_bn", **BATCH_NORM)(shortcut)
    if bottleneck:
        inner = max(1, channels // 4)
        x = _conv_bn_relu(x, inner, 1, 1, name, "0")
        x = _conv_bn_relu(x, inner, 3, stride, name, "1")
        x = _conv(x, channels, 1, 1, f"{name}_conv2")
        # A bottleneck block starts as the identity; a basic block, as released, does not.
        last = {"name": f"{name}_bn2", "gamma_initializer": "zeros"}
    else:
        x = _conv_bn_relu(x, channels, 3, stride, name, "0")
        x = _conv(x, channels, 3, 1, f"{name}_conv1")
        last = {"name": f"{name}_bn1"}
    x = keras.layers.BatchNormalization(**last, **BATCH_NORM)(x)
    x = keras.layers.Add(name=f"{name}_add")([x, shortcut])
    return keras.layers.ReLU(name=f"{name}_relu")(x)
