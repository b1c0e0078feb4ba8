"""A step whose variables are arguments and results computes what the step computes."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import lowering


def test_variables_that_are_read_assigned_and_looped_over():
    weights, count = tf.Variable([1.0, 2.0]), tf.Variable(3)
    fixed = tf.constant([0.5, 0.25])

    def step(batch):
        def body(i, total):
            weights.assign(weights * fixed)
            count.assign_add(2)
            return i + 1, total + weights * batch["x"]

        _, total = tf.while_loop(lambda i, total: i < 4, body, [0, tf.zeros([2])])
        weights.assign_sub(total)
        return {"total": tf.reduce_sum(total), "count": count + 1}

    pure = lowering.functionalize(step, {"x": tf.TensorSpec([2])})
    assert pure.outputs == ["count", "total"]
    x, values = tf.constant([2.0, -1.0]), [v.numpy() for v in pure.variables]
    found = lowering.run(pure, [x])
    assert [v.numpy().tolist() for v in pure.variables] == [v.tolist() for v in values]
    expected = tf.function(step)({"x": x})
    expected = [expected["count"], expected["total"], *(v.numpy() for v in pure.variables)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert int(count) == 11


def test_a_branch_that_takes_a_variable_is_refused():
    weight = tf.Variable(1.0)

    def step(batch):
        return {"y": tf.cond(batch["x"] > 0, lambda: weight * 2.0, lambda: weight + 1.0)}

    with pytest.raises(NotImplementedError, match="on a variable cannot be lowered"):
        pure = lowering.functionalize(step, {"x": tf.TensorSpec([])})
        lowering.run(pure, [tf.constant(1.0)])
