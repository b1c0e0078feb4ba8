"""Decoding image files within a graph, which sees to it that they are what a server may spend its memory on."""

import functools

import tensorflow as tf

# The blocks of a GIF file are full, 255 bytes, but for the last of each chain: so many are walked, and one for each
# so many bytes.
_BLOCKS, _BLOCK = 512, 128
_HEAD = 70  # bytes of a header that are looked at


def pixels(data: tf.Tensor, channels: int, max_pixels: int) -> tf.Tensor:
    """Decodes a file to uint8 [H, W, channels]."""
    # By default TensorFlow takes another cosine transform than Pillow. Every format can be asked for the channels that
    # the file has, and not every one for others.
    count = count_pixels(data)
    unlike = "The GIF file has more blocks than its size explains: save it again with another program."
    large = f"Expected a JPEG, PNG, WebP, BMP or GIF file of at most {max_pixels} pixels; this one's header states"
    walked = tf.debugging.Assert(count >= 0, [unlike])
    few = tf.debugging.Assert((count != 0) & (count <= max_pixels), [large, count])
    with tf.control_dependencies([walked, few, *_checks(data)]):
        data = tf.cond(_starts_with(data, b"GIF8"), lambda: _first_frame(data)[-1], lambda: tf.identity(data))
    image = tf.cond(
        tf.io.is_jpeg(data),
        lambda: tf.io.decode_jpeg(data, dct_method="INTEGER_ACCURATE"),
        lambda: tf.io.decode_image(data, expand_animations=False),
    )
    bitmap = _starts_with(data, b"BM")
    image = tf.cond(bitmap & (tf.shape(image)[-1] == 1), lambda: _with_palette(image, data), lambda: image)
    found = tf.shape(image)[-1]
    colours = image[..., : found - 1 + found % 2]
    transparent = (found % 2 == 0) & (~bitmap | _has_alpha(data))  # else the fourth byte of a bitmap fills up
    alpha = tf.cond(transparent, lambda: image[..., -1:], lambda: tf.ones_like(image[..., :1]) * 255)
    if channels < 4:
        colours = tf.cond(transparent, lambda: _on_white(colours, alpha), lambda: colours)
    if channels == 1:
        image = tf.cond(found > 2, lambda: _luma(colours), lambda: colours)
    else:
        colours = tf.broadcast_to(colours, [*tf.unstack(tf.shape(image)[:2]), 3])
        image = colours if channels == 3 else tf.concat([colours, alpha], -1)
    image.set_shape([None, None, channels])
    return image


