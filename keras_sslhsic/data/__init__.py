"""Images to train on: arrays, folders, TensorFlow Datasets, and a small data set inside the package."""

from keras_sslhsic.data import bundled as bundled
from keras_sslhsic.data.arrays import from_arrays as from_arrays
from keras_sslhsic.data.broken import BrokenFiles as BrokenFiles
from keras_sslhsic.data.broken import TooManyBrokenFiles as TooManyBrokenFiles
from keras_sslhsic.data.decode import DecodeError as DecodeError
from keras_sslhsic.data.folder import from_folder as from_folder
from keras_sslhsic.data.images import Images as Images
from keras_sslhsic.data.inspect import Report as Report
from keras_sslhsic.data.inspect import inspect_folder as inspect_folder
from keras_sslhsic.data.order import Order as Order
from keras_sslhsic.data.tfds import from_tfds as from_tfds
