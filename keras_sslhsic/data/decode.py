"""From the bytes of an image file to upright 8-bit pixels with the channels asked for.

Pillow decodes. It reads what `tf.io.decode_image` does not (EXIF orientation, CMYK colours as
meant, WebP, palettes with transparency), refuses truncated files, bounds the pixels before it allocates them,
reports an error of one image as an exception of that image, releases Python's lock, and is as fast: both sit
on libjpeg-turbo and give the same pixels. OpenCV resizes, in a fifth of the time that Pillow's resampling takes.
"""

import contextlib
import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

if TYPE_CHECKING:  # Pillow and OpenCV are imported by the functions that use them
    from PIL import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 89_478_485  # a quarter of a gigabyte of RGB; Pillow warns from here on
MAX_BYTES = 2**30  # of a file; uncompressed, so many pixels of 4 channels of 16 bits have 0.7 GB
BYTES_PER_PIXEL = 16  # that decoding takes: Pillow's pixels, four bytes each, turned, converted and copied
_ORIENTATION = 0x0112  # tag of EXIF; from 5 on height and width change places
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# The first bytes of files of FORMATS; the four dots of RIFF are the file's size.
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM")


class DecodeError(ValueError):
    """An image that cannot be decoded; the message is the reason."""


def looks_like_image(start: bytes) -> bool:
    """Whether a file that starts with these (at least 12) bytes has the signature of one of `FORMATS`."""
    return start.startswith(_SIGNATURES) or (start[:4] == b"RIFF" and start[8:12] == b"WEBP")


def check_channels(channels: int) -> None:
    """Raises ValueError unless images can be decoded to this number of channels."""
    if channels not in tuple(_MODES):
        raise ValueError(f"channels must be 1, 3 or 4, found {channels!r}.")


def decode(
    content: bytes | BinaryIO,
    channels: int = 3,
    short_side: int | None = None,
    max_pixels: int = MAX_PIXELS,
    hold: Callable[[int], None] | None = None,
) -> np.ndarray:
    """Decodes an image: JPEG, PNG, WebP, BMP, or the first frame of a GIF.

    The image is turned upright by its EXIF orientation. Transparent pixels are laid on white, unless 4 channels are asked for;
    of 16-bit values the high byte is kept; CMYK is converted by formula (colour profiles are ignored).

    Args:
        content: the file, in whatever format its bytes say; or a stream of it, which is read bit by bit.
        channels: 1 (luma), 3 (RGB) or 4 (RGBA).
        short_side: a JPEG of at least twice this size may be decoded at 1/2, 1/4 or 1/8 of its size, with no
            side shorter than this: several times faster for photographs.
        max_pixels: refuses larger images before they are decoded. Where it is above `MAX_PIXELS`, Pillow's own limit, which is
            the process's, is raised to it.
        hold: called with the bytes that decoding will need at most, once the header is read (`memory.Lease.hold`).

    Returns:
        The pixels, uint8 [H, W, channels].

    Raises:
        DecodeError: the file is no image, truncated, damaged or too large.
        ValueError: `channels` is not 1, 3 or 4.
    """
    from PIL import ImageOps

    check_channels(channels)
    image = _open(content, max_pixels)
    width, height = image.size
    if width * height > max_pixels:
        raise DecodeError(f"{width} x {height} pixels are more than the limit of {max_pixels}")
    try:
        if short_side is not None:
            image.draft(None, (short_side, short_side))
        if hold is not None:
            hold(_needed(image, width * height))
        image.load()
        with contextlib.suppress(Exception):  # damaged metadata beside whole pixels
            ImageOps.exif_transpose(image, in_place=True)
        return np.asarray(_to_mode(image, _MODES[channels])).reshape(image.height, image.width, channels)
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from error


def _open(content: bytes | BinaryIO, max_pixels: int = MAX_PIXELS) -> "Image.Image":
    """Reads the header of a file."""
    from PIL import Image, UnidentifiedImageError

    # Pillow refuses images from twice as many on.
    if max_pixels > MAX_PIXELS and Image.MAX_IMAGE_PIXELS is not None:
        Image.MAX_IMAGE_PIXELS = max(Image.MAX_IMAGE_PIXELS, max_pixels)
    stream = io.BytesIO(content) if isinstance(content, bytes) else content
    stream.seek(0)
    if not stream.read(1):
        raise DecodeError("the file is empty")
    # Pillow raises some ten types of exception for damaged files (OSError, SyntaxError, struct.error, ...).
    try:
        return Image.open(stream, formats=FORMATS)
    except Image.DecompressionBombError:  # whose sentence has Pillow's limit, not that of the caller
        limit = min(max_pixels, 2 * (Image.MAX_IMAGE_PIXELS or max_pixels))
        raise DecodeError(f"its pixels are more than the limit of {limit}") from None
    except UnidentifiedImageError:
        raise DecodeError(f"not a readable {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image") from None
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from error


