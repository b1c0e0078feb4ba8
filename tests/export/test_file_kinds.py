"""Every kind of file that there is: what `encoded` serves of it is what `extract` computes, or one of them refuses it."""

import io
import re
import struct
import zlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic.data import decode
from keras_sslhsic.export import export_saved_model

HEIGHT, WIDTH = 13, 19
RNG = np.random.default_rng(0)


def _levels(bits):
    """[H, W] numbers below 2^bits."""
    return RNG.integers(0, 2**bits, (HEIGHT, WIDTH))


def _packed(numbers, bits):
    """Rows of numbers of so many bits, the first one highest, each in whole bytes."""
    digits = (numbers[..., None] >> np.arange(bits)[::-1]) & 1
    return np.packbits(digits.reshape(len(numbers), -1).astype(np.uint8), axis=1)


# BMP


def _bmp(bits, rows, compression=0, palette=b"", masks=b"", top_down=False, header=40, used=0):
    """A file of a header of 12 (OS/2), 40, 52, 56, 108 or 124 bytes; `rows` are the pixel bytes, the lowest row first."""
    if header == 12:
        info = struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, bits)
    else:
        height = -HEIGHT if top_down else HEIGHT
        info = struct.pack(
            "<IiiHHIIiiII", header, WIDTH, height, 1, bits, compression, len(rows), 0, 0, used, 0
        )
        if header > 40:
            info += masks.ljust(16, b"\0")[: header - 40]
        info = info.ljust(header, b"\0")
    between = (b"" if header > 40 else masks) + palette
    start = 14 + len(info) + len(between)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + info + between + rows


def _padded(rows, top_down=False):
    """Rows of bytes in multiples of four, the lowest first."""
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 4)))
    return (rows if top_down else rows[::-1]).tobytes()


def _runs(numbers, bits):
    """Rows of numbers in run-length encoding: a run of one for each pixel, an end of line for each row."""
    content = b""
    for row in numbers[::-1]:
        for number in row:
            content += bytes([1, number if bits == 8 else number << 4])
        content += b"\0\0"
    return content + b"\0\1"


def _palette(count, gray=False):
    """[count, 3] colours, blue first."""
    return (
        np.linspace(0, 255, count).astype(np.uint8)[:, None].repeat(3, 1)
        if gray
        else RNG.integers(0, 256, (count, 3), np.uint8)
    )


