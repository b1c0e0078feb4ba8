"""The moments of features that HSIC is made of, centred on their global mean.

Everything here is a sum over images. Under a `tf.distribute` strategy each replica holds its own images and the sums
are global, so that what travels does not depend on the batch: a vector of D, a matrix of D x D and a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import replicas
from keras_sslhsic.hsic.groups import finite_population

# Rows handled at a time. The intermediate arrays then stay in cache, and in memory that the allocator keeps.
_ROWS = 2048


class Moments(NamedTuple):
    """Moments of features r [B, M, D] and of a second set r2 [B, M, D2], over all replicas.

    With m and m2 the means of the features over all images i and views p:

    Attributes:
        norm: |m|^2, scalar.
        spread: sum_i |sum_p (r_ip - m)|^2, scalar.
        cross: sum_ip (r_ip - m) (r2_ip - m2)', matrix [D, D2].
        images: number B of images on all replicas, scalar.
        views: number M of views.
    """

    norm: tf.Tensor
    spread: tf.Tensor
    cross: tf.Tensor
    images: tf.Tensor
    views: int


def feature_moments(r: tf.Tensor, r2: tf.Tensor) -> Moments:
    """Returns the moments of features r [B, M, D] and r2 [B, M, D2], of one floating dtype."""
    centred, mean = _centre([_flat(r)])
    centred2, _ = _centre([_flat(r2)])
    cross = tf.matmul(centred[0], centred2[0], transpose_a=True)
    sums = tf.reduce_sum(tf.reshape(centred[0], tf.shape(r)), axis=1)
    return _global(sums, cross, mean, _count(r), r.shape[1])


def cosine_moments(z: tf.Tensor, first: tuple, second: tuple) -> Moments:
    """Moments of two sets of random Fourier features, with a gradient that takes the fewest passes over them.

    Equals `feature_moments(random_fourier_features(z, *first), random_fourier_features(z, *second))`. The
    gradient is that with respect to z alone.

    Args:
        z: representations [B, M, Q], float.
        first: frequencies [D, Q] and phases [D] of r.
        second: frequencies [D2, Q] and phases [D2] of r2.
    """
    first, second = [(tf.cast(w, z.dtype), tf.cast(b, z.dtype)) for w, b in (first, second)]
    sums, cross, mean = _cosine_sums(z, *first, *second)
    scale, scale2 = [tf.sqrt(tf.cast(2.0 / w.shape[0], z.dtype)) for w, _ in (first, second)]
    return _global(scale * sums, scale * scale2 * cross, scale * mean, _count(z), z.shape[1])


def moments_zy(moments: Moments, unbiased: bool, dataset_size: int | None, constant: bool) -> tf.Tensor:
    """`hsic_zy_features` from the moments of the features."""
    images, views = moments.images, moments.views
    biased = moments.spread / (images * views * (views - 1)) + (moments.norm - float(constant)) / (views - 1)
    if not unbiased:
        return biased
    between = moments.spread / (images * (images - 1.0) * views**2)
    return finite_population(dataset_size) * (biased + between)


def moments_zz(moments: Moments, ddof: int) -> tf.Tensor:
    """`hsic_zz_features` from the moments of the features."""
    checks.integer("ddof", ddof, 0, most=1)
    return tf.reduce_sum(tf.square(moments.cross)) / (moments.images * moments.views - ddof) ** 2


@tf.custom_gradient
def _cosine_sums(
    z: tf.Tensor, w: tf.Tensor, b: tf.Tensor, w2: tf.Tensor, b2: tf.Tensor
) -> tuple[tuple[tf.Tensor, ...], Callable]:
    parts = tf.split(z, _part_sizes(z))
    flats = [_flat(part) for part in parts]
    angles = [tf.nn.bias_add(tf.matmul(flat, w, transpose_b=True), b) for flat in flats]
    angles2 = [tf.nn.bias_add(tf.matmul(flat, w2, transpose_b=True), b2) for flat in flats]
    r, mean = _centre([tf.cos(a) for a in angles])
    r2, _ = _centre([tf.cos(a) for a in angles2])
    views = z.shape[1]
    sums = [tf.reduce_sum(tf.reshape(part, [-1, views, part.shape[-1]]), axis=1) for part in r]
    cross = tf.add_n([tf.matmul(part, part2, transpose_a=True) for part, part2 in zip(r, r2, strict=True)])

    def grad(d_sums: tf.Tensor, d_cross: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        # d cos = -sin: the sign goes into the small matrices.
        d_parts = []
        for a, a2, part, part2, d_sum in zip(
            angles, angles2, r, r2, tf.split(d_sums, _part_sizes(z)), strict=True
        ):
            d_r = tf.matmul(part2, d_cross, transpose_b=True)
            d_r = _flat(tf.reshape(d_r, [-1, views, d_r.shape[-1]]) + d_sum[:, None, :])
            d_r2 = tf.matmul(part, d_cross)
            d_parts.append(tf.matmul(d_r * tf.sin(a), -w) + tf.matmul(d_r2 * tf.sin(a2), -w2))
        return tf.reshape(tf.concat(d_parts, axis=0), tf.shape(z)), None, None, None, None

    return (tf.concat(sums, axis=0), cross, mean), grad


def _centre(parts: list[tf.Tensor]) -> tuple[list[tf.Tensor], tf.Tensor]:
    # The mean is held constant by the gradient: it drops out of products of two centred factors, and `_global` puts
    # back the one place where it does not. This saves a pass over the features on the way back.
    sums = tf.add_n([tf.reduce_sum(part, axis=0) for part in parts])
    mean = tf.stop_gradient(replicas.mean_of_sums(sums, sum(tf.shape(part)[0] for part in parts)))
    return [part - mean for part in parts], mean


def _global(sums: tf.Tensor, cross: tf.Tensor, mean: tf.Tensor, images: tf.Tensor, views: int) -> Moments:
    # sum_i sums_i is zero but for rounding; its gradient is that of the mean.
    shift = tf.reduce_sum(sums, axis=0) / (images * views)
    scalars = replicas.all_sum(tf.stack([tf.reduce_sum(tf.square(sums)), 2.0 * tf.reduce_sum(mean * shift)]))
    norm = tf.reduce_sum(tf.square(mean)) + scalars[1]
    return Moments(norm, scalars[0], replicas.all_sum(cross), images, views)


def _count(z: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.shape(z)[0] * replicas.num_replicas(), z.dtype)


def _flat(z: tf.Tensor) -> tf.Tensor:
    return tf.reshape(z, [-1, z.shape[-1]])


def _part_sizes(z: tf.Tensor) -> int | list[int]:
    if z.shape[0] is None:
        return 1
    size = max(1, _ROWS // z.shape[1])
    return [min(size, z.shape[0] - start) for start in range(0, z.shape[0], size)]
