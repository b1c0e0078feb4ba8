"""Encoders and heads."""

from keras_sslhsic.networks.heads import predictor, projector
from keras_sslhsic.networks.preprocess import with_preprocessing
from keras_sslhsic.networks.resnet import ARCHITECTURES, Architecture, build_encoder, resnet

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "build_encoder",
    "predictor",
    "projector",
    "resnet",
    "with_preprocessing",
]
