"""
Title: Image representations without labels by SSL-HSIC
Author: The keras_sslhsic authors
Date created: 2026/11/29
Last modified: 2026/11/29
Description: Pretraining with kernel dependence maximisation, and a classifier from few labels.
Accelerator: GPU
"""

"""
## Introduction

Labels are expensive, images are not. Self-supervised learning trains an encoder on images alone, and needs labels
afterwards, for the little that is left to learn. SSL-HSIC
([Li, Pogodin, Sutherland and Gretton, 2021](https://arxiv.org/abs/2106.08320)) makes several random views of each image, and
asks that the encoder's outputs depend on *which image* they came from, and on nothing else. Dependence is measured by the
Hilbert-Schmidt independence criterion of a kernel, estimated on a batch with random features:

$$
\\mathcal{L} = -\\mathrm{HSIC}(Z, Y) + \\gamma \\sqrt{\\mathrm{HSIC}(Z, Z)}
$$

The first term draws views of one image together and those of different images apart; the second keeps the outputs from being
larger or more entangled than that takes.

This example pretrains a small ResNet on 10,000 images of garments, and fine-tunes it on 100 labels, beside the same
network from random weights.

## Setup
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

import keras_sslhsic
from keras_sslhsic import data, views

keras.utils.set_random_seed(0)
EPOCHS = 2 if os.environ.get("KERAS_SSLHSIC_FAST") == "1" else 20
NUMBER = 1_000 if os.environ.get("KERAS_SSLHSIC_FAST") == "1" else 10_000
LABELLED = 100

"""
## Images

A balanced part of Fashion-MNIST comes with the package. Pixels are uint8 in [0, 255], here and everywhere; the labels wait.
"""

(x_train, y_train), (x_test, y_test) = data.bundled.load()
images = x_train[:NUMBER]
print(images.shape, images.dtype)

"""
## Views

What the views have in common is what the encoder learns. Garments are told by their outline, so crops are large, keep their
shape and are not mirrored, while brightness and contrast change a lot.
"""

policy = views.ViewPolicy(
    size=28,
    crop=views.Crop(area=(0.7, 1.0), aspect=(0.9, 1.11), method="bilinear"),
    flip=0.0,
    jitter=views.ColorJitter(probability=1.0, brightness=0.3, contrast=0.8, saturation=0.0, hue=0.0),
    grayscale=0.0,
    blur=views.Blur(probability=(0.5, 0.1)),
    solarize=views.Solarize(probability=(0.0, 0.0)),
    mean=(0.286,),
    std=(0.353,),
)

"""
## The model

An encoder, and around it what only the training needs: a projector, a predictor, and a target network that follows as a moving
average. The trainer is a `keras.Model`; `compile` takes any Keras optimizer.
"""

steps = EPOCHS * (NUMBER // 128)
encoder = keras_sslhsic.build_encoder("r18_1x", input_shape=(None, None, 1), width=0.5, stem="imagenet")
keras_sslhsic.save_pretrained(
    keras_sslhsic.SSLHSIC(encoder, 1024, 256, views=policy), "untrained", name="untrained"
)
model = keras_sslhsic.SSLHSIC(
    encoder, projector_hidden=1024, projection_dim=256, views=policy, weight_ema=0.99
)
model.compile(
    keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(
            0.0, steps - steps // 20, warmup_target=4e-3, warmup_steps=steps // 20
        ),
        weight_decay=0.0,
    ),
    loss=keras_sslhsic.losses.SSLHSICLoss(gamma=5.0),
)

"""
## Training

`feature_std` is near 1 while the outputs are spread, and falls to 0 if they collapse. `dependence_ratio`, the first term over
the root of the second, says how well views agree and images differ: it rises.
"""

history = model.fit(
    images, batch_size=128, epochs=EPOCHS, callbacks=[keras_sslhsic.callbacks.TargetEMA(0.99)], verbose=2
)

"""
## A classifier from 100 labels

`save_pretrained` keeps the encoder with its normalisation. Loaded again it is a Keras model from pixels to features: put a
layer on top, and train both.
"""

keras_sslhsic.save_pretrained(model, "pretrained", name="pretrained")
chosen = np.concatenate([np.flatnonzero(y_train == label)[: LABELLED // 10] for label in range(10)])


def accuracy_of(name: str) -> float:
    """Test accuracy of an encoder that is fine-tuned on the chosen labels."""
    keras.utils.set_random_seed(0)
    backbone = keras_sslhsic.load_pretrained(name, trainable=True)
    classifier = keras.Sequential([backbone, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    classifier.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    classifier.fit(x_train[chosen], y_train[chosen], batch_size=25, epochs=EPOCHS, verbose=0)
    return classifier.evaluate(x_test, y_test, verbose=0)[1]


accuracy = {name: accuracy_of(f"./{name}") for name in ("pretrained", "untrained")}
print({name: f"{100 * value:.1f} %" for name, value in accuracy.items()})

"""
## Further

- The same from the command line, with what suits your images chosen for you:
  `keras-sslhsic pretrain --data FOLDER --workdir runs/a`.
- `keras_sslhsic.methods` has BYOL, SimCLR, MoCo, SwAV, Barlow Twins, VICReg, SimSiam and LeJEPA: replace `SSLHSIC` by one of
  them, and leave the rest.
- `keras_sslhsic.export_saved_model(model, "served/1")` writes what answers requests.
"""
