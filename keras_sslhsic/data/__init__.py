"""Input pipelines: from arrays, image folders and TensorFlow Datasets, and a small data set inside the package."""

from keras_sslhsic.data import bundled
from keras_sslhsic.data.arrays import from_arrays
from keras_sslhsic.data.order import Order

__all__ = ["Order", "bundled", "from_arrays"]
