"""Estimators of HSIC, exact for a kernel or in linear time from random features: between representations and image
identities (hsic_zy), and of representations with themselves (hsic_zz).

Representations are z [B, M, Q]: M views of each of B images. Where labels are given, they are z [n, Q] with
integer labels [n]: identities or classes, in any order, in groups that may differ in size.

All of them but `hsic` are global under a `tf.distribute` strategy: each replica passes its own images, and
gets the value for all images. docs/method.md derives every formula.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import replicas
from keras_sslhsic.hsic.checks import check_labels, check_samples, check_views, floats
from keras_sslhsic.hsic.exact import exact_sums, exact_zy, exact_zz, song
from keras_sslhsic.hsic.groups import combine, group, mean_pairs
from keras_sslhsic.hsic.moments import feature_moments, moments_zy, moments_zz


def hsic(k: tf.Tensor, l: tf.Tensor, *, unbiased: bool = False, ddof: int = 1) -> tf.Tensor:  # noqa: E741
    """HSIC of two kernel matrices of the same n samples.

        biased    Tr(K H L H) / (n - ddof)^2,   H = I - 11'/n                           (Gretton et al. 2005)
        unbiased  [Tr(K~ L~) + 1'K~1 1'L~1 / ((n - 1)(n - 2)) - 2 / (n - 2) 1'K~L~1] / (n (n - 3))

    with K~ and L~ the matrices without their diagonals (the unbiased one is that of Song et al. 2012).

    Args:
        k: symmetric kernel matrix K [n, n], float.
        l: symmetric kernel matrix L [n, n], of the same dtype.
        unbiased: which of the two. The unbiased one may be negative, and needs n >= 4.
        ddof: 1 for the divisor (n - 1)^2 of the paper, 0 for the n^2 of a V-statistic; the biased one alone uses it.

    Returns:
        Scalar of the dtype of k.

    Raises:
        ValueError: if the shapes differ, n is below 2, or below 4 for the unbiased estimator, or ddof is neither 0 nor 1.
    """
    k, l = floats(k, 2), floats(l, 2)  # noqa: E741
    if k.dtype != l.dtype:
        raise ValueError(f"Expected two matrices of one dtype, found {k.dtype.name} and {l.dtype.name}.")
    if k.shape.rank != 2 or k.shape != l.shape or k.shape[0] != k.shape[1]:
        raise ValueError(f"Expected two matrices [n, n] of one shape, found {k.shape} and {l.shape}.")
    check_samples(k.shape[0], unbiased)
    checks.integer("ddof", ddof, 0, most=1)
    n = tf.cast(tf.shape(k)[0], k.dtype)
    if not unbiased:
        return tf.reduce_sum(_double_centre(k) * _double_centre(l)) / (n - ddof) ** 2
    k = tf.linalg.set_diag(k, tf.zeros_like(k[0]))
    l = tf.linalg.set_diag(l, tf.zeros_like(l[0]))  # noqa: E741
    rows = tf.tensordot(tf.reduce_sum(k, 0), tf.reduce_sum(l, 0), 1)
    return song(n, tf.reduce_sum(k * l), tf.reduce_sum(k) * tf.reduce_sum(l), rows)


def hsic_zy(
    z: tf.Tensor,
    kernel: Any = "imq",
    *,
    labels: tf.Tensor | None = None,
    unbiased: bool = False,
    dataset_size: int | None = None,
    constant: bool = True,
    block_rows: int | None = None,
) -> tf.Tensor:
    """HSIC between representations and identities, exact for a kernel (Li et al. 2021, appendix A.2).

        within   = 1/(B M (M-1)) sum_{ipl} k(z_i^p, z_i^l) - 1/(M-1)
        between  = 1/(B (B-1) M^2) sum_{i != j, p, l} k(z_i^p, z_j^l)
        biased   = within - 1/(BM)^2 sum_{ijpl} k(z_i^p, z_j^l)
        unbiased = (1 - 1/N) (within - between)

    `within` is the mean of k over pairs of different views of one image. The bias falls as 1/B. The unbiased
    estimator is the paper's, for B images drawn without replacement out of N, with its terms gathered.

    With labels, the groups take the place of the images and count equally, whatever their size; a group of
    one has no pair, and only enters the second term.

    Args:
        z: representations [B, M, Q], or [n, Q] with labels; float.
        kernel: "imq", "gaussian", "linear" or a `kernels.Kernel`. Its scale is held constant by the gradient.
        labels: integers [n].
        unbiased: which of the two.
        dataset_size: number N of images for the unbiased one; by default infinite.
        constant: whether to subtract 1/(M-1). It makes the value 0 for independence; the released code leaves it out.
        block_rows: rows of the kernel matrix held at a time; by default what takes 4 MiB.

    Returns:
        Scalar of the dtype of z.

    Raises:
        ValueError: if the shapes do not fit, M is below 2, or B is below 2 for the unbiased estimator.

    Example:
        >>> z = tf.math.l2_normalize(tf.random.stateless_normal([8, 2, 16], seed=[1, 2]), axis=-1)
        >>> value = hsic_zy(z, "imq")
    """
    z = floats(z, 2, 3)
    if labels is None:
        check_views(z, unbiased)
    return exact_zy(exact_sums(z, labels, kernel, block_rows), unbiased, dataset_size, constant)


def hsic_zz(
    z: tf.Tensor, kernel: Any = "imq", *, unbiased: bool = False, ddof: int = 1, block_rows: int | None = None
) -> tf.Tensor:
    """HSIC of representations with themselves, exact for a kernel: `hsic(K, K)` with K the matrix of all n rows.

    Args:
        z: representations [B, M, Q] or [n, Q], float.
        kernel: as in `hsic_zy`.
        unbiased: Tr(K H K H) / (n - ddof)^2, or the estimator of Song et al. 2012, which may be negative.
        ddof: 1 for the paper's divisor (n - 1)^2, 0 for the released code's n^2.
        block_rows: as in `hsic_zy`.

    Returns:
        Scalar of the dtype of z.

    Raises:
        ValueError: if n is below 2, or below 4 for the unbiased estimator, or ddof is neither 0 nor 1.
    """
    z = floats(z, 2, 3)
    flat = tf.reshape(z, [-1, z.shape[-1]])
    labels = tf.zeros(tf.shape(flat)[:1], tf.int32)
    return exact_zz(exact_sums(flat, labels, kernel, block_rows), unbiased, ddof)


def ssl_hsic(
    z: tf.Tensor,
    kernel: Any = "imq",
    gamma: float = 3.0,
    *,
    labels: tf.Tensor | None = None,
    unbiased: bool = False,
    dataset_size: int | None = None,
    constant: bool = True,
    ddof: int = 1,
    block_rows: int | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The SSL-HSIC objective, exact for a kernel: -hsic_zy + gamma sqrt(hsic_zz), from one pass over the kernel matrix.

    z is [B, M, Q], or [n, Q] with labels; gamma, at least 0, the weight of the second term. The other arguments are those of
    `hsic_zy` and `hsic_zz`; of the unbiased estimators, a negative hsic_zz counts as 0.

    Returns:
        The loss, hsic_zy and hsic_zz, scalars of the dtype of z.

    Raises:
        ValueError: as in `hsic_zy` and `hsic_zz`, or if gamma is negative or not finite.
    """
    z = floats(z, 2, 3)
    if labels is None:
        check_views(z, unbiased)
    sums = exact_sums(z, labels, kernel, block_rows)
    return objective(exact_zy(sums, unbiased, dataset_size, constant), exact_zz(sums, unbiased, ddof), gamma)


def hsic_zy_features(
    r: tf.Tensor,
    *,
    labels: tf.Tensor | None = None,
    unbiased: bool = False,
    dataset_size: int | None = None,
    constant: bool = True,
) -> tf.Tensor:
    """`hsic_zy` in linear time, with r'r' in the place of the kernel for pairs that differ.

        1/(BM(M-1)) sum_i |sum_p r_ip|^2 - |1/(BM) sum_ip r_ip|^2 - 1/(M-1)

    Its expectation over independent random features is the exact estimator for k(z, z) = 1.

    Args:
        r: features [B, M, D], or [n, D] with labels; float.
        labels: as in `hsic_zy`. Under a strategy the sums of each group then travel too, n x D numbers.
        unbiased: as in `hsic_zy`.
        dataset_size: as in `hsic_zy`.
        constant: as in `hsic_zy`.

    Returns:
        Scalar of the dtype of r.

    Raises:
        ValueError: as in `hsic_zy`.
    """
    r = floats(r, 2, 3)
    if labels is None:
        check_views(r, unbiased)
        return moments_zy(feature_moments(r, r), unbiased, dataset_size, constant)
    labels = tf.convert_to_tensor(labels)
    check_labels(r, labels)
    groups = group(replicas.all_gather(labels))
    sizes = tf.cast(groups.sizes, r.dtype)
    own = replicas.own_rows(groups.index)
    sums = replicas.all_sum(tf.math.unsorted_segment_sum(r, own, tf.size(groups.index)))
    squares = tf.reduce_sum(tf.square(sums), axis=1)
    count = tf.reduce_sum(tf.cast(sizes > 0, r.dtype))
    sum_of_means = tf.reduce_sum(tf.math.divide_no_nan(sums, sizes[:, None]), 0)
    return combine(
        count,
        pairs=mean_pairs(squares - float(constant) * sizes, sizes),
        squared_mean=tf.reduce_sum(tf.square(sum_of_means)) / count**2,
        mean_square=tf.reduce_sum(tf.math.divide_no_nan(squares, sizes**2)) / count,
        unbiased=unbiased,
        dataset_size=dataset_size,
    )


def hsic_zz_features(r: tf.Tensor, r2: tf.Tensor, *, ddof: int = 1) -> tf.Tensor:
    """`hsic_zz` in linear time, from two independent draws of features of the same n rows.

        |(H R)' H R2|_F^2 / (n - ddof)^2

    Its expectation over the draws is the exact biased estimator. With r2 = r it is too large.

    Args:
        r: features [B, M, D] or [n, D], float.
        r2: features [B, M, D2] or [n, D2], of the second draw.
        ddof: as in `hsic_zz`.

    Returns:
        Scalar of the dtype of r.

    Raises:
        ValueError: if the leading dimensions differ, or ddof is neither 0 nor 1.
    """
    r, r2 = floats(r, 2, 3), floats(r2, 2, 3)
    if r.shape[:-1] != r2.shape[:-1]:
        raise ValueError(f"Both draws need the same rows, found the shapes {r.shape} and {r2.shape}.")
    r, r2 = [x if x.shape.rank == 3 else x[:, None, :] for x in (r, r2)]
    return moments_zz(feature_moments(r, r2), ddof)


def objective(zy: tf.Tensor, zz: tf.Tensor, gamma: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns -zy + gamma sqrt(zz), zy and zz; the square root has gradient 0 where zz <= 0."""
    checks.number("gamma", gamma)
    positive = zz > 0
    root = tf.where(positive, tf.sqrt(tf.where(positive, zz, tf.ones_like(zz))), tf.zeros_like(zz))
    return gamma * root - zy, zy, zz


def _double_centre(k: tf.Tensor) -> tf.Tensor:
    return k - tf.reduce_mean(k, 0, keepdims=True) - tf.reduce_mean(k, 1, keepdims=True) + tf.reduce_mean(k)
