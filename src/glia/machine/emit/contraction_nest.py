"""Emission of contractions on the PE: staged operands, accumulation in PSUM, an epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glia.base.affine import ZERO
from glia.base.dtype import F32
from glia.base.errors import InternalError
from glia.isa.instructions.tensor import NcMatmul
from glia.isa.operand import Memory, Pattern
from glia.machine.emit.groups.shared_boxes import SharedBoxes
from glia.machine.emit.layout import Env, Point, fold_dims, tile_pattern
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
        reduced = self.nest.reduction.axes if self.nest.reduction else ()
        outer = tuple(a for a in self.order if a not in reduced and a not in env)
        self.tile_loops(outer, env, self._accumulate)

    def _accumulate(self, env: Env) -> None:
        """Compute one PSUM tile: all contraction steps, then the epilogue."""
        spans = self.span_all_axes(env)
        assert self.nest.reduction is not None
        columns = [
            a.name for a in self.nest.parallel_axes
            if a.name != self.partition and spans[a.name].extent > 1
        ]  # fmt: skip
        point = Point(spans, self.partition, tuple(columns))
        count = math.prod(point.extents(columns))
        tile = self.builder.tile("product", Memory.PSUM, F32, point.partitions, count)
        total = tile_pattern(tile, point, columns)
        inner = tuple(a for a in self.order if a in self.nest.reduction.axes)
        self.tile_loops(inner, env, lambda e: self._matmul(e, point, total, inner))
        self.finish_point(point, total, self.nest.finish or Accumulator(F32))

    def _matmul(self, env: Env, result: Point, total: Pattern, steps: Sequence[str]) -> None:
        """Emit one product; the first contraction step (all step axes at 0) overwrites PSUM."""
        spans = self.span_all_axes(env)
        contract = self.schedule.contract
        step = sum((spans[axis].base for axis in steps), ZERO)
        rows = (self.partition,) if self.partition else ()
        stationary = self.read(self.stationary, Point(spans, contract, rows), contract)
        moving = self.read(self.moving, Point(spans, contract, result.free), contract)
        dst, moving = fold_dims((total, moving))
        stationary = fold_dims((stationary,))[0]
        accumulate = bool(step.constant) if step.is_constant else step
        self.builder.emit(
            NcMatmul(
                dst=dst, stationary=stationary, moving=moving, accumulate=accumulate,
                loc=self.builder.loc,
            )
        )  # fmt: skip
