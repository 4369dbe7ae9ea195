"""The program of one device from one with shardings, by Shardy's passes in jaxlib; without glia.

Loaded by path in the process of `conversion_worker`. A program of many devices says by
`mhlo.num_partitions` and `mhlo.num_replicas` how many there are, and by attributes of Shardy how
its tensors are divided; the body of a `shard_map` is one device's program already. The result has
the shapes of one device, and collectives.
"""

from __future__ import annotations

import importlib
import io
import math
import re
from typing import Any

# The shardings of all values, of parameters and results too; then the program of one device
PROPAGATION = "builtin.module(symbol-dce,sdy-propagation-pipeline)"
LOCALIZATION = (
    "builtin.module("
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    "func.func(sdy-reshard-to-collectives),"
    "sdy-convert-global-to-local,sdy-drop-sharding-and-mesh,canonicalize,cse,symbol-dce)"
)
_DEEPEST_CALLS = 64
_BYTECODE = b"ML\xefR"
_SEVERAL = re.compile(rb"num_(?:replicas|partitions) = (?!1\b)")
_AXIS_SIZE = re.compile(r'"=(\d+)')
_OTHER_SHARDINGS = (
    "its shardings are mhlo.sharding, not Shardy's; set jax_use_shardy_partitioner, or give the"
    " program of one device"
)


def partitioned(module: bytes) -> tuple[bytes, tuple[int, int]]:
    """A module for one device, and how many replicas and partitions run it; 0 where it is silent.

    Raises ValueError, which says why, for what cannot be divided.
    """
    if not any(word in module for word in (b"num_partitions", b"num_replicas", b"sdy")):
        return module, (0, 0)
    if not module.startswith(_BYTECODE) and b"sdy" not in module and not _SEVERAL.search(module):
        return module, (1, 1)
    ir = importlib.import_module("jaxlib.mlir.ir")
    with _context(ir), ir.Location.unknown():
        try:
            parsed = ir.Module.parse(module)
        except ir.MLIRError as error:
            raise ValueError(str(error)) from error
        replicas, partitions = device_counts(parsed.operation)
        if partitions > 1 and b"mhlo.sharding" in module:
            raise ValueError(_OTHER_SHARDINGS)
        is_divided = partitions > 1 and b"sdy" in module
        if is_divided:
            _divide(ir, parsed)
        if not _separate_exchanges(ir, parsed) and not is_divided:
            return module, (replicas, partitions)
        written = io.BytesIO()
        parsed.operation.write_bytecode(written)
        return written.getvalue(), (replicas, partitions)


def device_counts(module: Any) -> tuple[int, int]:
    """How many replicas and partitions an MLIR module is for: as it says, or as its meshes have."""
    attributes = module.attributes
    replicas, partitions = (
        int(attributes[name].value) if name in attributes else 1
        for name in ("mhlo.num_replicas", "mhlo.num_partitions")
    )
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "sdy.mesh":
            axes = _AXIS_SIZE.findall(str(op.operation.attributes["mesh"]))
            partitions = max(partitions, math.prod(map(int, axes)))
    return replicas, partitions


def device_assignment(counts: tuple[int, int]) -> bytes:
    """The field of a serialized HLO module that says how many devices there are, to be appended."""
    if counts == (0, 0):
        return b""
    content = b"\x08" + _varint(counts[0]) + b"\x10" + _varint(counts[1])
    return b"\x7a" + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _context(ir: Any) -> Any:
    """A context with the dialects of a framework's program."""
    context = ir.Context()
    registry = ir.DialectRegistry()
    importlib.import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for name, register in (
        ("sdy", "register_dialect"),
        ("mhlo", "register_mhlo_dialect"),
        ("chlo", "register_dialect"),
        ("stablehlo", "register_dialect"),
    ):
        getattr(importlib.import_module(f"jaxlib.mlir.dialects.{name}"), register)(context)
    return context


def _divide(ir: Any, module: Any) -> None:
    """Make a module with shardings the program of one device."""
    inline_calls(ir, module)
    passes = importlib.import_module("jaxlib.mlir.passmanager").PassManager
    try:
        for pipeline in (PROPAGATION, LOCALIZATION):
            passes.parse(pipeline).run(module.operation)
    except ir.MLIRError as error:
        raise ValueError(f"it cannot be divided among devices: {error}") from error


def _separate_exchanges(ir: Any, module: Any) -> bool:
    """Make an all_to_all of several tensors one of each, as HLO has none; whether there was one."""
    found = [
        op
        for op in _operations(module.operation)
        if op.name == "stablehlo.all_to_all" and len(op.operands) > 1
    ]
    for op in found:
        attributes = {name: op.attributes[name] for name in op.attributes}
        for operand, result in zip(op.operands, op.results, strict=True):
            with ir.InsertionPoint(op), op.location:
                new = ir.Operation.create(op.name, [result.type], [operand], attributes)
            result.replace_all_uses_with(new.results[0])
        op.erase()
    return bool(found)


def inline_calls(ir: Any, module: Any) -> None:
    """Inline every call in `main`, those in regions too: Shardy divides functions one by one."""
    inlined = importlib.import_module("jaxlib.mlir._mlir_libs._jax_mlir_ext").inlined_func_call
    functions = {
        op.attributes["sym_name"].value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    for _ in range(_DEEPEST_CALLS):
        calls = [op for op in _operations(functions["main"]) if op.name == "func.call"]
        if not calls:
            break
        for call in calls:
            callee = functions[call.attributes["callee"].value]
            with ir.InsertionPoint(call):
                results = inlined(callee, list(call.operands), call.location)
            for old, new in zip(call.results, results, strict=True):
                old.replace_all_uses_with(new)
            call.erase()
    else:
        raise ValueError(f"its functions call each other more than {_DEEPEST_CALLS} deep")


def _operations(root: Any) -> list[Any]:
    """The operations in the regions of one, at any depth."""
    found, waiting = [], [root]
    while waiting:
        for region in waiting.pop().regions:
            for block in region.blocks:
                inside = [op.operation for op in block.operations]
                found += inside
                waiting += inside
    return found
