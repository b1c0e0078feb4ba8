"""VICReg on ImageNet: ResNet-50, the settings of its authors. Not run by us.

Expected:  linear evaluation 73.2 % top-1 (Bardes et al. 2022, table 1).
Source:    Bardes et al. 2022, section 4.2.
Differs:   the views are those of BYOL; the cosine ends at 0, where the authors' ends at 0.002.
Data:      as in configs/imagenet_r50_1x.py.
Command:   keras-sslhsic pretrain --config configs/methods/vicreg.py --workdir runs/vicreg
"""

from pathlib import Path

from ml_collections import ConfigDict

from keras_sslhsic import views
from keras_sslhsic.runs.config import load


def get_config() -> ConfigDict:
    """As configs/imagenet_r50_1x.py but for what is said here."""
    config = load(Path(__file__).parents[1] / "imagenet_r50_1x.py")
    with config.unlocked():
        config.name = config.method = "vicreg"
        config.epochs, config.batch_size = 1000, 2048
        config.model = {"projector_hidden": 8192, "projection_dim": 8192, "num_classes": 1000}
        config.views = views.byol(224).to_dict()
        config.loss = {
            "name": "vicreg", "invariance_weight": 25.0, "variance_weight": 25.0, "covariance_weight": 1.0,
        }  # fmt: skip
        config.optimizer = {
            "name": "lars", "learning_rate": 0.2, "weight_decay": 1e-06, "warmup_epochs": 10,
        }  # fmt: skip
        del config.target_ema
    return config
