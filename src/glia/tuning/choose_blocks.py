"""The pass that cuts contractions into blocks: a model proposes, the timing model chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glia.arch.instances import get_target
from glia.options import CompileOptions
from glia.tile.blocking.contractions import find_contraction
from glia.tile.blocking.model import BlockingModel
from glia.tile.blocking.search import propose_blockings, with_loads
from glia.tile.ir import Nest, Program, Schedule
from glia.tile.passes.choose_layouts import resident_bytes
from glia.tuning.nest_time import nest_ns

LEAST_ARRAY_NS = 12000  # of products: what takes less is over before overlap pays
TIMED = {1: 1, 2: 12, 3: 32}  # by -O level, the blockings of which the fastest is found by timing


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
        level = options.optlevel
        proposed = propose_blockings(facts, options.target, level, TIMED[level])
        sides = ("left", "right") if schedule.stationary == "left" else ("right", "left")
        bare = replace(schedule, coarse={})  # blocks say what is staged between tiles
        ways = [replace(bare, blocks=with_loads(each, sides)) for each in proposed]
        if ways:
            schedules[nest.name] = _fastest(program, nest, ways, options)
    return replace(program, schedules=schedules)


def _fastest(
    program: Program, nest: Nest, ways: Sequence[Schedule], options: CompileOptions
) -> Schedule:
    """The schedule that a nest by itself is fastest under, the first of equal ones."""
    if len(ways) == 1:
        return ways[0]
    found = ((nest_ns(program, nest, way, options, choose_blocks.__name__), way) for way in ways)
    timed = [(ns, number, way) for number, (ns, way) in enumerate(found) if ns is not None]
    return min(timed)[2] if timed else ways[0]
