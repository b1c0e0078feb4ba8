import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.lib.stride_tricks import sliding_window_view

from keras_sslhsic.encoders import ARCHITECTURES, Architecture, Head, build_encoder, build_head
from keras_sslhsic.encoders.resnet import architecture, resnet

BASIC = Architecture((1, 1, 1, 1), (8, 8, 8, 16), bottleneck=False, stem_channels=8)
BOTTLENECK = Architecture((1, 2, 1, 1), (16, 32, 32, 64), bottleneck=True, stem_channels=8)


def count(weights):
    return sum(int(np.prod(weight.shape)) for weight in weights)


def formula(arch, kernel=7, channels=3):
    """Trainable parameters, counted from the description of the network."""
    total, before = (kernel**2 * channels + 2) * arch.stem_channels, arch.stem_channels
    for blocks, after in zip(arch.blocks, arch.channels, strict=True):
        for block in range(blocks):
            inner = after // 4
            shortcut = (before + 2) * after if block == 0 else 0
            if arch.bottleneck:
                total += before * inner + 9 * inner**2 + inner * after + 4 * inner + 2 * after
            else:
                total += 9 * before * after + 9 * after**2 + 4 * after
            total, before = total + shortcut, after
    return total


def test_r50_has_the_parameters_of_the_released_network():
    encoder = build_encoder("r50_1x")
    networks = [encoder, build_head(2048, Head(), "projector"), build_head(256, Head(), "predictor")]
    weights = [weight for network in networks for weight in network.trainable_variables]
    shapes = [weight.shape for weight in weights] + [(2048, 1000), (1000,)]  # and the online classifier
    assert count(encoder.trainable_variables) == 23_508_032
    assert sum(int(np.prod(shape)) for shape in shapes) == 37_115_944
    assert len(shapes) == 171
    assert sum(len(shape) > 1 for shape in shapes) == 58
    assert encoder.output_shape == (None, 2048)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("r18_1x", 11_180_736),
        ("r50_1x", 23_508_032),
        ("r50_2x", 93_907_072),
        ("r50_4x", 375_378_176),
        ("r200_2x", 250_128_512),
    ],
)
def test_named_architectures_have_the_expected_size(name, parameters):
    assert formula(architecture(name)) == parameters


@pytest.mark.parametrize("arch", [BASIC, BOTTLENECK])
def test_built_networks_follow_the_formula(arch):
    assert count(resnet(arch).trainable_variables) == formula(arch)


@pytest.mark.parametrize(("width", "features"), [(0.25, 128), (0.125, 64), (None, 512)])
def test_width_scales_every_channel(width, features):
    encoder = build_encoder("r18_1x", (28, 28, 1), width=width)
    assert encoder.output_shape == (None, features)
    assert count(encoder.trainable_variables) == formula(architecture("r18_1x", width), kernel=3, channels=1)


@pytest.mark.parametrize(
    ("shape", "stem", "strides", "pooled"),
    [
        ((28, 28, 1), None, (1, 1), False),
        ((63, 63, 3), None, (1, 1), False),
        ((64, 64, 3), None, (2, 2), True),
        (None, None, (2, 2), True),
        (None, "small", (1, 1), False),
        ((28, 28, 3), "imagenet", (2, 2), True),
    ],
)
def test_stem_follows_the_size_unless_it_is_given(shape, stem, strides, pooled):
    encoder = build_encoder("r18_1x", shape, stem, width=0.0625)
    assert encoder.get_layer("stem_conv").strides == strides
    assert any(layer.name == "stem_pool" for layer in encoder.layers) == pooled


def test_initial_values_are_those_of_the_released_code(tmp_path, data):
    keras.utils.set_random_seed(0)
    golden = data("train_bottleneck.npz")
    encoder = resnet(Architecture((1, 2, 1, 1), (16, 32, 32, 64), bottleneck=True), stem="imagenet")
    kernel = np.asarray(encoder.get_layer("stem_conv").kernel)
    released = golden["online_init/params/res_net50/~/initial_conv/w"]
    bound = 2 / np.sqrt(147)  # two standard deviations of 1/sqrt(fan_in)
    for values in (kernel, released):
        assert np.abs(values).max() <= bound
        np.testing.assert_allclose(values.std(), 0.8796 * bound / 2, rtol=0.02)
    for layer in encoder.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            last_of_block = layer.name.endswith("bn2")
            np.testing.assert_array_equal(layer.gamma, 0.0 if last_of_block else 1.0)
            assert (layer.momentum, layer.epsilon, layer.synchronized) == (0.9, 1e-5, True)


