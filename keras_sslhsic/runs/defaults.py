"""What suits images of one's own: views, network, batch, loss and learning rate by their number, size and channels.

What `keras-sslhsic pretrain --data` trains with, and any config that says neither views nor an encoder. The choices lean on
the default run, configs/fashion_small.py, whose search docs/reproduction.md has; nothing here was measured on your images.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from keras_sslhsic import checks, views
from keras_sslhsic.data.folder import list_images, own_test_folder
from keras_sslhsic.data.images import spread
from keras_sslhsic.data.inspect import dark
from keras_sslhsic.data.sources import SOURCES
from keras_sslhsic.data.tfds import has_labels, prepared_builder, shared, split_info
from keras_sslhsic.files import display
from keras_sslhsic.hsic.ratio import largest_ratio
from keras_sslhsic.runs import schema
from keras_sslhsic.words import counted, warn
from keras_sslhsic.zoo import load_pretrained

LOOKED_AT = 64  # images, for their size, mean and standard deviation
SIDE = 96  # of views of large images: objects can be told, and a step takes a fifth of that of 224 pixels
TINY = 32  # up to this side the stem of large images leaves maps of some 7 x 7 pixels
STEM = "; its stem is the fast one, encoder.stem=small sees sixteen times as many pixels"
SMALL = 64  # up to this side images are seen at their own size
STEPS = 1500  # of the default run; fewer epochs for more images, within 20 and 100
CACHED = 2**29  # bytes of decoded images that are kept in memory

Say = Callable[[str], None]


class Found(NamedTuple):
    """What was seen of the images.

    Attributes:
        number: of images.
        side: median of their short sides, as they are stored; None if that is not known.
        channels: 1 for gray images, else 3.
    """

    number: int
    side: int | None
    channels: int


def suited(config: ConfigDict, before: ConfigDict | None = None, say: Say = print) -> ConfigDict:
    """Fills in what a config leaves out, if it says neither views (but perhaps their size) nor a new encoder.

    Args:
        config: of a run.
        before: the config of the run that is gone on with, whose choices stay.
        say: is given a line for each choice and its reason.

    Raises:
        ValueError: for images that cannot be trained on, and fields of another type.
        OSError: for images that there are not.
    """
    given = config.to_dict()
    _check("", schema.fields_of(schema.Run), given)
    for name in {"batch_size", "epochs"} & given.keys():
        checks.integer(name, given[name], 1)
    said = given.get("views", {})
    size = said["size"] if isinstance(said, dict) and [*said] == ["size"] else None
    if size is not None:
        checks.integer("views.size", size, 1)
    if "encoder" in given or (said != {} and size is None):
        return config
    if before is not None:
        parts = {name: before[name].to_dict() | given.get(name, {}) for name in ("data", "views")}
        return ConfigDict(before.to_dict() | given | parts)
    given.pop("views", None)
    data, method = {**given.get("data", {})}, given.get("method", "ssl_hsic")
    source = data.pop("source", "folder" if "path" in data else "tfds" if "name" in data else "bundled")
    _check("data", schema.source_fields(source), data)
    start = load_pretrained(given["init"]).spec if given.get("init") else None
    found = _look(source, data)
    if start:
        found, size = found._replace(channels=start.channels), size or start.height
    chosen, why = _choose(found, size or min(found.side or SIDE, SIDE), method, given)
    takes = schema.source_fields(source)
    read = {name: value for name, value in chosen.pop("data").items() if name in takes}
    measured: dict[str, Any] | None = {}
    if source == "tfds":
        builder, own = prepared_builder(data["name"], data.get("data_dir")), data.get("split", "train")
        known, key = builder.info.splits, data.get("label_key", "label")
        splits = [
            split for split in ("test", "validation") if split in known and not shared(builder, own, split)
        ]
        measured = {"test_split": splits[0]} if splits else None
        read["labels"] = key in builder.info.features
        if read["labels"] and not has_labels(builder, own, key):
            read["labels"] = False
            measured = {"train_split": "train", **measured} if measured and "train" in known else None
    given["data"] = {"source": source, **read, **data}
    images = SOURCES[source](**_arguments(given["data"]), batch_size=1, seed=0)
    sample = images.sample(LOOKED_AT)
    if why_dark := dark(sample.max()):
        warn(f"Of {counted(len(sample), 'image')} {why_dark}.")
    chosen["views"] |= (
        dict(zip(("mean", "std"), start.normalisation, strict=True)) if start else _statistics(sample)
    )
    if images.class_names:
        chosen["model"]["num_classes"] = len(images.class_names)
    if images.class_names or "train_split" in (measured or {}):
        chosen["evals"] = {} if measured is None else {"knn": measured}
    takes = schema.method_fields(method)
    chosen["model"] = {name: value for name, value in chosen["model"].items() if name in takes}
    if start:
        del chosen["encoder"]
        why["encoder"] = f"that of {given['init']}, with its mean and std of images"
    say(_described(found, images.class_names))
    for name, reason in why.items():
        if name not in given:
            say(f"  {name}: {reason}")
    return ConfigDict(chosen | given)


def _check(section: str, fields: schema.Fields, values: Mapping[str, Any]) -> None:
    """The types of what is given, of which choices are made; what is missing or unknown is said later."""
    known = [name for name in values if name in fields]
    schema.check(section, {name: fields[name] for name in known}, {name: values[name] for name in known})


def of_data(data: str) -> ConfigDict:
    """The config that says no more than which images: those of a folder, or of a data set of TensorFlow Datasets."""
    folder = Path(data)
    if not folder.is_dir():
        return ConfigDict({"data": {"name": data}})
    train, test = folder / "train", folder / "test"
    if train.is_dir() and test.is_dir():
        if own_test_folder(train):  # evaluations read both
            return ConfigDict({"data": {"path": str(train)}, "evals": {"knn": {"data": data}}})
        warn(f"{display(test)} has no folders of classes to measure on: none of it is read.")
        return ConfigDict({"data": {"path": str(train)}})
    return ConfigDict({"data": {"path": data}})


def _arguments(data: dict[str, Any]) -> dict[str, Any]:
    left_out = ("source", "host_crops", "cache", "cache_dir", "cache_bytes")
    return {name: value for name, value in data.items() if name not in left_out}


def _look(source: str, data: dict[str, Any]) -> Found:
    """The number, size and channels of images, of a few of them."""
    if source == "folder":
        files = list_images(data["path"])
        sides, modes = zip(*map(_header, np.array(files)[spread(len(files), LOOKED_AT)]), strict=True)
        known = [side for side in sides if side]
        gray = {mode[:1] for mode in modes if mode} in ({"L"}, {"I"}, {"1"})
        return Found(len(files), int(np.median(known)) if known else None, 1 if gray else 3)
    if source == "tfds":
        builder, key = prepared_builder(data["name"], data.get("data_dir")), data.get("image_key", "image")
        number, features = split_info(builder, data.get("split", "train")).num_examples, builder.info.features
        # Without such a feature the data set itself says so.
        height, width, channels = features[key].shape if key in features else (None, None, 3)
        return Found(number, height and width and min(height, width), 1 if channels == 1 else 3)
    images = SOURCES[source](**_arguments(data), batch_size=1, seed=0)
    sample = images.sample(1)
    return Found(images.num_examples, min(sample.shape[1:3]), sample.shape[-1])


def _header(file: str) -> tuple[int | None, str]:
    """(short side, mode) of an image file, without decoding it; (None, "") of one that cannot be read."""
    from PIL import Image

    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(file) as image:
            return min(image.size), image.mode
    return None, ""


def _choose(
    found: Found, size: int, method: str, given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The choices, and the reasons for them."""
    own_size = found.side is not None and size >= found.side
    read = size if own_size else round(size * 8 / 7)
    batch = 2 ** int(np.log2(np.clip(found.number / 4, 2, 256 if found.number >= 100_000 else 128)))
    batch = given.get("batch_size", batch)
    steps = max(found.number // batch, 1)
    epochs = given.get("epochs", int(np.clip(round(STEPS / steps), 20, 100)))
    network = (
        {"name": "r50_1x"}
        if found.number >= 100_000 and size > SMALL
        else {"name": "r18_1x", "width": 1.0 if found.number >= 20_000 else 0.5}
    )
    keeps = read**2 * found.channels * found.number <= CACHED
    policy = _views(size, found.channels)
    chosen = {
        "batch_size": batch,
        "epochs": epochs,
        "views": policy.to_dict(),
        "data": {"image_size": read, "channels": found.channels, "cache": "decoded" if keeps else None},
        "encoder": {**network, "stem": "imagenet", "input_shape": (None, None, found.channels)},
        "model": {
            "projector_hidden": 1024,
            "projection_dim": 256,
            "weight_ema": 0.99 if epochs * steps <= 10_000 else 0.999,
        },
        "optimizer": {"name": "adamw", "warmup_epochs": max(1, epochs // 20)},
    }
    rate = schema.RATES["adamw"][0]
    why = {
        "views": f"{size} pixels"
        + (", the size of the images" if own_size else f", cut from images read at {read}")
        + (", without changes of colour" if found.channels != 3 else ""),
        "encoder": f"{network['name']} of width {network.get('width', 1.0):g}, for {counted(found.number, 'image')}"
        + (STEM if size <= TINY else ""),
        "batch_size": f"{batch}, so that an epoch has {counted(steps, 'step')}",
        "epochs": f"{epochs}, {epochs * steps:,} steps in all; more of them are better",
        "optimizer": f"adamw, learning rate {rate * batch / 256:g}, the default run's {rate} for 256 images times {batch}/256",
    }
    if schema.loss_of(method) == "ssl_hsic":
        # The ratio that gamma is held against grows with the batch; a third of its bound is what the paper's 3 is at 128.
        gamma = round(min(3.0, largest_ratio(batch, 2 * policy.num_views) / 3), 2)
        chosen["loss"] = {"name": "ssl_hsic", "gamma": gamma}
        why["loss"] = f"gamma {gamma:g}" + (
            ", the paper's" if gamma == 3 else f", small as batches of {batch} are"
        )
    return chosen, why


def _views(size: int, channels: int) -> views.ViewPolicy:
    """BYOL's views; small images are cut less and not blurred, and colours are changed where there are colours."""
    policy = views.byol(size) if size > SMALL else views.small_image(size)
    if channels == 3:
        return policy
    jitter = dataclasses.replace(policy.jitter, saturation=0.0, hue=0.0)
    mean, std = (0.5,) * channels, (0.25,) * channels
    return dataclasses.replace(policy, jitter=jitter, grayscale=0.0, mean=mean, std=std)


def _statistics(sample: np.ndarray) -> dict[str, tuple[float, ...]]:
    """The mean and standard deviation of images, uint8 [N, H, W, C], a number a channel."""
    pixels = sample / 255.0
    mean, std = pixels.mean((0, 1, 2)), pixels.std((0, 1, 2))
    # Images of one colour have no deviation to divide by.
    return {
        "mean": tuple(np.round(mean, 3).tolist()),
        "std": tuple(np.round(np.maximum(std, 0.05), 3).tolist()),
    }


def _described(found: Found, class_names: Sequence[str] | None) -> str:
    side = f"of about {found.side} pixels" if found.side else "of sizes that are not known"
    classes = f"{len(class_names)} classes" if class_names else "no classes"
    colours = {1: "gray", 3: "in colour"}.get(found.channels, f"of {found.channels} channels")
    return f"{counted(found.number, 'image')} {side}, {colours}, {classes}. What the config leaves out is chosen for them:"
