"""The exact estimators, from sums over the kernel matrix of all rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import kernels, replicas
from keras_sslhsic.hsic.blocked import kernel_sums
from keras_sslhsic.hsic.checks import check_labels, check_samples, check_views
from keras_sslhsic.hsic.groups import combine, group


class ExactSums(NamedTuple):
    """Sums over the shifted kernel matrix A = K - shift of all n rows, of which this replica holds m."""

    n: tf.Tensor
    shift: tf.Tensor
    diagonal: tf.Tensor  # what each A_ii is
    rows: tf.Tensor  # [m], sum_j A_ij
    squares: tf.Tensor  # [m], sum_j A_ij^2
    same: tf.Tensor  # [m], sum of A_ij over the j of the same group
    group_means: tf.Tensor  # [m], sum over groups of the mean of A_ij in that group
    sizes: tf.Tensor  # [m], number of rows in the group of row i
    groups: tf.Tensor  # number of groups


def exact_sums(z: tf.Tensor, labels: tf.Tensor | None, kernel: Any, block_rows: int | None) -> ExactSums:
    """Computes the sums for z [B, M, Q], or for z [n, Q] with labels [n]."""
    checks.integer("block_rows", block_rows, 1, optional=True)
    kernel = kernels.get(kernel)
    kernel = kernel.with_scale(tf.stop_gradient(kernel.scale_as(z.dtype)))
    if labels is None:
        check_views(z)
        views = z.shape[1]
        column_labels = tf.repeat(tf.range(tf.shape(z)[0] * replicas.num_replicas()), views)
        z = tf.reshape(z, [-1, z.shape[-1]])
        column_sizes = tf.fill(tf.shape(column_labels), tf.cast(views, z.dtype))
        row_labels = replicas.own_rows(column_labels)
    else:
        labels = tf.convert_to_tensor(labels)
        check_labels(z, labels)
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
    weighted, squares, same = kernel_sums(
        z, columns, row_labels, column_labels, weights, kernel, shift, block_rows
    )
    return ExactSums(
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


def exact_zy(sums: ExactSums, unbiased: bool, dataset_size: int | None, constant: bool) -> tf.Tensor:
    """`hsic_zy` from the sums."""
    # The shift is the same in every term, and drops out of their difference.
    sizes, many = sums.sizes, tf.cast(sums.sizes > 1.5, sums.sizes.dtype)
    diagonal = float(constant) * sums.diagonal - (0.0 if constant else sums.shift)
    of_pairs = tf.math.divide_no_nan(sums.same - diagonal, sizes * (sizes - 1.0))
    terms = (of_pairs, many / sizes, sums.group_means / sizes, sums.same / sizes**2)
    pairs, groups, means, squares = tf.unstack(replicas.all_sum(tf.stack([tf.reduce_sum(x) for x in terms])))
    return combine(
        sums.groups,
        pairs=tf.math.divide_no_nan(pairs, groups),
        squared_mean=means / sums.groups**2,
        mean_square=squares / sums.groups,
        unbiased=unbiased,
        dataset_size=dataset_size,
    )


def exact_zz(sums: ExactSums, unbiased: bool, ddof: int) -> tf.Tensor:
    """`hsic_zz` from the sums."""
    check_samples(sums.rows.shape[0], unbiased)
    checks.integer("ddof", ddof, 0, most=1)
    n = sums.n
    diagonal = sums.diagonal if unbiased else tf.zeros_like(sums.diagonal)
    rows = sums.rows - diagonal
    totals = replicas.all_sum(tf.stack([tf.reduce_sum(x) for x in (rows, rows * rows, sums.squares)]))
    total, row_squares, squares = tf.unstack(totals)
    if unbiased:
        return song(n, squares - n * diagonal**2, total**2, row_squares)
    return (squares - 2.0 / n * row_squares + total**2 / n**2) / (n - ddof) ** 2


def exact_mean(sums: ExactSums) -> tf.Tensor:
    """The mean of the kernel over all pairs of rows, those of a row with itself among them."""
    return sums.shift + replicas.all_sum(tf.reduce_sum(sums.rows)) / sums.n**2


def song(n: tf.Tensor, trace: tf.Tensor, product: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Unbiased HSIC of n samples (Song et al. 2012) from Tr(K~ L~), 1'K~1 1'L~1 and 1'K~L~1."""
    return (trace + product / ((n - 1.0) * (n - 2.0)) - 2.0 / (n - 2.0) * rows) / (n * (n - 3.0))
