"""SimCLR on ImageNet: ResNet-50, the settings of its authors. Not run by us.

Expected:  linear evaluation 69.3 % top-1 (Chen et al. 2020, table 6).
Source:    Chen et al. 2020, section 2.2, appendices A and B.6.
Differs:   the views add brightness where the authors multiply; the output's normalisation has an offset.
Data:      as in configs/imagenet_r50_1x.py.
Command:   keras-sslhsic pretrain --config configs/methods/simclr.py --workdir runs/simclr
"""

from pathlib import Path

from ml_collections import ConfigDict

from keras_sslhsic import views
from keras_sslhsic.runs.config import load


def get_config() -> ConfigDict:
    """As configs/imagenet_r50_1x.py but for what is said here."""
    config = load(Path(__file__).parents[1] / "imagenet_r50_1x.py")
    with config.unlocked():
        config.name = config.method = "simclr"
        config.epochs, config.batch_size = 1000, 4096
        config.model = {"projector_hidden": 2048, "projection_dim": 128, "num_classes": 1000}
        config.views = views.simclr(224).to_dict()
        config.loss = {"name": "nt_xent", "temperature": 0.1}
        config.optimizer = {
            "name": "lars", "learning_rate": 0.3, "weight_decay": 1e-06, "warmup_epochs": 10,
        }  # fmt: skip
        del config.target_ema
    return config
