"""From the bytes of an image file to upright 8-bit pixels with the channels asked for.

Pillow decodes everything here. It reads what `tf.io.decode_image` does not (EXIF orientation, CMYK colours as
meant, WebP, palettes with transparency), refuses truncated files, bounds the pixels before it allocates them,
reports an error of one image as an exception of that image, releases Python's lock, and is as fast: both sit
on libjpeg-turbo and give the same pixels.
"""

import contextlib
import io
import math

import numpy as np
from PIL import Image, ImageOps

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 89_478_485  # a quarter of a gigabyte of RGB; Pillow warns from here on
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# The first bytes of files of FORMATS; the four dots of RIFF are the file's size.
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"BM")


class DecodeError(ValueError):
    """An image that cannot be decoded; the message is the reason."""


def looks_like_image(start: bytes) -> bool:
    """Whether a file that starts with these (at least 12) bytes has the signature of one of `FORMATS`."""
    return start.startswith(_SIGNATURES) or (start[:4] == b"RIFF" and start[8:12] == b"WEBP")


def decode(
    content: bytes, channels: int = 3, short_side: int | None = None, max_pixels: int = MAX_PIXELS
) -> Image.Image:
    """Decodes an image: JPEG, PNG, WebP, BMP, or the first frame of a GIF.

    The image is turned upright by its EXIF orientation. Transparent pixels are laid on white, unless 4
    channels are asked for; of 16-bit values the high byte is kept; CMYK is converted by formula (colour
    profiles are ignored).

    Args:
        content: the file, in whatever format its bytes say.
        channels: 1 (luma), 3 (RGB) or 4 (RGBA).
        short_side: a JPEG of at least twice this size may be decoded at 1/2, 1/4 or 1/8 of its size, with no
            side shorter than this: several times faster for photographs.
        max_pixels: refuses larger images before they are decoded.

    Returns:
        The image, in mode L, RGB or RGBA.

    Raises:
        DecodeError: the file is no image, truncated, damaged or too large.
        ValueError: `channels` is not 1, 3 or 4.
    """
    if channels not in _MODES:
        raise ValueError(f"channels must be 1, 3 or 4, found {channels}")
    if not content:
        raise DecodeError("the file is empty")
    # Pillow raises some ten types of exception for damaged files (OSError, SyntaxError, struct.error, ...).
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except Image.UnidentifiedImageError:
        raise DecodeError(f"not a readable {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image") from None
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from error
    width, height = image.size
    if width * height > max_pixels:
        raise DecodeError(f"{width} x {height} pixels are more than the limit of {max_pixels}")
    try:
        if short_side is not None:
            image.draft(None, (short_side, short_side))
        image.load()
        _turn_upright(image)
        return _to_mode(image, _MODES[channels])
    except Exception as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from error


def _turn_upright(image: Image.Image) -> None:
    with contextlib.suppress(Exception):  # damaged metadata beside whole pixels
        ImageOps.exif_transpose(image, in_place=True)


def _to_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion saturates instead of scaling
        image = Image.fromarray((np.asarray(image).astype(np.int64) >> 8).astype(np.uint8))
    if mode != "RGBA" and image.has_transparency_data:
        transparent = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), transparent)
    return image if image.mode == mode else image.convert(mode)


def header(content: bytes) -> tuple[str, str]:
    """The format ("JPEG", ...) and Pillow mode ("RGB", "CMYK", ...) of an image as it is stored."""
    image = Image.open(io.BytesIO(content), formats=FORMATS)
    return image.format or "", image.mode


def square(image: Image.Image, size: int) -> Image.Image:
    """The largest central square, resized to size x size (bilinear, antialiased)."""
    width, height = image.size
    if width == height == size:
        return image
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def crop(image: Image.Image, box: tuple[int, int, int, int], size: int) -> Image.Image:
    """The box (y, x, height, width), resized to size x size (bicubic, antialiased)."""
    y, x, height, width = box
    return image.resize((size, size), Image.Resampling.BICUBIC, box=(x, y, x + width, y + height))


def to_array(image: Image.Image) -> np.ndarray:
    """The pixels, uint8 [H, W, C]."""
    pixels = np.asarray(image)
    return pixels[..., np.newaxis] if pixels.ndim == 2 else pixels


def to_image(pixels: np.ndarray) -> Image.Image:
    """The inverse of `to_array`."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def random_box(
    height: int,
    width: int,
    rng: np.random.Generator,
    area: tuple[float, float] = (0.08, 1.0),
    aspect: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """Draws a crop as `keras_sslhsic.views.crop.sample_crop_boxes` does, for one image of any size.

    Returns:
        (y, x, height, width) of a box whose share of the area is uniform and whose aspect ratio (width /
        height) is log-uniform; after ten boxes that do not fit, the largest central box of an allowed aspect
        ratio.
    """
    for _ in range(10):
        target = height * width * rng.uniform(*area)
        ratio = math.exp(rng.uniform(math.log(aspect[0]), math.log(aspect[1])))
        box_height, box_width = (
            max(round(math.sqrt(target / ratio)), 1),
            max(round(math.sqrt(target * ratio)), 1),
        )
        if box_height <= height and box_width <= width:
            y, x = rng.integers(height - box_height + 1), rng.integers(width - box_width + 1)
            return int(y), int(x), box_height, box_width
    ratio = min(max(width / height, aspect[0]), aspect[1])
    box_height, box_width = (
        max(round(min(height, width / ratio)), 1),
        max(round(min(width, height * ratio)), 1),
    )
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width
