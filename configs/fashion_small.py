"""SSL-HSIC on the bundled Fashion-MNIST subset: the default run, `make pretrain`.

Command:   keras-sslhsic pretrain --config configs/fashion_small.py --workdir runs/fashion_small
"""

import dataclasses

from ml_collections import ConfigDict

from keras_sslhsic import views


def get_config() -> ConfigDict:
    """The default run."""
    policy = dataclasses.replace(
        views.grayscale(28),
        crop=views.Crop(area=(0.3, 1.0), method="bilinear"),
        # Strong changes of brightness would black out dark clothes.
        jitter=views.ColorJitter(brightness=0.2, contrast=0.4, saturation=0.0, hue=0.0),
        blur=views.Blur(probability=(0.0, 0.0)),
        solarize=views.Solarize(probability=(0.0, 0.0)),
    )
    return ConfigDict(
        {
            "name": "fashion_small",
            "seed": 0,
            "epochs": 15,
            "batch_size": 128,
            "strategy": "auto",
            "precision": "float32",
            "steps_per_execution": 1,
            "data": {"source": "bundled", "holdout": 0.0},
            "encoder": {"name": "r18_1x", "width": 0.5, "stem": "imagenet", "input_shape": (None, None, 1)},
            "model": {
                "projector_hidden": 512,
                "projection_dim": 64,
                "target": True,
                "num_classes": 10,
                "weight_ema": 0.99,
            },
            "views": policy.to_dict(),
            "loss": {"name": "ssl_hsic", "kernel": "imq", "gamma": 3.0, "num_features": 512},
            "optimizer": {"name": "adamw", "learning_rate": 4e-3, "weight_decay": 0.0, "warmup_epochs": 1},
            "target_ema": 0.99,
        }
    )
