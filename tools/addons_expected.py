"""What TensorFlow Addons 0.23 and TensorFlow 2.15 make of some inputs, for `make test-addons`.

Usage: .venv-addons/bin/python tools/addons_expected.py FILE.npz

Runs in an environment of its own, which knows nothing of this library; tests/addons reads the file in the other one, which
knows nothing of Addons. The file holds inputs and expected outputs:

- blur: `tfa.image.gaussian_filter2d`, zeros outside of the image, one sigma an image;
- hue and saturation: `tf.image.adjust_hue` and `tf.image.adjust_saturation` of TensorFlow 2.15. The operator of Addons,
  `tfa.image.adjust_hsv_in_yiq`, turns and scales chroma in YIQ, and agrees with HSV on gray pixels alone: those are
  compared with it;
- average: `tfa.optimizers.MovingAverage` around SGD, after each of some steps.
"""

import sys

import keras
import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa

STEPS = 6


def blur(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Gaussian blur of images [B, H, W, 3] by sigmas [B], 7 and 23 taps wide."""
    images = rng.uniform(size=(4, 30, 41, 3)).astype(np.float32)
    sigmas = np.array([0.1, 0.7, 1.3, 2.0], np.float32)
    arrays = {"blur_images": images, "blur_sigmas": sigmas}
    for taps in (7, 23):
        arrays[f"blur_{taps}"] = np.stack(
            [
                tfa.image.gaussian_filter2d(image, [taps, taps], float(sigma), "CONSTANT", 0.0).numpy()
                for image, sigma in zip(images, sigmas, strict=True)
            ]
        )
    return arrays


def colours(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Hue and saturation of images [B, H, W, 3], a parameter an image; and of gray ones, by Addons."""
    images = rng.uniform(size=(5, 16, 17, 3)).astype(np.float32)
    # Ties between channels, black, white, and pixels without and with full saturation.
    images[0] = np.round(images[0])
    images[1, ..., 1] = images[1, ..., 0]
    deltas = np.array([-0.1, 0.1, 0.03, -0.45, 0.5], np.float32)
    factors = np.array([0.8, 1.2, 0.0, 3.0, 1.0], np.float32)
    gray = np.repeat(images[..., :1], 3, axis=-1)
    return {
        "colour_images": images,
        "colour_deltas": deltas,
        "colour_factors": factors,
        "hue": np.stack([tf.image.adjust_hue(x, d).numpy() for x, d in zip(images, deltas, strict=True)]),
        "saturation": np.stack(
            [tf.image.adjust_saturation(x, f).numpy() for x, f in zip(images, factors, strict=True)]
        ),
        "gray_images": gray,
        "gray": np.stack(
            [
                tfa.image.adjust_hsv_in_yiq(x, float(2 * np.pi * d), float(f), 1.0).numpy()
                for x, d, f in zip(gray, deltas, factors, strict=True)
            ]
        ),
    }


def average(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The weights [T + 1, ...] of T steps of SGD, the first before any step, and their moving average [T, ...]."""
    arrays = {"average_decay": np.float32(0.9)}
    variables = [tf.Variable(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 4), (5,))]
    optimizer = tfa.optimizers.MovingAverage(
        tf.keras.optimizers.legacy.SGD(0.5), average_decay=float(arrays["average_decay"])
    )
    weights, averages = [[v.numpy() for v in variables]], []
    for _ in range(STEPS):
        gradients = [tf.constant(rng.normal(size=v.shape).astype(np.float32)) for v in variables]
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        weights.append([v.numpy() for v in variables])
        averages.append([optimizer.get_slot(v, "average").numpy() for v in variables])
    for i in range(len(variables)):
        arrays[f"weights_{i}"] = np.stack([step[i] for step in weights])
        arrays[f"averages_{i}"] = np.stack([step[i] for step in averages])
    return arrays


def main() -> None:
    """Writes the file."""
    tf.get_logger().setLevel("ERROR")  # every sigma is a new trace
    versions = {"addons": tfa.__version__, "tensorflow": tf.__version__, "keras": keras.__version__}
    rng = np.random.default_rng(0)
    arrays = {**blur(rng), **colours(rng), **average(rng)}
    np.savez(sys.argv[1], **arrays, **{f"version_{name}": version for name, version in versions.items()})
    print(", ".join(f"{name} {version}" for name, version in versions.items()), "->", sys.argv[1])


if __name__ == "__main__":
    main()
