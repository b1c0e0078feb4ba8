"""SSL-HSIC for Keras: self-supervised learning with kernel dependence maximisation."""

import os as _os

# Everything here is written for TensorFlow; Keras reads this once, when it is first imported.
_backend = _os.environ.setdefault("KERAS_BACKEND", "tensorflow")
if _backend == "tensorflow":  # of another one that is not installed, Keras cannot be imported
    import keras as _keras

    _backend = _keras.backend.backend()
if _backend != "tensorflow":
    raise ImportError(
        f"keras_sslhsic needs the TensorFlow backend of Keras, and Keras runs on {_backend!r}: set the environment variable "
        "KERAS_BACKEND=tensorflow before Keras is imported."
    )
if _keras.config.image_data_format() != "channels_last":
    raise ImportError(
        "keras_sslhsic needs images with their channels last, and Keras is set to channels_first: set image_data_format to "
        "channels_last in ~/.keras/keras.json, or by keras.config.set_image_data_format."
    )

from keras_sslhsic import compat as _compat

_compat.warn_of_tensorflow()

from keras_sslhsic import analysis as analysis
from keras_sslhsic import callbacks as callbacks
from keras_sslhsic import data as data
from keras_sslhsic import evaluation as evaluation
from keras_sslhsic import hsic as hsic
from keras_sslhsic import losses as losses
from keras_sslhsic import methods as methods
from keras_sslhsic import plots as plots
from keras_sslhsic import views as views
from keras_sslhsic.encoders import build_encoder as build_encoder
from keras_sslhsic.export import export_saved_model as export_saved_model
from keras_sslhsic.methods import SSLHSIC as SSLHSIC
from keras_sslhsic.training.lars import LARS as LARS
from keras_sslhsic.training.strategy import strategy as strategy
from keras_sslhsic.version import __version__ as __version__
from keras_sslhsic.zoo import list_pretrained as list_pretrained
from keras_sslhsic.zoo import load_pretrained as load_pretrained
from keras_sslhsic.zoo import save_pretrained as save_pretrained
