"""A training step as a pure function of tensors, and its HLO.

XLA's own tools take programs without variables: values in, values out. `functionalize` makes such a program of
the very step that `fit` runs, so what is lowered, counted and timed elsewhere is not a copy of it.
"""

import gzip
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph


class PureStep(NamedTuple):
    """A step without variables.

    Attributes:
        function: (*batch, *values of the variables) -> (*outputs, *new values of the variables).
        batch: specs of the batch's tensors, by name.
        variables: the variables, in the order of the values.
        outputs: names of the outputs.
    """

    function: Callable
    batch: dict[str, tf.TensorSpec]
    variables: list[tf.Variable]
    outputs: list[str]

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """Shapes and dtypes of the function's arguments."""
        return [*self.batch.values(), *(tf.TensorSpec(v.shape, v.dtype) for v in self.variables)]


def trace(step: Callable, batch: dict[str, tf.TensorSpec]):
    """The step's concrete function of the batch's tensors, with its variables."""
    flat = tf.function(lambda *tensors: step(dict(zip(batch, tensors, strict=True))), autograph=False)
    return flat.get_concrete_function(*batch.values())


class _Slot:
    """What stands for a variable's handle: the value that the variable holds at this point of the program."""

    def __init__(self, value):
        self.value = value

    def assign(self, value):
        self.value = tf.ensure_shape(value, self.value.shape)


def functionalize(step: Callable, batch: dict[str, tf.TensorSpec]) -> PureStep:
    """Makes a step that reads and writes variables a function of their values.

    The traced graph is replayed operation by operation in the order of creation, which is the program's. Calls
    that take a variable are inlined, loops carry its value; branches that take one are refused.

    Args:
        step: takes {name: tensor} and returns {name: scalar tensor}, e.g. `model.train_step`.
        batch: the specs of `step`'s argument, with static shapes.

    Returns:
        A `PureStep`. Every variable that the step touches is an argument and a result of its function.

    Raises:
        NotImplementedError: for an operation on a variable that is none of reading, assigning, calling and looping.
    """
    concrete = trace(step, batch)
    graph, captures = concrete.graph, concrete.captured_inputs
    by_handle = {id(v.handle): v for v in concrete.variables}
    variables = [by_handle[id(handle)] for handle in captures if handle.dtype == tf.resource]
    constants = [None if tensor.dtype == tf.resource else tensor.numpy() for tensor in captures]

    def function(*tensors):
        slots = [_Slot(value) for value in tensors[len(batch) :]]
        unused = iter(slots)
        captured = [next(unused) if value is None else tf.constant(value) for value in constants]
        outer = tf.compat.v1.get_default_graph()
        for inner in graph._functions.values():
            outer._add_function_recursive(inner)
        values = _replay(graph, graph.inputs, [*tensors[: len(batch)], *captured])
        return [*(values[t.name] for t in graph.outputs), *(slot.value for slot in slots)]

    return PureStep(function, batch, variables, sorted(concrete.structured_outputs))


def _replay(graph, inputs, arguments) -> dict[str, Any]:
    """Runs a graph's operations once more in the graph that is being built: {name of a tensor: its value}."""
    values = {tensor.name: argument for tensor, argument in zip(inputs, arguments, strict=True)}
    for op in graph.get_operations():
        if op.type == "Placeholder" and op.outputs[0].name in values:
            continue
        operands = [values[tensor.name] for tensor in op.inputs]
        run = _on_variable if any(isinstance(x, _Slot) for x in operands) else _copied
        results = run(graph, op, operands)
        values.update(zip((tensor.name for tensor in op.outputs), results, strict=True))
    return values


def _copied(graph, op, operands):
    # Colocation names operations of the old graph; there is one device here.
    attributes = {name: value for name, value in op.node_def.attr.items() if name != "_class"}
    dtypes = [tensor.dtype for tensor in op.outputs]
    copy = tf.compat.v1.get_default_graph()._create_op_internal(
        op.type, operands, dtypes=dtypes, name=op.name, attrs=attributes, op_def=op.op_def
    )
    return copy.outputs


