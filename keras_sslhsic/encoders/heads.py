"""Projector and predictor: the small networks between the encoder and the loss."""

import keras

from keras_sslhsic.encoders.resnet import BATCH_NORM, fan_in_normal


def projector(
    input_dim: int,
    hidden: int = 4096,
    output: int = 256,
    batch_norm_output: bool = False,
    name: str = "projector",
) -> keras.Model:
    """Builds a projector: Linear, batch normalisation, ReLU, Linear without bias.

    Args:
        input_dim: size of the features it reads.
        hidden: size of the hidden layer.
        output: size of its output.
        batch_norm_output: normalise the output over the batch too. The paper (section 4.1) says so; the
            released code does not do it.
        name: name of the model.

    Returns:
        keras.Model from float features [B, input_dim] to float32 [B, output], not of unit norm.
    """
    x = features = keras.Input((input_dim,), name="features")
    x = keras.layers.Dense(hidden, kernel_initializer=fan_in_normal(input_dim), name="hidden")(x)
    x = keras.layers.BatchNormalization(name="hidden_bn", **BATCH_NORM)(x)
    x = keras.layers.ReLU(name="hidden_relu")(x)
    x = keras.layers.Dense(output, use_bias=False, kernel_initializer=fan_in_normal(hidden), name="output")(x)
    if batch_norm_output:
        x = keras.layers.BatchNormalization(name="output_bn", **BATCH_NORM)(x)
    # The loss is computed in float32 whatever the precision policy.
    x = keras.layers.Identity(dtype="float32", name="float32")(x)
    return keras.Model(features, x, name=name)


def predictor(
    input_dim: int = 256,
    hidden: int = 4096,
    output: int = 256,
    batch_norm_output: bool = False,
    name: str = "predictor",
) -> keras.Model:
    """Builds a predictor, the same network as `projector`: it reads the projector's output."""
    return projector(input_dim, hidden, output, batch_norm_output, name)
