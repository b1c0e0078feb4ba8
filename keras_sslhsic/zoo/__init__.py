"""Pretrained encoders: loading, converting, saving and using them.

The commands of the command line are `convert.convert`, `extract.extract` and `registry.format_table`.
"""

from keras_sslhsic.zoo.load import load_pretrained
from keras_sslhsic.zoo.registry import Entry, list_pretrained
from keras_sslhsic.zoo.save import save_pretrained

__all__ = ["Entry", "list_pretrained", "load_pretrained", "save_pretrained"]
