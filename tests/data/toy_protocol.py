"""A protocol of one's own: the share of test images whose nearest class mean, in feature space, is that of their class."""

import numpy as np

from keras_sslhsic.evaluation import Result, Setting, metrics, register
from keras_sslhsic.evaluation.settings import positive


@register("toy", {"power": Setting(positive, "of the distances", default="2")})
def toy(train, labels, test, test_labels, power=2.0):
    means = np.stack([train[labels == label].mean(axis=0) for label in range(labels.max() + 1)])
    distances = np.sum(np.abs(test[:, None] - means) ** power, axis=-1)
    top1 = metrics.top_k(-distances, test_labels)
    interval, recipe = metrics.wilson_interval(top1, len(test)), {"power": power}
    return Result(value=top1, interval=interval, num_test=len(test), recipe=recipe)


def get_config():
    return {"power": 1.5}
