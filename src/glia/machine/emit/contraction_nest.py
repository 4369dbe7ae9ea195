"""Emission of contractions on the PE: staged operands, accumulation in PSUM, an epilogue."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product

from glia.base.affine import ZERO, Affine
from glia.base.dtype import F32
from glia.base.errors import InternalError
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.operand import Memory, Pattern
from glia.machine.emit.box import Box
from glia.machine.emit.groups.shared_boxes import SharedBoxes
from glia.machine.emit.layout import AxisRange, Env, Point, fold_dims, tile_pattern
from glia.machine.emit.nest import EmitContext, NestEmitter
from glia.tile.contraction import PARTITIONS, contraction_operands
from glia.tile.ir import Accumulator, Load, Nest, Schedule

LONG_PRODUCTS = 4  # times a block's copy from PSUM: the PE, not who copies, is what is waited for


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
        packed = self.schedule.packed
        split = [axis for axis in packed if self.tile_of(axis) < self.extents[axis]]
        self.split = split[0] if split else ""
        self.tile_axis = f"{self.split}.tile"  # counts the tiles of the split axis
        if self.split:
            tiles = -(-self.extents[self.split] // self.tile_of(self.split))
            self.extents = {**self.extents, self.tile_axis: tiles}

    def staged_loads(self) -> list[tuple[Load, str]]:
        contract = self.schedule.contract
        pairs = [(self.stationary, contract), (self.moving, contract)]
        pairs += [(load, self.partition) for load in self.epilogue_loads()]
        kept = []
        for load, partition in dict.fromkeys(pairs):
            is_ready = self.is_read_in_place(load, partition) or self.indirect.is_indirect(load)
            if self._is_packed(load, partition) or not is_ready:
                kept.append((load, partition))
        return kept

    def _products_ns(self, load: Load) -> float:
        """The time of the PE with a block of an operand; 0 of what is none."""
        operands = (self.stationary, self.moving)
        if load not in operands:
            return 0.0
        own = {v for part in load.index for v in part.variables}
        others = {v for each in operands for part in each.index for v in part.variables} - own
        arch = self.context.costs.arch
        passes = arch.tensor_passes.get(load.dtype.name, 1.0)
        return arch.cycles_to_ns("tensor", passes * math.prod(self.extents[a] for a in others))

    @cached_property
    def _copy_ns(self) -> float:
        """The time to copy a transposed block from PSUM."""
        arch = self.context.costs.arch
        return arch.cycles_to_ns("vector", PARTITIONS + arch.issue_gap_cycles["vector"])

    # --- several reduced axes on the partitions ---------------------------------------------------

    def _is_packed(self, load: Load, partition: str) -> bool:
        """Whether a load is an operand with packed axes on the partitions."""
        is_operand = load in (self.stationary, self.moving) and partition == self.schedule.contract
        return is_operand and bool(self.schedule.packed)

    def find_box(self, load: Load, partition: str, env: Env, *, is_one_block: bool = False) -> Box:
        if not self._is_packed(load, partition):
            return super().find_box(load, partition, env, is_one_block=is_one_block)
        return self._packed_parts(load, env)[0][1]

    def stage(self, load: Load, partition: str, env: Env) -> None:
        self.stager.joins_transposes = self._products_ns(load) < LONG_PRODUCTS * self._copy_ns
        if not self._is_packed(load, partition):
            super().stage(load, partition, env)
            return
        home = self.stager.stage_packed(
            self._packed_parts(load, env), self.context.sources[load.buffer]
        )
        self.add_home(load, partition, home)

    def _packed_parts(self, load: Load, env: Env) -> list[tuple[Load, Box]]:
        """For each value in the tiles of the packed axes the load there, and its box.

        Boxes are over the tiles that the open loops leave to be run over. Where the last one is
        shorter, some values are in no such tile.
        """
        spans = self._tile_spans(env)
        packed = {a: self.tile_of(a) for a in self.schedule.packed}
        if self.split in env:
            packed[self.split] = env[self.split].extent
        parts = []
        for values in product(*map(range, packed.values())):
            at = dict(zip(packed, values, strict=True))
            moved = _shift(self._at_tiles(load), at)
            box = super().find_box(moved, self.schedule.contract, spans, is_one_block=True)
            if self.split not in env and self.split:
                rest = self.extents[self.split] % self.tile_of(self.split)
                if 0 < rest <= at[self.split]:
                    box = _without_last(box, moved, self.tile_axis)
            parts.append((moved, box))
        return parts

    def _tile_spans(self, env: Env) -> dict[str, AxisRange]:
        """`env` with the first values of packed axes, and the tile of the one that has several."""
        spans = {**env, **dict.fromkeys(self.schedule.packed, AxisRange(ZERO, 1))}
        if self.split in env:
            tile, base = self.tile_of(self.split), env[self.split].base
            terms = tuple((v, c // tile) for v, c in base.terms)
            spans[self.tile_axis] = AxisRange(Affine(terms, base.constant // tile), 1)
        return spans

    def _at_tiles(self, load: Load) -> Load:
        """The load with the split axis as a number of tiles and a value in the tile."""
        load = self.resolve_offsets(load)
        if not self.split:
            return load
        value = Affine.of(self.tile_axis) * self.tile_of(self.split) + self.split
        return _substitute(load, {self.split: value})

    def _read_operand(self, load: Load, point: Point) -> Pattern:
        if not self.schedule.packed:
            return self.read(load, point, self.schedule.contract)
        rows = math.prod(point.env[axis].extent for axis in self.schedule.packed)
        spans = {**point.env, **self._tile_spans(point.env)}
        last = spans[self.schedule.contract]
        spans[self.schedule.contract] = replace(last, extent=last.extent * rows)
        place = replace(point, env=spans)
        home = self.home_of(load, self.schedule.contract)
        return self.read_home(load, home, self._at_tiles(load).index, place)

    # --- products ---------------------------------------------------------------------------------

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
        on_rows = {self.schedule.contract, *self.schedule.packed}
        steps = {a: 1 for a in self._reduced if a not in on_rows}
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
        stationary = self._read_operand(self.stationary, Point(point.env, contract, rows))
        moving = self._read_operand(self.moving, Point(point.env, contract, point.free))
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


def _shift(load: Load, values: Mapping[str, int]) -> Load:
    """The load with these values added to axes."""
    return _substitute(load, {axis: Affine.of(axis) + value for axis, value in values.items()})


def _substitute(load: Load, values: Mapping[str, Affine]) -> Load:
    index = tuple(each.substitute(values) for each in load.index)
    guards = tuple(replace(g, expression=g.expression.substitute(values)) for g in load.guards)
    return replace(load, index=index, guards=guards)


def _without_last(box: Box, load: Load, axis: str) -> Box:
    """A box without the last value of an axis that it spans."""
    env = dict(box.env)
    for dim in box.dims:
        step = int(dim.axis == axis) if dim.axis else load.index[dim.dim].coefficient(axis)
        span = env[box.axis_of(dim)]
        base = span.base - step if step < 0 else span.base
        env[box.axis_of(dim)] = AxisRange(base, span.extent - abs(step))
    return replace(box, env=env)
