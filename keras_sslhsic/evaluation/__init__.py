"""Evaluations of a representation. Each needs only an encoder: a model or function from images to features."""

from keras_sslhsic.encoders import encoder_hash as encoder_hash
from keras_sslhsic.evaluation.depth import estimate_depth as estimate_depth
from keras_sslhsic.evaluation.detection import detect as detect
from keras_sslhsic.evaluation.extraction import extract_features as extract_features
from keras_sslhsic.evaluation.extraction import extract_labelled_features as extract_labelled_features
from keras_sslhsic.evaluation.fine_tuning import FinetuneRecipe as FinetuneRecipe
from keras_sslhsic.evaluation.fine_tuning import finetune as finetune
from keras_sslhsic.evaluation.images import Split as Split
from keras_sslhsic.evaluation.linear_evaluation import linear as linear
from keras_sslhsic.evaluation.linear_evaluation import linear_features as linear_features
from keras_sslhsic.evaluation.logistic import logistic_regression as logistic_regression
from keras_sslhsic.evaluation.maps import MapSplit as MapSplit
from keras_sslhsic.evaluation.neighbours import knn as knn
from keras_sslhsic.evaluation.protocol import PROTOCOLS as PROTOCOLS
from keras_sslhsic.evaluation.protocol import Protocol as Protocol
from keras_sslhsic.evaluation.protocol import register as register
from keras_sslhsic.evaluation.reporting import report as report
from keras_sslhsic.evaluation.results import Result as Result
from keras_sslhsic.evaluation.segmentation import segment as segment
from keras_sslhsic.evaluation.settings import Setting as Setting
from keras_sslhsic.evaluation.transfer_sets import TransferSet as TransferSet
from keras_sslhsic.evaluation.transfer_sets import transfer as transfer
from keras_sslhsic.evaluation.transfer_sets import transfer_finetune as transfer_finetune
