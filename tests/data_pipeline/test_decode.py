"""Decoding: formats, modes and orientations against known pixels; damage against its message."""

import dataclasses
import struct
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic import views
from keras_sslhsic.data import decode
from keras_sslhsic.data.batches import Decoding
from keras_sslhsic.data.central import central_square
from keras_sslhsic.data.decode import DecodeError
from keras_sslhsic.data.decode import decode as pixels


def png(width, height, depth, color, rows, extra=b""):
    """A PNG written chunk by chunk, for what Pillow does not write."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            extra,
            chunk(b"IDAT", zlib.compress(rows)),
            chunk(b"IEND", b""),
        ]
    )


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("WEBP", {"quality": 95}, 12),
        ("JPEG", {}, 8),
        ("JPEG", {"progressive": True}, 8),
    ],
)
def test_formats(photo, encode, kind, options, tolerance):
    found = pixels(encode(photo(), kind, **options))
    assert found.dtype == np.uint8 and found.shape == (60, 80, 3)
    assert np.abs(found.astype(int) - np.asarray(photo())).max() <= tolerance


def test_jpeg_pixels_are_those_of_tensorflow(photo, encode):
    content = encode(photo(), quality=80)
    expected = tf.io.decode_jpeg(content, channels=3, dct_method="INTEGER_ACCURATE")
    np.testing.assert_array_equal(pixels(content), expected)


def test_gif_gives_its_first_frame(photo, encode):
    frames = [photo(seed=seed).quantize() for seed in range(3)]
    content = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(pixels(content), np.asarray(frames[0].convert("RGB")))


# How an upright image is stored for each EXIF orientation: the inverse of what a viewer does.
STORED = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.swapaxes(0, 1),
    6: lambda upright: np.rot90(upright, 1),
    7: lambda upright: upright[::-1, ::-1].swapaxes(0, 1),
    8: lambda upright: np.rot90(upright, -1),
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_exif_orientation_is_applied(photo, encode, orientation, kind):
    upright = np.asarray(photo())
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    found = pixels(encode(stored, kind, exif=exif, **options))
    assert found.shape == upright.shape
    assert np.abs(found.astype(int) - upright).max() <= (8 if kind == "JPEG" else 0)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_leaves_the_pixels(photo, encode):
    content = encode(photo(), exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f")
    np.testing.assert_array_equal(pixels(content), pixels(encode(photo())))


def test_transparent_pixels_lie_on_white(encode):
    rgba = np.zeros((2, 3, 4), np.uint8)
    rgba[..., 0] = 200
    rgba[0, :, 3] = (255, 0, 51)
    found = pixels(encode(Image.fromarray(rgba), "PNG"))
    np.testing.assert_array_equal(found[0], [[200, 0, 0], [255, 255, 255], [244, 204, 204]])
    np.testing.assert_array_equal(pixels(encode(Image.fromarray(rgba), "PNG"), channels=4), rgba)
    np.testing.assert_array_equal(
        pixels(encode(Image.fromarray(rgba), "WEBP", lossless=True))[0, 0], [200, 0, 0]
    )


def test_palettes(encode):
    indexed = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    indexed.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    np.testing.assert_array_equal(pixels(encode(indexed, "PNG"))[0], [[255, 0, 0], [0, 255, 0], [0, 0, 255]])
    transparent = pixels(encode(indexed, "PNG", transparency=1))
    np.testing.assert_array_equal(transparent[0], [[255, 0, 0], [255, 255, 255], [0, 0, 255]])


def test_a_transparent_colour_of_16_bits_lies_on_white(encode):
    gray = Image.fromarray(np.array([[0x1234, 0x1235, 0x5000]], np.uint16))
    content = encode(gray, "PNG", transparency=0x1234)
    assert pixels(content, channels=1)[0, :, 0].tolist() == [255, 0x12, 0x50]
    assert pixels(content, channels=4)[0].tolist() == [[18, 18, 18, 0], [18, 18, 18, 255], [80, 80, 80, 255]]
    values = np.array([[[0x1234, 0x2000, 0x3000], [0x1334, 0x2000, 0x3000]]], np.uint16)
    key = b"tRNS" + values[0, 0].astype(">u2").tobytes()
    extra = struct.pack(">I", 6) + key + struct.pack(">I", zlib.crc32(key))
    content = png(2, 1, 16, 2, b"\0" + values[0].astype(">u2").tobytes(), extra)
    assert pixels(content)[0].tolist() == [[255, 255, 255], [0x13, 0x20, 0x30]]


def test_gray_and_bilevel_images_become_rgb(encode):
    ramp = np.arange(0, 250, 10, dtype=np.uint8).reshape(5, 5)
    np.testing.assert_array_equal(
        pixels(encode(Image.fromarray(ramp), "PNG")), np.repeat(ramp[..., None], 3, -1)
    )
    np.testing.assert_array_equal(pixels(encode(Image.fromarray(ramp), "PNG"), channels=1), ramp[..., None])
    bits = Image.fromarray(ramp > 100)
    np.testing.assert_array_equal(pixels(encode(bits, "PNG"), channels=1)[..., 0], 255 * (ramp > 100))


def test_luma_of_colours(encode):
    rgb = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]], np.uint8)
    found = pixels(encode(Image.fromarray(rgb), "PNG"), channels=1)[0, :, 0]
    assert np.abs(found - 255 * np.array([0.299, 0.587, 0.114])).max() <= 1


def test_sixteen_bits_keep_the_high_byte(encode):
    values = np.array([[0, 255, 256, 0x1234, 0xFFFF]], np.uint16)
    found = pixels(encode(Image.fromarray(values), "PNG"))
    np.testing.assert_array_equal(found[0, :, 0], [0, 0, 1, 0x12, 0xFF])
    rgb = b"\x00" + struct.pack(">6H", 0, 0x1234, 0xFFFF, 0x8000, 0x7FFF, 256)
    np.testing.assert_array_equal(pixels(png(2, 1, 16, 2, rgb))[0], [[0, 0x12, 0xFF], [0x80, 0x7F, 1]])


def test_cmyk_jpeg(encode):
    cmyk = np.zeros((16, 32, 4), np.uint8)
    cmyk[:, :16] = (255, 0, 0, 0)  # cyan
    cmyk[:, 16:] = (0, 0, 0, 255)  # black
    found = pixels(encode(Image.fromarray(cmyk, "CMYK"))).astype(int)
    assert np.abs(found[8, 4] - (0, 255, 255)).max() <= 6
    assert found[8, 28].max() <= 6


def test_large_jpegs_are_decoded_at_a_fraction(photo, encode):
    content = encode(photo(400, 600))
    assert pixels(content, short_side=100).shape == (100, 150, 3)
    assert pixels(content, short_side=101).shape == (200, 300, 3)
    assert pixels(content, short_side=256).shape == (400, 600, 3)
    direct = np.asarray(photo(400, 600).resize((150, 100), Image.Resampling.BOX)).astype(int)
    assert np.abs(pixels(content, short_side=100) - direct).mean() < 2


NOISE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda encode: b"", "empty"),
        (lambda encode: b"this is no image, whatever its name says", "not a readable JPEG"),
        (lambda encode: encode(Image.fromarray(NOISE))[:2000], "truncated"),
        (lambda encode: encode(Image.fromarray(NOISE), "PNG")[:2000], "OSError|SyntaxError|truncated"),
        (
            lambda encode: encode(Image.fromarray(NOISE), "WEBP", lossless=True)[:2000],
            "OSError|not a readable",
        ),
        (lambda encode: encode(Image.fromarray(NOISE), "BMP")[:2000], "truncated"),
        (lambda encode: encode(Image.fromarray(NOISE))[:10], "not a readable|OSError|SyntaxError"),
        (lambda encode: png(20000, 20000, 8, 2, b""), "its pixels are more than the limit of"),
        (lambda encode: png(10000, 10000, 8, 2, b""), "10000 x 10000 pixels are more than the limit"),
        (lambda encode: encode(Image.fromarray(NOISE), "TIFF"), "not a readable"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_damage_is_an_error_with_a_reason(encode, damage, reason):
    with pytest.raises(DecodeError, match=reason):
        decode.decode(damage(encode))


def test_pixel_limit(photo, encode):
    assert pixels(encode(photo()), max_pixels=60 * 80).shape == (60, 80, 3)
    with pytest.raises(DecodeError, match="80 x 60 pixels are more than the limit of 4799"):
        decode.decode(encode(photo()), max_pixels=60 * 80 - 1)


@pytest.mark.filterwarnings("error::PIL.Image.DecompressionBombWarning")
def test_a_pixel_limit_above_that_of_pillow_is_the_limit(photo, encode, monkeypatch):
    monkeypatch.setattr(decode, "MAX_PIXELS", 1000)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    for kind in decode.FORMATS:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        with pytest.raises(DecodeError, match="its pixels are more than the limit of 1000"):
            decode.decode(encode(photo(), kind), max_pixels=1000)
        assert decode.decode(encode(photo(), kind), max_pixels=4800).shape == (60, 80, 3)


def test_channels_must_be_known(photo, encode):
    with pytest.raises(ValueError, match="1, 3 or 4, found 2"):
        decode.decode(encode(photo()), channels=2)


def test_square_takes_the_centre(photo):
    image = np.asarray(photo(40, 101))
    np.testing.assert_array_equal(decode.square(image, 40), image[:, 31:71])
    half = decode.square(image, 20).astype(int)
    assert np.abs(half - image[:, 31:71].reshape(20, 2, 20, 2, 3).mean((1, 3))).max() <= 1


@pytest.mark.parametrize("sides", [(40, 41), (41, 40), (40, 101), (33, 40), (40, 40)])
def test_squares_that_are_trained_on_and_measured_on_are_the_same(photo, sides):
    image = np.asarray(photo(*sides))
    side = min(sides)
    np.testing.assert_array_equal(decode.square(image, side), central_square(image, side))


def test_crop_cuts_its_box(photo):
    image = np.asarray(photo(40, 100))
    np.testing.assert_array_equal(decode.crop(image, (5, 10, 30, 30), 30), image[5:35, 10:40])


@pytest.mark.parametrize("method", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [20, 45, 70])
def test_crop_interpolates(photo, method, size):
    """Each output samples the kernel around its centre; 20 is more than half of both sides: nothing is averaged."""
    image = np.asarray(photo(60, 80))
    y, x, height, width = box = (7, 11, 39, 28)
    found = decode.crop(image, box, size, method).astype(float)
    part = image[y : y + height, x : x + width].astype(float)
    expected = _interpolated(_interpolated(part, size, method).swapaxes(0, 1), size, method).swapaxes(0, 1)
    assert np.abs(found - np.clip(expected, 0, 255)).max() <= 1


def _interpolated(values, size, method, a=-0.75):
    """Float64 interpolation along the first axis, the border repeated."""
    length = len(values)
    result = np.zeros((size, *values.shape[1:]))
    for i in range(size):
        centre = (i + 0.5) * length / size - 0.5
        for j in range(int(np.floor(centre)) - 1, int(np.floor(centre)) + 3):
            d = abs(centre - j)
            if method == "bilinear":
                weight = max(1 - d, 0)
            elif d <= 1:
                weight = (a + 2) * d**3 - (a + 3) * d**2 + 1
            else:
                weight = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
            result[i] += weight * values[min(max(j, 0), length - 1)]
    return result


def test_what_is_far_too_large_is_averaged():
    """A checkerboard of single pixels turns gray at any size under a half, whatever the kernel would sample."""
    board = np.tile(np.array([[0, 255], [255, 0]], np.uint8), (60, 60))[..., np.newaxis]
    for size in (10, 15, 29, 60):
        for method in ("bicubic", "bilinear"):
            found = decode.crop(board, (0, 0, 120, 120), size, method)
            assert found.shape == (size, size, 1) and np.abs(found.astype(int) - 127.5).max() <= 1.5


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_shapes_of_any_channels_and_aspect(channels):
    image = np.random.default_rng(0).integers(0, 256, (3, 200, channels), np.uint8)
    for size in (1, 2, 3, 5, 64):
        for found in (decode.square(image, size), decode.crop(image, (0, 0, 3, 200), size)):
            assert found.shape == (size, size, channels) and found.dtype == np.uint8
            assert found.flags.c_contiguous


def test_random_boxes_have_the_distribution_of_the_device_crops():
    """Uniform area, log-uniform aspect ratio where every box fits; always inside; at least one pixel."""
    rng = np.random.default_rng(0)
    boxes = np.array([decode.random_box(1000, 1000, rng, (0.05, 0.25)) for _ in range(4000)])
    y, x, height, width = boxes.T
    assert (y >= 0).all() and (x >= 0).all() and (y + height <= 1000).all() and (x + width <= 1000).all()
    area = height * width / 1e6
    aspect = np.log(width / height) / np.log(4 / 3)
    # 4000 draws of U(0, 1) have a mean within 4 x 0.0046 of 1/2 and deciles within 4 x 0.005 of theirs.
    for uniform in ((area - 0.05) / 0.2, (aspect + 1) / 2, y / (1000 - height), x / (1000 - width)):
        assert abs(uniform.mean() - 0.5) < 0.0184
        assert np.abs(np.quantile(uniform, [0.1, 0.9]) - [0.1, 0.9]).max() < 0.02
    for shape in ((1, 1), (1, 500), (500, 2)):
        y, x, height, width = decode.random_box(*shape, rng)
        assert 1 <= height <= shape[0] - y and 1 <= width <= shape[1] - x


@pytest.mark.parametrize(("box", "columns"), [("redrawn", 20), ("clamped", 40)])
def test_host_crops_follow_the_law_of_the_policy(box, columns):
    """Squares of the whole area do not fit in 20 x 80: 20 x 20 from the middle, or 20 x 40 from anywhere."""
    crop = views.Crop(area=(1.0, 1.0), aspect=(1.0, 1.0), method="bilinear", box=box)
    policy = dataclasses.replace(views.byol(20), crop=crop)
    image = np.tile(np.arange(80, dtype=np.uint8)[None, :, None], (20, 1, 3))
    crops = [Decoding(host_crops=policy).arrays(image, (seed,))[0] for seed in range(20)]
    widths = [int(crop.max()) - int(crop.min()) + 1 for crop in crops]
    # Half the width is averaged over pairs of columns, which takes a pixel off.
    assert all(columns - 2 <= width <= columns for width in widths)
    places = {int(crop.min()) for crop in crops}
    assert places == {30} if box == "redrawn" else len(places) > 5


def test_signatures(photo, encode):
    for kind in decode.FORMATS:
        assert decode.looks_like_image(encode(photo(), kind)[:12])
    assert not decode.looks_like_image(b"%PDF-1.7 and")