def _needed(image: "Image.Image", stored: int) -> int:
    """Bytes that decoding an image takes at most; `stored` counts its pixels in the file."""
    # Of a progressive JPEG all coefficients are kept until the last scan, of a WebP the file and two frames.
    kept = 10 * stored if "progressive" in image.info or image.format == "WEBP" else 0
    return BYTES_PER_PIXEL * image.width * image.height + kept


def _to_mode(image: "Image.Image", mode: str) -> "Image.Image":
    from PIL import Image

    key = image.info.get("transparency")
    if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion saturates instead of scaling
        values = np.asarray(image)
        image = Image.fromarray((values >> 8).astype(np.uint8))
        if isinstance(key, int):
            image.putalpha(Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8)))
    elif isinstance(key, tuple) and max(key) > 255:
        # Of a colour of 16 bits Pillow keeps the high bytes alone.
        image.info["transparency"] = tuple(value >> 8 for value in key)
    if mode != "RGBA" and image.has_transparency_data:
        transparent = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), transparent)
    return image if image.mode == mode else image.convert(mode)


def header(content: bytes | BinaryIO) -> tuple[str, str]:
    """The format ("JPEG", ...) and Pillow mode ("RGB", "CMYK", ...) of an image as it is stored.

    Raises:
        DecodeError: the file is no image.
    """
    image = _open(content)
    return image.format or "", image.mode


def upright_size(content: bytes | BinaryIO) -> tuple[int, int]:
    """The (height, width) of an image as `decode` gives it.

    Raises:
        DecodeError: the file is no image.
    """
    image, orientation = _open(content), 1
    with contextlib.suppress(Exception):  # damaged metadata beside whole pixels
        orientation = image.getexif().get(_ORIENTATION, 1)
    return image.size if orientation in (5, 6, 7, 8) else image.size[::-1]


def square(pixels: np.ndarray, size: int) -> np.ndarray:
    """The largest central square of uint8 [H, W, C], resized to [size, size, C]; bilinear.

    Of an odd rest the larger part is cut off before it, as by `keras_sslhsic.data.central.resize_then_crop`.
    """
    height, width, _ = pixels.shape
    side = min(height, width)
    box = ((height - side + 1) // 2, (width - side + 1) // 2, side, side)
    return crop(pixels, box, size, "bilinear")


def crop(pixels: np.ndarray, box: tuple[int, ...], size: int, method: str = "bicubic") -> np.ndarray:
    """The box (y, x, height, width) within uint8 [H, W, C], resized to [size, size, C].

    Where the box is at least twice too large, whole blocks of pixels are averaged first. "bicubic" is OpenCV's, Keys' kernel
    with a = -3/4, where `keras_sslhsic.views` has -1/2; the other method is "bilinear".
    """
    import cv2

    y, x, height, width = box
    pixels = pixels[y : y + height, x : x + width]
    pixels = averaged(pixels, (height // size, width // size))
    if pixels.shape[:2] != (size, size):
        interpolation = {"bicubic": cv2.INTER_CUBIC, "bilinear": cv2.INTER_LINEAR}[method]
        pixels = cv2.resize(pixels, (size, size), interpolation=interpolation)
    # OpenCV drops a single channel; what was not resized is a view of the whole image.
    return np.ascontiguousarray(pixels).reshape(size, size, -1)


def averaged(pixels: np.ndarray, blocks: tuple[int, int]) -> np.ndarray:
    """Pixels uint8 [H, W, C] of which blocks (height, width) are averaged: before interpolation, which would skip pixels.

    The result is [H // height, W // width, C]; a block of less than one pixel is one.
    """
    import cv2

    height, width = (side // max(block, 1) for side, block in zip(pixels.shape, blocks, strict=False))
    if (height, width) == pixels.shape[:2]:
        return pixels
    # OpenCV drops a single channel.
    return cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA).reshape(height, width, -1)


def random_box(
    height: int,
    width: int,
    rng: np.random.Generator,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
    box: str = "redrawn",
) -> tuple[int, int, int, int]:
    """Draws a crop as `keras_sslhsic.views.crop.sample_crop_boxes` does, for one image of any size.

    The share of the image's area is uniform, width / height log-uniform; a box that does not fit is "redrawn" or "clamped".

    Returns:
        (y, x, height, width) of a box inside the image, at least 1 x 1.
    """
    for _ in range(10):
        target = height * width * rng.uniform(*area)
        ratio = math.exp(rng.uniform(math.log(aspect[0]), math.log(aspect[1])))
        box_height = max(round(math.sqrt(target / ratio)), 1)
        box_width = max(round(math.sqrt(target * ratio)), 1)
        if box == "clamped":
            box_height, box_width = min(box_height, height), min(box_width, width)
        if box_height <= height and box_width <= width:
            y, x = rng.integers(height - box_height + 1), rng.integers(width - box_width + 1)
            return int(y), int(x), box_height, box_width
    ratio = min(max(width / height, aspect[0]), aspect[1])
    box_height = max(round(min(height, width / ratio)), 1)
    box_width = max(round(min(width, height * ratio)), 1)
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width
