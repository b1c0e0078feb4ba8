"""The encoder of a trainer, as all that is not training sees it: one choice of weights, one range of pixels."""

from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic.data.images import unpack
from keras_sslhsic.encoders import network_to_train, small_maps, with_preprocessing
from keras_sslhsic.training import ema, inputs
from keras_sslhsic.views import policy


class EncodingModel(keras.Model):
    """A model that holds an encoder in training, and gives features of images.

    Two encoders count: `encoder` is the network that is trained, and `evaluation_encoder` the one for everything else: its
    moving average if one is kept, or itself. Calling the model, `predict`, `evaluate` (and validation), probes, saving and
    exports all use `evaluation_encoder`.

    Args:
        encoder: keras.Model from normalised float images [B, S, S, C] to features [B, F]; or an encoder that reads pixels, as
            `load_pretrained` gives it, to train on: see `encoders.network_to_train`.
        views: a `views.ViewPolicy` or what `views.get` takes, for its mean and standard deviation.
        **kwargs: of `keras.Model`.

    Raises:
        ValueError: if the encoder is no Keras model, or normalises otherwise than the views.
    """

    def __init__(self, encoder: keras.Model, views: Any, **kwargs: Any):
        super().__init__(**kwargs)
        if not isinstance(encoder, keras.Model):
            raise ValueError(
                f'encoder must be a keras.Model, got {encoder!r}: make one with keras_sslhsic.build_encoder("r50_1x").'
            )
        self.policy = policy.get(views)
        encoder = network_to_train(encoder, self.policy.mean, self.policy.std)
        small_maps.multiply_on_small_maps(encoder)
        self.encoder = encoder
        self.weight_ema: float | None = None
        self.ema_encoder: keras.Model | None = None

    def keep_weight_ema(self, decay: float) -> None:
        """Keeps a moving average of the encoder's weights in `ema_encoder` from now on; decay is in [0, 1)."""
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"weight_ema must be None or in [0, 1), got {decay}.")
        if self.ema_encoder is None:
            self.ema_encoder = ema.copy_of(self.encoder, "ema_encoder")
            self.ema_encoder.trainable = False
        self.weight_ema = decay

    def update_weight_ema(self, moved: Any = True) -> None:
        """One step of the moving average, inside a training step; `moved` says whether that moved the weights."""
        decay = tf.where(moved, self.weight_ema, 1.0)
        ema.update(ema.parameters(self.ema_encoder), ema.parameters(self.encoder), decay)
        # The batch statistics are averages already.
        ema.update(ema.statistics(self.ema_encoder), ema.statistics(self.encoder), 0.0)

    @property
    def evaluation_encoder(self) -> keras.Model:
        """The encoder to evaluate and keep: the moving average if there is one, else the online encoder."""
        return self.encoder if self.ema_encoder is None else self.ema_encoder

    def serving_encoder(self) -> keras.Model:
        """The evaluation encoder with the normalisation in it: from images, uint8 or float in [0, 255], to features."""
        return with_preprocessing(self.evaluation_encoder, self.policy.mean, self.policy.std)

    def call(self, images: Any, training: bool = False) -> tf.Tensor:
        """Features of the evaluation encoder, float32 [B, F], for images in [0, 255], or a dict of them."""
        if isinstance(images, dict):
            images, _ = unpack(images)
        return self.evaluation_encoder(
            policy.prepare(inputs.unit_range(images), self.policy), training=training
        )

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        """`call`, of images that are looked at before."""
        if tf.executing_eagerly() and not keras.utils.is_keras_tensor(images):
            inputs.check_call(images, self.encoder.input_shape[1:])
        return super().__call__(images, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Features of images, as `keras.Model.predict`.

        Args:
            x: uint8 [N, H, W, C], or float in [0, 255]; a dict with such an array; or a finite dataset of batches.
            *args: as in `keras.Model.predict`.
            **kwargs: likewise.
        """
        inputs.check_given(x, self.encoder.input_shape[1:])
        return super().predict(x, *args, **kwargs)