def _on_white(colours: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Transparent pixels laid on white, in whole numbers as Pillow rounds it: a division by 255 of shifts."""
    colours, alpha = tf.cast(colours, tf.int32), tf.cast(alpha, tf.int32)
    weighted = colours * alpha + 255 * (255 - alpha) + 128
    return tf.cast((weighted + weighted // 256) // 256, tf.uint8)


def _luma(colours: tf.Tensor) -> tf.Tensor:
    """ITU-R 601, in whole numbers as Pillow rounds it."""
    weighted = tf.cast(colours, tf.int32) * [19595, 38470, 7471]
    return tf.cast((tf.reduce_sum(weighted, -1, keepdims=True) + 32768) // 65536, tf.uint8)


def _starts_with(data: tf.Tensor, start: bytes) -> tf.Tensor:
    return tf.strings.substr(data, 0, len(start)) == start


def _head(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The first bytes, or zeros behind the last: a string, and int64 [_HEAD]."""
    head = tf.strings.substr(tf.strings.join([tf.strings.substr(data, 0, _HEAD), b"\0" * _HEAD]), 0, _HEAD)
    return head, tf.cast(tf.io.decode_raw(head, tf.uint8), tf.int64)


def _number(numbers: tf.Tensor, first: int, last: int, bits: int | None = None) -> tf.Tensor:
    """The number in these bytes, the lowest first, or its lowest bits."""
    value = tf.add_n([numbers[first + i] * 256**i for i in range(last - first + 1)])
    return value if bits is None else value % 2**bits


def count_pixels(data: tf.Tensor) -> tf.Tensor:
    """The pixels that a file's header states, int64; 0 for what is no image, -1 for a GIF file of too many blocks."""
    head, numbers = _head(data)
    none, number = tf.constant(0, tf.int64), functools.partial(_number, numbers)

    def jpeg() -> tf.Tensor:
        shape = tf.cast(tf.io.extract_jpeg_shape(data), tf.int64)
        return shape[0] * shape[1]

    def png() -> tf.Tensor:
        width, height = (tf.add_n([numbers[at + i] * 256 ** (3 - i) for i in range(4)]) for at in (16, 20))
        usable = (tf.strings.substr(head, 12, 4) == b"IHDR") & (tf.maximum(width, height) < 2**31)
        return tf.where(usable, width * height, none)

    def bmp() -> tf.Tensor:
        height = number(22, 25)  # below zero from the top down
        height, old = tf.minimum(height, 2**32 - height), number(14, 17) == 12
        return tf.where(old, number(18, 19) * number(20, 21), number(18, 21) * height)

    def webp() -> tf.Tensor:
        kind = tf.strings.substr(head, 12, 4)
        lossy = number(26, 27, 14) * number(28, 29, 14)
        lossless = (number(21, 22, 14) + 1) * (number(22, 24) // 64 % 2**14 + 1)
        extended = (number(24, 26) + 1) * (number(27, 29) + 1)
        found = tf.where(kind == b"VP8L", lossless, tf.where(kind == b"VP8X", extended, none))
        return tf.where(kind == b"VP8 ", lossy, found)

    kinds = {
        b"\xff\xd8\xff": jpeg,
        b"\x89PNG": png,
        b"GIF8": lambda: _first_frame(data)[0],
        b"BM": bmp,
        b"RIFF": webp,
    }
    cases = [(_starts_with(data, start), count) for start, count in kinds.items()]
    return tf.case(cases, default=lambda: none)


def _first_frame(data: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The pixels of the first frame of a GIF file, int64; whether it is more than opaque pixels on the whole screen; and the
    file without the other frames, which would be decoded too.

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

    def behind(place: tf.Tensor, left: tf.Tensor, clear: tf.Tensor) -> tuple[tf.Tensor, ...]:
        control = at(place + 1) == 0xF9
        return *behind_blocks(place + 2, left - 1), tf.where(control, at(place + 3) % 2 == 1, clear)

    start, left, clear = tf.while_loop(
        lambda p, left, _: (at(p) == extension) & (left > 0), behind, [start, most, tf.constant(False)]
    )
    width, height = (tf.cast(at(start + i) + 256 * at(start + i + 1), tf.int64) for i in (5, 7))
    part = tf.reduce_any([at(6 + i) != at(start + 5 + i) for i in range(4)])
    pixels = tf.where(at(start) == frame, width * height, 0)
    end, left = behind_blocks(start + 10 + palette(at(start + 9)) + 1, left)
    pixels = tf.where(left > 0, pixels, -1)
    return pixels, clear | part, tf.strings.join([tf.strings.substr(data, 0, end), b";"])


def _checks(data: tf.Tensor) -> list[tf.Operation]:
    """What makes errors of files that TensorFlow 2.20 dies of, or takes for others than they are."""
    head, numbers = _head(data)
    number = functools.partial(_number, numbers)
    extended = (tf.strings.substr(head, 0, 4) == b"RIFF") & (tf.strings.substr(head, 8, 8) == b"WEBPVP8X")
    animated = extended & (numbers[20] // 2 % 2 > 0)
    bits, packing = number(28, 29), number(30, 33)
    header, colours = number(14, 17), number(46, 49)
    palette = 14 + header + 4 * tf.where(colours == 0, tf.constant(256, tf.int64), colours) <= number(10, 13)
    plain = (packing == 0) & ((bits == 24) | (bits == 32) | ((bits == 8) & palette)) & (header >= 40)
    other = _starts_with(data, b"BM") & ~plain & ~_has_masks(numbers)
    gif = tf.cond(_starts_with(data, b"GIF8"), lambda: _first_frame(data)[1], lambda: False)
    png = tf.cond(_starts_with(data, b"\x89PNG"), lambda: _has_clear_colour(data), lambda: False)
    refused = {
        "Animated WebP files cannot be decoded: send their first frame.": animated,
        "A BMP file must have 24 or 32 bits, or 8 with a palette, uncompressed: save it as a PNG file.": other,
        "GIF files with transparent pixels or a first frame of another size cannot be decoded: send PNG files.": gif,
        "PNG files with a transparent colour cannot be decoded: save it with a channel of transparency.": png,
    }
    return [tf.debugging.Assert(~wrong, [what]) for what, wrong in refused.items()]


def _has_masks(numbers: tf.Tensor) -> tf.Tensor:
    """Whether a bitmap states that its 32 bits are blue, green, red and whatever, as TensorFlow has them."""
    usual = [0, 0, 255, 0, 0, 255, 0, 0, 255, 0, 0, 0]
    stated = (_number(numbers, 28, 29) == 32) & (_number(numbers, 30, 33) == 3)
    return stated & tf.reduce_all(numbers[54:66] == usual)


def _has_alpha(data: tf.Tensor) -> tf.Tensor:
    """Whether a bitmap states that its fourth byte is transparency; a header of 40 bytes has no place for it."""
    _, numbers = _head(data)
    return _has_masks(numbers) & (_number(numbers, 14, 17) >= 56) & (numbers[69] == 255)


def _with_palette(image: tf.Tensor, data: tf.Tensor) -> tf.Tensor:
    """The colours of a bitmap of 8 bits, of which TensorFlow gives the numbers; [H, W, 1] to [H, W, 3]."""
    _, numbers = _head(data)
    start, count = 14 + _number(numbers, 14, 17), _number(numbers, 46, 49)
    start = tf.minimum(start, tf.cast(tf.strings.length(data), tf.int64))
    stored = tf.strings.substr(tf.strings.join([data, b"\0" * 1024]), start, 1024)
    table = tf.reshape(tf.io.decode_raw(stored, tf.uint8), [256, 4])[:, 2::-1]
    known = (tf.range(256, dtype=tf.int64) < count) | (count == 0)
    return tf.gather(tf.where(known[:, None], table, 0), tf.cast(image[..., 0], tf.int32))


def _has_clear_colour(data: tf.Tensor) -> tf.Tensor:
    """Whether a PNG file of gray or coloured pixels has a chunk tRNS before its pixels, or more chunks than a file has.

    Each chunk has its length before it.
    """
    size = tf.strings.length(data)
    content = tf.strings.join([data, b"\0" * 8])

    def name(place: tf.Tensor) -> tf.Tensor:
        return tf.strings.substr(content, place + 4, 4)

    def behind(place: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        length = tf.io.decode_raw(tf.strings.substr(content, place, 4), tf.int32, little_endian=False)[0]
        return tf.clip_by_value(place + 12 + tf.maximum(length, 0), 0, size), left - 1

    place, left = tf.while_loop(
        lambda p, left: (name(p) != b"tRNS") & (name(p) != b"IDAT") & (p < size) & (left > 0),
        behind,
        [8, _BLOCKS],
    )
    _, numbers = _head(data)
    return (left == 0) | ((name(place) == b"tRNS") & ((numbers[25] == 0) | (numbers[25] == 2)))
