"""Methods: which networks there are, and how views become what a loss compares."""

from keras_sslhsic.methods.base import METHODS as METHODS
from keras_sslhsic.methods.base import Method as Method
from keras_sslhsic.methods.base import register as register
from keras_sslhsic.methods.ssl_hsic import SSLHSIC as SSLHSIC
