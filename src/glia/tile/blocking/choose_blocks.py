"""The pass that cuts contractions into blocks."""

from __future__ import annotations

from dataclasses import replace

from glia.arch.instances import get_target
from glia.options import CompileOptions
from glia.tile.blocking.contractions import find_contraction
from glia.tile.blocking.model import BlockingModel
from glia.tile.blocking.search import find_blocking, with_loads
from glia.tile.ir import Program
from glia.tile.passes.choose_layouts import resident_bytes

LEAST_ARRAY_NS = 12000  # of products: what takes less is over before overlap pays


def choose_blocks(program: Program, options: CompileOptions) -> Program:
    """Give every contraction that takes long, outside of groups, the blocks it is fastest in."""
    arch = get_target(options.target).arch
    grouped = {member.nest for group in program.groups for _, member in group.members()}
    held = resident_bytes(program)
    schedules = dict(program.schedules)
    for nest in program.nests():
        if nest.name in grouped:
            continue
        schedule = schedules[nest.name]
        room = arch.sbuf_usable_bytes_per_partition - held[nest.name]
        facts = find_contraction(nest, schedule, program.buffers, program.layouts, room)
        if facts is None or BlockingModel(facts, arch).array_ns < LEAST_ARRAY_NS:
            continue
        found = find_blocking(facts, options.target, options.optlevel)
        if found is not None:
            sides = ("left", "right") if schedule.stationary == "left" else ("right", "left")
            schedules[nest.name] = replace(schedule, blocks=with_loads(found, sides))
    return replace(program, schedules=schedules)
