"""The methods by their names."""

from keras_sslhsic.registries import Registry

METHODS: Registry[type] = Registry("method")
