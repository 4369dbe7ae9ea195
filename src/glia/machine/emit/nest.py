"""Emission of one nest: its tile loops, the staging of its loads, its points and its stores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from glia.base.affine import ZERO, Affine
from glia.base.dtype import TF32, DType
from glia.base.errors import InternalError
from glia.isa.operand import Memory, Pattern
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.box import Box, find_box, storage_dtype
from glia.machine.emit.covering import InstructionCosts
from glia.machine.emit.groups.shared_boxes import SharedBoxes, shared_box
from glia.machine.emit.layout import (
    AxisRange,
    Env,
    Home,
    Point,
    fold_dims,
    hbm_pattern,
    home_pattern,
    tile_pattern,
)
from glia.machine.emit.refusal import Refusal
from glia.machine.emit.runtime_offsets import IndirectAccess
from glia.machine.emit.selection import Selector
from glia.machine.emit.staging import Source, Stager
from glia.machine.ir import EmittedWork
from glia.machine.queues import QUEUE_OWNERS
from glia.tile.blocking.wide_tiles import split_wide_tiles
from glia.tile.contraction import PARTITIONS, can_transpose, row_dim
from glia.tile.ir import (
    Apply,
    Axis,
    Buffer,
    Expr,
    Guard,
    Load,
    Nest,
    Scan,
    Schedule,
    Store,
    ordered_axes,
)
from glia.tile.model_families import FAMILIES, ModelFamily
from glia.tile.pieces import common_box

MAXIMUM_UNROLLED = 256  # iterations; of more, those that no guard clips are a loop
GOOD_RUN_BYTES = 512  # contiguous: shorter pieces cost more in descriptors than an engine's copy
GOOD_TRANSFER_BYTES = 4096  # per partition: enough for a DMA to run at its full rate


@dataclass
class EmitContext:
    """The state that the emitters of a program's nests share.

    `rows` has the dimension on the partitions of each resident buffer; `resident_bytes`, by nest,
    what resident buffers hold of a partition while it runs. `misfits` are the resident buffers that
    turn out to be in the way of a nest, or groups that cannot be emitted. `needed_outside` are the
    buffers that are accessed outside of the group that writes them. With `is_checked` each nest's
    instructions are verified.
    """

    builder: BlockBuilder
    costs: InstructionCosts
    target: str
    buffers: dict[str, Buffer]
    sources: dict[str, Source]
    rows: Mapping[str, int]
    resident_bytes: Mapping[str, int]
    needed_outside: frozenset[str] = frozenset()
    saturates_infinity: bool = False
    family: ModelFamily = FAMILIES["generic"]
    is_checked: bool = False
    misfits: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    emitted: dict[str, Counter[str]] = field(default_factory=dict)
    works: dict[str, EmittedWork] = field(default_factory=dict)


class NestEmitter(ABC):
    """Emits one nest under a schedule; raises Refusal where that cannot be done.

    A load is staged outside of loops over axes that it does not use while it takes no more than
    `hoist_bytes` of a partition. What other nests have `shared` is not staged once more.
    """

    def __init__(
        self,
        context: EmitContext,
        nest: Nest,
        schedule: Schedule,
        hoist_bytes: int,
        shared: SharedBoxes | None = None,
    ) -> None:
        self.context = context
        self.builder = context.builder
        split = split_wide_tiles(nest, schedule, context.costs.arch.moving_columns)
        self.nest = nest = split.nest
        self.schedule = schedule = split.schedule
        self.blocks = split.blocks
        self.hoist_bytes = hoist_bytes
        self.shared = shared or SharedBoxes()
        self.stager = Stager(
            context.builder,
            context.costs.arch,
            saturates_infinity=context.saturates_infinity,
        )
        self.indirect = IndirectAccess(context.builder, context.costs, context.sources, self.read)
        self.extents = nest.extents
        self.carried = ordered_axes(nest)  # their loops are the innermost ones
        self.order = tuple(
            axis
            for axis in sorted(schedule.order, key=lambda axis: axis in self.carried)
            if self.tile_of(axis) < self.extents[axis]
            for _ in range(2 if self._is_in_blocks(axis) else 1)
        )
        self.partition = schedule.partition
        self._levels: dict[tuple[Load, str], int] = {}
        self._plain: dict[tuple[str, str], list[Load]] = {}
        self._scopes: list[dict[tuple[Load, str], Home]] = [{}]
        self._in_tiles: set[str] = set()  # axes with the loop over tiles of a block open
        self.states: dict[Scan, Pattern] = {}  # by scan: the columns that hold its last states

    @cached_property
    def _clipping_guards(self) -> dict[int, list[Guard]]:
        """By position of a loop that is open where a load is staged: the guards that clip the load.

        Such loops are unrolled, since a guard clips another part in each iteration.
        """
        found: dict[int, list[Guard]] = {}
        for load, partition in self.staged_loads():
            opened = self.order[: self._level(load, partition)]
            for guard in load.guards:
                low, high = guard.expression.bounds(self.extents)
                if low < 0 or high >= guard.extent:
                    for position, axis in enumerate(opened):
                        if axis in guard.expression.variables:
                            found.setdefault(position, []).append(guard)
        return found

    def _unclipped_trips(self, position: int, trips: int) -> range:
        """The full tiles of an unrolled loop, if many, in which no guard clips anything."""
        axis, tile, first, last = self.order[position], self._steps[position], 0, trips
        for guard in self._clipping_guards[position]:
            step = guard.expression.coefficient(axis)
            within = {**self.extents, axis: tile}
            low, high = guard.expression.bounds(within)
            room = (-low, guard.extent - 1 - high)  # step * tile * trip is between -low and this
            least, most = room if step > 0 else (-room[1], -room[0])
            stride = abs(step) * tile
            first, last = max(first, -(-least // stride)), min(last, most // stride + 1)
        return range(first, last) if last - first > MAXIMUM_UNROLLED else range(trips, trips)

    def tile_of(self, axis: str) -> int:
        """The extent of an axis' tile: the whole axis unless the schedule tiles it."""
        return self.schedule.tiles.get(axis, self.extents[axis])

    def emit(self) -> None:
        """Emit the whole nest."""
        self.builder.loc = self.nest.loc
        self.load_registers()
        self.stage_ready({})
        self.emit_inside({})

    def load_registers(self) -> None:
        """Load the uniform offsets of loads before any loop, which would repeat it."""
        for load in self._all_loads():
            if not self.indirect.is_indirect(load):
                self.resolve_offsets(load)

    @abstractmethod
    def emit_inside(self, env: Env) -> None:
        """Emit the loops that are not open, and what they hold."""

    def parallel_point(self, env: Env) -> Point:
        """The point of the elements that the nest writes inside the open loops."""
        return self.point_over(self.nest.parallel_axes, env)

    def point_over(self, axes: Sequence[Axis], env: Env) -> Point:
        """The point that sweeps the axes, innermost last, of which more than one value is left.

        Those of recurrences are always among them.
        """
        spans = self.span_all_axes(env)
        free = [axis.name for axis in axes if axis.name != self.partition]
        swept = (name for name in free if spans[name].extent > 1 or name in self.carried)
        return Point(spans, self.partition, tuple(swept))

    def _is_in_blocks(self, axis: str) -> bool:
        return self.tile_of(axis) < self.schedule.coarse.get(axis, 0) < self.extents[axis]

    @cached_property
    def _steps(self) -> tuple[int, ...]:
        """The number of values that each loop of the order advances by."""
        return tuple(
            self.schedule.coarse[axis]
            if self._is_in_blocks(axis) and axis not in self.order[:position]
            else self.tile_of(axis)
            for position, axis in enumerate(self.order)
        )

    # --- loops ----------------------------------------------------------------------------------

    def tile_loops(self, axes: Sequence[str], env: Env, visit: Callable[[Env], None]) -> None:
        """Open a loop over the tiles of each axis in turn; a last smaller tile is peeled."""
        if not axes:
            visit(env)
            return
        axis, rest = axes[0], axes[1:]
        within = axis in env
        position = self.order.index(axis) + within
        tile, span = self._steps[position], env.get(axis, AxisRange(ZERO, self.extents[axis]))
        full, left = divmod(span.extent, tile)
        is_unrolled = position in self._clipping_guards and span.base.is_constant
        looped = range(full)
        if is_unrolled:
            looped = range(full, full) if within else self._unclipped_trips(position, full)

        def enter(start: Affine | int, extent: int) -> None:
            self._enter(rest, {**env, axis: AxisRange(span.base + start, extent)}, visit)

        if within:
            self._in_tiles.add(axis)

        for trip in range(looped.start):
            enter(trip * tile, tile)
        if looped:
            with self.builder.loop(len(looped)) as index:
                enter((index + looped.start) * tile, tile)
        for trip in range(looped.stop, full):
            enter(trip * tile, tile)
        if left:
            enter(full * tile, left)
        self._in_tiles.discard(axis)

    def _enter(self, rest: Sequence[str], env: Env, visit: Callable[[Env], None]) -> None:
        with self.iteration(env):
            self.tile_loops(rest, env, visit)

    @contextmanager
    def iteration(self, env: Env) -> Iterator[None]:
        """Inside, the loads that are staged where exactly the loops of `env` are open."""
        self._scopes.append({})
        self.stage_ready(env)
        yield
        self._scopes.pop()

    def _all_loads(self) -> list[Load]:
        """The loads that the nest reads as data; uniform offsets are read into registers."""
        return list(dict.fromkeys([*data_loads(self.nest.body), *self.epilogue_loads()]))

    def epilogue_loads(self) -> list[Load]:
        """The loads that finish a value and say where it is written."""
        is_scatter = self.indirect.is_scatter(self.nest.target)
        offsets = [o.load for o in self.nest.target.dynamic if is_scatter or not o.is_uniform]
        return list(dict.fromkeys(data_loads(self.nest.finish, *offsets)))

    def span_all_axes(self, env: Env) -> dict[str, AxisRange]:
        """`env` with the full range of every axis that no open loop runs over."""
        missing = {a: AxisRange(ZERO, n) for a, n in self.extents.items() if a not in env}
        return {**env, **missing}

    # --- loads ----------------------------------------------------------------------------------

    def stage_ready(self, env: Env) -> None:
        """Stage every load whose level is the number of loops now open."""
        depth = sum(axis in env for axis in dict.fromkeys(self.order)) + len(self._in_tiles)
        for load, partition in self.staged_loads():
            is_there = load.buffer not in self.shared.written
            is_needed = is_there and (load, partition) not in self._scopes[-1]
            if is_needed and self._level(load, partition) == depth:
                self.stage(load, partition, env)

    def stage_written(self, env: Env) -> None:
        """Stage what other nests of the group have written in the iteration that is open."""
        for load, partition in self.staged_loads():
            if load.buffer in self.shared.written:
                self.stage(load, partition, env)

    def staged_loads(self) -> list[tuple[Load, str]]:
        """(load, axis on the partitions) of every load that must be copied into SBUF."""
        return self.copied_of(self._all_loads())

    def copied_of(self, found: Iterable[Load]) -> list[tuple[Load, str]]:
        """Those of some loads that are read neither in place nor where data says."""
        return [
            (load, self.partition)
            for load in found
            if not self.indirect.is_indirect(load)
            and not self.is_read_in_place(load, self.partition)
        ]

    def is_read_in_place(self, load: Load, partition: str) -> bool:
        """A resident buffer that lines up with the partition axis needs no staging."""
        rows = self.shared.on_chip.get(load.buffer)
        if rows is not None:
            is_in_place = row_dim(load.index, partition) == rows and not load.guards
            if not is_in_place and not can_transpose(load, partition, rows):
                raise Refusal(f"{load.buffer} on chip does not line up with {self.nest.name}")
            return is_in_place
        home = self.context.sources[load.buffer].home
        if home is None or load.guards or load.dynamic:
            return False
        return row_dim(load.index, partition, home.block) == home.partition_dim

    def _level(self, load: Load, partition: str) -> int:
        """The loop depth at which a load is staged: least traffic within `hoist_bytes`."""
        known = self._levels.get((load, partition))
        if known is not None:
            return known
        used = {v for e in load.index for v in e.variables}
        depth = max((i + 1 for i, axis in enumerate(self.order) if axis in used), default=0)
        depth = min(depth, self.shared.depths.get(load.buffer, depth))
        bytes_held, least = self._traffic(load, partition, depth)
        best = depth
        for level in range(depth - 1, -1, -1):
            bytes_at_level, traffic = self._traffic(load, partition, level)
            is_small = bytes_held < GOOD_TRANSFER_BYTES and level >= self.shared.loops
            is_larger_transfer = traffic == least and is_small
            # within a loop, what is read once anyway must leave the next iteration's some room
            is_free = traffic < least or not level
            most = self.hoist_bytes if is_free else self.context.family.hoist_bytes
            if bytes_at_level <= most and (traffic < least or is_larger_transfer):
                best, bytes_held, least = level, bytes_at_level, traffic
        self._levels[load, partition] = best
        return best

    def _traffic(self, load: Load, partition: str, level: int) -> tuple[int, int]:
        """(bytes held, total bytes read), per partition, when a load is staged at a level."""
        opened = self.order[:level]
        env = {a: AxisRange(ZERO, n) for a, n in zip(opened, self._steps, strict=False)}
        box = self.find_box(load, partition, env)
        bytes_held = box.elements * box.blocks * load.dtype.bytes
        trips = (-(-self.extents[axis] // span.extent) for axis, span in env.items())
        return bytes_held, bytes_held * math.prod(trips)

    def find_box(self, load: Load, partition: str, env: Env, *, is_one_block: bool = False) -> Box:
        """The box of a load inside the loops of `env`."""
        load, extents = self._joined(load, partition, env)
        find = partial(
            find_box, load, partition, env, extents, self._block(partition),
            is_one_block=is_one_block,
        )  # fmt: skip
        box = find()
        least_gap = self.stager.least_gap(load, box, self.context.sources[load.buffer])
        return box if least_gap is None else find(least_gap=least_gap)

    def _joined(self, load: Load, partition: str, env: Env) -> tuple[Load, dict[str, int]]:
        """(the load that stands for a load and its neighbours, the extents of its axes)."""
        beside = self._neighbours(load, partition)
        spans = self.span_all_axes(env)
        pieces = [
            (each.index, {v: spans[v].extent for e in each.index for v in e.variables})
            for each in beside
        ]
        box = common_box(pieces) if len(beside) > 1 else None
        if box is None:
            return load, self.extents
        index, extents = list(load.index), dict(self.extents)
        for position, (low, count) in enumerate(box):
            own = load.index[position]
            if any(each.index[position] != own for each in beside):
                if own.coefficient(partition):
                    return load, self.extents
                start = own.substitute({v: spans[v].base for v in own.variables})
                axis = f"@{position}"
                index[position] = start - own.constant + low + axis
                extents[axis] = count
        return replace(load, index=tuple(index)), extents

    def _neighbours(self, load: Load, partition: str) -> list[Load]:
        """The staged loads of a buffer, with a load itself, that differ in where they begin."""

        found = self._plain_loads(load.buffer, partition)
        if load not in found or self.context.sources[load.buffer].home is not None:
            return []
        return [
            each
            for each in found
            if all(a.terms == b.terms for a, b in zip(each.index, load.index, strict=True))
        ]

    def _plain_loads(self, buffer: str, partition: str) -> list[Load]:
        """The staged loads of a buffer that have neither guards nor offsets."""
        if (buffer, partition) not in self._plain:
            self._plain[buffer, partition] = [
                load
                for load, rows in self.staged_loads()
                if (load.buffer, rows) == (buffer, partition) and not (load.guards or load.dynamic)
            ]
        return self._plain[buffer, partition]

    def _block(self, partition: str) -> int:
        return min(PARTITIONS, self.tile_of(partition)) if partition else 1

    def stage(self, load: Load, partition: str, env: Env) -> None:
        """Bring a load into SBUF, where exactly the loops of `env` are open."""
        source = self.context.sources[load.buffer]
        resolved = self.resolve_offsets(load)
        box = self.find_box(resolved, partition, env)
        rows = self._block(partition)
        is_shared = len(self._scopes) == len(self.shared.scopes)
        part = shared_box(resolved, box, rows) if is_shared else None
        home = self.shared.find(part)
        if home is None:
            home = self.stager.stage(resolved, box, source, rows)
            self.shared.add(part, home)
        self.add_home(load, partition, home)
        if self._joined(load, partition, env)[0] is not load:
            for each in self._neighbours(load, partition):
                self.add_home(each, partition, home)

    def add_home(self, load: Load, partition: str, home: Home) -> None:
        """Read a load in this home until the innermost open loop ends."""
        self._scopes[-1][load, partition] = home

    def resolve_offsets(self, load: Load) -> Load:
        """The load with its uniform dynamic offsets replaced by the registers that hold them."""
        if not load.dynamic:
            return load
        return replace(
            load,
            index=self.add_registers(load, QUEUE_OWNERS[self.context.sources[load.buffer].queue]),
            dynamic=(),
        )

    def add_registers(self, access: Load | Store, engine: str) -> tuple[Affine, ...]:
        """The index of an access plus the registers of its uniform dynamic offsets."""
        result, shape = list(access.index), self.context.sources[access.buffer].shape
        for offset in access.dynamic:
            register = self.indirect.register(offset, engine, shape[offset.dimension])
            result[offset.dimension] = result[offset.dimension] + register
        return tuple(result)

    def read(self, load: Load, point: Point, partition: str | None = None) -> Pattern:
        """The pattern of a load at a point."""
        partition = self.partition if partition is None else partition
        if self.indirect.is_indirect(load):
            return self.indirect.gather(load, point, self.extents)
        home = self.home_of(load, partition)
        return self.read_home(load, home, self.resolve_offsets(load).index, point)

    def home_of(self, load: Load, partition: str) -> Home:
        """The home of a load: where it was staged last, else where its buffer is resident."""
        for scope in reversed(self._scopes):
            if (load, partition) in scope:
                return scope[load, partition]
        home = self.context.sources[load.buffer].home
        if home is None:
            raise InternalError(f"{load.buffer} was not staged in {self.nest.name}")
        return home

    @staticmethod
    def read_home(load: Load, home: Home, index: Sequence[Affine], point: Point) -> Pattern:
        """The pattern of a load, at this index, in its home."""
        pattern = home_pattern(home, index, point)
        if pattern is None:
            raise Refusal(f"{load.buffer} does not line up with it", load.buffer)
        return replace(pattern, dtype=TF32) if load.dtype is TF32 else pattern

    def selector(self, point: Point, accumulator: Pattern | None = None) -> Selector:
        """An instruction selector for one point of this nest."""
        costs = self.context.costs
        return Selector(
            self.builder, costs, point, self.read, accumulator, self.states, self.extents
        )

    # --- stores ---------------------------------------------------------------------------------

    def finish_point(self, point: Point, accumulator: Pattern | None, result: Expr) -> None:
        """Compute `result` over a point and write it to the nest's target."""
        selector = self.selector(point, accumulator)
        target = self.nest.target
        source = self.context.sources[target.buffer]
        if source.home is not None:
            dst = home_pattern(source.home, target.index, point)
            if dst is None:
                raise Refusal(f"{target.buffer} does not line up with it", target.buffer)
            selector.store(result, dst)
            return
        dtype = self.context.buffers[target.buffer].dtype
        value = selector.value(result)
        if not isinstance(value, Pattern) or not self._is_storable(value, dtype, point):
            axes = _stored_axes(selector.axes_of(result), point)
            tile = self.builder.tile(
                target.buffer, Memory.SBUF, storage_dtype(dtype), point.partitions,
                math.prod(point.extents(axes)),
            )  # fmt: skip
            staged = tile_pattern(tile, point, axes)
            selector.store_value(value, staged)
            value = staged
        self.write(value, point)

    def _is_storable(self, value: Pattern, dtype: DType, point: Point) -> bool:
        """Whether a value can go to HBM without a copy first, in runs as long as HBM's."""
        if value.memory is not Memory.SBUF or value.dtype is not storage_dtype(dtype):
            return False
        if self.indirect.is_scatter(self.nest.target):
            return True
        dst = self._target_pattern(self.nest.target.index, value.dtype, point)
        dst, src = fold_dims((dst, value))
        row = replace(dst, dims=dst.dims[1:])  # no copy on chip joins what lies on two partitions
        return src.contiguous_bytes >= min(GOOD_RUN_BYTES, row.contiguous_bytes)

    def _target_pattern(self, index: tuple[Affine, ...], dtype: DType, point: Point) -> Pattern:
        """The access pattern of the nest's target in HBM, at an index over a point."""
        source = self.context.sources[self.nest.target.buffer]
        assert source.tile is not None
        return replace(hbm_pattern(source.tile, index, source.shape, point), dtype=dtype)

    def write(self, value: Pattern, point: Point, index: tuple[Affine, ...] | None = None) -> None:
        """DMA a computed pattern to the target in HBM, at `index` in place of the nest's own."""
        target = self.nest.target
        if self.indirect.is_scatter(target):
            self.indirect.scatter(target, value, point, self.extents)
            return
        index = index or self.add_registers(target, QUEUE_OWNERS["store"])
        self.builder.dma(self._target_pattern(index, value.dtype, point), value, "store")


def _stored_axes(axes: tuple[str, ...], point: Point) -> tuple[str, ...]:
    """The axes to lay a value out over before a transfer, which moves single elements that repeat.

    All of them where the value does not vary along the innermost one.
    """
    inner = [axis for axis in point.free if point.env[axis].extent > 1][-1:]
    return axes if set(inner) <= set(axes) else tuple(point.free)


def data_loads(*expressions: Expr | None) -> Iterator[Load]:
    """The loads of expressions, without those of uniform offsets, which go to registers.

    Shared subexpressions are visited once.
    """
    seen: set[int] = set()
    waiting = list(reversed(expressions))
    while waiting:
        expression = waiting.pop()
        if expression is None or id(expression) in seen:
            continue
        seen.add(id(expression))
        if isinstance(expression, Load):
            yield expression
            waiting += [o.load for o in reversed(expression.dynamic) if not o.is_uniform]
        elif isinstance(expression, Apply):
            waiting += reversed(expression.args)
