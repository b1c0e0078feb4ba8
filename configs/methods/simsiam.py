"""SimSiam on ImageNet: ResNet-50, the settings of its authors. Not run by us.

Expected:  linear evaluation 67.7 % top-1 (Chen and He 2021, table 1, with a predictor whose learning rate falls as here).
Source:    Chen and He 2021, section 3, for 100 epochs.
Differs:   the predictor's learning rate falls with that of the others, where the authors keep it for 68.1 %, and SGD has
           Nesterov's momentum.
           Its weight decay is apart from the gradient here: 1e-3 shrinks weights as 1e-4 in a gradient with momentum 0.9
           does. The views are those of SimCLR.
Data:      as in configs/imagenet_r50_1x.py.
Command:   keras-sslhsic pretrain --config configs/methods/simsiam.py --workdir runs/simsiam
"""

from pathlib import Path

from ml_collections import ConfigDict

from keras_sslhsic import views
from keras_sslhsic.runs.config import load


def get_config() -> ConfigDict:
    """As configs/imagenet_r50_1x.py but for what is said here."""
    config = load(Path(__file__).parents[1] / "imagenet_r50_1x.py")
    with config.unlocked():
        config.name = config.method = "simsiam"
        config.epochs, config.batch_size = 100, 512
        config.model = {"projector_hidden": 2048, "projection_dim": 2048, "num_classes": 1000}
        config.views = views.simclr(224).to_dict()
        config.loss = {"name": "simsiam"}
        config.optimizer = {
            "name": "sgd", "learning_rate": 0.05, "weight_decay": 0.001, "warmup_epochs": 0,
        }  # fmt: skip
        del config.target_ema
    return config
