"""What is in a folder of images: counts, sizes, classes, broken files, mean and standard deviation."""

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_sslhsic import checks, files, pictures
from keras_sslhsic.data import decode
from keras_sslhsic.data.batches import thread_pool
from keras_sslhsic.data.broken import reason
from keras_sslhsic.data.folder import EXTENSIONS, class_labels, is_image, list_images, walk
from keras_sslhsic.data.images import spread
from keras_sslhsic.data.memory import Budget
from keras_sslhsic.files import display
from keras_sslhsic.words import counted

if TYPE_CHECKING:
    from PIL import Image


@dataclasses.dataclass(frozen=True)
class Report:
    """What `inspect_folder` found.

    Attributes:
        path: the folder.
        num_files: image files, broken ones included.
        num_bytes: their size on disk.
        ignored: files that are no image files, by their extension, and pictures that this package wrote.
        classes: images of each class, without the broken ones; empty if there are none.
        no_classes: why there are none; "" if there are.
        empty_folders: sub-folders without an image, which are no classes.
        repeated_folders: sub-folders whose images are counted in another one, since links lead from one to the other;
            no classes either.
        formats: images of each format, "JPEG", "PNG", ...
        modes: images of each Pillow mode: "L" gray, "RGB", "RGBA", "P" palette, "CMYK", "I;16" 16 bits, ...
        heights: smallest, median and largest height of the upright images in pixels.
        widths: likewise.
        broken: the reason for each broken file.
        mean: of each channel over all pixels, in [0, 1], every image having the same weight.
        std: likewise.
        largest: pixel of all, in [0, 255].
        sample: up to 64 images spread over the folder, central squares, uint8 [K, 96, 96, C].
    """

    path: str
    num_files: int
    num_bytes: int
    ignored: Mapping[str, int]
    classes: Mapping[str, int]
    no_classes: str
    empty_folders: tuple[str, ...]
    repeated_folders: tuple[str, ...]
    formats: Mapping[str, int]
    modes: Mapping[str, int]
    heights: tuple[int, int, int]
    widths: tuple[int, int, int]
    broken: Mapping[str, str]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    largest: int
    sample: np.ndarray

    def __str__(self) -> str:
        def counts(counter: Mapping[str, int]) -> str:
            return ", ".join(f"{display(name)} {count:,}" for name, count in counter.items()) or "none"

        def numbers(values: Iterable[float]) -> str:
            return ", ".join(f"{value:.4f}" for value in values)

        def span(sides: tuple[int, int, int]) -> str:
            least, middle, most = sides
            return f"{least:,}" if least == most else f"{least:,} to {most:,}, median {middle:,}"

        sizes, repeated = list(self.classes.values()), ", ".join(map(display, self.repeated_folders))
        least, most = min(sizes, default=0), max(sizes, default=0)
        each = counted(most, "image") if least == most else f"{least:,} to {most:,} images"
        of_images = f"{len(sizes)}, of {each}" if sizes else ""
        rows = {
            "folder": display(self.path),
            "files": f"{self.num_files:,}, {self.num_bytes / 1e6:,.1f} MB",
            "ignored": counts(self.ignored),
            "classes": of_images or f"none: {self.no_classes}",
            "empty": ", ".join(map(display, self.empty_folders)),
            "repeated": repeated and f"{repeated}: links to folders that are counted already",
            "formats": counts(self.formats),
            "modes": counts(self.modes),
            "height": span(self.heights),
            "width": span(self.widths),
            "mean": numbers(self.mean),
            "std": numbers(self.std),
            "dark": dark(self.largest),
            "broken": f"{len(self.broken):,}",
        }
        lines = [f"{name:10}{text}" for name, text in rows.items() if text]
        lines += [f"  {display(path)}: {why}" for path, why in list(self.broken.items())[:20]]
        return "\n".join(lines + ["  ..."] * (len(self.broken) > 20))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the sample, for a JSON file."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "sample"}

    def save_contact_sheet(self, file: str | Path) -> None:
        """Writes the sample as one picture of up to 8 x 8 images, of the kind that the file's ending says.

        Raises:
            ValueError: as `check_sheet`.
            OSError: if it cannot be written.
        """
        from PIL.PngImagePlugin import PngInfo

        kind, mark = check_sheet(self.path, file), PngInfo()
        mark.add_text("Software", pictures.SOFTWARE)
        with files.written_whole(file) as temporary:
            contact_sheet(self.sample).save(temporary, kind, **({"pnginfo": mark} if kind == "PNG" else {}))


