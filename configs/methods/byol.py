"""BYOL on ImageNet: ResNet-50, the settings of its authors. Not run by us.

Expected:  linear evaluation 74.3 % top-1 (Grill et al. 2020, table 1).
Source:    Grill et al. 2020, section 3.2 and appendix J.
Differs:   nothing that we know of.
Data:      as in configs/imagenet_r50_1x.py.
Command:   keras-sslhsic pretrain --config configs/methods/byol.py --workdir runs/byol
"""

from pathlib import Path

from ml_collections import ConfigDict

from keras_sslhsic import views
from keras_sslhsic.runs.config import load


def get_config() -> ConfigDict:
    """As configs/imagenet_r50_1x.py but for what is said here."""
    config = load(Path(__file__).parents[1] / "imagenet_r50_1x.py")
    with config.unlocked():
        config.name = config.method = "byol"
        config.epochs, config.batch_size = 1000, 4096
        config.model = {"projector_hidden": 4096, "projection_dim": 256, "num_classes": 1000}
        config.views = views.byol(224).to_dict()
        config.loss = {"name": "byol"}
        config.optimizer = {
            "name": "lars", "learning_rate": 0.2, "weight_decay": 1.5e-06, "warmup_epochs": 10,
        }  # fmt: skip
        config.target_ema = 0.996
    return config
