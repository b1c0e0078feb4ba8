"""HSIC and its estimators, on tensors alone."""

from keras_sslhsic.hsic import features as features
from keras_sslhsic.hsic import kernels as kernels
from keras_sslhsic.hsic import ratio as ratio
from keras_sslhsic.hsic import replicas as replicas
from keras_sslhsic.hsic import spectral as spectral
from keras_sslhsic.hsic.estimators import hsic as hsic
from keras_sslhsic.hsic.estimators import hsic_zy as hsic_zy
from keras_sslhsic.hsic.estimators import hsic_zy_features as hsic_zy_features
from keras_sslhsic.hsic.estimators import hsic_zz as hsic_zz
from keras_sslhsic.hsic.estimators import hsic_zz_features as hsic_zz_features
from keras_sslhsic.hsic.estimators import ssl_hsic as ssl_hsic
