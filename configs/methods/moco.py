"""MoCo v2 on ImageNet: ResNet-50, the settings of its authors. Not run by us.

Expected:  linear evaluation 71.1 % top-1 (Chen et al. 2020, table 2).
Source:    Chen et al. 2020, section 3, for 800 epochs.
Differs:   both directions of the views are trained on, and SGD has Nesterov's momentum. Its weight decay is apart from the
           gradient here: 1e-3 shrinks weights as 1e-4 in a gradient with momentum 0.9 does. The views are those of SimCLR.
Data:      as in configs/imagenet_r50_1x.py.
Command:   keras-sslhsic pretrain --config configs/methods/moco.py --workdir runs/moco
"""

from pathlib import Path

from ml_collections import ConfigDict

from keras_sslhsic import views
from keras_sslhsic.runs.config import load


def get_config() -> ConfigDict:
    """As configs/imagenet_r50_1x.py but for what is said here."""
    config = load(Path(__file__).parents[1] / "imagenet_r50_1x.py")
    with config.unlocked():
        config.name = config.method = "moco"
        config.epochs, config.batch_size = 800, 256
        config.model = {"projector_hidden": 2048, "projection_dim": 128, "num_classes": 1000}
        config.views = views.simclr(224).to_dict()
        config.loss = {"name": "moco", "temperature": 0.2, "queue_size": 65536}
        config.optimizer = {
            "name": "sgd", "learning_rate": 0.03, "weight_decay": 0.001, "warmup_epochs": 0,
        }  # fmt: skip
        config.target_ema = 0.999
    return config
