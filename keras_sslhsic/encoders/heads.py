"""Projector and predictor: the small networks between the encoder and the loss."""

from typing import NamedTuple

import keras

from keras_sslhsic.encoders.resnet import BATCH_NORM, fan_in_normal


class Head(NamedTuple):
    """What a projector or a predictor is made of; the defaults are those of SSL-HSIC and BYOL.

    Attributes:
        hidden: size of the hidden layers.
        output: size of the output.
        batch_norm_output: normalise the output over the batch too. The SSL-HSIC paper (section 4.1) says so; its released code
            does not do it.
        layers: how many linear layers there are, at least 2.
        batch_norm_hidden: whether the hidden ones are normalised over the batch.
        output_bias: whether the last one has a bias.
        affine_output: whether an output that is normalised gets a learnt scale and offset.
    """

    hidden: int = 4096
    output: int = 256
    batch_norm_output: bool = False
    layers: int = 2
    batch_norm_hidden: bool = True
    output_bias: bool = False
    affine_output: bool = True


def build_head(input_dim: int, head: Head, name: str) -> keras.Model:
    """Builds a projector or a predictor: Linear, batch normalisation, ReLU, once or more often, and Linear.

    Args:
        input_dim: size of what it reads.
        head: what it is made of.
        name: name of the model.

    Returns:
        keras.Model from float [B, input_dim] to float32 [B, head.output], not of unit norm.
    """
    x = features = keras.Input((input_dim,), name="features")
    width = input_dim
    for index in range(1, head.layers):
        layer = "hidden" if index == 1 else f"hidden{index}"
        x = keras.layers.Dense(head.hidden, kernel_initializer=fan_in_normal(width), name=layer)(x)
        if head.batch_norm_hidden:
            x = keras.layers.BatchNormalization(name=f"{layer}_bn", **BATCH_NORM)(x)
        x = keras.layers.ReLU(name=f"{layer}_relu")(x)
        width = head.hidden
    initializer = fan_in_normal(width)
    x = keras.layers.Dense(
        head.output, use_bias=head.output_bias, kernel_initializer=initializer, name="output"
    )(x)
    if head.batch_norm_output:
        affine = {"center": head.affine_output, "scale": head.affine_output}
        x = keras.layers.BatchNormalization(name="output_bn", **affine, **BATCH_NORM)(x)
    # The loss is computed in float32 whatever the precision policy.
    x = keras.layers.Identity(dtype="float32", name="float32")(x)
    return keras.Model(features, x, name=name)
