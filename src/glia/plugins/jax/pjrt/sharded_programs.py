"""Programs for several devices into the program that each of them runs, with its collectives.

The passes of Shardy in jaxlib do it; what they refuse is taken to the partitioner that XLA has for
CPUs, of which the module after its pass is read back.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jax._src.interpreters.mlir import make_ir_context, module_to_bytecode
from jaxlib import _jax, xla_client
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy, stablehlo

from glia.frontend.hlo_import.hlo_proto import message_classes
from glia.frontend.partitioning import LOCALIZATION, PROPAGATION, inline_calls
from glia.plugins.jax.errors import NotPartitioned

_PARTITIONER = "spmd-partitioning"  # XLA's pass, by the name in its dumps
_REPLICATED, _TILED = 0, 3  # kinds of shardings in XLA
_SHARDING, _TUPLE = "sdy.sharding", 2

_SCHEMA = """
Sharding: kind=1 i32, tile_dimensions=3 i64*, devices=4 i64*, elements=5 Sharding*,
    is_last_replicated=6 bool
Shardings: result=12 Sharding, parameters=14 Sharding*
Hlo: hlo_module=1 bytes
"""


@functools.cache
def messages() -> dict[str, Any]:
    """The classes of the table above, by name."""
    return message_classes("shardings", _SCHEMA)


@dataclass(frozen=True)
class Partitioned:
    """A device's program, and fields to add to its module: how arrays are divided."""

    hlo: bytes
    shardings: bytes


def partition(artifact: bytes, serialized_options: bytes) -> Partitioned:
    """The program of each device, for a portable artifact that the options divide.

    Raises NotPartitioned.
    """
    context = make_ir_context()
    stablehlo.register_stablehlo_passes()
    try:
        with context, ir.Location.unknown():
            module = _jax.mlir.deserialize_portable_artifact(artifact)
            return _by_shardy(module)
    except (ir.MLIRError, RuntimeError, ValueError, Unhandled) as error:
        refusal = str(error)
    try:
        return _by_xla(artifact, serialized_options)
    except (RuntimeError, ValueError, StopIteration) as error:
        raise NotPartitioned(shardy=_first_words(refusal), xla=_first_words(str(error))) from error


def _first_words(text: str) -> str:
    return " ".join(text.split())[:300] or "it gave no reason"


class Unhandled(Exception):
    """What the first way does not describe; the second way takes the program."""


# --- by Shardy -----------------------------------------------------------------------------------


def _by_shardy(module: Any) -> Partitioned:
    if not any(each.operation.name == "sdy.mesh" for each in module.body.operations):
        raise Unhandled("the module has no mesh")
    inline_calls(ir, module)
    passmanager.PassManager.parse(PROPAGATION).run(module.operation)
    functions = (each for each in module.body.operations if each.operation.name == "func.func")
    function = next(f for f in functions if ir.StringAttr(f.attributes["sym_name"]).value == "main")
    shardings = _shardings_of(module, function)
    passmanager.PassManager.parse(LOCALIZATION).run(module.operation)
    computation = _jax.mlir.mlir_module_to_xla_computation(
        module_to_bytecode(module), use_tuple_args=False, return_tuple=False
    )
    return Partitioned(computation.as_serialized_hlo_module_proto(), shardings)


def _shardings_of(module: Any, function: Any) -> bytes:
    """How parameters and results of a function are divided, as fields of an HLO module."""
    meshes = {
        ir.StringAttr(each.attributes["sym_name"]).value: sdy.MeshAttr(each.attributes["mesh"])
        for each in module.body.operations
        if each.operation.name == "sdy.mesh"
    }
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    parameters = _each_sharding(function, "arg_attrs", kind.inputs, meshes)
    results = _each_sharding(function, "res_attrs", kind.results, meshes)
    whole = messages()["Shardings"](parameters=parameters)
    if len(results) == 1:
        whole.result.CopyFrom(results[0])
    else:
        whole.result.kind = _TUPLE
        whole.result.elements.extend(results)
    return bytes(whole.SerializeToString())


