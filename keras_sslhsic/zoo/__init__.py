"""Pretrained encoders: loading, converting, saving, exporting and using them.

The commands of the command line are `convert.convert`, `export.export`, `extract.extract` and
`registry.format_table`.
"""

from keras_sslhsic.zoo.card import save_pretrained
from keras_sslhsic.zoo.export import export_litert, export_onnx, export_saved_model
from keras_sslhsic.zoo.pretrained import load_pretrained
from keras_sslhsic.zoo.registry import Entry, list_pretrained

__all__ = [
    "Entry",
    "export_litert",
    "export_onnx",
    "export_saved_model",
    "list_pretrained",
    "load_pretrained",
    "save_pretrained",
]
