"""Images with a map each, of classes or of depth: VOC2012 and NYUv2 as they are published, and folders of one's own."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_sslhsic import checks
from keras_sslhsic.data import decode
from keras_sslhsic.data.folder import list_images, walk
from keras_sslhsic.data.subsets import stratified_split
from keras_sslhsic.data.tfds import prepared_builder
from keras_sslhsic.evaluation.loading import Needs, reader, record, scan
from keras_sslhsic.evaluation.maps import UNKNOWN, VOID, MapSplit
from keras_sslhsic.evaluation.settings import Setting, natural, portion, positive, share, text
from keras_sslhsic.files import display, open_regular, read_regular
from keras_sslhsic.words import warn

VOC, NYU = "voc2012", "nyu_depth_v2"
VOC_CLASSES = 21
_LARGEST = 2**30  # bytes of a map
_VOC_ARCHIVES = (
    "Get VOCtrainval_11-May-2012.tar from http://host.robots.ox.ac.uk/pascal/VOC/voc2012/, and unpack it in {where}: it makes "
    "{where}/VOCdevkit/VOC2012."
)
_AUGMENTED = (
    "Get benchmark.tgz of the Semantic Boundaries Dataset (Hariharan et al. 2011), and unpack it in {where}: it makes "
    "{where}/benchmark_RELEASE/dataset, with cls, train.txt and val.txt in it. Or put its maps as PNG files into "
    "{voc}/SegmentationClassAug."
)
_NYU_ARCHIVES = (
    "Put nyu_depth_v2_labeled.mat and splits.mat, from https://cs.nyu.edu/~fergus/datasets/nyu_depth_v2.html, into the folder "
    "of --data-dir; or prepare the raw images once with `tfds build nyu_depth_v2`."
)

Size = int | tuple[int, int]


def load_masks(
    source: str,
    *,
    channels: int = 3,
    data_dir: str | Path | None = None,
    crop_size: Size = 513,
    short_side: int | None = None,
    num_classes: int | None = None,
    test_share: float = 0.2,
    max_broken: float = 0.01,
) -> dict[str, MapSplit]:
    """Images with maps of classes.

    Args:
        source: "voc2012": trained on train_aug2012 (10,582 images), tested on val2012 (1,449). Or a folder with train and
            test in it (perhaps validation), images and masks in each; or with images and masks, of which `test_share` is
            held out. A mask has the name of its image and its aspect, PNG of 8 bits: numbers of classes, 255 where none counts.
        channels: 1, 3 or 4.
        data_dir: folder that VOC2012 and the augmented set are unpacked in.
        crop_size: side, or (height, width), of crops.
        short_side: what the short side of an image is resized to first; None: images stay as they are.
        num_classes: of a folder; None: as many as its masks have.
        test_share: of a folder without train and test.
        max_broken: share of images that may be broken.

    Raises:
        FileNotFoundError: if files are missing; says which archive belongs where.
        ValueError: if an image of a folder has no mask, or one of another aspect, or masks have more classes or less than two.
    """
    shape = _shape(crop_size, short_side, channels)
    checks.integer("num_classes", num_classes, 2, optional=True)
    if source == VOC:
        return _voc(Path(data_dir or "."), shape, short_side, max_broken)
    found = _of_folder(
        Path(source), "masks", class_map, VOC, test_share=test_share, shape=shape, short_side=short_side,
        max_broken=max_broken,
    )  # fmt: skip
    with ThreadPoolExecutor(8) as pool:
        each = [pool.map(partial(_classes, images), range(len(images))) for images in found.values()]
        classes = sorted(set().union(*itertools.chain(*each)) - {VOID})
    if len(classes) < 2:
        raise ValueError(
            f"The masks of {display(source)} have {f'the class {classes[0]} alone' if classes else 'no class'} apart from "
            f"{VOID}, which does not count: number the classes from 0 on, those of binary masks 0 and 1, not 0 and {VOID}."
        )
    if num_classes is None:
        num_classes = classes[-1] + 1
        if 2 * len(classes) < num_classes:
            warn(
                f"The masks of {display(source)} have {len(classes)} classes with numbers up to {classes[-1]}, of which a "
                f"network of {num_classes} classes is made: if those are levels of gray, number the classes from 0 on."
            )
    _check_classes(classes[-1], num_classes)
    return {name: _of_classes(images, num_classes) for name, images in found.items()}


def load_depths(
    source: str,
    *,
    channels: int = 3,
    data_dir: str | Path | None = None,
    crop_size: Size = (228, 304),
    short_side: int | None = None,
    depth_scale: float = 1000.0,
    test_share: float = 0.2,
    max_broken: float = 0.01,
) -> dict[str, MapSplit]:
    """Images with maps of depth in metres; 0, NaN and infinity are not known.

    Args:
        source: "nyu_depth_v2": the labelled images (795 to train on, 654 to test on) if `data_dir` has them, else those that
            TensorFlow Datasets has prepared (47,584 to train on). Or a folder as `load_masks` takes it, with depth in place
            of masks: PNG of 16 bits, or NAME.npy in metres.
        channels: 1, 3 or 4; of NYUv2 3.
        data_dir: folder of nyu_depth_v2_labeled.mat and splits.mat, or of TensorFlow Datasets.
        crop_size: side, or (height, width), of crops.
        short_side: what the short side of an image is resized to first; None: 240 / 228 of the crop's, as the paper has it.
        depth_scale: what a metre is in a PNG file.
        test_share: of a folder without train and test.
        max_broken: share of images that may be broken.

    Raises:
        FileNotFoundError: if files are missing; says which archive belongs where.
        ValueError: if an image of a folder has no map of depth, or one of another aspect.
    """
    checks.number("depth_scale", depth_scale, above=True)
    if short_side is None:
        short_side = round(min(checks.sides("crop_size", crop_size)) * 240 / 228)
    shape = _shape(crop_size, short_side, channels)
    if source == NYU:
        if channels != 3:
            raise ValueError(f"The images of {NYU} have 3 channels, and the encoder reads {channels}.")
        labelled = Path(data_dir or ".") / "nyu_depth_v2_labeled.mat"
        read = _nyu_labelled(labelled) if labelled.exists() else _nyu_of_tfds(data_dir)
        return {name: _split(*parts, shape, short_side) for name, parts in read.items()}
    return _of_folder(
        Path(source), "depth", partial(depth_map, scale=depth_scale), NYU, test_share=test_share, shape=shape,
        short_side=short_side, max_broken=max_broken,
    )  # fmt: skip


def class_map(file: str | Path) -> np.ndarray:
    """Reads a mask, uint8 [H, W]: the numbers that a PNG of 8 bits stores, palette or not.

    Raises:
        ValueError: if it is another image; names it.
    """
    found = _stored(file)
    if found.ndim != 2 or found.dtype not in (np.uint8, bool):
        raise ValueError(
            f"{display(file)} is no mask: expected a PNG of 8 bits with one number a pixel, that of its class, found "
            f"{found.dtype} {list(found.shape)}. Colours are to be numbered; 255 is for pixels that do not count."
        )
    return found.astype(np.uint8)


def depth_map(file: str | Path, scale: float = 1000.0) -> np.ndarray:
    """Reads a map of depth, float32 [H, W] in metres: PNG of 16 bits, divided by `scale`, or an array of NAME.npy.

    Raises:
        ValueError: if it is something else; names it.
    """
    found = _stored(file)
    array = Path(file).suffix == ".npy"
    if found.ndim != 2 or not (array or found.dtype in (np.uint16, np.int32)):
        raise ValueError(
            f"{display(file)} is no map of depth: expected a PNG of 16 bits, or an array [H, W] of metres as NAME.npy, found "
            f"{found.dtype} {list(found.shape)}."
        )
    depths = found.astype(np.float32) / (1.0 if array else scale)
    return np.where(np.isfinite(depths) & (depths > 0), depths, np.float32(UNKNOWN))


def _stored(file: str | Path) -> np.ndarray:
    """What an image file or NAME.npy stores, as it is."""
    import io

    from PIL import Image

    content = io.BytesIO(read_regular(file, _LARGEST))
    try:
        if Path(file).suffix == ".npy":
            return np.load(content, allow_pickle=False)
        return np.asarray(Image.open(content, formats=["PNG"]))
    except Exception as error:  # of Pillow, some ten types
        raise ValueError(f"{display(file)} cannot be read as PNG or .npy: {error}") from error


def _shape(crop_size: Size, short_side: int | None, channels: int) -> tuple[int, int, int]:
    checks.integer("short_side", short_side, 1, optional=True)
    return *checks.sides("crop_size", crop_size), channels


def _split(
    read: Callable[[int], np.ndarray | None], target: Callable[[int], np.ndarray], number: int,
    shape: tuple[int, int, int], short_side: int | None, **fields: Any,
) -> MapSplit:  # fmt: skip
    return MapSplit(read, np.zeros(number, np.int64), shape, short_side, target=target, **fields)


def _of_folder(
    root: Path, kind: str, read_map: Callable[[str], np.ndarray], known: str, *, test_share: float, **options: Any
) -> dict[str, MapSplit]:  # fmt: skip
    if not root.is_dir():
        raise FileNotFoundError(
            f"{display(root)} is no folder: give {known}, or a folder with images and {kind} in it, or with train and test."
        )
    if (root / "train").is_dir():
        names = ["train", "test", *(["validation"] if (root / "validation").is_dir() else [])]
        return {name: _of_pairs(root / name, kind, read_map, **options) for name in names}
    whole = dataclasses.replace(_of_pairs(root, kind, read_map, **options), held_out=test_share)
    return dict(
        zip(("train", "test"), map(whole.part, stratified_split(whole.labels, test_share)), strict=True)
    )


def _of_pairs(
    folder: Path, kind: str, read_map: Callable[[str], np.ndarray], *, shape: tuple[int, int, int],
    short_side: int | None, max_broken: float,
) -> MapSplit:  # fmt: skip
    """The images of FOLDER/images, with the maps of FOLDER/KIND that have their names."""
    for name in ("images", kind):
        if not (folder / name).is_dir():
            raise FileNotFoundError(
                f"{display(folder)} has no folder {name}: expected {display(folder / 'images')} with the images, and "
                f"{display(folder / kind)} with a map for each, of the same name."
            )
    images = list_images(folder / "images")
    maps = {Path(file).relative_to(folder / kind).with_suffix(""): file for file in walk(folder / kind)}
    keys = [Path(file).relative_to(folder / "images").with_suffix("") for file in images]
    if missing := [file for file, key in zip(images, keys, strict=True) if key not in maps]:
        raise ValueError(
            f"{len(missing)} of {len(images)} images have no map of their name in {display(folder / kind)}, such as "
            f"{display(missing[0])}: add the maps, or move the images away."
        )
    files = [maps[key] for key in keys]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(partial(_check_aspect, read_map), images, files))
    return _of_files(images, files, read_map, shape, short_side, max_broken)


def _check_aspect(read_map: Callable[[str], np.ndarray], image: str, file: str) -> None:
    """Raises ValueError for a map that is no map, or has another aspect than its image, each side rounded to whole pixels."""
    rows, columns = read_map(file).shape
    try:
        with open_regular(image, decode.MAX_BYTES) as content:
            height, width = decode.upright_size(content)
    except (OSError, decode.DecodeError):
        return  # a broken image, as some may be
    if abs(rows * width - columns * height) > max(height + width, rows + columns):
        raise ValueError(
            f"{display(file)} has {rows} x {columns} pixels, and its image {display(image)} {height} x {width}, upright: give "
            "a map of the same aspect, height to width, in any resolution."
        )


def _of_files(
    images: Sequence[str | Path], maps: Sequence[str | Path], read_map: Callable[[Any], np.ndarray],
    shape: tuple[int, int, int], short_side: int | None, max_broken: float,
) -> MapSplit:  # fmt: skip
    read = reader(images, shape[2], max_broken)
    return _split(read, lambda number: read_map(maps[number]), len(images), shape, short_side)


def _classes(images: MapSplit, number: int) -> list[int]:
    """The numbers that a map of classes has."""
    return np.flatnonzero(np.bincount(images.target(number).ravel())).tolist()


def _check_classes(largest: int, num_classes: int) -> None:
    if largest >= num_classes:
        raise ValueError(
            f"A mask has the class {largest}, where there are {num_classes} (0 to {num_classes - 1}, and {VOID} for pixels "
            f"that do not count): set num_classes (--num-classes) to {largest + 1} or more."
        )


def _of_classes(images: MapSplit, num_classes: int) -> MapSplit:
    """The same images, whose maps may have so many classes."""
    read = images.target

    def target(number: int) -> np.ndarray:
        found = read(number)
        _check_classes(np.max(found, initial=0, where=found != VOID), num_classes)
        return found

    return dataclasses.replace(images, target=target, num_classes=num_classes)


def _voc(
    where: Path, shape: tuple[int, int, int], short_side: int | None, max_broken: float
) -> dict[str, MapSplit]:
    """VOC2012, trained on the augmented set."""
    root = next((p for p in (where / "VOCdevkit/VOC2012", where / "VOC2012") if p.is_dir()), None)
    if root is None:
        raise FileNotFoundError(
            f"{display(where)} has no VOCdevkit/VOC2012. " + _VOC_ARCHIVES.format(where=display(where))
        )
    train, val = (
        _listed(root / f"ImageSets/Segmentation/{name}.txt", _VOC_ARCHIVES, where)
        for name in ("train", "val")
    )
    boundaries, pictures = where / "benchmark_RELEASE/dataset", root / "SegmentationClassAug"
    if pictures.is_dir():
        more = {file.stem: file for file in pictures.glob("*.png")}
    elif boundaries.is_dir():
        names = [
            name
            for part in ("train", "val")
            for name in _listed(boundaries / f"{part}.txt", _AUGMENTED, where)
        ]
        more = {name: boundaries / f"cls/{name}.mat" for name in names}
    else:
        raise FileNotFoundError(
            "The augmented set of VOC2012, on which the paper trains, is missing. "
            + _AUGMENTED.format(where=display(where), voc=display(root))
        )
    own = {name: root / f"SegmentationClass/{name}.png" for name in (*train, *val)}
    maps = more | own
    found = {}
    for split, names in (("train", sorted({*more, *train} - {*val})), ("test", val)):
        images = [root / f"JPEGImages/{name}.jpg" for name in names]
        targets = [maps[name] for name in names]
        if missing := [file for file in (*images, *targets) if not file.exists()]:
            of_voc = missing[0] in (*images, *own.values())
            raise FileNotFoundError(
                f"{len(missing)} files are missing, such as {display(missing[0])}. "
                + (_VOC_ARCHIVES if of_voc else _AUGMENTED).format(where=display(where), voc=display(root))
            )
        pairs = _of_files(images, targets, _class_map_of, shape, short_side, max_broken)
        found[split] = _of_classes(pairs, VOC_CLASSES)
    return found


def _listed(file: Path, archives: str, where: Path) -> list[str]:
    if not file.exists():
        raise FileNotFoundError(
            f"There is no {display(file)}. "
            + archives.format(where=display(where), voc=display(where / "VOCdevkit/VOC2012"))
        )
    return file.read_text().split()


def _class_map_of(file: Path) -> np.ndarray:
    """A mask as VOC2012 has it, or as the Semantic Boundaries Dataset does, NAME.mat."""
    if file.suffix != ".mat":
        return class_map(file)
    from scipy.io import loadmat

    return np.asarray(loadmat(file)["GTcls"]["Segmentation"][0, 0], np.uint8)


Parts = tuple[Callable[[int], np.ndarray], Callable[[int], np.ndarray], int]


def _nyu_labelled(file: Path) -> Mapping[str, Parts]:
    """The labelled images, a file of MATLAB 7.3, which has the axes in the order of Fortran."""
    import h5py
    from scipy.io import loadmat

    numbers = file.with_name("splits.mat")
    if not numbers.exists():
        raise FileNotFoundError(
            f"There is no {display(numbers)} beside {display(file.name)}. {_NYU_ARCHIVES}"
        )
    stored, rows = h5py.File(file, "r"), loadmat(numbers)

    def parts(own: np.ndarray) -> Parts:
        return (
            lambda number: np.ascontiguousarray(stored["images"][own[number]].transpose(2, 1, 0)),
            lambda number: np.ascontiguousarray(stored["depths"][own[number]].T, np.float32),
            len(own),
        )

    return {name: parts(rows[f"{name}Ndxs"].ravel().astype(int) - 1) for name in ("train", "test")}


def _nyu_of_tfds(data_dir: str | Path | None) -> Mapping[str, Parts]:
    """The images that TensorFlow Datasets has, of which "validation" are the 654 test images."""
    try:
        builder = prepared_builder(NYU, data_dir)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error} {_NYU_ARCHIVES}") from None

    def parts(split: str) -> Parts:
        places, _ = scan(builder, split)

        @functools.lru_cache(maxsize=64)  # an example is read for its image, and then for its map
        def example(number: int) -> dict[str, np.ndarray]:
            return builder.info.features.deserialize_example_np(record(places[number]))

        return (
            lambda number: example(number)["image"],
            lambda number: np.asarray(example(number)["depth"], np.float32),
            len(places),
        )

    return {"train": parts("train"), "test": parts("validation")}


_SETTINGS = {
    "data_dir": Setting(text, "where the files of voc2012 and nyu_depth_v2 lie", parse=str),
    "crop_size": Setting(
        checks.sides, "height and width of crops, as 513 or 228,304", "513; 228,304 of depth"
    ),
    "short_side": Setting(
        natural,
        "what the short side of images is resized to first",
        "as they are; 240/228 of the crop's, of depth",
    ),
    "test_share": Setting(
        share, "share of a folder without train and test that is held out to test on", "0.2"
    ),
    "max_broken": Setting(portion, "share of broken files that a folder may have", "0.01"),
}
FOR_SEGMENTATION = Needs(
    load_masks,
    _SETTINGS
    | {
        "num_classes": Setting(
            partial(checks.integer, least=2), "of a folder of masks", "those that its masks have"
        )
    },
)
FOR_DEPTH = Needs(
    load_depths, _SETTINGS | {"depth_scale": Setting(positive, "what a metre is in a PNG file", "1000")}
)