def _on_variable(graph, op, operands):
    slot, *rest = operands
    if op.type == "ReadVariableOp":
        return [tf.identity(slot.value)]
    if op.type == "AssignVariableOp":
        slot.assign(*rest)
    elif op.type == "AssignAddVariableOp":
        slot.assign(slot.value + rest[0])
    elif op.type == "AssignSubVariableOp":
        slot.assign(slot.value - rest[0])
    elif op.type in ("Identity", "NoOp"):
        return operands[: len(op.outputs)]
    elif op.type in ("PartitionedCall", "StatefulPartitionedCall"):
        return _called(graph, op.get_attr("f"), operands)
    elif op.type in ("While", "StatelessWhile"):
        return _looped(graph, op, operands)
    else:
        raise NotImplementedError(f"{op.type} on a variable cannot be lowered: {op.name}")
    return []


def _called(graph, function, operands):
    called = function_def_to_graph(graph._get_function(function.name).cached_definition)
    values = _replay(called, called.inputs, operands)
    return [values[tensor.name] for tensor in called.outputs]


def _looped(graph, op, operands):
    slots = [isinstance(x, _Slot) for x in operands]

    def once(function):
        def run(*tensors):
            given = [_Slot(x) if is_slot else x for x, is_slot in zip(tensors, slots, strict=True)]
            return [x.value if isinstance(x, _Slot) else x for x in _called(graph, function, given)]

        return run

    condition, body = once(op.get_attr("cond")), once(op.get_attr("body"))
    begin = [x.value if isinstance(x, _Slot) else x for x in operands]
    end = tf.while_loop(lambda *x: condition(*x)[0], body, begin)
    for before, after in zip(operands, end, strict=True):
        if isinstance(before, _Slot):
            before.assign(after)
    return [
        before if isinstance(before, _Slot) else after for before, after in zip(operands, end, strict=True)
    ]


def lower(step: PureStep, platform: str) -> bytes:
    """Returns the step's HLO, serialised; platform is CPU, GPU or (with tensorflow-tpu alone) TPU.

    Raises:
        tf.errors.OpError, ValueError: where an operation has no kernel for XLA on the platform.
    """
    compiled = tf.function(step.function, jit_compile=True, autograph=False)
    return compiled.experimental_get_compiler_ir(*step.specs)(stage="hlo_serialized", platform_name=platform)


def save(step: PureStep, hlo: bytes, path: Path, **facts: Any) -> None:
    """Writes PATH.hlo.gz, and PATH.json with the arguments' names, shapes, dtypes and how to make their values.

    A variable of one value in all places is filled with that, any other one drawn from a normal distribution of
    the variable's mean and standard deviation; so a machine without the weights makes its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(path.name + ".hlo.gz").write_bytes(gzip.compress(hlo, 6))
    arguments = [{"name": name, **_shape(spec), "kind": "batch"} for name, spec in step.batch.items()]
    arguments += [
        {"name": v.name, **_shape(v), "kind": "variable", **_moments(v.numpy())} for v in step.variables
    ]
    description = {**facts, "arguments": arguments, "outputs": step.outputs}
    path.with_name(path.name + ".json").write_text(json.dumps(description, indent=1) + "\n")


def _shape(spec) -> dict[str, Any]:
    return {"shape": spec.shape.as_list(), "dtype": spec.dtype.name}


def _moments(value: np.ndarray) -> dict[str, float]:
    value = value.astype(np.float64)
    return {"mean": float(value.mean()), "stddev": float(value.std()) if np.ptp(value) else 0.0}


def run(step: PureStep, batch: Sequence[tf.Tensor]) -> list[np.ndarray]:
    """The results of the pure function at the variables' present values, compiled by XLA; they stay as they are."""
    compiled = tf.function(step.function, jit_compile=True, autograph=False)
    return [result.numpy() for result in compiled(*batch, *(v.numpy() for v in step.variables))]
