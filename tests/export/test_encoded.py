"""The limit of pixels in the signature `encoded` of an exported encoder."""

import contextlib
import io
import struct

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic.export import export_saved_model


def small_files():
    """A file of 8 x 6 pixels of each kind."""
    files = {}
    for kind in ("PNG", "GIF", "BMP", "WEBP", "JPEG"):
        stream = io.BytesIO()
        Image.new("RGB", (8, 6), (9, 99, 199)).save(stream, kind)
        files[kind] = bytearray(stream.getvalue())
    stream = io.BytesIO()
    Image.new("RGB", (8, 6)).save(stream, "WEBP", lossless=True)
    files["lossless"] = bytearray(stream.getvalue())
    stream = io.BytesIO()
    Image.new("RGBA", (8, 6)).save(stream, "WEBP", quality=50)
    files["extended"] = bytearray(stream.getvalue())
    return files


def state(kind, content, width, height):
    """Writes a width and a height into the header of a file."""
    content = bytearray(content)
    if kind == "PNG":
        content[16:24] = struct.pack(">II", width, height)
    elif kind == "GIF":
        at = content.index(b"\x2c", 13 + 3 * 2 ** (content[10] % 8 + 1))
        content[6:10] = content[at + 5 : at + 9] = struct.pack("<HH", width, height)
    elif kind == "BMP":
        content[18:26] = struct.pack("<ii", width, -height)
    elif kind == "WEBP":
        content[26:30] = struct.pack("<HH", width, height)
    elif kind == "lossless":
        content[21:25] = struct.pack("<I", (width - 1) | (height - 1) << 14)
    elif kind == "extended":
        content[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    else:
        at = content.index(b"\xff\xc0")
        content[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(content)


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """The `encoded` signature of an encoder that gives the pixels, of images of up to 48 pixels."""
    pixels = keras.Input((6, 8, 3))
    encoder = keras.Model(pixels, keras.layers.Flatten()(keras.layers.Rescaling(1.0)(pixels)))
    folder = tmp_path_factory.mktemp("limited") / "model"
    export_saved_model(encoder, folder, max_pixels=48)
    model = tf.saved_model.load(str(folder))
    encoded = model.signatures["encoded"]
    encoded.model = model
    return lambda *files: encoded(bytes=tf.constant([bytes(file) for file in files]))["features"]


def test_a_limit_that_is_no_number_of_pixels_is_refused(tmp_path):
    for limit, message in ((0, "max_pixels must be at least 1"), (None, "max_pixels must be an integer")):
        with pytest.raises(ValueError, match=message):
            export_saved_model(keras.Sequential(), tmp_path / "model", max_pixels=limit)
    assert not list(tmp_path.iterdir())


# Each test loads the program anew, so that its cases are in a loop.
def test_encoded_counts_pixels_by_the_header(limited):
    for kind, content in small_files().items():
        if kind == "extended":
            assert content[12:16] == b"VP8X"
        whole = limited(content)
        assert whole.shape == (1, 144), kind
        # Together they have more than one may have, and are decoded one after the other.
        np.testing.assert_array_equal(limited(content, content)[1], whole[0], kind)
        for width, height in [(7, 7), (5000, 4000), (16383, 16383)]:
            wanted = rf"at most 48 pixels.*\[{width * height}\]"
            with pytest.raises(tf.errors.InvalidArgumentError, match=wanted):
                limited(content, state(kind, content, width, height))


def test_encoded_refuses_pngs_of_sizes_that_overflow(limited):
    for width, height in [(2**31 - 1, 2**31 - 1), (2**32 - 1, 2**32 - 1), (0, 5), (2**31, 2)]:
        with pytest.raises(tf.errors.InvalidArgumentError, match="at most 48 pixels"):
            limited(state("PNG", small_files()["PNG"], width, height))


def test_encoded_names_what_is_no_image(limited):
    unfinished = b"", b"a", b"GIF8", b"GIF89a" + bytes(6) + b"\xff!", b"RIFF", b"\x89PNG", b"BM"
    for content in (*unfinished, b"text" * 20):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="Expected a JPEG, PNG, WebP, BMP or GIF file"
        ):
            limited(content)


def test_encoded_ends_on_cut_off_gifs(limited):
    for cut in (-1, 4, 10, 20, 30, 60):
        with contextlib.suppress(tf.errors.InvalidArgumentError):
            limited(bytes(small_files()["GIF"])[:cut])


def test_encoded_decodes_the_first_frame_of_a_gif_alone(limited):
    frames = [Image.fromarray(np.full((6, 8, 3), 40 * i, np.uint8)) for i in range(1, 5)]
    stream = io.BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], comment=b"c" * 600, loop=0)
    content = stream.getvalue()
    np.testing.assert_array_equal(limited(content)[0], np.full(144, 40))
    # Frames behind the first may state whatever they like.
    last = content.rindex(b"\x2c\0\0\0\0")
    np.testing.assert_array_equal(
        limited(content[: last + 5] + b"\xff" * 4 + content[last + 9 :])[0], np.full(144, 40)
    )


@pytest.mark.parametrize("place", ["comment", "frame"])
def test_encoded_walks_no_more_blocks_of_a_gif_than_its_size_explains(limited, place):
    """Blocks of one byte: a few may be, and thousands would each take a step of a loop."""
    for count in (100, 5000, 500_000):
        _check_blocks(limited, place, count)


def _check_blocks(limited, place, count):
    content = bytes(small_files()["GIF"])
    frame = content.index(b"\x2c", 13 + 3 * 2 ** (content[10] % 8 + 1))
    short = b"\x01\x00" * count
    if place == "comment":
        changed = content[:frame] + b"\x21\xfe" + short + b"\x00" + content[frame:]
    else:  # in front of the end of the frame's last block, where nothing reads them
        changed = content[:-2] + short + content[-2:]
    assert Image.open(io.BytesIO(changed)).size == (8, 6)
    if count == 100:
        np.testing.assert_array_equal(limited(changed), limited(content))
        return
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"more blocks than its size explains: save it again"
    ):
        limited(changed)


@pytest.mark.slow
def test_encoded_reads_gifs_of_many_full_blocks(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (400, 400), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "GIF", comment=b"c" * 60_000)
    assert stream.tell() > 255 * 800
    images = keras.Input((400, 400, 1))
    encoder = keras.Model(images, keras.layers.Flatten()(keras.layers.Rescaling(1.0)(images)))
    export_saved_model(encoder, tmp_path / "model")
    model = tf.saved_model.load(str(tmp_path / "model"))
    served = model.signatures["encoded"](bytes=tf.constant([stream.getvalue()]))["features"]
    np.testing.assert_array_equal(np.reshape(served, pixels.shape), pixels)
