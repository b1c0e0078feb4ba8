"""Losses of self-supervised learning.

Each is a `keras.losses.Loss`, for `model.compile(loss=...)` with image identities as `y_true`, and has a method `terms` for a
training step, which holds the views of each image together and wants each term.
"""

from keras_sslhsic.losses.base import LOSSES as LOSSES
from keras_sslhsic.losses.base import Hiddens as Hiddens
from keras_sslhsic.losses.base import get as get
from keras_sslhsic.losses.base import unit_norm as unit_norm
from keras_sslhsic.losses.info_nce import InfoNCELoss as InfoNCELoss
from keras_sslhsic.losses.ssl_hsic import SSLHSICLoss as SSLHSICLoss
