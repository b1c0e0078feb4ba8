"""SwAV on ImageNet: ResNet-50, the settings of its authors. Not run by us.

Expected:  linear evaluation 75.3 % top-1 (Caron et al. 2020, table 1).
Source:    Caron et al. 2020, section 4 and appendix A, for 800 epochs.
Differs:   the views add brightness where the authors multiply, and the cosine ends at 0.
Data:      as in configs/imagenet_r50_1x.py.
Command:   keras-sslhsic pretrain --config configs/methods/swav.py --workdir runs/swav
"""

from pathlib import Path

from ml_collections import ConfigDict

from keras_sslhsic import views
from keras_sslhsic.runs.config import load


def get_config() -> ConfigDict:
    """As configs/imagenet_r50_1x.py but for what is said here."""
    config = load(Path(__file__).parents[1] / "imagenet_r50_1x.py")
    with config.unlocked():
        config.name = config.method = "swav"
        config.epochs, config.batch_size = 800, 4096
        config.model = {"projector_hidden": 2048, "projection_dim": 128, "num_classes": 1000}
        config.encoder.input_shape = (None, None, 3)  # views of two sizes
        config.views = views.multi_crop(224, local_size=96, num_local=6).to_dict()
        config.loss = {
            "name": "swav", "temperature": 0.1, "epsilon": 0.05, "num_prototypes": 3000, "frozen_steps": 313,
        }  # fmt: skip
        config.optimizer = {
            "name": "lars", "learning_rate": 0.3, "weight_decay": 1e-06, "warmup_epochs": 10,
        }  # fmt: skip
        del config.target_ema
    return config
