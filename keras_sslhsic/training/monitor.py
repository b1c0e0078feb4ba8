"""The metrics of the trainer, as they stand in the progress bar and the logs."""

from collections.abc import Mapping

import keras
import tensorflow as tf

AVERAGED = (
    "loss",
    "hsic_zy",
    "hsic_zz",
    "dependence_ratio",
    "grad_norm",
    "feature_std",
    "effective_rank",
    "classifier_loss",
    "online_accuracy",
)
LATEST = ("kernel_scale", "tau", "learning_rate")


class Monitor:
    """Means over an epoch of what varies from step to step, and the latest value of what moves slowly."""

    def __init__(self) -> None:
        self.metrics = {name: keras.metrics.Mean(name=name) for name in AVERAGED + LATEST}

    def update(self, terms: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Takes in the values of one step; returns the results so far of what it reports."""
        reported = {name: metric for name, metric in self.metrics.items() if name in terms}
        for name, metric in reported.items():
            if name in LATEST:
                metric.reset_state()
            metric.update_state(terms[name])
        return {name: metric.result() for name, metric in reported.items()}

    def results(self) -> dict[str, tf.Tensor]:
        """The results of what the steps have reported since the metrics were reset; eager."""
        return {name: metric.result() for name, metric in self.metrics.items() if metric.count.numpy() > 0}
