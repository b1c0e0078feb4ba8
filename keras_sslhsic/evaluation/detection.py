"""Boxes and masks of objects by Mask R-CNN with a feature pyramid, as the paper transfers to COCO.

TensorFlow Model Garden trains and finds, pycocotools counts. They want other packages than this one, so they run in an
environment of their own: a process of its Python runs `mask_rcnn.py`, which gets the encoder's weights as a file and gives
numbers back. The encoder is loaded, and the record kept, here.

12 epochs of COCO, images of 1024 x 1024, learning rate 0.3 for batches of 64 (appendix D).
"""

import dataclasses
import hashlib
import json
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from tqdm import tqdm

from keras_sslhsic.encoders import Encoder, encoder_hash, encoder_of
from keras_sslhsic.encoders.resnet import Architecture, resnet
from keras_sslhsic.evaluation import dense, mask_rcnn
from keras_sslhsic.evaluation.loading import Needs
from keras_sslhsic.evaluation.protocol import register
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.settings import SEED, Setting, natural, positive, text
from keras_sslhsic.files import check_writable, display, read_regular
from keras_sslhsic.lock import held

COCO = "coco"
ENGINE = "KERAS_SSLHSIC_DETECTION"  # environment variable: the Python of the other environment
# Blocks of each group, and whether they are bottlenecks -> number of the ResNet of Model Garden.
_NUMBERS = {
    ((1, 1, 1, 1), False): 10, ((2, 2, 2, 2), False): 18, ((3, 3, 3, 3), False): 26, ((3, 4, 6, 3), False): 34,
    ((3, 4, 6, 3), True): 50, ((3, 4, 23, 3), True): 101, ((3, 8, 36, 3), True): 152, ((3, 24, 36, 3), True): 200,
}  # fmt: skip
_LARGEST = 2**32  # bytes of a file of annotations
_MOST_CATEGORIES = 10_000
_OF_OBJECT = ("id", "image_id", "category_id", "bbox", "area", "iscrowd")
_SIDE = 64  # pixels, of which the sides of images are multiples: the stride of the coarsest map


@dataclasses.dataclass(frozen=True)
class CocoSplit:
    """Images with objects, as COCO describes them.

    Attributes:
        annotations: the file of JSON.
        images: folder of the images that it names.
        number: of the images.
        num_classes: the largest number of a category, and one for the background.
        masks: whether all objects have masks.
        digest: of the file, and of how many bytes each image has.
        names: category -> its name.
    """

    annotations: Path
    images: Path
    number: int
    num_classes: int
    masks: bool
    digest: str
    names: Mapping[int, str]

    def __len__(self) -> int:
        return self.number


def load_coco(source: str, *, channels: int = 3, data_dir: str | Path | None = None) -> dict[str, CocoSplit]:
    """Images with objects.

    Args:
        source: "coco", of which `data_dir` has annotations/instances_train2017.json, train2017 and likewise val2017; or a
            folder with annotations.json, in the format of COCO, and a folder images in each of its folders train and test.
        channels: 3.
        data_dir: folder of COCO.

    Raises:
        FileNotFoundError: if files are missing; says where they belong.
        ValueError: for another number of channels, a file that is not in the format of COCO, or splits that give one id to
            two categories.
    """
    if channels != 3:
        raise ValueError(f"Mask R-CNN reads images of 3 channels, and the encoder {channels}.")
    root = Path(data_dir or ".") if source == COCO else Path(source)
    names = {"train": "train2017", "test": "val2017"}
    found = {}
    for split, name in names.items():
        if source == COCO:
            annotations, images = root / f"annotations/instances_{name}.json", root / name
            belongs = (
                f"Get {name}.zip and annotations_trainval2017.zip from https://cocodataset.org, and unpack them in the folder "
                f"of --data-dir: they make {name} and annotations."
            )
        else:
            annotations, images = root / split / "annotations.json", root / split / "images"
            belongs = (
                f"Give {COCO}, or a folder with train and test in it, and in each annotations.json, in the format of COCO, "
                "and a folder images with the files that it names."
            )
        for path in (annotations, images):
            if not path.exists():
                raise FileNotFoundError(f"There is no {display(path)}. {belongs}")
        found[split] = read_annotations(annotations, images)
    train, test = (found[split].names for split in names)
    if other := [kind for kind in sorted(train.keys() & test.keys()) if train[kind] != test[kind]]:
        raise ValueError(
            f"The category {other[0]} is {display(train[other[0]])} in the training images and {display(test[other[0]])} in "
            "those to test on: give both the same ids."
        )
    return found


