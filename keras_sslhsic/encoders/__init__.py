"""Encoders and heads."""

from keras_sslhsic.encoders.base import Encoder as Encoder
from keras_sslhsic.encoders.base import encoder_of as encoder_of
from keras_sslhsic.encoders.base import network_to_train as network_to_train
from keras_sslhsic.encoders.base import with_preprocessing as with_preprocessing
from keras_sslhsic.encoders.checks import check_images as check_images
from keras_sslhsic.encoders.heads import Head as Head
from keras_sslhsic.encoders.heads import build_head as build_head
from keras_sslhsic.encoders.identity import encoder_hash as encoder_hash
from keras_sslhsic.encoders.resnet import ARCHITECTURES as ARCHITECTURES
from keras_sslhsic.encoders.resnet import Architecture as Architecture
from keras_sslhsic.encoders.resnet import build_encoder as build_encoder
from keras_sslhsic.encoders.spec import EncoderSpec as EncoderSpec
from keras_sslhsic.encoders.spec import Stage as Stage
