"""Losses of self-supervised learning: SSL-HSIC and, for comparison, InfoNCE."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic.hsic import features, kernels
from keras_sslhsic.hsic.estimators import check_views, hsic_zy_features, hsic_zz_features, sqrt_or_zero
from keras_sslhsic.hsic import replicas


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class SSLHSICLoss(keras.losses.Loss):
    """-hsic_zy + gamma sqrt(hsic_zz)."""

    def __init__(self, kernel: Any = "imq", gamma: float = 3.0, num_features: int | None = 512,
                 convention: str = "paper", seed: int = 0, name: str = "ssl_hsic", **kwargs):
        super().__init__(name=name, **kwargs)
        self.kernel = kernels.get(kernel)
        self.gamma = gamma
        self.num_features = num_features
        self.convention = convention
        self.seed = seed

    def draws(self, dim: int, seed: tf.Tensor, scale: Any):
        """Returns the (frequencies, phases) of hsic_zy and of the second draw of hsic_zz."""
        kernel = self.kernel.with_scale(scale)
        first, second = tf.unstack(tf.random.split(seed, 2, alg="philox"))
        return (features.draw(kernel, dim, self.num_features, first),
                features.draw(kernel, dim, self.num_features, second))

    def terms(self, z: tf.Tensor, seed: tf.Tensor, scale: Any = None) -> dict[str, tf.Tensor]:
        z = tf.cast(z, tf.float32)
        check_views(z)
        scale = tf.stop_gradient(tf.cast(tf.convert_to_tensor(self.kernel.scale if scale is None else scale), tf.float32))
        first, second = self.draws(z.shape[-1], seed, scale)
        r = features.random_fourier_features(z, *first)
        r2 = features.random_fourier_features(z, *second)
        released = self.convention == "released"
        zy = hsic_zy_features(r, constant=not released)
        zz = hsic_zz_features(r, r2, minus_one=not released)
        return {"loss": self.gamma * sqrt_or_zero(zz) - zy, "hsic_zy": zy, "hsic_zz": zz}


@keras.saving.register_keras_serializable(package="keras_sslhsic")
class InfoNCELoss(keras.losses.Loss):
    """InfoNCE."""

    def __init__(self, temperature: float = 0.1, name: str = "info_nce", **kwargs):
        super().__init__(name=name, **kwargs)
        self.temperature = temperature

    def terms(self, z: tf.Tensor, seed: tf.Tensor = None, scale: Any = None) -> dict[str, tf.Tensor]:
        """Returns {"loss": scalar}."""
        z = tf.cast(z, tf.float32)
        batch, views, dim = check_views(z)
        rows = tf.reshape(z, [-1, dim])
        every = replicas.all_gather(rows)
        context = tf.distribute.get_replica_context()
        first = 0 if context is None else context.replica_id_in_sync_group * batch
        image = tf.repeat(tf.range(batch) + first, views)
        image_all = tf.repeat(tf.range(batch * replicas.num_replicas()), views)
        logits = tf.matmul(rows, every, transpose_b=True) / self.temperature
        positive = image[:, None] == image_all[None, :]
        index = tf.range(batch * views) + first * views
        itself = index[:, None] == tf.range(tf.shape(every)[0])[None, :]
        negatives = tf.where(itself, -1e9, logits)
        normaliser = tf.reduce_logsumexp(negatives, axis=1)
        mask = tf.cast(positive & ~itself, tf.float32)
        mean_positive = tf.reduce_sum(mask * logits, axis=1) / (views - 1)
        return {"loss": replicas.all_sum(tf.reduce_mean(normaliser - mean_positive)) / replicas.num_replicas()}
