"""The views as a Keras layer, for use inside a model or a tf.data pipeline."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic.views import policy as policies


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class TwoViews(keras.layers.Layer):
    """Makes the views of a batch of images, two unless the policy says otherwise.

    Each call draws anew, and each replica of a `tf.distribute` strategy draws for itself. The layer computes
    in float32 whatever the mixed precision policy is.

    Args:
        policy: a `ViewPolicy` or what `views.get` takes.
        seed: int, where the layer's own sequence of draws begins.
        **kwargs: of `keras.layers.Layer`.

    Example:
        >>> layer = TwoViews("grayscale", seed=0)
        >>> view1, view2 = layer(tf.zeros([8, 28, 28, 1], tf.uint8))
        >>> dataset = tf.data.Dataset.from_tensors(tf.zeros([8, 28, 28, 1], tf.uint8)).map(layer)
    """

    def __init__(
        self, policy: str | policies.ViewPolicy | Mapping[str, Any] = "byol", seed: int = 0, **kwargs
    ):
        super().__init__(**{"dtype": "float32", "autocast": False, **kwargs})
        self.policy = policies.get(policy)
        self.seed = seed
        self._generator = keras.random.SeedGenerator(seed)

    def call(self, images: tf.Tensor, seed: tf.Tensor | None = None) -> tuple[tf.Tensor, ...]:
        """Makes the views.

        Args:
            images: [B, H, W, C], uint8 or float in [0, 1].
            seed: int [2]; the same seed gives the same views. If None, the next one of the layer's own.

        Returns:
            One float32 [B, size, size, C] a view, normalised.
        """
        if seed is None:
            seed = tf.cast(self._generator.next(), tf.int32)
            replica = tf.distribute.get_replica_context()
            if replica is not None:
                seed = tf.random.fold_in(seed, replica.replica_id_in_sync_group, alg="philox")
        return policies.make_views(images, self.policy, seed)

    def compute_output_shape(self, input_shape):
        """One (B, size, size, C) a view."""
        size = self.policy.size
        return ((input_shape[0], size, size, input_shape[-1]),) * self.policy.num_views

    def get_config(self) -> dict[str, Any]:
        """What `from_config` needs."""
        return {**super().get_config(), "policy": self.policy.to_dict(), "seed": self.seed}
