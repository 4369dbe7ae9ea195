"""The documented JSON members of a NEFF, for people and tools.

They are views of the program, from which they are derived; only `info.json` and `hlo_stats.json`
hold data that the program does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern, Tile
from glia.machine.ir import Binding, Program
from glia.machine.scratchpad import bytes_in_hbm, scratchpad

REPORT = "debug_info/compilation.json"  # what the compiler decided; absent for kernels

RANK_COUNTS = ("replicas", "partitions")  # in info.json, under "ranks"

DEFERRED_BYTES = 64 << 10  # of a constant from which deferring its load saves more than it costs

_ENGINE_FILES = {
    "tensor": "PE",
    "vector": "DVE",
    "scalar": "Activation",
    "gpsimd": "Pool",
    "sync": "SP",
}
_DTYPE_NAMES = {
    "pred": "uint8", "s8": "int8", "s16": "int16", "s32": "int32", "s64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32",
    "f8e3m4": "float8e3", "f8e4m3": "float8e4", "f8e5m2": "float8e5",
}  # fmt: skip


def engine_file(engine: str) -> str:
    """The name of an engine's members inside a subgraph, without extension."""
    return _ENGINE_FILES.get(engine, engine)


def graph_view(programs: tuple[Program, ...]) -> dict[str, Any]:
    """neff.json: every subgraph with its inputs and outputs."""
    nodes = []
    for core, program in enumerate(programs):
        variables = [_variable(binding, "IN") for binding in program.inputs]
        variables += [_variable(binding, "OUT") for binding in program.outputs]
        nodes.append(
            {"node": core, "executor": "NeuronCore", "name": program.name, "variables": variables}
        )
    return {"name": programs[0].name, "nodes": nodes}


def _variable(binding: Binding, usage: str) -> dict[str, Any]:
    elements = 1
    for extent in binding.shape:
        elements *= extent
    return {
        "variable": binding.name,
        "size": elements * binding.dtype.bytes,
        "type": usage,
        "format": "N",
        "shape": list(binding.shape),
        "dtype": binding.dtype.name,
        "timeseries": False,
    }


def metrics(programs: tuple[Program, ...]) -> dict[str, Any]:
    """metrics.json: instructions by engine and opcode, bytes by memory, notes."""
    cores = []
    for program in programs:
        instructions = list(program.instructions())
        engines = Counter(i.runs_on for i in instructions)
        opcodes = Counter(i.mnemonic() for i in instructions)
        cores.append(
            {
                "instructions": dict(sorted(engines.items())),
                "opcodes": dict(sorted(opcodes.items())),
                "hbm_bytes": bytes_in_hbm(program),
                "scratchpad_bytes": scratchpad(program)[1],
                "notes": list(program.notes),
            }
        )
    return {"cores": cores}


def deferred_constants(program: Program, options: Mapping[str, object]) -> tuple[str, ...]:
    """The constants that `--enable-fast-context-switch` loads at the start of an execution.

    They are those of at least DEFERRED_BYTES; the others are loaded with the model.
    """
    if not options.get("fast_context_switch"):
        return ()
    sizes = {name: getattr(value, "nbytes", 0) for name, value in program.constants.items()}
    return tuple(name for name, size in sizes.items() if size >= DEFERRED_BYTES)


def memory_view(
    program: Program, files: Mapping[str, str], deferred: tuple[str, ...] = ()
) -> dict[str, Any]:
    """def.json: DMA queues with their owners, and every variable in HBM."""
    queues: dict[str, dict[str, Any]] = {}
    for instruction in program.instructions():
        if instruction.queue:
            entry = {"type": _queue_type(program, instruction), "owner": instruction.runs_on}
            if queues.setdefault(instruction.queue, entry)["type"] != entry["type"]:
                queues[instruction.queue]["type"] = "data"
    roles = {binding.tile.name: "output" for binding in program.outputs}
    roles |= {binding.tile.name: "input" for binding in program.inputs}
    tiles = [tile for tile in program.tiles.values() if tile.memory is Memory.HBM]
    start, _ = scratchpad(program)
    return {
        "dma_queue": dict(sorted(queues.items())),
        "var": {
            tile.name: _memory_variable(index, tile, program, start, roles, files)
            | ({"load": "execution"} if tile.name in deferred else {})
            for index, tile in enumerate(tiles)
        },
    }


def _queue_type(program: Program, instruction: Instr) -> str:
    inputs = {binding.tile.name for binding in program.inputs}
    outputs = {binding.tile.name for binding in program.outputs}
    if any(pattern.tile.name in inputs for pattern in instruction.read_patterns()):
        return "in"
    if any(pattern.tile.name in outputs for pattern in instruction.written_patterns()):
        return "out"
    return "data"


def _memory_variable(
    index: int,
    tile: Tile,
    program: Program,
    scratchpad_start: int,
    roles: Mapping[str, str],
    files: Mapping[str, str],
) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "virtual", "var_id": index, "size": tile.bytes}
    entry["dtype"] = tile.dtype.name
    if tile.name in files:
        shape = list(getattr(program.constants[tile.name], "shape", ()))
        file_name = files[tile.name].rpartition("/")[2]
        return entry | {"type": "file", "file_name": file_name, "shape": shape}
    if tile.name in roles:
        return entry | {"type": roles[tile.name]}
    address = program.addresses.get(tile.name, scratchpad_start)
    return entry | {"backing_variable_off": address - scratchpad_start}


def engine_view(program: Program, engine: str) -> dict[str, Any]:
    """{Engine}.json: the DMA descriptors this engine triggers, one a transfer."""
    transfers = []
    for index, instruction in enumerate(i for i in program.instructions() if i.runs_on == engine):
        sources, targets = list(instruction.read_patterns()), list(instruction.written_patterns())
        if instruction.queue and sources and targets:
            described = {**_side("from", sources[0]), **_side("to", targets[0])}
            transfers.append(
                {"id": index, "queue": instruction.queue, "desc": [{"op": "copy", **described}]}
            )
    return {"dma": transfers}


def _side(side: str, pattern: Pattern) -> dict[str, Any]:
    """One side of a descriptor, in bytes, innermost first; the tile is a row-major byte array.

    An offset that changes from one iteration to the next is given for the first, with the loop
    variables' coefficients beside it.
    """
    scale = pattern.dtype.bytes
    on_chip = pattern.memory is not Memory.HBM
    row = pattern.tile.bytes_per_partition
    offset = pattern.offset * scale + (pattern.partition * row if on_chip else Affine())
    steps = [step * scale for step, _ in pattern.dims]
    if on_chip:
        steps[0] = pattern.dims[0][0] * row
    sizes = [count for _, count in pattern.dims]
    if steps[-1] == scale:
        steps[-1], sizes[-1] = 1, sizes[-1] * scale
    else:
        steps, sizes = [*steps, 1], [*sizes, scale]
    described: dict[str, Any] = {
        side: pattern.tile.name,
        f"{side}_off": offset.constant,
        f"{side}_steps": steps[::-1],
        f"{side}_sizes": sizes[::-1],
        f"{side}_dtype": _DTYPE_NAMES.get(pattern.dtype.name, pattern.dtype.name),
    }
    if offset.terms:
        described[f"{side}_off_by_variable"] = dict(offset.terms)
    return described
