"""Emission of contractions in blocks: operands staged by block, the sums of a block in PSUM."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from glia.base.affine import ZERO
from glia.base.dtype import F32
from glia.isa.operand import Memory, Pattern
from glia.machine.emit.contraction_nest import ContractionEmitter
from glia.machine.emit.groups.shared_boxes import SharedBoxes
from glia.machine.emit.layout import AxisRange, Env, Point, tile_pattern
from glia.machine.emit.nest import EmitContext
from glia.tile.ir import Accumulator, Load, Nest, Schedule

OUTER_QUEUE, INNER_QUEUE = "move", "load"


@dataclass(frozen=True)
class _Sum:
    """One tile of the result, and the bank of PSUM that holds its sum."""

    env: Env
    point: Point
    total: Pattern


class BlockedContractionEmitter(ContractionEmitter):
    """Emits one contraction under a schedule with blocks.

    The loops over blocks stay loops; inside of the innermost, every product is an instruction of
    its own, tile by tile of the result. What the epilogue reads is staged in the loops around the
    sums. The operands wait in different queues, so that the next block of one need not wait for
    parts of the other.
    """

    def __init__(
        self,
        context: EmitContext,
        nest: Nest,
        schedule: Schedule,
        hoist_bytes: int,
        shared: SharedBoxes | None = None,
    ) -> None:
        self._extents: dict[str, int] = {}
        super().__init__(context, nest, schedule, hoist_bytes, shared)
        blocks = schedule.blocks
        axes = [loop.axis for loop in blocks]
        inside = (depth for depth, axis in enumerate(axes) if axis in self._reduced)
        self.depth_of_sums = next(inside, len(blocks))
        self._extents = {loop.axis: loop.extent for loop in blocks[: self.depth_of_sums]}
        self.order = tuple(a for a in self._extents if self.tile_of(a) < self.extents[a])
        operands = {"left": self.stationary, "right": self.moving}
        if schedule.stationary == "right":
            operands = {"left": self.moving, "right": self.stationary}
        depths = {name: at for at, loop in enumerate(blocks, 1) for name in loop.loads}
        self._operands: dict[int, list[Load]] = {}
        for name, load in operands.items():
            if not self.is_read_in_place(load, schedule.contract):
                self._operands.setdefault(depths.get(name, 0), []).append(load)
        self._outermost = min(self._operands, default=0)

    def tile_of(self, axis: str) -> int:
        """The extent of an axis around the sums: that of its block, or all of it."""
        return self._extents.get(axis, self.extents[axis])

    def staged_loads(self) -> list[tuple[Load, str]]:
        """What the epilogue reads; operands are staged as the schedule says."""
        return self.copied_of(self.epilogue_loads())

    def emit_inside(self, env: Env) -> None:
        self.builder.loc = self.nest.loc
        self._enter_block(env, 0, ())

    # --- loops ----------------------------------------------------------------------------------

    def _enter_block(self, env: Env, depth: int, sums: Sequence[_Sum]) -> None:
        """Emit what the loops from a depth on do with one block of those around them."""
        self._stage_operands(env, depth)
        if depth == self.depth_of_sums:
            sums = self._new_sums(env)
        if depth == len(self.schedule.blocks):
            for each in sums:
                self._add_products(env, each)
        else:
            self._loop(env, depth, sums)
        if depth == self.depth_of_sums:
            for each in sums:
                self.finish_point(each.point, each.total, self.nest.finish or Accumulator(F32))

    def _loop(self, env: Env, depth: int, sums: Sequence[_Sum]) -> None:
        loop = self.schedule.blocks[depth]
        span = env.get(loop.axis, AxisRange(ZERO, self.extents[loop.axis]))
        full, left = divmod(span.extent, loop.extent)
        if full:
            with self.builder.loop(full, copies=loop.copies) as index:
                block = AxisRange(span.base + index * loop.extent, loop.extent)
                self._iteration({**env, loop.axis: block}, depth, sums)
        if left:
            block = AxisRange(span.base + full * loop.extent, left)
            self._iteration({**env, loop.axis: block}, depth, sums)

    def _iteration(self, env: Env, depth: int, sums: Sequence[_Sum]) -> None:
        self._scopes.append({})
        if self.schedule.blocks[depth].axis in self.order:
            self.stage_ready(env)
        self._enter_block(env, depth + 1, sums)
        self._scopes.pop()

    def _stage_operands(self, env: Env, depth: int) -> None:
        for load in self._operands.get(depth, ()):
            is_outer = depth == self._outermost and load is not self._operands[depth][-1]
            is_outer |= depth == self._outermost < max(self._operands)
            self._stage_on(OUTER_QUEUE if is_outer else INNER_QUEUE, load, env)

    def _stage_on(self, queue: str, load: Load, env: Env) -> None:
        self.stager.queue = queue
        self.stage(load, self.schedule.contract, env)
        self.stager.queue = ""

    # --- tiles ----------------------------------------------------------------------------------

    def _new_sums(self, env: Env) -> list[_Sum]:
        """A sum in PSUM for each tile of the result in a block."""
        parallel = [axis.name for axis in self.nest.parallel_axes]
        found = []
        for tile in self._tiles(env, [a for a in self.schedule.order if a in parallel]):
            spans = self.span_all_axes({**env, **tile})
            columns = [a for a in parallel if a != self.partition and spans[a].extent > 1]
            point = Point(spans, self.partition, tuple(columns))
            count = math.prod(point.extents(columns))
            held = self.builder.tile("product", Memory.PSUM, F32, point.partitions, count)
            found.append(_Sum(tile, point, tile_pattern(held, point, columns)))
        return found

    def _add_products(self, env: Env, each: _Sum) -> None:
        """Add the products of one block of the reduced axes to a sum."""
        inner = [a for a in self.schedule.order if a in self._reduced]
        for step in self._tiles(env, inner):
            spans = self.span_all_axes({**env, **each.env, **step})
            self._product(replace(each.point, env=spans), each.total)

    def _tiles(self, env: Env, axes: Sequence[str]) -> list[Mapping[str, AxisRange]]:
        """The tiles of a block: a range of each axis, in the order of loops over the axes."""
        ranges = []
        for axis in axes:
            span = env.get(axis, AxisRange(ZERO, self.extents[axis]))
            tile = self.schedule.tiles.get(axis, span.extent)
            starts = range(0, span.extent, tile)
            ranges.append([AxisRange(span.base + s, min(tile, span.extent - s)) for s in starts])
        return [dict(zip(axes, each, strict=True)) for each in product(*ranges)]