def test_a_new_bottleneck_block_is_the_identity_and_a_basic_one_is_not():
    assert {np.asarray(resnet(BASIC).get_layer(f"group{g}_block0_bn1").gamma).min() for g in range(4)} == {
        1.0
    }
    encoder = resnet(BOTTLENECK)
    inputs = encoder.get_layer("group1_block0_relu").output
    block = keras.Model(encoder.input, [inputs, encoder.get_layer("group1_block1_relu").output])
    before, after = block(np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32))
    np.testing.assert_array_equal(before, after)


def same_padding(x, kernel, stride, value=0.0):
    """TensorFlow's SAME: as much as needed, the odd pixel at the end."""
    pads = [(0, 0)]
    for side in x.shape[1:3]:
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [*pads, (0, 0)], constant_values=value)


def conv(x, kernel, stride):
    size = kernel.shape[0]
    windows = sliding_window_view(same_padding(x, size, stride), (size, size), axis=(1, 2))
    return np.einsum("bhwcij,ijcd->bhwd", windows[:, ::stride, ::stride], kernel)


def reference(encoder, arch, images):
    """The network in NumPy, float64, written from its description."""
    weight = {w.path: np.asarray(w, np.float64) for w in encoder.weights}

    def bn(x, name):
        gamma, beta = weight[f"{name}/gamma"], weight[f"{name}/beta"]
        mean, variance = weight[f"{name}/moving_mean"], weight[f"{name}/moving_variance"]
        return gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta

    x = np.maximum(bn(conv(images, weight["stem_conv/kernel"], 2), "stem_bn"), 0)
    x = sliding_window_view(same_padding(x, 3, 2, -np.inf), (3, 3), axis=(1, 2))[:, ::2, ::2].max((-1, -2))
    for group, blocks in enumerate(arch.blocks):
        for block in range(blocks):
            name, stride = f"group{group}_block{block}", 2 if group and not block else 1
            shortcut = x
            if block == 0:
                shortcut = conv(x, weight[f"{name}_shortcut_conv/kernel"], stride)
                shortcut = bn(shortcut, f"{name}_shortcut_bn")
            convs = 3 if arch.bottleneck else 2
            for i in range(convs):
                here = stride if i == (1 if arch.bottleneck else 0) else 1
                x = bn(conv(x, weight[f"{name}_conv{i}/kernel"], here), f"{name}_bn{i}")
                x = np.maximum(x, 0) if i + 1 < convs else x
            x = np.maximum(x + shortcut, 0)
    return x.mean((1, 2))


@pytest.mark.parametrize("arch", [BASIC, BOTTLENECK], ids=["basic", "bottleneck"])
@pytest.mark.parametrize("size", [(32, 32), (33, 47), (49, 64), (224, 224), (225, 223)])
def test_forward_agrees_with_numpy_on_odd_and_even_sizes(arch, size):
    rng = np.random.default_rng(1)
    encoder = resnet(arch, stem="imagenet")
    for layer in encoder.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    images = rng.normal(size=(1, *size, 3)).astype(np.float32)
    expected = reference(encoder, arch, images.astype(np.float64))
    np.testing.assert_allclose(encoder(images), expected, rtol=1e-4, atol=1e-4)


def test_features_are_float32_under_mixed_precision():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        encoder = build_encoder("r18_1x", (16, 16, 3), width=0.0625)
        head = build_head(encoder.output_shape[-1], Head(8, 4), "head")
    finally:
        keras.mixed_precision.set_global_policy("float32")
    features = encoder(np.zeros((2, 16, 16, 3), np.float32))
    assert encoder.get_layer("stem_conv").compute_dtype == "bfloat16"
    assert features.dtype == tf.float32
    assert head(features).dtype == tf.float32


def test_layer_names_and_paths_are_stable():
    paths = [weight.path for weight in resnet(BOTTLENECK).trainable_variables]
    assert len(set(paths)) == len(paths)
    assert paths[:3] == ["stem_conv/kernel", "stem_bn/gamma", "stem_bn/beta"]
    assert {
        "group0_block0_shortcut_conv/kernel",
        "group1_block1_conv2/kernel",
        "group3_block0_bn2/gamma",
    } <= {*paths}


def test_saving_and_loading_gives_the_same_features(tmp_path):
    encoder = resnet(BASIC)
    encoder.save(tmp_path / "encoder.keras")
    images = np.random.default_rng(0).normal(size=(2, 40, 40, 3)).astype(np.float32)
    np.testing.assert_array_equal(
        keras.models.load_model(tmp_path / "encoder.keras")(images), encoder(images)
    )


