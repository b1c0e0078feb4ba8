"""The training steps that are measured: whole, and with one of their parts left out.

What a part costs is the time of the whole step less the time of the step without it: inside one compiled
program the parts overlap, and no clock can be put between them.
"""

import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import tensorflow as tf

import keras_sslhsic
from keras_sslhsic import losses, views
from keras_sslhsic.encoders import Architecture
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.runs import config as configs
from keras_sslhsic.runs.build import build_model
from keras_sslhsic.training import ema

PARTS = ("views", "loss", "optimizer", "ema", "target")
MODELS = ("tiny", "tiny7", "tiny_local", "tiny_swav", "small", "small_byol", "r50", "r50_local", "r50_byol")


def build(name: str, batch_size: int, without: str | None = None, precision: str = "float32"):
    """Builds a trainer and its step.

    Args:
        name: "tiny" (r18 of a quarter of the width, 20-pixel views of 24-pixel images: for checks), "tiny7" (four
            bottlenecks after the 7x7 stem, 40-pixel views of 48-pixel images), "small" (the model of
            configs/fashion_small.py) or "r50" (ResNet-50, BYOL's views at 224 of 256-pixel images, heads of 4096
            and 256, LARS: the paper's). With "_byol", BYOL of these two by SGD, without online classifier and weight
            average, as peers_torch.py trains it. With "_local", six small views are beside the two of "tiny" and "r50",
            as SwAV's authors have them; "tiny_swav" is SwAV with these.
        batch_size: images of a batch, on one replica.
        without: the part to leave out, one of `PARTS`, or None.
        precision: Keras' dtype policy.

    Returns:
        (model, step, batch): the compiled `SSLHSIC`, its step {name: tensor} -> {name: scalar}, and the specs of
        the batch that it takes.
    """
    if without not in (None, *PARTS):
        raise ValueError(f"without must be one of {', '.join(PARTS)}, found {without!r}.")
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(precision)
    made = {"tiny": _tiny, "tiny7": _tiny7, "small": _small, "r50": _r50, "r50_local": _r50_local}
    made |= {
        "tiny_local": _tiny_local,
        "tiny_swav": _tiny_swav,
        "small_byol": _small_byol,
        "r50_byol": _r50_byol,
    }
    model, batch = made[name](batch_size, without != "target")
    if without == "optimizer":
        model.compile(_NoUpdate(0.0, name="no_update"), loss=model.objective)
    if without == "loss":
        model.compile(model.optimizer, loss=_NoLoss())
    if without == "views":
        model._views = _resized(model.policy)
    return model, _step_without_averages(model) if without == "ema" else model.train_step, batch


def _tiny(batch_size, target, size=20, encoder=None, policy=None):
    shape = None if policy else (size, size, 3)
    encoder = encoder or keras_sslhsic.build_encoder("r18_1x", input_shape=shape, stem="small", width=0.25)
    model = keras_sslhsic.SSLHSIC(encoder, 64, 32, target=target, views=policy or views.byol(size))
    model.compile(keras_sslhsic.LARS(0.4), loss=keras_sslhsic.losses.SSLHSICLoss(num_features=64))
    side = size * 6 // 5
    return model, {"image": tf.TensorSpec([batch_size, side, side, 3], tf.uint8)}


def _tiny7(batch_size, target):
    shape = Architecture((1, 1, 1, 1), (64, 128, 256, 512), bottleneck=True, stem_channels=16)
    return _tiny(batch_size, target, 40, resnet(shape, (40, 40, 3), "imagenet"))


def _small(batch_size, target):
    path = Path(__file__).parents[1] / "configs" / "fashion_small.py"
    config = configs.completed(configs.read(path))
    config.precision, config.model.target = keras.config.dtype_policy().name, target
    model = build_model(config, 78, tf.distribute.get_strategy())
    image = tf.TensorSpec([batch_size, 28, 28, 1], tf.uint8)
    return model, {"image": image, "label": tf.TensorSpec([batch_size], tf.int32)}


def _tiny_local(batch_size, target):
    return _tiny(batch_size, target, policy=views.multi_crop(20, 12))


def _tiny_swav(batch_size, target):
    encoder = keras_sslhsic.build_encoder("r18_1x", stem="small", width=0.25)
    model = keras_sslhsic.methods.SwAV(encoder, 64, 32, views=views.multi_crop(20, 12))
    model.compile(keras_sslhsic.LARS(0.4), loss=keras_sslhsic.losses.SwAVLoss(num_prototypes=30))
    return model, {"image": tf.TensorSpec([batch_size, 24, 24, 3], tf.uint8)}


def _r50(batch_size, target, policy=None):
    encoder = keras_sslhsic.build_encoder("r50_1x", input_shape=None if policy else (224, 224, 3))
    model = keras_sslhsic.SSLHSIC(encoder, target=target, views=policy or "byol")
    model.compile(keras_sslhsic.LARS(0.4))
    return model, {"image": tf.TensorSpec([batch_size, 256, 256, 3], tf.uint8)}


def _r50_local(batch_size, target):
    return _r50(batch_size, target, "multi_crop")


def _small_byol(batch_size, target):
    encoder = keras_sslhsic.build_encoder("r18_1x", input_shape=(28, 28, 1), stem="imagenet", width=0.5)
    return _byol(encoder, 1024, views.grayscale(28), target), {
        "image": tf.TensorSpec([batch_size, 28, 28, 1], tf.uint8)
    }


def _r50_byol(batch_size, target):
    encoder = keras_sslhsic.build_encoder("r50_1x", input_shape=(224, 224, 3))
    return _byol(encoder, 4096, "byol", target), {"image": tf.TensorSpec([batch_size, 256, 256, 3], tf.uint8)}


def _byol(encoder, hidden, policy, target):
    model = keras_sslhsic.methods.BYOL(encoder, hidden, 256, target=target, views=policy)
    model.compile(keras.optimizers.SGD(0.01, 0.9, weight_decay=1e-6))
    return model


class _NoUpdate(keras.optimizers.Optimizer):
    """Leaves the variables as they are; the step's gradient norm keeps the gradients in the program."""

    def update_step(self, gradient, variable, learning_rate):
        pass


class _NoLoss(losses.Objective):
    """A linear function of the outputs, whose gradient reaches all of the network."""

    needs_target = needs_predictor = None

    def terms(self, hiddens, seed):
        z = hiddens.online
        weights = tf.linspace(-1.0, 1.0, z.shape[-1])
        return {"loss": tf.reduce_mean(z[:, 0] * weights) - tf.reduce_mean(z[:, 1] * weights)}


def _resized(policy) -> Callable:
    """Views that are the images' centres."""

    def make_views(images, seed, size):
        images = views.prepare(images, policy)
        top, left = ((side - policy.size) // 2 for side in images.shape[1:3])
        return (images[:, top : top + policy.size, left : left + policy.size],) * 2

    return make_views


def _step_without_averages(model) -> Callable:
    def step(data):
        with mock.patch.object(ema, "update"):
            return model.train_step(data)

    return step


def random_batch(batch: dict[str, tf.TensorSpec]) -> dict[str, tf.Tensor]:
    """A batch of uniformly random pixels, and labels 0 to 9."""
    highest = {"image": 256, "label": 10}
    return {
        name: tf.cast(
            tf.random.stateless_uniform(spec.shape, [0, 1], 0, highest[name], tf.int32, "philox"), spec.dtype
        )
        for name, spec in batch.items()
    }
