"""Emission of a nest under the first schedule that an emitter takes and whose tiles fit on chip.

The schedule chosen comes first. Where its tiles exceed what is left of SBUF or PSUM, smaller ones
are tried; where no emitter takes it, or an instruction would be illegal, plainer schedules. The
last of them computes element by element, which every emitter takes and every memory holds, so that
the search ends. Where the layout of a resident buffer is in the way, that buffer has to leave SBUF.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from glia.base.errors import InternalError
from glia.isa.operand import Memory, Tile
from glia.machine.columns.legal_columns import has_legal_instructions
from glia.machine.emit.blocked_contraction import BlockedContractionEmitter
from glia.machine.emit.contraction_nest import ContractionEmitter
from glia.machine.emit.nest import EmitContext
from glia.machine.emit.refusal import Refusal, TooLarge
from glia.machine.emit.vector_nest import VectorNestEmitter
from glia.machine.ir import Program, Statement, walk
from glia.machine.passes.double_buffer import BUFFERED_SHARES
from glia.machine.passes.lifetimes import find_lifetimes
from glia.machine.passes.on_chip_space import (
    ON_CHIP_ALIGNMENT,
    assign_addresses,
    on_chip_capacities,
)
from glia.machine.queues import QUEUES_OF_OVERLAP
from glia.tile.ir import Nest, Schedule
from glia.tile.passes.choose_layouts import unreached_buffers
from glia.tile.passes.easier_schedules import plain_schedules, smaller_schedules


@dataclass(frozen=True)
class Plan:
    """How a nest is emitted: its schedule, and the bytes of a load that may be staged early."""

    schedule: Schedule
    hoist_bytes: int


def emit_nest(context: EmitContext, nest: Nest, schedule: Schedule) -> None:
    """Emit a nest; a note in the context says why, if under another schedule than this one.

    Instead, a resident buffer whose layout is in the way is entered in the context's misfits.
    """
    hoist_bytes = _hoist_bytes(context, nest, schedule)
    chosen = Plan(schedule, hoist_bytes)
    smaller = _smaller_plans(nest, chosen)
    plainer = (Plan(each, hoist_bytes) for each in plain_schedules(nest))
    plan: Plan | None = chosen
    first: Refusal | None = None
    while plan is not None:
        try:
            if plan.schedule is not schedule:
                _require_reach(context, nest, plan.schedule)
            _attempt(context, nest, plan)
        except Refusal as refusal:
            first = first or refusal
            misfits = {name for name in refusal.buffers if name in context.rows}
            if misfits:
                context.misfits |= dict.fromkeys(misfits, str(refusal))
                return
            if not isinstance(refusal, TooLarge) and not plan.schedule.blocks:
                smaller = iter(())
            plan = next(chain(smaller, plainer), None)
        else:
            if first is not None:
                context.notes.append(f"{nest.name} is emitted in a slower way: {first}")
            return
    raise InternalError(f"no schedule of {nest.name} can be emitted: {first}")


def _hoist_bytes(context: EmitContext, nest: Nest, schedule: Schedule) -> int:
    """The most bytes of a partition for a load that is read once instead of often.

    The two operands of a contraction share what resident buffers and copies of tiles leave.
    """
    least = context.family.hoist_bytes
    if schedule.engine != "tensor":
        return least
    sbuf_bytes = on_chip_capacities(context.costs.arch)[Memory.SBUF]
    room = (1 - BUFFERED_SHARES[Memory.SBUF]) * sbuf_bytes
    return max(least, int(room - context.resident_bytes.get(nest.name, 0)) // 2)


def _smaller_plans(nest: Nest, plan: Plan) -> Iterator[Plan]:
    """The schedule without blocks, then with loads staged later, then smaller tiles."""
    schedule, hoist_bytes = replace(plan.schedule, blocks=()), plan.hoist_bytes
    if plan.schedule.blocks:
        yield Plan(schedule, hoist_bytes)
    yield Plan(schedule, hoist_bytes // 4)
    yield Plan(schedule, 0)
    for smaller in smaller_schedules(nest, schedule):
        yield Plan(smaller, 0)


def _require_reach(context: EmitContext, nest: Nest, schedule: Schedule) -> None:
    """Refusal when the layout of a resident buffer does not suit the schedule."""
    unreached = unreached_buffers(nest, schedule, context.rows, context.buffers)
    if unreached:
        raise Refusal("its resident operands do not line up with smaller tiles", *unreached)


def _attempt(context: EmitContext, nest: Nest, plan: Plan) -> None:
    """Append the nest's statements; Refusal, with nothing appended, when that cannot be done."""
    builder = context.builder
    made = len(builder.tiles)
    kind = emitter_of(plan.schedule)
    queues = QUEUES_OF_OVERLAP if plan.schedule.blocks else {}
    with builder.using_queues(queues), builder.attempt() as block, builder.counted() as count:
        kind(context, nest, plan.schedule, plan.hoist_bytes).emit()
        require_room(context, block, made, context.resident_bytes.get(nest.name, 0))
        if context.is_checked:
            require_legal(context, block)
    builder.block.extend(block)
    context.emitted[nest.name] = count


def emitter_of(schedule: Schedule) -> type[ContractionEmitter | VectorNestEmitter]:
    """The kind of emitter that follows a schedule."""
    if schedule.blocks:
        return BlockedContractionEmitter
    return ContractionEmitter if schedule.engine == "tensor" else VectorNestEmitter


def require_legal(context: EmitContext, block: Sequence[Statement]) -> None:
    """Refusal when an instruction breaks a rule of its declaration."""
    program = _program_of(context, block)
    if not has_legal_instructions(program, context.costs.arch):
        raise Refusal("an instruction would be illegal")


def _program_of(context: EmitContext, block: Sequence[Statement]) -> Program:
    """The statements of one nest as a program."""
    body = tuple(block)
    used = {p.tile.name: p.tile for statement in walk(body) for p in statement.patterns()}
    return Program("", context.target, used, (), (), {}, body)


# --- room on chip ---------------------------------------------------------------------------------


def require_room(
    context: EmitContext, block: Sequence[Statement], made: int, resident_bytes: int
) -> None:
    """TooLarge unless the tiles made since there were `made` fit on chip, those live together."""
    tiles = context.builder.tiles
    own = [*islice(reversed(tiles.values()), len(tiles) - made)]
    capacities = on_chip_capacities(context.costs.arch)
    capacities[Memory.SBUF] -= resident_bytes
    # a bank of PSUM may be left half empty, as tiles do not cross banks
    certain = {Memory.SBUF: capacities[Memory.SBUF], Memory.PSUM: capacities[Memory.PSUM] // 2}
    if all(_bytes(own, memory) <= most for memory, most in certain.items()):
        return
    by_name = {tile.name: tile for tile in own}
    lifetimes = find_lifetimes(_program_of(context, block))
    wanted = [(by_name[name], life) for name, life in lifetimes.items() if name in by_name]
    _, overflows = assign_addresses(wanted, (), capacities, context.costs.arch)
    if overflows:
        tile = overflows[0].tile
        raise TooLarge(
            f"{tile.name} needs {tile.bytes_per_partition} bytes per partition of "
            f"{tile.memory.value} beside {overflows[0].live_bytes} that are live"
        )


def _bytes(tiles: Sequence[Tile], memory: Memory) -> int:
    """The aligned bytes per partition of all tiles in a memory."""
    own = [tile.bytes_per_partition for tile in tiles if tile.memory is memory]
    return sum(-(-each // ON_CHIP_ALIGNMENT) * ON_CHIP_ALIGNMENT for each in own)
