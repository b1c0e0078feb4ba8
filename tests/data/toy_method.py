"""A method of one's own, and a config that trains it: keras-sslhsic pretrain --config tests/data/toy_method.py --workdir toy"""

from pathlib import Path

import tensorflow as tf

from keras_sslhsic import losses, methods
from keras_sslhsic.runs.config import load


@losses.register("toy_spread")
class ToySpread(losses.Objective):
    """Views of an image attract each other, and every dimension keeps a standard deviation of 1."""

    def terms(self, hiddens, seed):
        apart = tf.reduce_mean(tf.math.reduce_variance(hiddens.online, axis=1))
        narrow = tf.reduce_mean(tf.nn.relu(1.0 - tf.math.reduce_std(hiddens.online, axis=0)))
        return {"loss": apart + narrow, "apart": apart, "narrow": narrow}


@methods.register("toy")
class Toy(methods.Method):
    """Projections of the views, side by side: no target, no predictor."""

    default_loss = ToySpread


def get_config():
    """The default run with this method."""
    config = load(Path(__file__).parents[2] / "configs" / "fashion_small.py")
    with config.unlocked():
        config.method, config.loss = "toy", {"name": "toy_spread"}
        del config.model.target
    return config
