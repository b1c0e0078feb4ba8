"""Images per second of BYOL's two views: batched on the device, and image by image in tf.data with tf.image.

    python benchmarks/views.py --batch=32 --source=256 --size=224 --seconds=10

The first rows are this package's program, without and with XLA; the last does the same recipe the usual way.
Also printed, from the compiled program: its kernels (fusions, matrix products and other calls), and the bytes
an image that these read and write.
"""

import argparse
import math
import re
import time

import tensorflow as tf

from keras_sslhsic import views


def views_of_one_image(image: tf.Tensor, policy: views.ViewPolicy) -> list[tf.Tensor]:
    """The recipe for one uint8 image [H, W, 3], as input pipelines have it: tf.image, tf.cond, any shape."""
    return [_one_view(image, policy, view) for view in range(policy.num_views)]


def _one_view(image: tf.Tensor, policy: views.ViewPolicy, view: int) -> tf.Tensor:
    crop, jitter, blur, solarize = policy.crop, policy.jitter, policy.blur, policy.solarize

    def maybe(probability, function, image):
        return tf.cond(tf.random.uniform([]) < probability, lambda: function(image), lambda: image)

    def color(image):
        def brightness(image):
            return image + tf.random.uniform([], -jitter.brightness, jitter.brightness)

        def contrast(image):
            return tf.image.random_contrast(image, 1 - jitter.contrast, 1 + jitter.contrast)

        def saturation(image):
            return tf.image.random_saturation(image, 1 - jitter.saturation, 1 + jitter.saturation)

        def hue(image):
            return tf.image.random_hue(image, jitter.hue)

        operations = [brightness, contrast, saturation, hue]
        order = tf.random.shuffle(tf.range(4))
        for slot in range(4):
            branches = [lambda operation=operation, image=image: operation(image) for operation in operations]
            image = tf.clip_by_value(tf.switch_case(order[slot], branches), 0.0, 1.0)
        return image

    def gaussian_blur(image):
        radius = int(blur.kernel * policy.size / 2)
        sigma = tf.random.uniform([], *blur.sigma)
        taps = tf.exp(-tf.square(tf.range(-radius, radius + 1, dtype=tf.float32)) / (2 * sigma**2))
        taps = tf.repeat((taps / tf.reduce_sum(taps))[:, None], 3, axis=1)
        image = tf.nn.depthwise_conv2d(image[None], taps[:, None, :, None], [1, 1, 1, 1], "SAME")
        return tf.nn.depthwise_conv2d(image, taps[None, :, :, None], [1, 1, 1, 1], "SAME")[0]

    begin, box, _ = tf.image.sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros([0, 0, 4]),
        min_object_covered=0.0,
        aspect_ratio_range=crop.aspect,
        area_range=crop.area,
        use_image_if_no_bounding_boxes=True,
    )
    image = tf.image.resize(tf.slice(image, begin, box), [policy.size] * 2, crop.method)
    image = tf.ensure_shape(tf.clip_by_value(image / 255.0, 0.0, 1.0), [policy.size, policy.size, 3])
    image = maybe(policy.flip, tf.image.flip_left_right, image)
    image = maybe(jitter.probability, color, image)
    image = maybe(policy.grayscale, lambda x: tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(x)), image)
    image = maybe(blur.probability[view], gaussian_blur, image)
    image = maybe(solarize.probability[view], lambda x: tf.where(x < solarize.threshold, x, 1.0 - x), image)
    return (image - tf.constant(policy.mean)) / tf.constant(policy.std)


def seconds_per_image(step, batch: int, seconds: float) -> tuple[float, float]:
    """Wall and processor time of the fastest of the calls that fit in the given seconds, after one."""
    step()
    wall, processor, end = math.inf, math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter(), time.process_time()
        step()
        wall = min(wall, time.perf_counter() - start[0])
        processor = min(processor, time.process_time() - start[1])
    return wall / batch, processor / batch


def compiled_size(function, *arguments) -> tuple[int, float]:
    """Kernels of a function that XLA has compiled, and the bytes that these read and write."""
    hlo = function.experimental_get_compiler_ir(*arguments)(stage="optimized_hlo")
    entry = hlo[hlo.index("\nENTRY") :]
    free = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element"}
    sizes, kernels, moved = {}, 0, 0.0
    for name, dtype, shape, operation, operands in re.findall(
        r"^\s+(?:ROOT )?%?([\w.\-]+) = \(?(\w+)\[([\d,]*)\][^=]*? ([\w\-]+)\(([^)]*)\)", entry, re.MULTILINE
    ):
        element = {"u8": 1, "pred": 1, "s64": 8, "u64": 8}.get(dtype, 4)
        sizes[name] = element * math.prod(int(side) for side in shape.split(",") if side)
        if operation not in free:
            kernels += 1
            moved += sizes[name] + sum(sizes.get(operand, 0) for operand in re.findall(r"[\w.\-]+", operands))
    return kernels, moved


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--source", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=10.0)
    flags = parser.parse_args()

    policy = views.byol(flags.size)
    images = tf.random.stateless_uniform(
        [flags.batch, flags.source, flags.source, 3], [0, 1], 0, 256, tf.int32, alg="philox"
    )
    images = tf.cast(images, tf.uint8)
    seed = tf.constant([0, 1])
    graph = tf.function(lambda images, seed: views.make_views(images, policy, seed), autograph=False)
    compiled = tf.function(
        lambda images, seed: views.make_views(images, policy, seed), autograph=False, jit_compile=True
    )
    pipeline = iter(
        tf.data.Dataset.from_tensor_slices(images)
        .cache()
        .repeat()
        .map(lambda image: views_of_one_image(image, policy), num_parallel_calls=tf.data.AUTOTUNE)
        .batch(flags.batch, drop_remainder=True)
    )
    rows = {
        "batched, graph": lambda: graph(images, seed)[0].numpy(),
        "batched, XLA": lambda: compiled(images, seed)[0].numpy(),
        "tf.data, image by image": lambda: next(pipeline)[0].numpy(),
    }
    times = {name: seconds_per_image(step, flags.batch, flags.seconds) for name, step in rows.items()}
    slowest = times["tf.data, image by image"]
    print(f"{policy.num_views} views of {flags.size} from {flags.source}, batch {flags.batch}")
    for name, (wall, processor) in times.items():
        print(
            f"{name:24s} {1 / wall:8.1f} images/s ({slowest[0] / wall:4.2f} x)"
            f" {1e3 * processor:8.1f} ms of processor time an image ({slowest[1] / processor:4.2f} x)"
        )
    kernels, moved = compiled_size(compiled, images, seed)
    print(f"XLA: {kernels} kernels, {moved / flags.batch / 1e6:.1f} MB accessed an image")


if __name__ == "__main__":
    main()
