"""SSL-HSIC on a data set of TensorFlow Datasets: what `keras-sslhsic pretrain --data cifar10` trains.

What is left out here is chosen for its images: see configs/folder.py. The data set has to be prepared: docs/data.md.

Command:   keras-sslhsic pretrain --config configs/tfds.py --workdir runs/cifar10 --config.data.name=cifar10
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """Its training images; where they have labels, neighbours are searched in them for those of its test images."""
    return ConfigDict(
        {
            "name": "tfds",
            "data": {"source": "tfds", "name": "cifar10", "split": "train"},
        }
    )