NARROW = """
import os, sys
os.environ["TF_ENABLE_ONEDNN_OPTS"], os.environ["TF_NUM_INTRAOP_THREADS"] = "1", "1"
import tensorflow as tf
from keras_sslhsic import build_encoder

width, size, batch, steps = float(sys.argv[1]), *map(int, sys.argv[2:])
encoder = build_encoder("r18_1x", (size, size, 1), "small", width=width)

@tf.function
def gradients(images):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(encoder(images, training=True) ** 2)
    return tape.gradient(loss, encoder.trainable_variables)

for i in range(steps):
    found = gradients(tf.random.stateless_normal([batch, size, size, 1], [0, i]))
    tf.debugging.assert_all_finite(found[0], "")
print("trained")
"""


@pytest.mark.slow
@pytest.mark.parametrize("width, size, batch, steps", [(0.0625, 28, 4, 30), (0.125, 64, 16, 10)])
def test_narrow_networks_do_not_corrupt_the_memory(width, size, batch, steps):
    """Without the pooling before their shortcuts, oneDNN for AVX2 aborts the first, and that for AVX-512 both."""
    arguments = [str(argument) for argument in (width, size, batch, steps)]
    run = subprocess.run([sys.executable, "-c", NARROW, *arguments], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "trained\n"), run.stderr


@pytest.mark.parametrize(
    "name, width", [("r18_1x", 0.03), ("r18_1x", 0.125), ("r18_1x", 0.2), ("r18_1x", 0.3), ("r50_1x", 0.03)]
)
def test_no_strided_kernel_of_one_pixel_has_fewer_channels_than_a_register(name, width):
    encoder = build_encoder(name, (8, 8, 3), "small", width=width)
    convolutions = [layer for layer in encoder.layers if isinstance(layer, keras.layers.Conv2D)]
    strided = [c for c in convolutions if c.kernel_size == (1, 1) and c.strides != (1, 1)]
    pooled = [layer for layer in encoder.layers if layer.name.endswith("_shortcut_pixels")]
    assert len(strided) + len(pooled) == 3
    assert all(conv.kernel.shape[2] >= 16 for conv in strided)


@pytest.mark.parametrize("size", [8, 9])
def test_narrow_shortcuts_read_the_pixels_of_wide_ones(size):
    """A 1x1 convolution of stride 2 is one of stride 1 on every second pixel."""
    narrow = build_encoder("r18_1x", (size, size, 3), "small", width=0.0625)
    pixels = narrow.get_layer("group1_block0_shortcut_pixels")
    shortcut = keras.Model(pixels.input, narrow.get_layer("group1_block0_shortcut_conv").output)
    maps = np.random.default_rng(0).normal(size=(2, size, size, 4)).astype(np.float32)
    kernel = narrow.get_layer("group1_block0_shortcut_conv").kernel
    np.testing.assert_allclose(shortcut(maps), tf.nn.conv2d(maps, kernel, 2, "SAME"), atol=1e-6)
    names = {layer.name for layer in build_encoder("r18_1x", (8, 8, 3), "small", width=0.25).layers}
    assert not any(name.endswith("_pixels") for name in names)


def test_channels_first_would_take_the_height_for_the_channels(monkeypatch):
    monkeypatch.setattr(keras.config, "image_data_format", lambda: "channels_first")
    with pytest.raises(
        ValueError, match=r"Channels come last here, and Keras is set to channels_first: keras\.config"
    ):
        build_encoder("r18_1x", (32, 32, 3))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"Unknown encoder 'r50_3x': did you mean .*r50_2x"):
        build_encoder("r50_3x")
    with pytest.raises(ValueError, match=r"positive, found 0"):
        build_encoder("r18_1x", width=0)
    with pytest.raises(ValueError, match=r"positive, found '0.5'"):
        build_encoder("r18_1x", width="0.5")
    with pytest.raises(ValueError, match=r"known channels, found \(0, 0, 3\)"):
        build_encoder("r18_1x", (0, 0, 3))
    with pytest.raises(ValueError, match=r"'large'"):
        build_encoder("r18_1x", stem="large", width=0.0625)
    with pytest.raises(ValueError, match=r"known channels, found \(32, 32\)"):
        build_encoder("r18_1x", (32, 32))
    assert "r200_2x" in ARCHITECTURES
