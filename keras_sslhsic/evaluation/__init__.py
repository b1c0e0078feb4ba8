"""Evaluations of a representation. Each needs only an encoder: a model or function from images to vectors."""

from keras_sslhsic.encoders import encoder_hash
from keras_sslhsic.evaluation.benchmark import benchmark_bundled, compare
from keras_sslhsic.evaluation.extraction import extract_features, extract_labelled_features
from keras_sslhsic.evaluation.finetune import FinetuneRecipe, FinetuneResult, finetune
from keras_sslhsic.evaluation.images import Images
from keras_sslhsic.evaluation.knn import KNNResult, knn
from keras_sslhsic.evaluation.linear import LinearResult, linear, linear_features
from keras_sslhsic.evaluation.logistic import LogisticResult, logistic_regression
from keras_sslhsic.evaluation.protocols import PROTOCOLS, evaluate
from keras_sslhsic.evaluation.report import report
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.splits import labelled_splits
from keras_sslhsic.evaluation.transfer import TransferSet, transfer, transfer_finetune

__all__ = [
    "PROTOCOLS",
    "FinetuneRecipe",
    "FinetuneResult",
    "Images",
    "KNNResult",
    "LinearResult",
    "LogisticResult",
    "Result",
    "TransferSet",
    "benchmark_bundled",
    "compare",
    "encoder_hash",
    "evaluate",
    "extract_features",
    "extract_labelled_features",
    "finetune",
    "knn",
    "labelled_splits",
    "linear",
    "linear_features",
    "logistic_regression",
    "report",
    "transfer",
    "transfer_finetune",
]
