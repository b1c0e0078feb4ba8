"""Estimators of HSIC between representations and image identities (hsic_zy), and of representations with themselves
(hsic_zz), exact for a kernel or in linear time from random features.

Representations are z [B, M, Q]: M views of each of B images. Where labels are given, they are z [n, Q] with integer labels [n]:
identities or classes, in any order, in groups that may differ in size.

All of them but `hsic` are global under a `tf.distribute` strategy: each replica passes its own images, and gets the value
for all images. docs/method.md derives every formula.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from keras_sslhsic.hsic import kernels, replicas
from keras_sslhsic.hsic.blocked import kernel_sums
from keras_sslhsic.hsic.groups import group
from keras_sslhsic.hsic.moments import Moments, feature_moments


def hsic(k: tf.Tensor, l: tf.Tensor, *, unbiased: bool = False, ddof: int = 1) -> tf.Tensor:  # noqa: E741
    """HSIC of two kernel matrices of the same n samples.

        biased    Tr(K H L H) / (n - ddof)^2,   H = I - 11'/n                           (Gretton et al. 2005)
        unbiased  [Tr(K~ L~) + 1'K~1 1'L~1 / ((n - 1)(n - 2)) - 2 / (n - 2) 1'K~L~1] / (n (n - 3))   (Song et al. 2012)

    with K~ and L~ the matrices without their diagonals.

    Args:
        k: symmetric kernel matrix K [n, n], float.
        l: symmetric kernel matrix L [n, n], of the same dtype.
        unbiased: which of the two. The unbiased one may be negative, and needs n >= 4.
        ddof: 1 for the divisor (n - 1)^2 of the paper, 0 for the n^2 of a V-statistic; the biased one alone uses it.

    Returns:
        Scalar of the dtype of k.

    Raises:
        ValueError: if the shapes differ, or n is below 2, or below 4 for the unbiased estimator.
    """
    if k.shape.rank != 2 or k.shape != l.shape or k.shape[0] != k.shape[1]:
        raise ValueError(f"Expected two kernel matrices [n, n] of one shape, but found {tuple(k.shape)} and {tuple(l.shape)}.")
    _check_samples(k.shape[0], unbiased)
    n = tf.cast(tf.shape(k)[0], k.dtype)
    if not unbiased:
        return tf.reduce_sum(_double_centre(k) * _double_centre(l)) / (n - ddof) ** 2
    k = tf.linalg.set_diag(k, tf.zeros_like(k[0]))
    l = tf.linalg.set_diag(l, tf.zeros_like(l[0]))  # noqa: E741
    return _song(
        n, tf.reduce_sum(k * l), tf.reduce_sum(k) * tf.reduce_sum(l), tf.tensordot(tf.reduce_sum(k, 0), tf.reduce_sum(l, 0), 1)
    )


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
    """HSIC between representations and identities, exact for a kernel (Li et al. 2021, Corollary and Theorem of section 3.1).

        biased    within - 1/(BM)^2 sum_{ijpl} k(z_i^p, z_j^l),   within = 1/(B M (M-1)) sum_{ipl} k(z_i^p, z_i^l) - 1/(M-1)
        unbiased  (1 - 1/N) (within - between),   between = 1/(B (B-1) M^2) sum_{i != j, p, l} k(z_i^p, z_j^l)

    `within` is the mean of k over pairs of different views of one image. The bias falls as 1/B. The unbiased estimator is the paper's, for
    B images drawn without replacement out of N, with its terms gathered.

    With labels, the groups take the place of the images and count equally, whatever their size; a group of one has
    no pair, and only enters the second term.

    Args:
        z: representations [B, M, Q], or [n, Q] with labels; float.
        kernel: "imq", "gaussian", "linear" or a `kernels.Kernel`. Its scale is held constant by the gradient.
        labels: integers [n].
        unbiased: which of the two.
        dataset_size: number N of images for the unbiased one; by default infinite.
        constant: whether to subtract 1/(M-1). It makes the value 0 for independence; the released code leaves it out.
        block_rows: rows of the kernel matrix held at a time; by default what takes 16 MiB.

    Returns:
        Scalar of the dtype of z.

    Raises:
        ValueError: if the shapes do not fit, M is below 2, or B is below 2 for the unbiased estimator.

    Example:
        >>> z = tf.math.l2_normalize(tf.random.stateless_normal([8, 2, 16], seed=[1, 2]), axis=-1)
        >>> value = hsic_zy(z, "imq")
    """
    _check_unbiased(z, labels, unbiased)
    return _exact_zy(_exact_sums(z, labels, kernel, block_rows), unbiased, dataset_size, constant)


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
        ValueError: if n is below 2, or below 4 for the unbiased estimator.
    """
    flat = tf.reshape(z, [-1, z.shape[-1]])
    return _exact_zz(_exact_sums(flat, tf.zeros(tf.shape(flat)[:1], tf.int32), kernel, block_rows), unbiased, ddof)


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

    Args:
        z: representations [B, M, Q], or [n, Q] with labels; float.
        kernel: as in `hsic_zy`.
        gamma: weight of the second term, at least 0.
        labels: as in `hsic_zy`.
        unbiased: as in `hsic_zy` and `hsic_zz`; a negative hsic_zz counts as 0.
        dataset_size: as in `hsic_zy`.
        constant: as in `hsic_zy`.
        ddof: as in `hsic_zz`.
        block_rows: as in `hsic_zy`.

    Returns:
        The loss, hsic_zy and hsic_zz, scalars of the dtype of z.

    Raises:
        ValueError: as in `hsic_zy` and `hsic_zz`, or if gamma is negative.
    """
    _check_unbiased(z, labels, unbiased)
    sums = _exact_sums(z, labels, kernel, block_rows)
    return objective(_exact_zy(sums, unbiased, dataset_size, constant), _exact_zz(sums, unbiased, ddof), gamma)


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
    _check_unbiased(r, labels, unbiased)
    if labels is None:
        check_views(r)
        return moments_zy(feature_moments(r, r), unbiased, dataset_size, constant)
    _check_labels(r, labels)
    groups = group(replicas.all_gather(labels))
    sizes = tf.cast(groups.sizes, r.dtype)
    sums = replicas.all_sum(tf.math.unsorted_segment_sum(r, replicas.own_rows(groups.index), tf.size(groups.index)))
    squares = tf.reduce_sum(tf.square(sums), axis=1)
    count = tf.reduce_sum(tf.cast(sizes > 0, r.dtype))
    return _combine(
        count,
        pairs=_mean_pairs(squares - float(constant) * sizes, sizes),
        squared_mean=tf.reduce_sum(tf.square(tf.reduce_sum(tf.math.divide_no_nan(sums, sizes[:, None]), 0))) / count**2,
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
        ValueError: if the leading dimensions differ.
    """
    if r.shape[:-1] != r2.shape[:-1]:
        raise ValueError(f"Both draws need the same rows, but found the shapes {tuple(r.shape)} and {tuple(r2.shape)}.")
    r, r2 = [x if x.shape.rank == 3 else x[:, None, :] for x in (r, r2)]
    return moments_zz(feature_moments(r, r2), ddof)


def moments_zy(moments: Moments, unbiased: bool, dataset_size: int | None, constant: bool) -> tf.Tensor:
    """`hsic_zy_features` from the moments of the features."""
    images, views = moments.images, moments.views
    biased = moments.spread / (images * views * (views - 1)) + (moments.norm - float(constant)) / (views - 1)
    if not unbiased:
        return biased
    between = moments.spread / (images * (images - 1.0) * views**2)
    return _finite_population(dataset_size) * (biased + between)


def moments_zz(moments: Moments, ddof: int) -> tf.Tensor:
    """`hsic_zz_features` from the moments of the features."""
    return tf.reduce_sum(tf.square(moments.cross)) / (moments.images * moments.views - ddof) ** 2


def objective(zy: tf.Tensor, zz: tf.Tensor, gamma: float) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns -zy + gamma sqrt(zz), zy and zz. The square root has gradient 0 where zz <= 0 (`tf.sqrt`: infinite)."""
    if gamma < 0:
        raise ValueError(f"gamma must be at least 0, but {gamma} was given.")
    positive = zz > 0
    root = tf.where(positive, tf.sqrt(tf.where(positive, zz, tf.ones_like(zz))), tf.zeros_like(zz))
    return gamma * root - zy, zy, zz


def check_views(z: tf.Tensor) -> None:
    """Raises a ValueError unless z is [B, M, Q] with M >= 2."""
    if z.shape.rank != 3:
        raise ValueError(f"Expected [images B, views M, dimensions], but found the shape {tuple(z.shape)}.")
    if z.shape[1] is None or z.shape[1] < 2:
        raise ValueError(f"At least M = 2 views of each image are needed, but found M = {z.shape[1]} in {tuple(z.shape)}.")


class _ExactSums(NamedTuple):
    """Sums over the shifted kernel matrix A = K - shift of all n rows; those with [n] are of this replica's rows alone."""

    n: tf.Tensor
    shift: tf.Tensor
    diagonal: tf.Tensor  # what each A_ii is
    rows: tf.Tensor  # [n], sum_j A_ij
    squares: tf.Tensor  # [n], sum_j A_ij^2
    same: tf.Tensor  # [n], sum of A_ij over the j of the same group
    group_means: tf.Tensor  # [n], sum over groups of the mean of A_ij in that group
    sizes: tf.Tensor  # [n], number of rows in the group of row i
    groups: tf.Tensor  # number of groups


def _exact_sums(z, labels, kernel, block_rows):
    kernel = kernels.get(kernel)
    kernel = kernel.with_scale(tf.stop_gradient(tf.cast(tf.convert_to_tensor(kernel.scale), z.dtype)))
    if labels is None:
        check_views(z)
        views = z.shape[1]
        column_labels = tf.repeat(tf.range(tf.shape(z)[0] * replicas.num_replicas()), views)
        z = tf.reshape(z, [-1, z.shape[-1]])
        column_sizes = tf.fill(tf.shape(column_labels), tf.cast(views, z.dtype))
        row_labels = replicas.own_rows(column_labels)
    else:
        _check_labels(z, labels)
        groups = group(replicas.all_gather(labels))
        column_labels, row_labels = groups.index, replicas.own_rows(groups.index)
        column_sizes = tf.cast(tf.gather(groups.sizes, groups.index), z.dtype)
    columns = replicas.all_gather(z)
    n = tf.cast(tf.shape(columns)[0], z.dtype)
    # The kernel at the mean squared distance: A is then near zero on the whole, and its sums lose no digits.
    mean = tf.reduce_mean(columns, axis=0)
    mean_distance = 2.0 * tf.reduce_mean(tf.reduce_sum(tf.square(columns - mean), axis=1))
    shift = tf.stop_gradient(kernel.value(mean_distance))
    weights = tf.stack([tf.ones_like(column_sizes), 1.0 / column_sizes], axis=1)
    weighted, squares, same = kernel_sums(z, columns, row_labels, column_labels, weights, kernel, shift, block_rows)
    return _ExactSums(
        n=n,
        shift=shift,
        diagonal=kernel.value(tf.zeros_like(shift)) - shift,
        rows=weighted[:, 0],
        squares=squares,
        same=same,
        group_means=weighted[:, 1],
        sizes=replicas.own_rows(column_sizes),
        groups=tf.reduce_sum(1.0 / column_sizes),
    )


def _exact_zy(sums, unbiased, dataset_size, constant):
    # The shift is the same in every term, and drops out of their difference.
    sizes, many = sums.sizes, tf.cast(sums.sizes > 1.5, sums.sizes.dtype)
    diagonal = float(constant) * sums.diagonal - (0.0 if constant else sums.shift)
    totals = replicas.all_sum(
        tf.stack(
            [
                tf.reduce_sum(tf.math.divide_no_nan(sums.same - diagonal, sizes * (sizes - 1.0))),
                tf.reduce_sum(many / sizes),
                tf.reduce_sum(sums.group_means / sizes),
                tf.reduce_sum(sums.same / sizes**2),
            ]
        )
    )
    return _combine(
        sums.groups,
        pairs=tf.math.divide_no_nan(totals[0], totals[1]),
        squared_mean=totals[2] / sums.groups**2,
        mean_square=totals[3] / sums.groups,
        unbiased=unbiased,
        dataset_size=dataset_size,
    )


def _exact_zz(sums, unbiased, ddof):
    n = sums.n
    _check_samples(sums.rows.shape[0], unbiased)
    diagonal = sums.diagonal if unbiased else tf.zeros_like(sums.diagonal)
    rows = sums.rows - diagonal
    totals = replicas.all_sum(tf.stack([tf.reduce_sum(x) for x in (rows, rows * rows, sums.squares)]))
    total, row_squares, squares = tf.unstack(totals)
    if unbiased:
        return _song(n, squares - n * diagonal**2, total**2, row_squares)
    return (squares - 2.0 / n * row_squares + total**2 / n**2) / (n - ddof) ** 2


def _combine(count, pairs, squared_mean, mean_square, unbiased, dataset_size):
    """hsic_zy from the mean over pairs in a group, the squared norm of the mean of the group means, and the mean of the squared norms."""
    if not unbiased:
        return pairs - squared_mean
    between = (count * squared_mean - mean_square) / (count - 1.0)
    return _finite_population(dataset_size) * (pairs - between)


def _mean_pairs(sums, sizes):
    """Mean over groups of two or more of sums / (size (size - 1))."""
    many = tf.cast(sizes > 1.5, sizes.dtype)
    return tf.math.divide_no_nan(
        tf.reduce_sum(many * tf.math.divide_no_nan(sums, sizes * (sizes - 1.0))), tf.reduce_sum(many)
    )


def _song(n, trace, product, rows):
    """The unbiased HSIC from Tr(K~ L~), 1'K~1 1'L~1 and 1'K~L~1."""
    return (trace + product / ((n - 1.0) * (n - 2.0)) - 2.0 / (n - 2.0) * rows) / (n * (n - 3.0))


def _finite_population(dataset_size):
    return 1.0 if dataset_size is None else 1.0 - 1.0 / dataset_size


def _double_centre(k):
    return k - tf.reduce_mean(k, 0, keepdims=True) - tf.reduce_mean(k, 1, keepdims=True) + tf.reduce_mean(k)


def _check_labels(z, labels):
    if z.shape.rank != 2 or labels.shape.rank != 1 or not z.shape[:1].is_compatible_with(labels.shape):
        raise ValueError(f"Expected z [n, Q] and labels [n], but found the shapes {tuple(z.shape)} and {tuple(labels.shape)}.")


def _check_unbiased(z, labels, unbiased):
    if unbiased and labels is None and z.shape.rank == 3 and z.shape[0] == 1 and replicas.num_replicas() == 1:
        raise ValueError(f"The unbiased estimator needs at least B = 2 images, but found {tuple(z.shape)}.")


def _check_samples(n, unbiased):
    least = 4 if unbiased else 2
    if n is not None and n * replicas.num_replicas() < least:
        raise ValueError(f"At least n = {least} samples are needed, but found n = {n}.")
