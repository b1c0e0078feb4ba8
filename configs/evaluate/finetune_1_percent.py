"""Fine-tuning on 1 % of ImageNet's labels: the settings of BYOL, whose protocol the paper follows.

Cost:      ten trainings of 30 or 50 epochs of 12,812 images, and the best one again on all of them.
Command:   keras-sslhsic evaluate finetune --run runs/imagenet_r50_1x --config configs/evaluate/finetune_1_percent.py \
               --data imagenet2012 --test-split validation --data-dir gs://bucket/tensorflow_datasets
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Settings of `finetune`; those on the command line come before them."""
    return ConfigDict(
        {
            "fraction": 0.01,
            "batch_size": 1024,
            "learning_rates": (0.005, 0.01, 0.02, 0.05, 0.1),
            "weight_decays": (0.0,),
            "epochs": (30, 50),
        }
    )