def check_sheet(path: str | Path, file: str | Path) -> str:
    """The kind of picture that a sheet of images of a folder will be.

    Raises:
        ValueError: for an ending of no kind of picture, or a file that is, or would be taken for, an image of the folder.
    """
    from PIL import Image

    file = Path(file)
    kind = Image.registered_extensions().get(file.suffix.lower())
    if kind is None:
        raise ValueError(f"{display(file)} has the ending of no kind of picture: give NAME.png.")
    inside = file.resolve().is_relative_to(Path(path).resolve())
    left_out = file.name in pictures.NAMES and (pictures.is_own(file) or not file.exists())
    if inside and file.suffix.lower() in EXTENSIONS and not left_out:
        raise ValueError(
            f"{display(file)} lies in {display(path)}, and would be one of its images: choose another folder, or the name "
            f"{pictures.SHEET}, which is left out."
        )
    return kind


def contact_sheet(images: np.ndarray, columns: int = 8, gap: int = 4) -> "Image.Image":
    """Lays out images, uint8 [K, H, W, C], in rows on a gray ground."""
    from PIL import Image

    count, height, width, channels = images.shape
    columns = min(count, columns)
    rows = -(-count // columns)
    tiles = np.full((rows * columns, height + gap, width + gap, channels), 128, np.uint8)
    tiles[:count, gap:, gap:] = images
    in_rows = tiles.reshape(rows, columns, *tiles.shape[1:]).swapaxes(1, 2)
    sheet = in_rows.reshape(rows * (height + gap), -1, channels)
    sheet = np.pad(sheet, ((0, gap), (0, gap), (0, 0)), constant_values=128)
    return Image.fromarray(sheet[..., 0] if channels == 1 else sheet)


_DARK = 32  # of 255: images of 12 bits in files of 16 reach 15


def dark(largest: float) -> str:
    """What is said of images whose largest pixel, in [0, 255], is this; "" of those that reach a usual one."""
    if largest >= _DARK:
        return ""
    return f"no pixel is above {largest:.0f} of 255. Of 16 bits the high byte is read: scale images of 12 bits to all of 16"


_TILE = 96


class _One(NamedTuple):
    """One image: how it is stored, its upright size, each channel's mean and mean square, its largest pixel, and its tile."""

    format: str
    mode: str
    height: int
    width: int
    mean: np.ndarray
    square: np.ndarray
    largest: int
    tile: np.ndarray


def _inspect_one(file: str, channels: int, max_pixels: int, memory: Budget) -> _One | str:
    import cv2

    with memory.lease() as lease:
        try:
            with files.open_regular(file, decode.MAX_BYTES) as stream:
                pixels = decode.decode(stream, channels, max_pixels=max_pixels, hold=lease.hold)
                kind, mode = decode.header(stream)
        except (OSError, decode.DecodeError) as error:
            return reason(error, file)
        mean, std = (values[:, 0] / 255 for values in cv2.meanStdDev(pixels))
        tile = decode.square(pixels, _TILE)
    height, width, _ = pixels.shape
    return _One(kind, mode, height, width, mean, mean**2 + std**2, int(pixels.max()), tile)


def _unused_folders(path: str | Path, images: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sub-folders that none of the files is in: those without an image, and those whose images are listed elsewhere."""
    used = {Path(file).relative_to(path).parts[0] for file in images}
    unused = sorted(f.name for f in Path(path).iterdir() if f.is_dir() and f.name not in used)
    unused = [name for name in unused if not name.startswith(".")]
    repeated = [name for name in unused if any(map(is_image, walk(Path(path, name))))]
    return tuple(name for name in unused if name not in repeated), tuple(repeated)


def _size(file: str) -> int:
    """Bytes of a file; 0 of one that is gone, or may not be looked at."""
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


def _span(sides: tuple[int, ...]) -> tuple[int, int, int]:
    return min(sides), int(np.median(sides)), max(sides)


def inspect_folder(
    path: str | Path,
    channels: int = 3,
    max_pixels: int = decode.MAX_PIXELS,
    workers: int | None = None,
    verbose: bool = False,
    memory_mb: int = 1024,
) -> Report:
    """Decodes every image of a folder once and returns a `Report` of what is there.

        report = inspect_folder("photos")
        print(report)
        report.save_contact_sheet("photos.png")

    Args:
        path: a folder as for `from_folder`.
        channels: 1, 3 or 4: what images are brought to before mean and standard deviation are taken.
        max_pixels: larger images count as broken.
        workers: threads that decode; None: as many as there are cores.
        verbose: show a progress bar.
        memory_mb: memory, in 2^20 bytes, that images take while they are looked at. An image that needs more is looked
            at nevertheless.

    Raises:
        FileNotFoundError: no such folder, or no images in it.
        OSError: as `list_images`.
        ValueError: every image is broken, or `max_pixels` is no positive integer.
    """
    from tqdm.auto import tqdm

    checks.integer("max_pixels", max_pixels, 1)
    images = list_images(path)
    memory, listed = Budget(memory_mb), set(images)
    ignored = Counter(
        "keras_sslhsic's own" if pictures.is_own(file) else Path(file).suffix.lower() or "no extension"
        for file in walk(path)
        if file not in listed
    )
    labels, no_classes = None, "all images lie in one folder"
    try:
        labels = class_labels(path, images)
    except ValueError as error:
        no_classes = str(error)
    picked = set(spread(len(images), 64))
    broken: dict[str, str] = {}
    ones: list[tuple[Any, ...]] = []
    tiles: list[np.ndarray] = []
    classes = dict.fromkeys(labels[1] if labels else (), 0)
    with thread_pool(workers) as pool:
        found = pool.map(lambda file: _inspect_one(file, channels, max_pixels, memory), images)
        found = tqdm(found, total=len(images), unit="image", disable=not verbose, leave=False)
        for number, (file, one) in enumerate(zip(images, found, strict=True)):
            if isinstance(one, str):
                broken[file] = one
                continue
            if labels is not None:
                classes[labels[1][labels[0][number]]] += 1
            if number in picked:
                tiles.append(one.tile)
            ones.append(one[:-1])
    if not ones:
        raise ValueError(
            f"All {len(images)} image files of {display(path)} are broken; the first, {display(images[0])}: "
            f"{broken[images[0]]}. Repair or replace them."
        )
    formats, modes, heights, widths, means, squares, largest = zip(*ones, strict=True)
    mean = np.mean(means, axis=0)
    std = np.sqrt(np.maximum(np.mean(squares, axis=0) - mean**2, 0.0))
    empty_folders, repeated_folders = _unused_folders(path, images)
    return Report(
        path=str(path),
        num_files=len(images),
        num_bytes=sum(map(_size, images)),
        ignored=dict(ignored.most_common()),
        classes=classes,
        no_classes="" if classes else no_classes,
        empty_folders=empty_folders,
        repeated_folders=repeated_folders,
        formats=dict(Counter(formats).most_common()),
        modes=dict(Counter(modes).most_common()),
        heights=_span(heights),
        widths=_span(widths),
        broken=broken,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
        largest=max(largest),
        sample=np.stack(tiles) if tiles else np.zeros([0, _TILE, _TILE, channels], np.uint8),
    )
