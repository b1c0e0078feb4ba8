"""Compiling a lowered step with JAX's compilers, on a machine that need not have TensorFlow."""

import gzip
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax._src.lib import _jax, xla_client
from jax._src.lib.mlir import ir
from jax.experimental import topologies

# What XLA reads of a GPU that is not there; the numbers are those of its own description of an H200.
H200 = """
gpu_device_info {
  name: "NVIDIA H200"
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  device_memory_size: 151397597184  memory_bandwidth: 4800000000000  l2_cache_size: 52428800
  shared_memory_per_core: 233472  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
}
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 }
"""
NO_KERNEL = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast")


def absent_h200() -> Any:
    """A device to compile for on a machine without it; needs JAX's CUDA plugin."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # which asks the driver
    topology = topologies.get_topology_desc(platform="cuda", topology="1 x 1 x 1", target_config=H200)
    return topology.devices[0]


def load(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Reads what `lowering.save` wrote: (serialised HLO, its description)."""
    hlo = gzip.decompress(path.with_name(path.name + ".hlo.gz").read_bytes())
    return hlo, json.loads(path.with_name(path.name + ".json").read_text())


def compile_step(hlo: bytes, arguments: int, outputs: int, devices: list, attached: bool = True) -> Any:
    """Compiles a lowered step, one copy of it on every device.

    The new value of a variable is written over the old one: those arguments are donated.

    Args:
        hlo: serialised HLO module.
        arguments: how many arguments the batch is; the variables follow.
        outputs: how many results come before the variables' new values.
        devices: JAX devices, or those of a topology.
        attached: whether the devices are there; if not, the executable tells its cost, and cannot run.

    Returns:
        XLA's executable.
    """
    client = devices[0].client
    assignment = np.array([[device.id] for device in devices])
    options = compiler.get_compile_options(
        num_replicas=len(devices), num_partitions=1, device_assignment=assignment
    )
    with mlir.make_ir_context():
        module = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(hlo))
        _drop_copies(module)
        _donate(module, arguments, outputs)
        compile_module = client.compile_and_load if attached else client.compile
        where = xla_client.DeviceList(tuple(devices))
        try:
            return compile_module(module, executable_devices=where, compile_options=options)
        except TypeError:  # JAX 0.6 takes bytecode
            bytecode = mlir.module_to_bytecode(module)
            return compile_module(bytecode, executable_devices=where, compile_options=options)


def _drop_copies(module) -> None:
    """Replaces TensorFlow's mhlo.copy, which is the identity, and which PJRT's portable programs do not have."""
    copies = []

    def visit(op):
        if op.operation.name == "mhlo.copy":
            copies.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


def _donate(module, arguments, outputs) -> None:
    main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main")
    count = len(main.type.inputs)
    attributes = list(main.arg_attrs) if "arg_attrs" in main.attributes else [ir.DictAttr.get({})] * count
    integer = ir.IntegerType.get_signless(32)
    for index in range(arguments, count):
        alias = ir.IntegerAttr.get(integer, outputs + index - arguments)
        named = {pair.name: pair.attr for pair in attributes[index]}
        attributes[index] = ir.DictAttr.get({**named, "tf.aliasing_output": alias})
    main.arg_attrs = ir.ArrayAttr.get(attributes)


def cost(executable: Any) -> dict[str, float]:
    """Floating point operations and bytes read and written of one run on one device, as the compiler counts."""
    analysis = executable.cost_analysis()
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    return {"flops": analysis.get("flops", 0.0), "bytes": analysis.get("bytes accessed", 0.0)}


def counted(hlo: bytes) -> dict[str, float]:
    """As `cost`, of the program as it was lowered: quick, and before any fusion, so the bytes are an upper bound."""
    from jaxlib import _hlo  # of JAX 0.10 and later; the TPU check has an older one

    module = _hlo.HloModule.from_serialized_hlo_module_proto(hlo)
    analysis = _jax.hlo_module_cost_analysis(jax.devices()[0].client, module)
    return {"flops": analysis["flops"], "bytes": analysis["bytes accessed"]}


def memory(executable: Any) -> dict[str, int]:
    """Bytes of one device's memory: arguments, results that are not written over arguments, temporaries."""
    stats = executable.get_compiled_memory_stats()
    results = stats.output_size_in_bytes - stats.alias_size_in_bytes
    return {
        "arguments": stats.argument_size_in_bytes,
        "results": results,
        "temporaries": stats.temp_size_in_bytes,
        "total": stats.argument_size_in_bytes + results + stats.temp_size_in_bytes,
    }


def planned(executable: Any) -> dict[str, int]:
    """What a GPU's program starts one after the other: kernels, and the bytes of their operands and results.

    A convolution of cuDNN counts as one kernel; what lies in caches is counted as moved.
    """
    text = executable.hlo_modules()[0].to_string()
    line = r"^  (?:ROOT )?(%[\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*?)\)(?:, |$)"
    operations = re.findall(line, text[text.index("\nENTRY") :], re.MULTILINE)
    sizes = {name: _bytes(shape) for name, shape, _, _ in operations}
    kernels = [
        sizes[name] + sum(sizes[operand] for operand in re.findall(r"%[\w.-]+", operands))
        for name, _, kind, operands in operations
        if kind not in NO_KERNEL
    ]
    return {"kernels": len(kernels), "bytes": sum(kernels)}


def _bytes(shape: str) -> int:
    arrays = re.findall(r"(?:pred|[a-z]+(\d+))\[([\d,]*)\]", shape)
    return sum(
        int(bits or 8) // 8 * math.prod(map(int, filter(None, sides.split(",")))) for bits, sides in arrays
    )
