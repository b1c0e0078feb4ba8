"""The online classifier: a linear layer on stopped features, to watch training by where there are labels."""

import keras
import tensorflow as tf

from keras_sslhsic.hsic import replicas


def linear_classifier(features: int, num_classes: int) -> keras.Model:
    """Builds the layer: float [B, features] to float32 logits [B, num_classes]."""
    layers = [keras.Input((features,)), keras.layers.Dense(num_classes, dtype="float32")]
    return keras.Sequential(layers, name="classifier")


def classify(classifier: keras.Model, features: tf.Tensor, labels: tf.Tensor) -> dict[str, tf.Tensor]:
    """Mean cross-entropy, "classifier_loss", and "online_accuracy" on the local batch, float32 scalars.

    Args:
        classifier: the layer.
        features: [B, F]; they get no gradient.
        labels: int32 [B]; those outside of the classes are taken for the nearest.
    """
    logits = classifier(tf.stop_gradient(features))
    last = logits.shape[-1] - 1
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.clip_by_value(labels, 0, last), logits=logits
    )
    correct = tf.cast(tf.equal(tf.argmax(logits, -1, output_type=labels.dtype), labels), tf.float32)
    return {"classifier_loss": tf.reduce_mean(cross_entropy), "online_accuracy": tf.reduce_mean(correct)}


def any_outside(labels: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Whether a label of any replica, int32 [B], is outside of the classes; bool []."""
    outside = tf.reduce_any((labels < 0) | (labels >= num_classes))
    return replicas.all_sum(tf.cast(outside, tf.float32)) > 0.0
