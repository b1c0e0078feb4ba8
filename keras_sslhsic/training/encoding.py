"""The encoder of a trainer, as all that is not training sees it: one choice of weights, one range of pixels."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import compat
from keras_sslhsic.data.images import unpack, warn_of_left_out
from keras_sslhsic.data.python_map import as_raised
from keras_sslhsic.encoders import copying, network_to_train, small_maps, unlabelled, with_preprocessing
from keras_sslhsic.encoders.checks import check_network, warn_of_top
from keras_sslhsic.files import written_whole
from keras_sslhsic.training import ema, inputs, streams
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
        ValueError: if the encoder is no model from images to features whose shapes are known, or normalises otherwise than
            the views.

    Warns:
        UserWarning: if the encoder ends in probabilities, as that of a classifier.
    """

    def __init__(self, encoder: keras.Model, views: Any, **kwargs: Any):
        super().__init__(**kwargs)
        check_network(encoder)
        warn_of_top(encoder)
        self.policy = policy.get(views)
        encoder = network_to_train(encoder, self.policy.mean, self.policy.std)
        small_maps.multiply_on_small_maps(encoder)
        unlabelled.note_trained(encoder, self.policy.mean, self.policy.std)
        self.encoder = encoder
        self.weight_ema: float | None = None
        self.ema_encoder: keras.Model | None = None

    def keep_weight_ema(self, decay: float) -> None:
        """Keeps a moving average of the encoder's weights in `ema_encoder` from now on; decay is in [0, 1)."""
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"weight_ema must be None or in [0, 1), found {decay}.")
        if self.ema_encoder is None:
            self.ema_encoder = copying.copy_of(self.encoder, "ema_encoder")
            self.ema_encoder.trainable = False
            unlabelled.note_trained(self.ema_encoder, self.policy.mean, self.policy.std)
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
        return with_preprocessing(
            self.evaluation_encoder, self.policy.mean, self.policy.std, trained_at=self.policy.size
        )

    def call(self, images: Any, training: bool = False) -> tf.Tensor:
        """Features of the evaluation encoder, float32 [B, F] (float64 of such an encoder), for images in [0, 255]."""
        images, _ = unpack(images)
        features = self.evaluation_encoder(policy.prepare(unit_range(images), self.policy), training=training)
        return features if features.dtype == tf.float64 else tf.cast(features, tf.float32)

    def __call__(self, images: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        """`call`, of images that are looked at before."""
        if not any(map(keras.utils.is_keras_tensor, keras.tree.flatten(images))):
            inputs.check_call(images, self.encoder.input_shape[1:])
        return super().__call__(images, *args, **kwargs)

    @as_raised()
    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        steps: int | None = None,
        callbacks: Any = None,
    ) -> Any:
        """Features of images, as `keras.Model.predict`.

        Args:
            x: uint8 [N, H, W, C], or other numbers in [0, 255]; a dict with such an array; a data set of `keras_sslhsic.data`,
                whose images are read once each and in their order; or batches: a dataset, a PyDataset or a generator.
            batch_size: of arrays, 32 by default.
            verbose: as in Keras.
            steps: batches to read; None reads all.
            callbacks: as in Keras.

        Raises:
            ValueError: for images that are not such, or batches without end if `steps` is None.

        Warns:
            UserWarning: if files of a folder are broken, and have no row.
        """
        if streams.is_array(x) or isinstance(x, dict):
            inputs.check_call(x, self.encoder.input_shape[1:])
        given = streams.given(
            x, steps=steps, batch_size=batch_size or 32, shuffle=False, drop_remainder=False
        )
        inputs.check_call(unpack(given.element_spec)[0], self.encoder.input_shape[1:])
        inputs.look(given, self.encoder.input_shape[1:])
        data = streams.to_predict(given, self.distribute_strategy.num_replicas_in_sync)
        with warnings.catch_warnings():
            if steps is None:
                # All of it is read, however many files are broken, or however long a generator is.
                warnings.filterwarnings("ignore", "Your input ran out of data")
            found = super().predict(data, verbose=verbose, steps=steps, callbacks=callbacks)
        features = found[0][found[1]] if isinstance(found, list | tuple) else found
        if steps is None:
            warn_of_left_out(given, len(features))
        return features

    def predict_on_batch(self, x: Any) -> Any:
        """`predict` of the arrays of a batch."""
        return self.predict(streams.one_batch(x), verbose=0)

    def predict_step(self, data: Any) -> Any:
        """Features of a batch of images, and whatever comes beside them as it is."""
        images, *beside = data if isinstance(data, tuple) else (data,)
        features = self(images, training=False)
        return (features, *beside) if beside else features

    def export(self, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        """As `keras.Model.export`, of `serving_encoder`: what it computes of images is what calling the model does."""
        return self.serving_encoder().export(filepath, *args, **kwargs)

    def save(self, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in Keras, to .keras files alone, which are written whole or not at all."""
        self._refuse_hdf5(filepath)  # before Keras opens the file
        self._write(super().save, ".keras", filepath, overwrite, *args, **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> None:
        """As in Keras; NAME.weights.h5 is written whole or not at all."""
        self._write(super().save_weights, ".weights.h5", filepath, overwrite, *args, **kwargs)

    def _write(
        self,
        write: Callable[..., None],
        ending: str,
        filepath: Any,
        overwrite: bool,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Has Keras write a local file of this ending under another name first; whatever else is asked for, as it does."""
        if not overwrite or args or kwargs or "://" in str(filepath) or not str(filepath).endswith(ending):
            write(filepath, overwrite, *args, **kwargs)
            return
        with written_whole(filepath, ending) as temporary:
            write(temporary)

    def get_config(self) -> dict[str, Any]:
        """As in Keras, for .keras files alone."""
        if compat.is_saved_to_hdf5():
            self._refuse_hdf5(".h5")
        return super().get_config()

    def _refuse_hdf5(self, filepath: Any) -> None:
        if str(filepath).endswith((".h5", ".hdf5")):
            raise ValueError(
                f"{type(self).__name__} is saved to NAME.keras, found an HDF5 file: choose that ending."
            )


def unit_range(images: Any) -> tf.Tensor:
    """Images that are not crops, uint8 or float in [0, 255], as the views take them: uint8, or float in [0, 1]."""
    images = tf.convert_to_tensor(images)
    return images if images.dtype == tf.uint8 else tf.cast(images, tf.float32) / 255.0