def bitmaps():
    files = {}
    for bits in (1, 2, 4, 8):
        numbers = _levels(bits)
        for kind in ("colour", "gray"):
            colours = _palette(2**bits, kind == "gray")
            four = np.pad(colours, ((0, 0), (0, 1))).tobytes()
            rows = _packed(numbers, bits)
            files[f"{bits} bits, {kind}"] = _bmp(bits, _padded(rows), palette=four)
            files[f"{bits} bits, {kind}, top down"] = _bmp(
                bits, _padded(rows, True), palette=four, top_down=True
            )
            files[f"{bits} bits, {kind}, OS/2"] = _bmp(
                bits, _padded(rows), palette=colours.tobytes(), header=12
            )
            files[f"{bits} bits, {kind}, version 5"] = _bmp(bits, _padded(rows), palette=four, header=124)
            if bits in (4, 8):
                files[f"{bits} bits, {kind}, runs"] = _bmp(bits, _runs(numbers, bits), 3 - bits // 4, four)
    few = _palette(5)
    files["8 bits, 5 colours"] = _bmp(
        8, _padded(_levels(8).astype(np.uint8) % 5), palette=np.pad(few, ((0, 0), (0, 1))).tobytes(), used=5
    )
    files["8 bits, numbers beyond 5 colours"] = _bmp(
        8, _padded(_levels(8).astype(np.uint8)), palette=np.pad(few, ((0, 0), (0, 1))).tobytes(), used=5
    )
    files["8 bits, without palette"] = _bmp(8, _padded(_levels(8).astype(np.uint8)))
    sixteen = _levels(16).astype("<u2").view(np.uint8).reshape(HEIGHT, -1)
    for name, masks in {
        "555": (0x7C00, 0x3E0, 0x1F),
        "565": (0xF800, 0x7E0, 0x1F),
        "444": (0xF00, 0xF0, 0xF),
    }.items():
        for header in (40, 52, 56, 108):
            packed = struct.pack("<III", *masks)
            files[f"16 bits, {name}, header of {header}"] = _bmp(
                16, _padded(sixteen), 3, masks=packed, header=header
            )
    files["16 bits"] = _bmp(16, _padded(sixteen))
    for bits in (24, 32):
        bytes_ = RNG.integers(0, 256, (HEIGHT, WIDTH * bits // 8), np.uint8)
        for header in (12, 40, 52, 56, 108, 124):
            files[f"{bits} bits, header of {header}"] = _bmp(bits, _padded(bytes_), header=header)
        files[f"{bits} bits, top down"] = _bmp(bits, _padded(bytes_, True), top_down=True)
        orders = {
            "BGRX": (0xFF0000, 0xFF00, 0xFF),
            "RGBX": (0xFF, 0xFF00, 0xFF0000),
            "XBGR": (0xFF000000, 0xFF0000, 0xFF00),
        }
        for name, masks in orders.items() if bits == 32 else ():
            for alpha in (0, 0xFFFFFFFF & ~sum(masks)):
                for header in (40, 56, 108):
                    packed = struct.pack(
                        "<IIII"[: 4 if header == 40 else 5], *masks, *(() if header == 40 else (alpha,))
                    )
                    files[f"32 bits, {name}, alpha {alpha:x}, header of {header}"] = _bmp(
                        32, _padded(bytes_), 3, masks=packed, header=header
                    )
    return files


# PNG


def _png(kind, bits, rows, *chunks, interlaced=0):
    """A file of rows of bytes, none of them filtered."""

    def chunk(name, content):
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, kind, 0, 0, interlaced)
    content = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", content), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def pngs():
    files = {}
    channels = {"gray": (0, 1), "RGB": (2, 3), "palette": (3, 1), "gray and alpha": (4, 2), "RGBA": (6, 4)}
    for name, (kind, count) in channels.items():
        for bits in {0: (1, 2, 4, 8, 16), 3: (1, 2, 4, 8)}.get(kind, (8, 16)):
            numbers = RNG.integers(0, 2**bits, (HEIGHT, WIDTH * count))
            colours = (b"PLTE", _palette(2**bits).tobytes())
            between = [colours] if kind == 3 else []
            clear = {
                0: struct.pack(">H", numbers[0, 0]),
                2: struct.pack(">HHH", *numbers[0, :3]),
                3: RNG.integers(0, 256, 2 ** (bits - 1), np.uint8).tobytes(),
            }
            rows = _packed(numbers, bits)
            files[f"{name}, {bits} bits"] = _png(kind, bits, rows, *between)
            if kind in clear:
                files[f"{name}, {bits} bits, transparency"] = _png(
                    kind, bits, rows, *between, (b"tRNS", clear[kind])
                )
            passes = [
                row
                for top, left, down, right in (
                    (0, 0, 8, 8),
                    (0, 4, 8, 8),
                    (4, 0, 8, 4),
                    (0, 2, 4, 4),
                    (2, 0, 4, 2),
                    (0, 1, 2, 2),
                    (1, 0, 2, 1),
                )
                for row in _packed(
                    numbers.reshape(HEIGHT, WIDTH, count)[top::down, left::right].reshape(
                        len(range(top, HEIGHT, down)), -1
                    ),
                    bits,
                )
            ]
            files[f"{name}, {bits} bits, interlaced"] = _png(kind, bits, passes, *between, interlaced=1)
            files[f"{name}, {bits} bits, gamma"] = _png(
                kind, bits, rows, (b"gAMA", struct.pack(">I", 100_000)), *between
            )
    return files


# What Pillow writes


def _saved(pixels, kind, mode, **options):
    stream = io.BytesIO()
    Image.fromarray(pixels, "RGB").convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def saved():
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    pixels = np.stack([12 * y, 12 * x, 7 * (x + y)], -1).astype(np.uint8)  # smooth, as pictures are
    files = {}
    for mode in ("L", "RGB", "CMYK"):
        for progressive in (False, True):
            for subsampling in ("4:4:4", "4:2:2", "4:2:0") if mode == "RGB" else ("4:4:4",):
                name = f"JPEG {mode} {subsampling}{' progressive' * progressive}"
                files[name] = _saved(
                    pixels, "JPEG", mode, progressive=progressive, subsampling=subsampling, quality=90
                )
    for mode in ("1", "L", "P", "RGB"):
        for interlace in (0, 1):
            files[f"GIF {mode}, interlace {interlace}"] = _saved(pixels, "GIF", mode, interlace=interlace)
    files["GIF, smaller first frame"] = bytearray(files["GIF P, interlace 0"])
    files["GIF, smaller first frame"][6:10] = struct.pack("<HH", WIDTH + 3, HEIGHT + 2)
    files["GIF, smaller first frame"] = bytes(files["GIF, smaller first frame"])
    files["GIF P, transparency"] = _saved(pixels, "GIF", "P", transparency=_levels(0)[0, 0])
    for mode in ("RGB", "RGBA", "L"):
        for lossless in (False, True):
            files[f"WebP {mode}, lossless {lossless}"] = _saved(pixels, "WEBP", mode, lossless=lossless)
    alpha = np.dstack([pixels, (13 * x).astype(np.uint8)])
    for lossless in (False, True):
        stream = io.BytesIO()
        Image.fromarray(alpha, "RGBA").save(stream, "WEBP", lossless=lossless)
        files[f"WebP alpha, lossless {lossless}"] = stream.getvalue()
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        image = Image.fromarray(pixels).convert("L" if mode == "I;16" else mode)
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image).astype(np.uint16) * 251)
        stream = io.BytesIO()
        image.save(stream, "PNG", optimize=True)
        files[f"PNG {mode}"] = stream.getvalue()
    return files


