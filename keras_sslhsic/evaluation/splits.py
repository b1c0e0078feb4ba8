"""The images that a protocol measures on, by the name of a data set or a folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_sslhsic import data
from keras_sslhsic.evaluation.streams import Labelled


def labelled_splits(
    source: str,
    protocol: str,
    tfds_splits: Mapping[str, str],
    data_dir: str | Path | None = None,
    max_broken: float = 0.01,
    seed: int = 0,
    **images: Any,
) -> dict[str, Labelled]:
    """What `evaluate` takes as train, test and, for the linear protocol, validation.

    Args:
        source: "bundled"; a folder with the sub-folders train and test (and validation), with a folder a class in
            each; or a data set of TensorFlow Datasets.
        protocol: one of `PROTOCOLS`.
        tfds_splits: the splits of a TFDS set for "train", "test" and "validation".
        data_dir: where TFDS keeps its files.
        max_broken: share of broken files that a folder may have.
        seed: of the order of the batches that networks are trained on.
        **images: image_size, channels and batch_size, as in `data.from_folder`.

    Returns:
        {"train", "test"} and, for the linear protocol on anything but the bundled images, "validation".

    Raises:
        ValueError: if a folder lacks a sub-folder.
        FileNotFoundError: if there is no such data set.
    """
    if source == "bundled":
        return dict(zip(("train", "test"), data.bundled.load(), strict=True))
    names = ["train", "test", *(["validation"] if protocol == "linear" else [])]
    # Networks are trained on the batches as they come, and need their number; features on every image.
    trained = {name for name in names if protocol in ("linear", "finetune") and name != "test"}
    options = {
        name: {
            "epochs": 1, "seed": seed, "shuffle": name in trained, "drop_remainder": name in trained, **images
        }
        for name in names
    }  # fmt: skip
    folder = Path(source)
    if not folder.is_dir():
        return {
            name: data.from_tfds(source, tfds_splits[name], data_dir=data_dir, **options[name])
            for name in names
        }
    missing = [name for name in names if not (folder / name).is_dir()]
    if missing:
        raise ValueError(
            f"{folder} needs the sub-folders {' and '.join(names)} with a folder a class in each; missing: "
            f"{', '.join(missing)}."
        )
    return {
        name: data.from_folder(folder / name, labels=True, max_broken=max_broken, **options[name])
        for name in names
    }