def read_annotations(file: Path, images: Path) -> CocoSplit:
    """Looks at a file in the format of COCO, and whether the images that it names are there.

    Raises:
        ValueError: if it is in another format; names what is missing or cannot be.
        FileNotFoundError: if images are missing; names one.
    """
    content = read_regular(file, _LARGEST)

    def refuse(why: str) -> ValueError:
        return ValueError(f"{display(file)} is not in the format of COCO: {why}")

    try:
        given = json.loads(content)
        entries, objects, categories = (given[key] for key in ("images", "annotations", "categories"))
        sizes = {one["id"]: (one["width"], one["height"], one["file_name"]) for one in entries}
        kinds = {one["id"]: str(one["name"]) for one in categories}
        rows = [[one[key] for key in _OF_OBJECT] for one in objects]
    except (ValueError, KeyError, TypeError) as error:
        raise refuse(
            f"expected images (id, file_name, width, height), categories (id, name) and annotations ({', '.join(_OF_OBJECT)}), "
            f"found no {error}."
        ) from error
    if not entries or not kinds or all(crowd for *_, crowd in rows):
        raise refuse("it has no image, no category, or no annotation of an object that is no crowd.")
    if wrong := [one for one in {*sizes, *kinds} if type(one) is not int]:
        raise refuse(f"ids must be integers, found {wrong[0]!r}.")
    if len(sizes) < len(entries) or len(kinds) < len(categories):
        raise refuse("each image and each category has an id of its own, and some have the same.")
    if min(kinds) < 1 or max(kinds) > _MOST_CATEGORIES:
        raise refuse(
            f"ids of categories are from 1, since 0 is the background, to {_MOST_CATEGORIES:,}, as the network grows with "
            f"them; found {min(kinds)} to {max(kinds)}."
        )
    for (number, image, kind, box, area, crowd), one in zip(rows, objects, strict=True):
        if type(image) is not int or image not in sizes or type(kind) is not int or kind not in kinds:
            raise refuse(
                f"the annotation {number} needs an image and a category that there are; found image {image}, category {kind}."
            )
        if not (_are_numbers(box) and len(box) == 4 and _are_numbers([area]) and crowd in (0, 1)):
            raise refuse(
                f"the annotation {number} needs a bbox of four numbers, an area, and an iscrowd of 0 or 1; found {box!r}, "
                f"{area!r} and {crowd!r}."
            )
        if not _is_outline(one.get("segmentation") or [[0.0] * 6], sizes[image][:2]):
            raise refuse(
                f"the segmentation of the annotation {number} is neither polygons, each x, y of three points or more, nor runs "
                "of an image of its size."
            )
    paths = {name: images / name for *_, name in sizes.values()}
    if missing := [name for name, path in paths.items() if not path.exists()]:
        raise FileNotFoundError(
            f"{len(missing)} images of {display(file)} are missing in {display(images)}, such as {display(missing[0])}."
        )
    return CocoSplit(
        file.absolute(),
        images.absolute(),
        len(entries),
        max(kinds) + 1,
        all(one.get("segmentation") for one in objects),
        hashlib.sha256(content + repr([path.stat().st_size for path in paths.values()]).encode()).hexdigest(),
        kinds,
    )


def _are_numbers(given: Any) -> bool:
    numbers = isinstance(given, list) and not any(isinstance(value, bool) for value in given)
    return numbers and all(isinstance(value, int | float) and math.isfinite(value) for value in given)


def _is_outline(given: Any, size: tuple[int, int]) -> bool:
    """Whether pycocotools can draw it: polygons, whose first decides, or lengths of runs."""
    if isinstance(given, dict):
        return given.get("size") == [*size[::-1]] and "counts" in given
    return isinstance(given, list) and all(map(_are_numbers, given)) and len(given[0]) > 4