FILES = (
    {f"BMP, {name}": content for name, content in bitmaps().items()}
    | {f"PNG, {name}": content for name, content in pngs().items()}
    | saved()
)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Files to pixels [H, W, C], by the signature `encoded` of an encoder that gives the pixels of C channels."""
    found = {}
    for channels in (1, 3, 4):
        images = keras.Input((HEIGHT, WIDTH, channels))
        encoder = keras.Model(images, keras.layers.Flatten()(keras.layers.Rescaling(1.0)(images)))
        folder = tmp_path_factory.mktemp("pixels") / "model"
        export_saved_model(encoder, folder)
        model = tf.saved_model.load(str(folder))
        found[channels] = model.signatures["encoded"], model
    return lambda content, channels: np.reshape(
        found[channels][0](bytes=tf.constant([content]))["features"], (HEIGHT, WIDTH, channels)
    )


REFUSED = (
    "A BMP file must have 24 or 32 bits|GIF files with transparent pixels|PNG files with a transparent colour"
)


@pytest.mark.slow
def test_what_is_served_is_what_is_extracted_or_is_refused(served):
    # In one test: between two the seed is set, which makes TensorFlow prepare a graph anew.
    for name, content in FILES.items():
        refused = 0
        for channels in (1, 3, 4):
            try:
                expected = decode.decode(content, channels)
            except decode.DecodeError:
                expected = None
            try:
                found = served(content, channels)
            except tf.errors.InvalidArgumentError as error:
                assert re.search(REFUSED, error.message), name
                refused += 1
            else:
                assert expected is not None, name
                np.testing.assert_array_equal(found, expected, err_msg=name)
        assert refused in (0, 3), name


@pytest.mark.slow
def test_most_kinds_are_served(served):
    """Those that are not: bitmaps of few bits, of 16, of OS/2, of runs or other masks; keyed GIF and PNG files."""
    kinds = (
        "BMP, 1 ",
        "BMP, 2 ",
        "BMP, 4 ",
        "BMP, 16",
        "OS/2",
        "runs",
        "header of 12",
        "RGBX",
        "XBGR",
        "without palette",
    )
    kinds = (*kinds, "GIF P, t", "GIF, s", "PNG, gray, ", "PNG, RGB, ")
    for name, content in FILES.items():
        if not any(kind in name for kind in kinds) or (name.startswith("PNG") and "transparency" not in name):
            served(content, 3)
