"""Emission of a group: its loops, the homes of what stays on chip, and its nests inside of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from glia.base.affine import ZERO, Affine
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.emit.box import find_box
from glia.machine.emit.fitting import emitter_of, require_legal, require_room
from glia.machine.emit.groups.shared_boxes import SharedBoxes
from glia.machine.emit.layout import AxisRange, Point, home_pattern
from glia.machine.emit.nest import EmitContext, NestEmitter
from glia.machine.emit.refusal import Refusal
from glia.machine.ir import Loop, Statement
from glia.machine.passes.on_chip_space import (
    ON_CHIP_ALIGNMENT,
    on_chip_capacities,
    round_up,
)
from glia.machine.queues import QUEUES_OF_OVERLAP
from glia.tile.contraction import row_dim
from glia.tile.ir import Group, Load, Member, Nest, Schedule, SharedLoop
from glia.tile.passes.group_nests import HOIST_SHARE
from glia.tile.passes.group_plan import GROUP_SHARE
from glia.tile.pieces import filled_box

COPIES_SHARE = 0.85  # of what is left of SBUF, for the tiles of the iterations that overlap


@dataclass
class _Entry:
    """A nest of the group with its emitter, and its axes in the loops that are open."""

    member: Member
    emitter: NestEmitter
    env: dict[str, AxisRange]


@dataclass(frozen=True)
class _Region:
    """What nests write of a buffer in one iteration: an index over a point; extents of its axes."""

    index: tuple[Affine, ...]
    point: Point
    extents: Mapping[str, int]


def _region(writers: Sequence[_Entry]) -> _Region:
    """What nests of the group write of a buffer in the iteration that is open, all together."""
    first = writers[0]
    emitter, index = first.emitter, first.emitter.nest.target.index
    point = emitter.parallel_point(first.env)
    axes = [axis.name for axis in emitter.nest.parallel_axes]
    if len(writers) == 1:
        return _Region(index, point, {a: emitter.extents[a] for a in axes})
    box = filled_box([_piece(each) for each in writers])
    if box is None:
        raise Refusal(f"{emitter.nest.target.buffer} is not written as a whole")
    start = {a: first.env[a].base if a in first.env else ZERO for a in axes}
    spans, whole = dict(point.env), list(index)
    for dimension, (expression, (low, count)) in enumerate(zip(index, box, strict=True)):
        if not expression.coefficient(emitter.partition):
            axis = f"@{dimension}"
            own = expression.substitute(start)
            least = expression.substitute(dict.fromkeys(axes, 0))
            spans[axis] = AxisRange(ZERO, count)
            whole[dimension] = own - least + low + axis
    free = tuple(a for a, span in spans.items() if a.startswith("@") and span.extent > 1)
    extents = {a: spans[a].extent for a in (emitter.partition, *free)}
    return _Region(tuple(whole), Point(spans, emitter.partition, free), extents)


def _piece(entry: _Entry) -> tuple[tuple[Affine, ...], dict[str, int]]:
    """The index that a nest writes, with the extents of its axes in the iteration that is open."""
    nest = entry.emitter.nest
    spans = entry.emitter.span_all_axes(entry.env)
    return nest.target.index, {a.name: spans[a.name].extent for a in nest.parallel_axes}


def emit_group(context: EmitContext, group: Group, nests: Mapping[str, Nest]) -> None:
    """Append the statements of a group; Refusal, with nothing appended, when that cannot be done.

    `nests` are its members by name.
    """
    builder = context.builder
    made = len(builder.tiles)
    resident = max(context.resident_bytes.get(name, 0) for name in nests)
    with builder.using_queues(QUEUES_OF_OVERLAP), builder.attempt() as block:
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
        self.writers: dict[str, list[_Entry]] = {}
        for entry in self.entries.values():
            self.writers.setdefault(entry.emitter.nest.target.buffer, []).append(entry)

    def emit(self) -> None:
        with self.boxes.iteration():
            for entry in self.entries.values():
                self.builder.loc = entry.emitter.nest.loc
                entry.emitter.load_registers()
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
            self._store(nest.target.buffer, entry)
        emitted = self.context.emitted
        emitted[nest.name] = emitted[nest.name] + count if nest.name in emitted else count

    def _store(self, name: str, entry: _Entry) -> None:
        """Store what is on chip of a buffer that is needed outside, after the last of its writers.

        It is what they write together, which is more than a piece.
        """
        source = self.context.sources[name]
        writers = self.writers[name]
        if source.tile is None or source.home is None or entry is not writers[-1]:
            return
        region = _region(writers)
        value = home_pattern(source.home, region.index, region.point)
        if value is None:
            raise Refusal(f"{name} does not line up with it")
        if name in self.context.needed_outside:
            entry.emitter.write(value, region.point, region.index)

    @contextmanager
    def _homes(self, writers: Sequence[_Entry]) -> Iterator[None]:
        """Inside, the buffers on chip that these nests write are read in a home of this iteration.

        A buffer that is resident for its whole life stays where it is.
        """
        sources, before = self.context.sources, {}
        for name in dict.fromkeys(each.emitter.nest.target.buffer for each in writers):
            source = sources[name]
            if name not in self.group.on_chip or source.home is not None:
                continue
            before[name] = source
            region = _region(self.writers[name])
            written = Load(name, self.context.buffers[name].dtype, region.index)
            partition = region.point.partition
            box = find_box(written, partition, region.point.env, region.extents)
            if not box.partition or box.partition_dim < 0:
                raise Refusal(f"{name} has no rows of {partition}")
            home = writers[0].emitter.stager.new_home(written, box, box.block)
            sources[name] = replace(source, home=home)
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
        for name in {load.buffer for load in nests[member.nest].loads}:
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
