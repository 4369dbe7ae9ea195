"""Emission of a group: its loops, the homes of what stays on chip, and its nests inside of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.emit.box import find_box
from glia.machine.emit.fitting import emitter_of, require_legal, require_room
from glia.machine.emit.groups.shared_boxes import SharedBoxes
from glia.machine.emit.layout import AxisRange, home_pattern
from glia.machine.emit.nest import EmitContext, NestEmitter
from glia.machine.emit.refusal import Refusal
from glia.machine.ir import Loop, Statement
from glia.machine.passes.on_chip_space import (
    ON_CHIP_ALIGNMENT,
    on_chip_capacities,
    round_up,
)
from glia.tile.contraction import row_dim
from glia.tile.group_legal import data_loads
from glia.tile.ir import Group, Load, Member, Nest, Schedule, SharedLoop
from glia.tile.passes.group_nests import HOIST_SHARE
from glia.tile.passes.group_plan import GROUP_SHARE

COPIES_SHARE = 0.85  # of what is left of SBUF, for the tiles of the iterations that overlap


@dataclass
class _Entry:
    """A nest of the group with its emitter, and its axes in the loops that are open."""

    member: Member
    emitter: NestEmitter
    env: dict[str, AxisRange]


def emit_group(context: EmitContext, group: Group, nests: Mapping[str, Nest]) -> None:
    """Append the statements of a group; Refusal, with nothing appended, when that cannot be done.

    `nests` are its members by name.
    """
    builder = context.builder
    made = len(builder.tiles)
    resident = max(context.resident_bytes.get(name, 0) for name in nests)
    with builder.attempt() as block:
        _GroupEmitter(context, group, nests).emit()
        require_room(context, block, made, resident)
        if context.is_checked:
            require_legal(context, block)
    capacity = on_chip_capacities(context.costs.arch)[Memory.SBUF]
    room = int((capacity - resident - _bytes_around(block)) * COPIES_SHARE)
    builder.block.extend(_with_room(each, room) for each in block)


class _GroupEmitter:
    """Emits one group."""

    def __init__(self, context: EmitContext, group: Group, nests: Mapping[str, Nest]) -> None:
        self.context = context
        self.builder = context.builder
        self.group = group
        targets = {m.nest: nests[m.nest].target for _, m in group.members()}
        rows = {
            targets[m.nest].buffer: row_dim(targets[m.nest].index, m.schedule.partition)
            for _, m in group.members()
        }
        on_chip = {n: rows[n] for n in group.on_chip if context.sources[n].home is None}
        shared = min(len(loops) for loops, _ in group.members())
        self.boxes = SharedBoxes(
            _staging_depths(group, nests), on_chip, frozenset(group.on_chip), shared
        )
        hoist_bytes = int(context.costs.arch.sbuf_usable_bytes_per_partition * _hoist_share(group))
        self.entries = {
            member.nest: _Entry(
                member,
                emitter_of(member.schedule)(
                    context,
                    nests[member.nest],
                    _schedule_in_loops(member, loops),
                    hoist_bytes,
                    self.boxes,
                ),
                {},
            )
            for loops, member in group.members()
        }

    def emit(self) -> None:
        with self.boxes.iteration():
            for entry in self.entries.values():
                self._stage(entry)
            self._loop(self.group.loop, 0)

    def _stage(self, entry: _Entry) -> None:
        self.builder.loc = entry.emitter.nest.loc
        entry.emitter.stage_ready(entry.env)

    def _loop(self, loop: SharedLoop, depth: int) -> None:
        full, left = divmod(loop.extent, loop.block)
        if full:
            with self.builder.loop(full, copies=loop.copies) as index:
                self._iteration(loop, depth, AxisRange(index * loop.block, loop.block))
        if left:
            self._iteration(loop, depth, AxisRange(Affine((), full * loop.block), left))

    def _iteration(self, loop: SharedLoop, depth: int, values: AxisRange) -> None:
        inside = [self.entries[member.nest] for _, member in Group("", loop).members()]
        with ExitStack() as stack:
            stack.enter_context(self.boxes.iteration())
            for entry in inside:
                entry.env[entry.member.axes[depth]] = values
                self.builder.loc = entry.emitter.nest.loc
                stack.enter_context(entry.emitter.iteration(entry.env))
            own = [each for each in loop.body if isinstance(each, Member)]
            stack.enter_context(self._homes([self.entries[each.nest] for each in own]))
            for each in loop.body:
                if isinstance(each, SharedLoop):
                    self._loop(each, depth + 1)
                else:
                    self._nest(self.entries[each.nest])
        for entry in inside:
            del entry.env[entry.member.axes[depth]]

    def _nest(self, entry: _Entry) -> None:
        emitter, nest = entry.emitter, entry.emitter.nest
        with self.builder.counted() as count:
            emitter.stage_written(entry.env)
            emitter.emit_inside(entry.env)
            target = nest.target
            source = self.context.sources[target.buffer]
            if source.tile is not None and source.home is not None:
                point = emitter.parallel_point(entry.env)
                value = home_pattern(source.home, target.index, point)
                if value is None:
                    raise Refusal(f"{target.buffer} does not line up with it")
                if target.buffer in self.context.needed_outside:
                    emitter.write(value, point)
        emitted = self.context.emitted
        emitted[nest.name] = emitted[nest.name] + count if nest.name in emitted else count

    @contextmanager
    def _homes(self, writers: Sequence[_Entry]) -> Iterator[None]:
        """Inside, the buffers on chip that these nests write are read in a home of this iteration.

        A buffer that is resident for its whole life stays where it is.
        """
        sources, before = self.context.sources, {}
        for entry in writers:
            target = entry.emitter.nest.target
            source = sources[target.buffer]
            if target.buffer not in self.group.on_chip or source.home is not None:
                continue
            before[target.buffer] = source
            dtype = self.context.buffers[target.buffer].dtype
            written = Load(target.buffer, dtype, target.index)
            partition = entry.emitter.partition
            extents = {axis.name: axis.extent for axis in entry.emitter.nest.parallel_axes}
            box = find_box(written, partition, entry.env, extents)
            if not box.partition or box.partition_dim < 0:
                raise Refusal(f"{target.buffer} has no rows of {partition}")
            home = entry.emitter.stager.new_home(written, box, box.block)
            sources[target.buffer] = replace(source, home=home)
        try:
            yield
        finally:
            sources.update(before)


def _hoist_share(group: Group) -> float:
    """Of SBUF, for a load that many iterations read; the operands of products were counted."""
    has_products = any(m.schedule.engine == "tensor" for _, m in group.members())
    return GROUP_SHARE if has_products else HOIST_SHARE


def _schedule_in_loops(member: Member, loops: Sequence[SharedLoop]) -> Schedule:
    """The schedule of a nest with the shared loops outermost; Refusal where it divides a block."""
    if divided := set(member.axes) & set(member.schedule.order):
        raise Refusal(f"{member.nest} holds too many values for a block of {min(divided)}")
    blocks = {axis: loop.block for axis, loop in zip(member.axes, loops, strict=True)}
    schedule = member.schedule
    return replace(
        schedule, tiles={**schedule.tiles, **blocks}, order=(*member.axes, *schedule.order)
    )


def _staging_depths(group: Group, nests: Mapping[str, Nest]) -> dict[str, int]:
    """By buffer that several nests read, the loops around all of them."""
    around: dict[str, list[tuple[SharedLoop, ...]]] = {}
    for loops, member in group.members():
        for name in {load.buffer for load in data_loads(nests[member.nest])}:
            around.setdefault(name, []).append(loops)
    return {name: _common_depth(found) for name, found in around.items() if len(found) > 1}


def _common_depth(chains: Sequence[tuple[SharedLoop, ...]]) -> int:
    depth = 0
    for loops in zip(*chains, strict=False):
        if any(loop is not loops[0] for loop in loops):
            break
        depth += 1
    return depth


def _bytes_around(block: Sequence[Statement]) -> int:
    """Bytes per partition of SBUF of the tiles that are written around the innermost shared loops.

    Loops over blocks have copies, those inside of one nest have none.
    """
    loops = [each for each in block if isinstance(each, Loop) and each.copies]
    if block and not loops:
        return 0
    written = {
        pattern.tile.name: round_up(pattern.tile.bytes_per_partition, ON_CHIP_ALIGNMENT)
        for each in block
        if isinstance(each, Instr)
        for pattern in each.written_patterns()
        if pattern.tile.memory is Memory.SBUF
    }
    inner = (max(1, loop.copies) * _bytes_around(loop.body) for loop in loops)
    return sum(written.values()) + max(inner, default=0)


def _with_room(statement: Statement, room: int) -> Statement:
    """The statement, with the bytes per partition that overlapping iterations may take."""
    if not isinstance(statement, Loop) or not statement.copies:
        return statement
    body = tuple(_with_room(each, room) for each in statement.body)
    return replace(statement, body=body, room=room)
