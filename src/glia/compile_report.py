"""What a compilation decided, as plain values that a NEFF holds and `glia explain-code` prints."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from glia.base.dtype import F32
from glia.graph.ir import Graph, Node, TensorType
from glia.graph.ops import Convolution, Dot
from glia.graph.passes.cast_dtypes import contraction_benefit
from glia.graph.rules.regions import all_nodes
from glia.machine.ir import EmittedWork, Traffic
from glia.machine.ir import Program as MachineProgram
from glia.options import CompileOptions
from glia.tile.ir import Group, Member, Nest, Program, Schedule, SharedLoop


def casts_anything(graph: Graph, options: CompileOptions) -> bool:
    """Whether the options change the precision of anything in a graph before its casts."""
    if options.auto_cast == "all" and options.auto_cast_type != "tf32":
        return any(
            isinstance(n.type, TensorType) and n.dtype is F32 and bool(n.operands)
            for n in all_nodes(graph)
        )
    contractions = (n for n in all_nodes(graph) if isinstance(n, Dot | Convolution))
    benefits = (contraction_benefit(node, options) for node in contractions)
    return any(benefit is not None and benefit.pays for benefit in benefits)


def cast_report(graph: Graph, asked: CompileOptions, chosen: CompileOptions) -> dict[str, Any]:
    """What was cast in a graph, operation by operation, and why, or why not.

    `graph` is as it was before the casts, `asked` what the user asked for and `chosen` what was
    compiled, because it runs faster.
    """
    return {
        "contractions": [
            _contraction(node, asked, chosen)
            for node in all_nodes(graph)
            if isinstance(node, Dot | Convolution)
        ],
        "other": _other_operations(graph, chosen),
    }


def _contraction(
    node: Dot | Convolution, asked: CompileOptions, chosen: CompileOptions
) -> dict[str, Any]:
    shapes = " x ".join(str(operand.type) for operand in node.operands)
    dtypes = [operand.dtype for operand in node.operands]
    found = {"operation": f"{node.opcode} {shapes}", "source": str(node.loc), "dtype": ""}
    benefit = contraction_benefit(node, asked)
    if asked.auto_cast == "none":
        return found | {"reason": "--auto-cast none"}
    if benefit is None or dtypes != [F32, F32]:
        return found | {"reason": f"its operands are {' and '.join(map(str, dtypes))}"}
    if _narrow_everywhere(chosen):
        return found | {"dtype": _narrow_everywhere(chosen), "reason": "every value is cast"}
    if not benefit.pays:
        return found | {"reason": benefit.reason}
    if chosen.auto_cast == "none":
        return found | {"reason": f"{benefit.reason}, but the whole program would be slower"}
    return found | {"dtype": str(benefit.dtype), "reason": benefit.reason}


def _other_operations(graph: Graph, chosen: CompileOptions) -> dict[str, Any]:
    """How many other float32 operations were cast, and which had to stay, by opcode."""
    others = [node for node in all_nodes(graph) if _is_float32_operation(node)]
    narrow = _narrow_everywhere(chosen)
    kept = [node.opcode for node in others if node.keeps_float32 or not narrow]
    return {
        "dtype": narrow,
        "cast": len(others) - len(kept),
        "kept": dict(sorted(Counter(kept).items())),
    }


def _narrow_everywhere(options: CompileOptions) -> str:
    """The dtype that every float32 value is cast to; "" where only contractions are cast."""
    if options.auto_cast != "all" or options.auto_cast_type == "tf32":
        return ""
    return "f16" if options.auto_cast_type == "fp16" else "bf16"


def _is_float32_operation(node: Node) -> bool:
    is_value = isinstance(node.type, TensorType) and bool(node.operands)
    return is_value and node.dtype is F32 and not isinstance(node, Dot | Convolution)


def nest_report(program: Program, machine: MachineProgram | None) -> list[dict[str, Any]]:
    """Every nest with its engine, its tiles and the instructions emitted for it."""
    emitted = machine.emitted if machine else {}
    return [
        _nest(nest, program.schedules[nest.name], emitted.get(nest.name, {}))
        for nest in program.nests()
    ]


def _nest(nest: Nest, schedule: Schedule, emitted: Mapping[str, int]) -> dict[str, Any]:
    extents = nest.extents
    return {
        "name": nest.name,
        "source": str(nest.loc),
        "engine": schedule.engine,
        "partition": schedule.partition,
        "order": list(schedule.order),
        "extents": extents,
        "tiles": {axis: schedule.tiles.get(axis, extent) for axis, extent in extents.items()},
        "instructions": dict(emitted),
    }


def group_report(program: Program, machine: MachineProgram | None) -> list[dict[str, Any]]:
    """Every group, and nest by itself, in order: its loops, what it keeps on chip, moves and takes.

    Times are in microseconds, of the instructions as they are emitted: passes after that may give
    copies to other engines.
    """
    works = machine.works if machine else {}
    groups = {member.nest: group for group in program.groups for _, member in group.members()}
    units: dict[str, Group | Nest] = {}
    for nest in program.nests():
        unit = groups.get(nest.name, nest)
        units.setdefault(unit.name, unit)
    return [_unit(unit, program, works.get(name, EmittedWork())) for name, unit in units.items()]


def _unit(unit: Group | Nest, program: Program, work: EmittedWork) -> dict[str, Any]:
    bound, bound_ns = work.bound
    found = {"name": unit.name, "loop": {}, "nests": [unit.name], "on_chip": {}, "ended_by": ""}
    if isinstance(unit, Group):
        found = {
            "name": unit.name,
            "loop": _loop(unit.loop),
            "nests": [member.nest for _, member in unit.members()],
            "on_chip": {name: program.buffers[name].bytes for name in unit.on_chip},
            "ended_by": unit.ended_by,
        }
    return found | {
        "traffic": [_traffic(name, each, program) for name, each in work.traffic.items()],
        "transposed_bytes": work.transposed_bytes,
        "cast_bytes": work.cast_bytes,
        "engine_us": {name: ns / 1000 for name, ns in sorted(work.engine_ns.items())},
        "dma_us": work.dma_ns / 1000,
        "bound": bound,
        "bound_us": bound_ns / 1000,
    }


def _traffic(name: str, traffic: Traffic, program: Program) -> dict[str, Any]:
    """Bytes of a buffer that move; those of a constant that the compiler has laid out are once."""
    buffer = program.buffers.get(name)
    return {
        "buffer": name,
        "role": buffer.role if buffer else "constant",
        "bytes": buffer.bytes if buffer else traffic.read_bytes,
        **dataclasses.asdict(traffic),
    }


def _loop(loop: SharedLoop) -> dict[str, Any]:
    return {
        "extent": loop.extent,
        "block": loop.block,
        "copies": loop.copies,
        "body": [each.nest if isinstance(each, Member) else _loop(each) for each in loop.body],
    }
