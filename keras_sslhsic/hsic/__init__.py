"""HSIC and its estimators, on tensors alone."""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from keras_sslhsic.hsic import features as features
from keras_sslhsic.hsic import kernels as kernels
from keras_sslhsic.hsic import ratio as ratio
from keras_sslhsic.hsic import replicas as replicas
from keras_sslhsic.hsic.estimators import hsic as hsic
from keras_sslhsic.hsic.estimators import hsic_zy as hsic_zy
from keras_sslhsic.hsic.estimators import hsic_zy_features as hsic_zy_features
from keras_sslhsic.hsic.estimators import hsic_zz as hsic_zz
from keras_sslhsic.hsic.estimators import hsic_zz_features as hsic_zz_features
from keras_sslhsic.hsic.estimators import ssl_hsic as ssl_hsic

if TYPE_CHECKING:
    from keras_sslhsic.hsic import spectral as spectral


def __getattr__(name: str) -> ModuleType:
    # TensorFlow Probability takes a second to import: it is there when frequencies are drawn or asked for.
    if name == "spectral":
        return importlib.import_module("keras_sslhsic.hsic.spectral")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
