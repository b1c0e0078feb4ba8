"""Encoders and heads."""

from keras_sslhsic.encoders.heads import predictor as predictor
from keras_sslhsic.encoders.heads import projector as projector
from keras_sslhsic.encoders.preprocess import with_preprocessing as with_preprocessing
from keras_sslhsic.encoders.resnet import ARCHITECTURES as ARCHITECTURES
from keras_sslhsic.encoders.resnet import Architecture as Architecture
from keras_sslhsic.encoders.resnet import build_encoder as build_encoder
from keras_sslhsic.encoders.resnet import resnet as resnet
