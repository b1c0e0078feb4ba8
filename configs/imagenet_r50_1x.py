"""SSL-HSIC on ImageNet: ResNet-50, 1000 epochs, the recipe of the paper (section 5.1 and appendix D).

Expected:  linear evaluation about 74.8 % top-1, which the authors' code reports for this recipe. Not run by us.
Cost:      batch 4096 for 1000 epochs is 313,000 steps; the paper trained on 128 TPU cores.
Data:      imagenet2012 of TensorFlow Datasets, prepared as docs/data.md says.
Command:   keras-sslhsic pretrain --config configs/imagenet_r50_1x.py --workdir runs/imagenet_r50_1x \
               --config.data.data_dir=gs://bucket/tensorflow_datasets
"""

from ml_collections import ConfigDict

from keras_sslhsic import views


def get_config() -> ConfigDict:
    """The paper's recipe."""
    return ConfigDict(
        {
            "name": "imagenet_r50_1x",
            "seed": 0,
            "epochs": 1000,
            "batch_size": 4096,
            "strategy": "auto",
            "precision": "mixed_bfloat16",
            "steps_per_execution": 50,
            "data": {
                "source": "tfds",
                "name": "imagenet2012",
                "split": "TRAIN",
                "image_size": 256,
                "data_dir": "~/tensorflow_datasets",
            },
            "encoder": {"name": "r50_1x", "input_shape": (224, 224, 3)},
            "model": {
                "projector_hidden": 4096,
                "projection_dim": 256,
                "target": True,
                "num_classes": 1000,
                "weight_ema": 0.999,
            },
            "views": views.byol(224).to_dict(),
            "loss": {"name": "ssl_hsic", "kernel": "imq", "gamma": 3.0, "num_features": 512},
            "optimizer": {"name": "lars", "learning_rate": 0.4, "weight_decay": 1e-6, "warmup_epochs": 10},
            "target_ema": 0.99,
        }
    )
