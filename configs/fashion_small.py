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
        # What tells garments apart at this size is their outline: crops stay large, keep their shape, and are not mirrored.
        crop=views.Crop(area=(0.7, 1.0), aspect=(0.9, 1.11), method="bilinear", box="redrawn"),
        flip=0.0,
        jitter=views.ColorJitter(probability=1.0, brightness=0.3, contrast=0.8, saturation=0.0, hue=0.0),
        blur=views.Blur(probability=(0.5, 0.1)),
        solarize=views.Solarize(probability=(0.0, 0.0)),
    )
    return ConfigDict(
        {
            "name": "fashion_small",
            "seed": 0,
            "epochs": 20,
            "batch_size": 128,
            "strategy": "auto",
            "precision": "float32",
            "steps_per_execution": 1,
            "data": {"source": "bundled", "holdout": 0.0},
            "encoder": {"name": "r18_1x", "width": 0.5, "stem": "imagenet", "input_shape": (None, None, 1)},
            "method": "ssl_hsic",
            "model": {
                "projector_hidden": 1024,
                "projection_dim": 256,
                "target": True,
                "num_classes": 10,
                "weight_ema": 0.99,
            },
            "views": policy.to_dict(),
            "loss": {"name": "ssl_hsic", "kernel": "imq", "gamma": 5.0, "num_features": 512},
            "optimizer": {"name": "adamw", "learning_rate": 8e-3, "weight_decay": 0.0, "warmup_epochs": 1},
            "target_ema": 0.99,
            "evals": {"knn": {"k": 20}, "linear": {"protocol": "linear_features"}},
        }
    )
