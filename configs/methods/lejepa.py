"""LeJEPA on ImageNet: ResNet-50, the settings of its authors. Not run by us.

Expected:  unknown: the authors report larger networks, and views of two sizes.
Source:    Balestriero and LeCun 2025: weight, slices, quadrature, AdamW with its weight decay; the rate is for a batch of 256.
Differs:   two views of 224 pixels alone; 100 epochs, one size of head and the views of BYOL are our choice.
Data:      as in configs/imagenet_r50_1x.py.
Command:   keras-sslhsic pretrain --config configs/methods/lejepa.py --workdir runs/lejepa
"""

from pathlib import Path

from ml_collections import ConfigDict

from keras_sslhsic import views
from keras_sslhsic.runs.config import load


def get_config() -> ConfigDict:
    """As configs/imagenet_r50_1x.py but for what is said here."""
    config = load(Path(__file__).parents[1] / "imagenet_r50_1x.py")
    with config.unlocked():
        config.name = config.method = "lejepa"
        config.epochs, config.batch_size = 100, 256
        config.model = {"projector_hidden": 2048, "projection_dim": 64, "num_classes": 1000}
        config.views = views.byol(224).to_dict()
        config.loss = {"name": "lejepa", "weight": 0.05, "num_slices": 1024, "knots": 17, "limit": 5.0}
        config.optimizer = {
            "name": "adamw", "learning_rate": 0.0005, "weight_decay": 0.05, "warmup_epochs": 1,
        }  # fmt: skip
        del config.target_ema
    return config
