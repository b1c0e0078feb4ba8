"""Decoding image files within a graph, which sees to it that they are what a server may spend its memory on."""

import tensorflow as tf

# The blocks of a GIF file are full, 255 bytes, but for the last of each chain: so many are walked, and one for each
# so many bytes.
_BLOCKS, _BLOCK = 512, 128


def pixels(data: tf.Tensor, channels: int, max_pixels: int) -> tf.Tensor:
    """Decodes a file to uint8 [H, W, channels]."""
    # By default TensorFlow takes another cosine transform than Pillow. Every format can be asked for the channels that
    # the file has, and not every one for others.
    count = count_pixels(data)
    walked = tf.debugging.Assert(
        count >= 0,
        ["The GIF file has more blocks than its size explains: save it again with another program."],
    )
    few = tf.debugging.Assert(
        (count != 0) & (count <= max_pixels),
        [
            f"Expected a JPEG, PNG, WebP, BMP or GIF file of at most {max_pixels} pixels; this one's header states",
            count,
        ],
    )
    with tf.control_dependencies([walked, few, _check_still(data)]):
        data = tf.cond(_starts_with(data, b"GIF8"), lambda: _first_frame(data)[1], lambda: tf.identity(data))
    image = tf.cond(
        tf.io.is_jpeg(data),
        lambda: tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE"),
        lambda: tf.io.decode_image(data, expand_animations=False),
    )
    found = tf.shape(image)[-1]
    colours = image[..., : found - 1 + found % 2]
    bitmap = tf.strings.substr(data, 0, 2) == b"BM"  # its fourth byte fills up, and is no transparency
    transparent = (found % 2 == 0) & ~bitmap
    if channels == 1:
        image = tf.cond(found > 2, lambda: _luma(colours), lambda: colours)
    else:
        alpha = tf.cond(transparent, lambda: image[..., -1:], lambda: tf.ones_like(image[..., :1]) * 255)
        colours = tf.broadcast_to(colours, [*tf.unstack(tf.shape(image)[:2]), 3])
        image = colours if channels == 3 else tf.concat([colours, alpha], -1)
    image.set_shape([None, None, channels])
    return image


def _luma(colours: tf.Tensor) -> tf.Tensor:
    """ITU-R 601, in whole numbers as Pillow rounds it."""
    weighted = tf.cast(colours, tf.int32) * [19595, 38470, 7471]
    return tf.cast((tf.reduce_sum(weighted, -1, keepdims=True) + 32768) // 65536, tf.uint8)


def _starts_with(data: tf.Tensor, start: bytes) -> tf.Tensor:
    return tf.strings.substr(data, 0, len(start)) == start


def _head(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The first 30 bytes, or zeros behind the last: a string, and int64 [30]."""
    head = tf.strings.substr(tf.strings.join([tf.strings.substr(data, 0, 30), b"\0" * 30]), 0, 30)
    return head, tf.cast(tf.io.decode_raw(head, tf.uint8), tf.int64)


def count_pixels(data: tf.Tensor) -> tf.Tensor:
    """The pixels that a file's header states, int64; 0 for what is no image, -1 for a GIF file of too many blocks."""
    head, numbers = _head(data)
    none = tf.constant(0, tf.int64)

    def number(first: int, last: int, bits: int | None = None) -> tf.Tensor:
        """The number in these bytes, the lowest first, or its lowest bits."""
        value = tf.add_n([numbers[first + i] * 256**i for i in range(last - first + 1)])
        return value if bits is None else value % 2**bits

    def jpeg() -> tf.Tensor:
        shape = tf.cast(tf.io.extract_jpeg_shape(data), tf.int64)
        return shape[0] * shape[1]

    def png() -> tf.Tensor:
        width, height = (tf.add_n([numbers[at + i] * 256 ** (3 - i) for i in range(4)]) for at in (16, 20))
        usable = (tf.strings.substr(head, 12, 4) == b"IHDR") & (tf.maximum(width, height) < 2**31)
        return tf.where(usable, width * height, none)

    def bmp() -> tf.Tensor:
        height = number(22, 25)  # below zero from the top down
        return number(18, 21) * tf.minimum(height, 2**32 - height)

    def webp() -> tf.Tensor:
        kind = tf.strings.substr(head, 12, 4)
        lossy = number(26, 27, 14) * number(28, 29, 14)
        lossless = (number(21, 22, 14) + 1) * (number(22, 24) // 64 % 2**14 + 1)
        extended = (number(24, 26) + 1) * (number(27, 29) + 1)
        found = tf.where(kind == b"VP8L", lossless, tf.where(kind == b"VP8X", extended, none))
        return tf.where(kind == b"VP8 ", lossy, found)

    return tf.case(
        [
            (_starts_with(data, b"\xff\xd8\xff"), jpeg),
            (_starts_with(data, b"\x89PNG"), png),
            (_starts_with(data, b"GIF8"), lambda: _first_frame(data)[0]),
            (_starts_with(data, b"BM"), bmp),
            (_starts_with(data, b"RIFF"), webp),
        ],
        default=lambda: none,
    )


def _first_frame(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The pixels of the first frame of a GIF file, int64, and the file without the others, which would be decoded too.

    A walk from block to block is slow, and a file may have as short ones as it likes: the pixels are -1 where there
    are more than its size explains.
    """
    content = tf.io.decode_raw(tf.strings.join([data, b"\0" * 16]), tf.uint8)
    most = _BLOCKS + tf.size(content) // _BLOCK

    def at(place: tf.Tensor) -> tf.Tensor:  # zeros behind the end
        return tf.cast(content[tf.minimum(place, tf.size(content) - 1)], tf.int32)

    def palette(flags: tf.Tensor) -> tf.Tensor:
        return tf.where(flags >= 128, 3 * 2 ** (flags % 8 + 1), 0)

    # Each block has its length before it, and the last has none.
    def behind_blocks(place: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        def following(p: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return p + at(p) + 1, left - 1

        place, left = tf.while_loop(lambda p, left: (at(p) > 0) & (left > 0), following, [place, left])
        return place + 1, left

    start = 13 + palette(at(10))
    extension, frame = 0x21, 0x2C
    start, left = tf.while_loop(
        lambda p, left: (at(p) == extension) & (left > 0),
        lambda p, left: behind_blocks(p + 2, left - 1),
        [start, most],
    )
    width, height = (tf.cast(at(start + i) + 256 * at(start + i + 1), tf.int64) for i in (5, 7))
    pixels = tf.where(at(start) == frame, width * height, 0)
    end, left = behind_blocks(start + 10 + palette(at(start + 9)) + 1, left)
    pixels = tf.where(left > 0, pixels, -1)
    return pixels, tf.strings.join([tf.strings.substr(data, 0, end), b";"])


def _check_still(data: tf.Tensor) -> tf.Operation:
    """Animated WebP files, which TensorFlow 2.20 dies of, are errors; the file's head has a bit for them."""
    head, numbers = _head(data)
    extended = (tf.strings.substr(head, 0, 4) == b"RIFF") & (tf.strings.substr(head, 8, 8) == b"WEBPVP8X")
    animated = extended & (numbers[20] // 2 % 2 > 0)
    return tf.debugging.Assert(~animated, ["Animated WebP files cannot be decoded: send their first frame."])
