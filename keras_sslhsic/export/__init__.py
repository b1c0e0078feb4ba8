"""Encoders for serving: SavedModel, LiteRT and ONNX files that run without this package."""

from keras_sslhsic.export.formats import write
from keras_sslhsic.export.litert import export_litert
from keras_sslhsic.export.onnx import export_onnx
from keras_sslhsic.export.saved_model import export_saved_model

__all__ = ["export_litert", "export_onnx", "export_saved_model", "write"]
