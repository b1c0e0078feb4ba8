"""What is loaded to be trained can be trained, also from files of frozen encoders."""

import keras
import numpy as np

import keras_sslhsic
from keras_sslhsic.evaluation.fine_tuning import _Classifier


def test_bundled_weights_are_frozen_or_trainable_as_asked():
    assert keras_sslhsic.load_pretrained("r18_fashion").trainable_variables == []
    encoder = keras_sslhsic.load_pretrained("r18_fashion", trainable=True)
    norms = sum(isinstance(layer, keras.layers.BatchNormalization) for layer in encoder._flatten_layers())
    everything = len(encoder.trainable_variables)
    assert everything == 63 and norms == 21
    kept = keras_sslhsic.load_pretrained("r18_fashion", trainable=True, freeze_batch_norm=True)
    assert len(kept.trainable_variables) == everything - 2 * norms


def test_fine_tuning_reaches_an_encoder_that_was_loaded_frozen():
    encoder = keras_sslhsic.load_pretrained("r18_fashion")
    classifier = _Classifier(encoder, 10, None, several=False)
    classifier(np.zeros((1, 28, 28, 1), np.uint8))
    assert len(classifier.trainable_variables) == 63 + 2