def weights_of(encoder: Encoder) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What Model Garden needs to have the same ResNet.

    Returns:
        ({"model_id", "depth_multiplier"}, name of a layer -> kernel, or [4, C]: gamma, beta, mean and variance of a batch
        normalisation).

    Raises:
        ValueError: if the encoder is no ResNet of `build_encoder` with the stem for large images.
    """
    network = encoder.get_layer(encoder.spec.network).layers if encoder.spec.network else []
    layers = {layer.name: layer for layer in network if layer.weights}
    blocks = [
        found.groups() for name in layers if (found := re.fullmatch(r"group(\d+)_block\d+_conv0", name))
    ]
    counts = tuple(sum(group == str(g) for (group,) in blocks) for g in range(4))
    bottleneck = "group0_block0_conv2" in layers
    number, stem = _NUMBERS.get((counts, bottleneck)), 0
    same = False
    if number and "stem_conv" in layers:
        stem = layers["stem_conv"].kernel.shape[-1]
        channels = tuple(stem * 2**g * (4 if bottleneck else 1) for g in range(4))
        twin = resnet(Architecture(counts, channels, bottleneck, stem), (None, None, 3), "imagenet")
        same = {layer.name: [w.shape for w in layer.weights] for layer in twin.layers if layer.weights} == {
            name: [w.shape for w in layer.weights] for name, layer in layers.items()
        }
    if not same:
        raise ValueError(
            "Mask R-CNN takes the weights of a ResNet of `build_encoder` with the stem for large images and channels that "
            f"double from group to group, which they do for a width that is a multiple of 1/64, found {encoder.name!r}"
            + (f" with a stem of {stem}" if stem else "")
            + ": for boxes with another encoder, give its maps to keras-hub."
        )
    arrays = {
        name: np.stack(values) if len(values := layer.get_weights()) == 4 else values[0]
        for name, layer in layers.items()
    }
    return {"model_id": number, "depth_multiplier": stem / 64}, arrays


def engine_of(given: str | os.PathLike | None) -> Path:
    """The Python that Model Garden is installed for.

    Args:
        given: its path; None: that of the environment variable KERAS_SSLHSIC_DETECTION.

    Raises:
        ValueError: if there is none; says how to get one.
    """
    path = Path(given or os.environ.get(ENGINE) or "")
    if path.is_file() and os.access(path, os.X_OK):
        return path.absolute()
    found = f"{display(path)}, which is no program" if path.name else "none"
    raise ValueError(
        "Mask R-CNN runs in an environment of its own, with TensorFlow Model Garden. Expected the path of its Python as "
        f"--engine or in the environment variable {ENGINE}, found {found}. `make .venv-detection/installed` makes one, with "
        "the Python .venv-detection/bin/python, and so do `python -m venv DIR` and `DIR/bin/pip install "
        "tf-models-official==2.20.0`."
    )


_SETTINGS = SEED | {
    "learning_rate": Setting(positive, "the largest one, for the batch size", "0.3"),
    "steps": Setting(natural, "updates, instead of epochs", "22500"),
    "batch_size": Setting(natural, "images a step", "64"),
    "image_size": Setting(natural, f"side of the square that images are fitted into, a multiple of {_SIDE}", "1024"),
    "head_width": Setting(positive, "factor on the channels of the new layers", "1"),
    "work_dir": Setting(text, "folder to go on from if it stops", parse=str),
    "engine": Setting(text, "Python of an environment with tf-models-official", f"that of {ENGINE}", str),
}  # fmt: skip


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    return given | {"engine": engine_of(given.get("engine"))}


@register(
    "detection",
    _SETTINGS,
    on_features=False,
    network=True,
    needs=Needs(load_coco, {"data_dir": Setting(text, "where the files of coco lie", parse=str)}),
    arguments=_arguments,
)
def detect(
    encoder: keras.Model,
    splits: Mapping[str, Any],
    *,
    engine: str | os.PathLike | None = None,
    steps: int = 22_500,
    batch_size: int = 64,
    learning_rate: float = 0.3,
    image_size: int = 1024,
    head_width: float = 1.0,
    seed: int = 0,
    work_dir: str | os.PathLike | None = None,
    verbose: bool = False,
) -> Result:
    """The average precision of boxes and masks that a Mask R-CNN finds which starts from the encoder.

    Args:
        encoder: what `encoder_of` takes, a ResNet; it stays as it is.
        splits: `CocoSplit`s "train" and "test"; see `load_coco`.
        engine: see `engine_of`.
        steps: updates; the learning rate rises over the first 45th of them, and falls to a tenth after 2/3 and 8/9.
        batch_size: images a step.
        learning_rate: the largest one.
        image_size: side of the square that images are fitted into, in training scaled by 0.8 to 1.25 before.
        head_width: factor on the channels of the new layers.
        seed: of the new layers and the order.
        work_dir: folder that keeps the training: the same call goes on with it.
        verbose: whether to say what runs where, and how far it is.

    Returns:
        Result: "ap_box", and "ap_mask" if all objects have masks, of IoU 0.5 to 0.95 as COCO has it.

    Raises:
        ValueError: for an encoder that is no such ResNet, a size that cannot be, no engine, or a training that diverges.
        RuntimeError: if the engine fails; says why.
        lock.InUseError: if another process trains the same in `work_dir`.
    """
    program, encoder = engine_of(engine), encoder_of(encoder)
    if image_size % _SIDE:
        raise ValueError(f"image_size must be a multiple of {_SIDE}, found {image_size}.")
    shape, weights = weights_of(encoder)
    train_images, test = splits["train"], splits["test"]
    recipe = {
        "steps": steps, "batch_size": batch_size, "learning_rate": learning_rate, "image_size": image_size,
        "head_width": head_width,
    }  # fmt: skip
    job = recipe | {
        "seed": seed, "resnet": shape, "mean": encoder.spec.mean, "std": encoder.spec.std,
        "masks": train_images.masks and test.masks, "num_classes": max(train_images.num_classes, test.num_classes),
        **{
            split: {"annotations": str(images.annotations), "images": str(images.images), "digest": images.digest}
            for split, images in splits.items()
        },
    }  # fmt: skip
    named = json.dumps([encoder_hash(encoder), job], sort_keys=True).encode()
    if work_dir is not None:
        check_writable(Path(work_dir) / "result.json")
    with tempfile.TemporaryDirectory() as temporary:
        folder = (
            Path(work_dir or temporary).absolute() / f"detection-{hashlib.sha256(named).hexdigest()[:16]}"
        )
        with held(folder):
            if not (folder / "result.json").exists():
                dense.write(folder / "weights.npz", weights)
                (folder / "job.json").write_text(json.dumps(job))
                _run(program, folder, verbose)
        found = json.loads((folder / "result.json").read_text())
    if not found["finite"]:
        raise ValueError(f"The network diverged: lower the learning rate ({learning_rate:g}).")
    measured = {f"ap_{kind}": found[kind] for kind in ("box", "mask") if kind in found}
    others = {name: {"value": one["AP"], "interval": one["interval"]} for name, one in measured.items()}
    return Result(
        metric="ap_box",
        **others.pop("ap_box"),
        others=others,
        num_test=len(test),
        num_train=len(train_images),
        seed=seed,
        recipe=recipe | {"momentum": 0.9, "weight_decay": 4e-5, "engine": found["engine"]},
        details={
            f"{name}_{size.removeprefix('AP')}": one[size]
            if one[size] >= 0
            else None  # without objects of that size
            for name, one in measured.items()
            for size in ("AP50", "AP75", "APs", "APm", "APl")
        },
    )


def _run(program: Path, folder: Path, verbose: bool) -> None:
    """Runs the engine on FOLDER/job.json; FOLDER/engine.log gets what it says."""
    log = folder / "engine.log"
    if verbose:
        tqdm.write(
            f"Mask R-CNN of TensorFlow Model Garden is trained and measured by {display(program)}, a process of its own; "
            f"{display(log)} has what it says."
        )
    command = [os.fspath(program), "-I", mask_rcnn.__file__, os.fspath(folder / "job.json")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with (
        log.open("w") as kept,
        subprocess.Popen(command, **pipes, text=True) as process,
    ):
        try:
            for line in process.stdout or ():
                kept.write(line)
                kept.flush()
                if verbose and line.startswith(("engine: ", "train |")):
                    tqdm.write(line.rstrip())
        except BaseException:
            process.terminate()
            raise
    if process.returncode or not (folder / "result.json").exists():
        last = "".join(log.read_text(errors="replace").splitlines(keepends=True)[-8:])
        raise RuntimeError(
            f"The engine failed with exit status {process.returncode}. The end of what it said:\n{last}"
        )
