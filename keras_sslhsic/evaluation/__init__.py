"""Evaluations of a representation. Each needs only an encoder: a model or function from images to vectors."""

from keras_sslhsic.evaluation.features import encoder_hash, extract_features, extract_labelled_features
from keras_sslhsic.evaluation.knn import KNNResult, knn
from keras_sslhsic.evaluation.linear import LinearResult, linear_features
from keras_sslhsic.evaluation.results import Result

__all__ = [
    "KNNResult",
    "LinearResult",
    "Result",
    "encoder_hash",
    "extract_features",
    "extract_labelled_features",
    "knn",
    "linear_features",
]
