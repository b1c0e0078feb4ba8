"""Sums over the kernel matrix that never hold it: computed in blocks of rows, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from keras_sslhsic.hsic.kernels import Kernel, squared_distances

# Entries of the kernel matrix held at a time, when the caller does not say how many rows (4 MiB in float32).
_BLOCK_ENTRIES = 2**20


def kernel_sums(
    rows: tf.Tensor,
    columns: tf.Tensor,
    row_labels: tf.Tensor,
    column_labels: tf.Tensor,
    weights: tf.Tensor,
    kernel: Kernel,
    shift: tf.Tensor,
    block_rows: int | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Row sums of the shifted kernel matrix A = k(rows, columns) - shift.

    The gradient, with respect to `rows` and `columns`, computes the blocks once more rather than keep them, so that memory
    grows as block_rows x n in both directions.

    Args:
        rows: [m, Q], float.
        columns: [n, Q], of the same dtype.
        row_labels: integers [m].
        column_labels: integers [n].
        weights: [n, k], constant.
        kernel: the kernel, its scale constant.
        shift: scalar, constant. One near the mean of the kernel keeps the sums of squares free of cancellation.
        block_rows: number of rows of A held at a time; by default what takes 4 MiB in float32.

    Returns:
        A @ weights [m, k], sum_j A_ij^2 [m], and the sum of A_ij over the columns of the same label [m].
    """
    m, n = [x.shape[0] if x.shape[0] is not None else tf.shape(x)[0] for x in (rows, columns)]
    if block_rows is None:
        block_rows = max(1, _BLOCK_ENTRIES // n) if isinstance(n, int) else tf.maximum(1, _BLOCK_ENTRIES // n)
    blocks = -(-m // block_rows)
    size = -(-m // blocks)

    def split(x: tf.Tensor) -> tf.Tensor:
        padding = [[0, blocks * size - m]] + [[0, 0]] * (x.shape.rank - 1)
        return tf.reshape(tf.pad(x, padding), [blocks, size, *x.shape[1:]])

    def join(x: tf.Tensor) -> tf.Tensor:
        return tf.reshape(x, [blocks * size, *x.shape[2:]])[:m]

    labels = split(row_labels)

    def same(block_labels: tf.Tensor) -> tf.Tensor:
        return tf.cast(block_labels[:, None] == column_labels, rows.dtype)

    @tf.custom_gradient
    def sums(rows: tf.Tensor, columns: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable]:
        def forward(block: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            block_rows, block_labels = block
            a = kernel.value(squared_distances(block_rows, columns)) - shift
            of_label = tf.reduce_sum(a * same(block_labels), axis=1)
            return tf.matmul(a, weights), tf.reduce_sum(a * a, axis=1), of_label

        outputs = tf.map_fn(
            forward, (split(rows), labels), parallel_iterations=1, fn_output_signature=(rows.dtype,) * 3
        )

        def grad(
            d_weighted: tf.Tensor, d_square: tf.Tensor, d_same: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            elements = (split(rows), labels, split(d_weighted), split(d_square), split(d_same))

            def step(i: tf.Tensor, d_columns: tf.Tensor, d_rows: tf.TensorArray) -> tuple:
                block_rows, block_labels, d_weighted, d_square, d_same = [tf.gather(x, i) for x in elements]
                s = squared_distances(block_rows, columns)
                d_a = tf.matmul(d_weighted, weights, transpose_b=True) + same(block_labels) * d_same[:, None]
                d_a += (kernel.value(s) - shift) * (2.0 * d_square[:, None])
                d_s = 2.0 * d_a * kernel.derivative(s)
                d_block = block_rows * tf.reduce_sum(d_s, axis=1)[:, None] - tf.matmul(d_s, columns)
                d_columns += columns * tf.reduce_sum(d_s, axis=0)[:, None]
                d_columns -= tf.matmul(d_s, block_rows, transpose_a=True)
                return i + 1, d_columns, d_rows.write(i, d_block)

            d_rows = tf.TensorArray(rows.dtype, size=blocks, element_shape=[None, rows.shape[1]])
            _, d_columns, d_rows = tf.while_loop(
                lambda i, *_: i < blocks, step, (0, tf.zeros_like(columns), d_rows), parallel_iterations=1
            )
            return join(d_rows.stack()), d_columns

        return tuple(join(x) for x in outputs), grad

    return sums(rows, columns)