def _each_sharding(
    function: Any, attributes: str, types: Sequence[Any], meshes: dict[str, Any]
) -> list[Any]:
    """The shardings of a function's parameters or results, in order."""
    if attributes not in function.attributes:
        return [messages()["Sharding"](kind=_REPLICATED) for _ in types]
    found = [ir.DictAttr(each) for each in ir.ArrayAttr(function.attributes[attributes])]
    return [
        _sharding(sdy.TensorShardingAttr(each[_SHARDING]), meshes)
        if _SHARDING in each
        else messages()["Sharding"](kind=_REPLICATED)
        for each in found
    ]


def _sharding(attribute: Any, meshes: dict[str, Any]) -> Any:
    """A sharding of Shardy in XLA's form; Unhandled for parts of axes."""
    named = attribute.mesh_or_ref
    is_symbol = str(named).startswith("@")
    mesh = meshes[ir.FlatSymbolRefAttr(named).value] if is_symbol else sdy.MeshAttr(named)
    sizes = {axis.name: axis.size for axis in map(sdy.MeshAxisAttr, mesh.axes)}
    dimensions = [
        [sdy.AxisRefAttr(axis) for axis in sdy.DimensionShardingAttr(each).axes]
        for each in attribute.dimension_shardings
    ]
    if not sizes or any(axis.sub_axis_info for axes in dimensions for axis in axes):
        raise Unhandled("a sharding by a part of an axis, or of one device")
    by_dimension = [[axis.name for axis in axes] for axes in dimensions]
    return tiled(sizes, by_dimension, list(mesh.device_ids))


def tiled(sizes: dict[str, int], by_dimension: list[list[str]], devices: list[int]) -> Any:
    """XLA's form of an array whose dimensions are divided by axes of a mesh of these sizes."""
    tiles = [math.prod(sizes[axis] for axis in axes) for axes in by_dimension]
    if math.prod(tiles) == 1:
        return messages()["Sharding"](kind=_REPLICATED)
    names = list(sizes)
    used = [axis for axes in by_dimension for axis in axes]
    order = used + [axis for axis in names if axis not in used]
    grid = np.array(devices or range(math.prod(sizes.values()))).reshape(list(sizes.values()))
    turned = grid.transpose([names.index(axis) for axis in order]).ravel()
    copies = turned.size // math.prod(tiles)
    return messages()["Sharding"](
        kind=_TILED,
        tile_dimensions=[*tiles, copies] if copies > 1 else tiles,
        devices=turned.tolist(),
        is_last_replicated=copies > 1,
    )


# --- by XLA --------------------------------------------------------------------------------------


@functools.cache
def _cpu_client(devices: int) -> Any:
    return xla_client.make_cpu_client(num_devices=devices)


def _by_xla(artifact: bytes, serialized_options: bytes) -> Partitioned:
    """The module that XLA has after partitioning; its compilation for CPUs may fail later."""
    options = xla_client.CompileOptions.ParseFromString(serialized_options)
    devices = options.num_partitions * options.num_replicas
    client = _cpu_client(devices)
    with tempfile.TemporaryDirectory() as directory:
        debug = options.executable_build_options.debug_options
        debug.xla_dump_to = directory
        debug.xla_dump_hlo_pass_re = _PARTITIONER
        debug.xla_dump_hlo_as_proto = True
        order = np.arange(devices).reshape(options.num_replicas, options.num_partitions)
        options.device_assignment = xla_client.DeviceAssignment.create(order)
        failure: Exception | None = None
        try:
            client.compile_and_load(artifact, _jax.DeviceList(tuple(client.devices())), options)
        except (RuntimeError, ValueError) as error:
            failure = error
        written = sorted(Path(directory).glob(f"*.after_{_PARTITIONER}*.hlo.pb"))
        written = written or sorted(Path(directory).glob(f"*{_PARTITIONER}*.hlo.pb"))
        if not written:
            raise failure or ValueError("XLA wrote no module after partitioning")
        hlo = messages()["Hlo"].FromString(written[-1].read_bytes()).hlo_module
    return Partitioned(hlo, b"")
