"""HSIC and its estimators, on tensors alone."""

from keras_sslhsic.hsic import estimators as estimators
from keras_sslhsic.hsic import features as features
from keras_sslhsic.hsic import kernels as kernels
from keras_sslhsic.hsic import replicas as replicas
from keras_sslhsic.hsic import spectral as spectral
