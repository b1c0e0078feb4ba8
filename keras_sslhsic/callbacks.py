"""Callbacks for `model.fit`."""

from keras_sslhsic.evaluation.probes import Evaluate as Evaluate
from keras_sslhsic.evaluation.probes import KNNProbe as KNNProbe
from keras_sslhsic.evaluation.probes import LinearProbe as LinearProbe
from keras_sslhsic.training.callbacks import StopOnFault as StopOnFault
from keras_sslhsic.training.callbacks import TargetEMA as TargetEMA
from keras_sslhsic.training.callbacks import ViewSizes as ViewSizes
from keras_sslhsic.training.callbacks import WatchCollapse as WatchCollapse
from keras_sslhsic.training.callbacks import WatchRate as WatchRate
from keras_sslhsic.training.callbacks import WeightEMA as WeightEMA
from keras_sslhsic.training.checkpoint import Checkpoint as Checkpoint
from keras_sslhsic.training.progress import Progress as Progress
