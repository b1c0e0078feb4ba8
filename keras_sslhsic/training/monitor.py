"""The metrics of the trainer, as they stand in the progress bar and the logs."""

from collections.abc import Collection, Mapping

import keras
import tensorflow as tf

AVERAGED = ("loss", "hsic_zy", "hsic_zz", "grad_norm", "feature_std", "effective_rank")
LATEST = ("kernel_scale", "tau", "learning_rate")
CLASSIFIER = ("classifier_loss", "online_accuracy")


class Monitor:
    """Means over an epoch of what varies from step to step, and the latest value of what moves slowly.

    Args:
        classifier: whether there is an online classifier to report on.
    """

    def __init__(self, classifier: bool):
        names = AVERAGED + (CLASSIFIER if classifier else ()) + LATEST
        self._metrics = {name: keras.metrics.Mean(name=name) for name in names}

    def update(self, terms: Mapping[str, tf.Tensor]) -> None:
        """Takes in the values of one step; what a step does not report stays as it is."""
        for name, metric in self._metrics.items():
            if name in terms:
                if name in LATEST:
                    metric.reset_state()
                metric.update_state(terms[name])

    def metrics(self, hidden: Collection[str] = ()) -> list[keras.metrics.Metric]:
        """The metrics, without those that the model has no use for."""
        return [metric for name, metric in self._metrics.items() if name not in hidden]
