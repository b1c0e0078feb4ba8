"""The images that a protocol measures on, by the name of a data set or a folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_sslhsic import checks, data
from keras_sslhsic.evaluation.images import of_folder, of_tfds
from keras_sslhsic.evaluation.streams import Labelled

TRAINING = ("linear", "finetune")  # protocols that train on images


def paper_short_side(size: int) -> int:
    """What the short side of a test image is resized to before its central size x size: 256 for 224."""
    return round(size * 256 / 224)


def labelled_splits(
    source: str,
    protocol: str,
    tfds_splits: Mapping[str, str | None],
    data_dir: str | Path | None = None,
    max_broken: float = 0.01,
    *,
    image_size: int = 224,
    short_side: int | None = None,
    channels: int = 3,
) -> dict[str, Labelled]:
    """What `evaluate` takes as train, test and, if there is one, validation.

    Args:
        source: "bundled"; a folder with the sub-folders train and test, with a folder a class in each; or a data set
            of TensorFlow Datasets. For the protocols of `TRAINING` perhaps with validation images, which they hold
            out of the training images otherwise.
        protocol: one of `PROTOCOLS`.
        tfds_splits: the splits of a TFDS set for "train", "test" and "validation" (None for none).
        data_dir: where TFDS keeps its files.
        max_broken: share of broken files that a folder may have.
        image_size: side of test images and training crops.
        short_side: what a test image's short side is resized to before its central crop. None: 256 / 224 of the size
            for the protocols of `TRAINING`, as the paper has it; the size itself for those on features, as the paper
            has it for transfer.
        channels: 1, 3 or 4.

    Returns:
        {"train", "test"} and perhaps "validation".

    Raises:
        ValueError: if a folder lacks a sub-folder.
        FileNotFoundError: if there is no such data set.
    """
    checks.integer("image_size", image_size, 1)
    checks.integer("short_side", short_side, 1, optional=True)
    if source == "bundled":
        return dict(zip(("train", "test"), data.bundled.load(), strict=True))
    trains = protocol in TRAINING
    if short_side is None:
        short_side = paper_short_side(image_size) if trains else image_size
    crops: dict[str, Any] = {
        "size": image_size,
        "short_side": short_side,
        "channels": channels,
    }
    names = ["train", "test", *(["validation"] if trains else [])]
    folder = Path(source)
    if not folder.is_dir():
        splits = {name: split for name in names if (split := tfds_splits.get(name))}
        return {name: of_tfds(source, split, data_dir=data_dir, **crops) for name, split in splits.items()}
    missing = [name for name in names[:2] if not (folder / name).is_dir()]
    if missing:
        raise ValueError(
            f"{folder} needs the sub-folders train and test with a folder a class in each; missing: "
            f"{', '.join(missing)}."
        )
    return {
        name: of_folder(folder / name, max_broken=max_broken, **crops)
        for name in names
        if (folder / name).is_dir()
    }
