"""SSL-HSIC on a folder of images of your own, with or without classes: what `keras-sslhsic pretrain --data photos` trains.

What is left out here (views, network, batch, gamma, learning rate, epochs) is chosen for the number, size and channels of the
images, printed before training and saved in the run's config.json; keras_sslhsic/runs/defaults.py says how, and
`keras-sslhsic config` what there is to set. A config that names an encoder, or more of its views than their size, is taken
as it is.

Command:   keras-sslhsic pretrain --config configs/folder.py --workdir runs/photos --config.data.path=photos
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    """A folder of images at any depth; the sub-folders, if there are some, are classes, for watching only."""
    return ConfigDict({"name": "folder", "data": {"source": "folder", "path": "photos"}})
