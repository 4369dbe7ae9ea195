"""Emission of contractions on the PE: staged operands, accumulation in PSUM, an epilogue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from glia.base.affine import ZERO
from glia.base.dtype import F32
from glia.base.errors import InternalError
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.operand import Memory, Pattern
from glia.machine.emit.groups.shared_boxes import SharedBoxes
from glia.machine.emit.layout import AxisRange, Env, Point, fold_dims, tile_pattern
from glia.machine.emit.nest import EmitContext, NestEmitter, data_loads
from glia.tile.contraction import contraction_operands
from glia.tile.ir import Accumulator, Load, Nest, Schedule


class ContractionEmitter(NestEmitter):
    """Emits one contraction on the PE."""

    def __init__(
        self,
        context: EmitContext,
        nest: Nest,
        schedule: Schedule,
        hoist_bytes: int,
        shared: SharedBoxes | None = None,
    ) -> None:
        super().__init__(context, nest, schedule, hoist_bytes, shared)
        operands = contraction_operands(self.nest)
        if operands is None:
            raise InternalError(f"{self.nest.name} is not a contraction")
        left, right = operands
        self.stationary, self.moving = (
            (left, right) if self.schedule.stationary == "left" else (right, left)
        )
        self._reduced = [axis.name for axis in self.nest.reduced_axes]

    def staged_loads(self) -> list[tuple[Load, str]]:
        contract = self.schedule.contract
        pairs = [(self.stationary, contract), (self.moving, contract)]
        pairs += [(load, self.partition) for load in data_loads(self.nest.finish)]
        kept = []
        for load, partition in dict.fromkeys(pairs):
            if not self.is_read_in_place(load, partition) and not self.indirect.is_indirect(load):
                kept.append((load, partition))
        return kept

    def emit_inside(self, env: Env) -> None:
        self.builder.loc = self.nest.loc
        outer = tuple(a for a in self.order if a not in self._reduced and a not in env)
        self.tile_loops(outer, env, self._accumulate)

    def _accumulate(self, env: Env) -> None:
        """Compute the PSUM tiles of one iteration: all contraction steps, then the epilogues."""
        totals = [(point, self._total(point)) for point in self._points(self.span_all_axes(env))]
        inner = tuple(a for a in self.order if a in self._reduced)
        self.tile_loops(inner, env, lambda e: self._multiply(e, totals))
        for point, total in totals:
            self.finish_point(point, total, self.nest.finish or Accumulator(F32))

    def _points(self, spans: Env) -> Iterator[Point]:
        """The results of one iteration, as much of them at a time as a bank of PSUM holds.

        Blocks of rows come first, so that the columns of each lie together.
        """
        rows = self.blocks.get(self.partition, "")
        columns = [
            a.name for a in self.nest.parallel_axes
            if a.name not in (self.partition, rows) and spans[a.name].extent > 1
        ]  # fmt: skip
        cut = [a for a in columns if a in self.blocks.values()]
        width = math.prod(spans[a].extent for a in columns if a not in cut)
        rows_at_once = max(1, self.context.costs.arch.moving_columns // width)
        free = (rows, *columns) if rows else tuple(columns)
        for part in _cut(
            spans, {**dict.fromkeys(cut, 1), **({rows: rows_at_once} if rows else {})}
        ):
            yield Point(part, self.partition, free)

    def _total(self, point: Point) -> Pattern:
        count = math.prod(point.extents(point.free))
        tile = self.builder.tile("product", Memory.PSUM, F32, point.partitions, count)
        return tile_pattern(tile, point, point.free)

    def _multiply(self, env: Env, totals: Sequence[tuple[Point, Pattern]]) -> None:
        """Emit the products of one contraction step, into every total."""
        spans = self.span_all_axes(env)
        swept = {a: spans[a] for a in self._reduced}
        steps = {a: 1 for a in self._reduced if a != self.schedule.contract}
        rows = self.blocks.get(self.partition, "")
        for step in _cut(swept, steps):
            for point, total in totals:
                for part in _cut(point.env, {rows: 1} if rows else {}):
                    at = Point({**part, **step}, self.partition, point.free)
                    self._product(at, _restrict(total, point, at))

    def _product(self, point: Point, total: Pattern) -> None:
        """Emit one product; the first contraction step (all step axes at 0) overwrites PSUM."""
        contract = self.schedule.contract
        step = sum((point.env[a].base for a in self._reduced), ZERO)
        rows = (self.partition,) if self.partition else ()
        stationary = self.read(self.stationary, Point(point.env, contract, rows), contract)
        moving = self.read(self.moving, Point(point.env, contract, point.free), contract)
        dst, moving = fold_dims((total, moving))
        stationary = fold_dims((stationary,))[0]
        accumulate = bool(step.constant) if step.is_constant else step
        self.builder.emit(
            NcMatmul(
                dst=dst, stationary=stationary, moving=moving, accumulate=accumulate,
                loc=self.builder.loc,
            )
        )  # fmt: skip


def _cut(spans: Env, widths: Mapping[str, int]) -> Iterator[Env]:
    """The parts of a range of each axis, at most so wide along these axes, the first outermost."""
    if not widths:
        yield spans
        return
    (axis, width), *rest = widths.items()
    span = spans[axis]
    for first in range(0, span.extent, width):
        part = AxisRange(span.base + first, min(width, span.extent - first))
        yield from _cut({**spans, axis: part}, dict(rest))


def _restrict(pattern: Pattern, point: Point, part: Point) -> Pattern:
    """The elements that a part of a point has in the pattern of the whole."""
    offset, dims = pattern.offset, [pattern.dims[0]]
    for axis, (step, _) in zip(point.free, pattern.dims[1:], strict=True):
        offset = offset + (part.env[axis].base - point.env[axis].base) * step
        dims.append((step, part.env[axis].extent))
    return replace(pattern, dims=tuple(dims), offset=offset)
