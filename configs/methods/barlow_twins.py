"""Barlow Twins on ImageNet: ResNet-50, the settings of its authors. Not run by us.

Expected:  linear evaluation 73.2 % top-1 (Zbontar et al. 2021, table 1).
Source:    Zbontar et al. 2021, section 2.2.
Differs:   biases and normalisations have the learning rate of the weights, where the authors have 0.0048; the cosine
           ends at 0, where theirs ends at a thousandth.
Data:      as in configs/imagenet_r50_1x.py.
Command:   keras-sslhsic pretrain --config configs/methods/barlow_twins.py --workdir runs/barlow_twins
"""

from pathlib import Path

from ml_collections import ConfigDict

from keras_sslhsic import views
from keras_sslhsic.runs.config import load


def get_config() -> ConfigDict:
    """As configs/imagenet_r50_1x.py but for what is said here."""
    config = load(Path(__file__).parents[1] / "imagenet_r50_1x.py")
    with config.unlocked():
        config.name = config.method = "barlow_twins"
        config.epochs, config.batch_size = 1000, 2048
        config.model = {"projector_hidden": 8192, "projection_dim": 8192, "num_classes": 1000}
        config.views = views.byol(224).to_dict()
        config.loss = {"name": "barlow_twins", "redundancy": 0.0051}
        config.optimizer = {
            "name": "lars", "learning_rate": 0.2, "weight_decay": 1.5e-06, "warmup_epochs": 10,
        }  # fmt: skip
        del config.target_ema
    return config
