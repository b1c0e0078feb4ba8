"""SSL-HSIC for Keras: self-supervised learning with kernel dependence maximisation."""

from keras_sslhsic.version import __version__

__all__ = ["__version__"]
