"""Networks for dense prediction: of images of any size, whose last stage can keep the resolution of the one before."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_sslhsic import compat
from keras_sslhsic.encoders import copying
from keras_sslhsic.encoders.spec import Stage

_SIDE = 1024  # pixels, with which strides are measured


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class StageMaps(keras.Model):
    """A functional model from images to {"P2": map, ...}, which networks of keras-hub take as their `image_encoder`."""

    def call(self, inputs: Any, training: bool = False, mask: Any = None) -> Any:
        """As in Keras; without a word on training it infers, also with layers that would train."""
        return super().call(inputs, training=training, mask=mask)

    @property
    def pyramid_outputs(self) -> dict[str, Any]:
        """The symbolic map of each stage."""
        return self.output


def dense_copy(network: keras.Model, stages: Mapping[str, Stage], output_stride: int) -> keras.Model:
    """Copies a network up to the maps of its stages, for images of any size.

    Where `output_stride` is half of the last stage's stride, its convolutions of more than one tap have twice the dilation, and
    none of its layers a stride; the weights fit as they are.

    Args:
        network: functional keras.Model.
        stages: of it; see `spec.find_stages`.
        output_stride: the stride of the last stage, or half of it.

    Returns:
        keras.Model from images [B, H, W, C] to {name of a stage: map}, with weights of its own, equal to the network's.

    Raises:
        ValueError: for another output stride, or a last stage that cannot be dilated.
    """
    last = max(stages, key=lambda name: stages[name].stride)
    stride = stages[last].stride
    before = [name for name in stages if 2 * stages[name].stride == stride]
    if output_stride != stride and (not before or 2 * output_stride != stride):
        raise ValueError(
            f"The last stage of {network.name!r} has stride {stride}, found the output stride {output_stride}: give {stride}"
            + (f" or {stride // 2}." if before else ".")
        )
    outputs = {name: stage.map_of(network) for name, stage in stages.items()}
    late: set[str] = set()
    if output_stride != stride:
        whole, part = (keras.Model(network.inputs, outputs[name]) for name in (last, *before))
        late = {layer.name for layer in whole.operations} - {layer.name for layer in part.operations}

    def copy(layer: Any) -> Any:
        if not isinstance(layer, keras.layers.Layer):
            return layer  # an operation without weights
        config = layer.get_config()
        if layer.name in late and "strides" in config:
            config["strides"] = (1, 1)
            if "dilation_rate" in config and max(config["kernel_size"]) > 1:
                config["dilation_rate"] = [2 * rate for rate in config["dilation_rate"]]
        return type(layer).from_config(config)

    source = keras.Model(network.inputs, outputs, name=network.name)
    images = keras.Input((None, None, network.input_shape[-1]), name="normalised")
    clone = keras.models.clone_model(source, input_tensors=[images], clone_function=copy)
    copying.copy_state(source, clone)
    [(_, side, *_)] = compat.shapes(clone, [clone.output[last]], (1, _SIDE, _SIDE, images.shape[-1]))
    if round(_SIDE / side) != output_stride:
        raise ValueError(
            f"The last stage of {network.name!r} cannot be dilated to stride {output_stride}: give the output stride {stride}."
        )
    return clone
