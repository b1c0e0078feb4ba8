"""What follows the crop: parameters drawn for each image, then the operations, in the recipe's order.

Images here are [B, C, H, W]: contiguous channels vectorise, and colour jitter is seven times as fast on CPUs.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from keras_sslhsic.views import ops
from keras_sslhsic.views.draws import ALL, Share, uniform_of_share

if TYPE_CHECKING:
    from keras_sslhsic.views.policy import ViewPolicy


class Parameters(NamedTuple):
    """What is done to each image of a batch; every field is [B], but `ranks`.

    Attributes:
        flip: bool.
        jitter: bool, whether the colours change.
        ranks: float [B, 4]; brightness, contrast, saturation and hue come in increasing order of theirs.
        brightness: float, what is added.
        contrast: float, the factor.
        saturation: float, the factor.
        hue: float, turns.
        grayscale: bool.
        blur: bool.
        sigma: float, pixels.
        solarize: bool.
        flip_vertical: bool.
        angle: float, radians.
    """

    flip: tf.Tensor
    jitter: tf.Tensor
    ranks: tf.Tensor
    brightness: tf.Tensor
    contrast: tf.Tensor
    saturation: tf.Tensor
    hue: tf.Tensor
    grayscale: tf.Tensor
    blur: tf.Tensor
    sigma: tf.Tensor
    solarize: tf.Tensor
    flip_vertical: tf.Tensor
    angle: tf.Tensor


def sample_parameters(
    batch: int | tf.Tensor, policy: "ViewPolicy", view: int, seed: tf.Tensor, share: Share = ALL
) -> Parameters:
    """Draws the parameters of one view of each image.

    Args:
        batch: B, number of images.
        policy: the ranges and probabilities.
        view: index of the view.
        seed: int [2].
        share: (i, n): the images are part i of n of the batch that the seed is of.

    Returns:
        `Parameters`.
    """
    draws = uniform_of_share(batch, [14], seed, share)
    column = tf.unstack(draws[:, 4:], axis=1)
    # What came later has a seed of its own.
    turns = uniform_of_share(batch, [2], tf.random.fold_in(seed, 0, alg="philox"), share)
    jitter, (low, high) = policy.jitter, policy.blur.sigma
    return Parameters(
        flip=column[0] < policy.flip,
        jitter=column[1] < jitter.probability,
        ranks=draws[:, :4],
        brightness=jitter.brightness * (2.0 * column[2] - 1.0),
        contrast=1.0 + jitter.contrast * (2.0 * column[3] - 1.0),
        saturation=1.0 + jitter.saturation * (2.0 * column[4] - 1.0),
        hue=jitter.hue * (2.0 * column[5] - 1.0),
        grayscale=column[6] < policy.grayscale,
        blur=column[7] < policy.blur.probability[view],
        sigma=low + (high - low) * column[8],
        solarize=column[9] < policy.solarize.probability[view],
        flip_vertical=turns[:, 0] < policy.flip_vertical,
        angle=math.radians(policy.rotation) * (2.0 * turns[:, 1] - 1.0),
    )


def augment(images: tf.Tensor, parameters: Parameters, policy: "ViewPolicy", view: int) -> tf.Tensor:
    """Applies the parameters; what the policy gives to no image of the view is left out of the program.

    Args:
        images: float [B, C, H, W] in [0, 1].
        parameters: of `sample_parameters`.
        policy: the kernel of the blur, the threshold of solarization, and what is left out.
        view: index of the view.

    Returns:
        float [B, C, H, W] in [0, 1].

    Raises:
        ValueError: if there are neither one channel nor three, and the policy has colour operations.
    """
    channels, _, width = images.shape[1:]
    color = {
        "jitter.saturation": policy.jitter.probability and policy.jitter.saturation,
        "jitter.hue": policy.jitter.probability and policy.jitter.hue,
        "grayscale": policy.grayscale,
    }
    if channels not in (1, 3) and any(color.values()):
        raise ValueError(
            f"Saturation, hue and grayscale need 3 channels, and the images have {channels}: set "
            f"{', '.join(f'{name}=0' for name, value in color.items() if value)} in the policy."
        )

    def choose(chosen: tf.Tensor, changed: tf.Tensor) -> tf.Tensor:
        return tf.where(ops.per_image(chosen), changed, images)

    if policy.flip:
        images = ops.flip_left_right(images, parameters.flip, axis=1)
    if policy.flip_vertical:
        images = ops.flip_up_down(images, parameters.flip_vertical, axis=1)
    if policy.rotation:
        images = ops.rotate(images, parameters.angle, axis=1)
    if policy.jitter.probability:
        images = choose(parameters.jitter, jitter_colors(images, parameters))
    if channels == 3 and policy.grayscale:
        images = choose(parameters.grayscale, ops.to_grayscale(images, axis=1))
    if policy.blur.probability[view]:
        blurred = ops.gaussian_blur(images, parameters.sigma, policy.blur.kernel * width, axis=1)
        images = choose(parameters.blur, blurred)
    if policy.solarize.probability[view]:
        images = choose(parameters.solarize, ops.solarize(images, policy.solarize.threshold))
    return images


def jitter_colors(images: tf.Tensor, parameters: Parameters) -> tf.Tensor:
    """Brightness, contrast, saturation and hue in each image's own order; the last two for 3 channels alone.

    Saturation and hue commute exactly, so all that matters is whether each comes before, between or after
    brightness and contrast. Two slots for brightness or contrast, and three for saturation with hue, then do
    what four slots with a choice of four operations would.

    Args:
        images: float [B, C, H, W] in [0, 1].
        parameters: of `sample_parameters`.

    Returns:
        float [B, C, H, W] in [0, 1].
    """
    brightness, contrast, saturation, hue = tf.unstack(parameters.ranks, axis=1)
    first, last = tf.minimum(brightness, contrast), tf.maximum(brightness, contrast)
    gap_of_saturation, gap_of_hue = (
        tf.cast(rank > first, tf.int32) + tf.cast(rank > last, tf.int32) for rank in (saturation, hue)
    )
    for gap in range(3):
        if images.shape[1] == 3:
            images = ops.adjust_hue_and_saturation(
                images,
                tf.where(gap_of_hue == gap, parameters.hue, 0.0),
                tf.where(gap_of_saturation == gap, parameters.saturation, 1.0),
                axis=1,
            )
        if gap < 2:
            images = tf.where(
                ops.per_image((brightness < contrast) == (gap == 0)),
                ops.adjust_brightness(images, parameters.brightness),
                ops.adjust_contrast(images, parameters.contrast, axis=1),
            )
    return images
