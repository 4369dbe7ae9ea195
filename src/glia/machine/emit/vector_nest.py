"""Emission of nests without the PE: elementwise maps and reductions along free axes."""

from __future__ import annotations

import math
from dataclasses import replace

from glia.base.dtype import BF16, F32, DType
from glia.isa.instructions.vector import Memset, TensorCopy, TensorReduce, TensorTensor
from glia.isa.kit import Instr
from glia.isa.operand import Dims, Memory, Pattern, merged, whole_tile
from glia.machine.emit.box import storage_dtype
from glia.machine.emit.covering import strip_widening
from glia.machine.emit.layout import Env, Point, home_pattern, tile_pattern
from glia.machine.emit.monoids import exact_engine, identity, reduce_op
from glia.machine.emit.nest import NestEmitter
from glia.machine.emit.row_sums import sum_row
from glia.machine.emit.selection import Selector
from glia.tile.ir import SCANS, Accumulator, Apply, Expr, scans
from glia.tile.nest_rewriting import rounded_total

FAST_REDUCTIONS = ("add", "maximum")  # of bfloat16 that stay bfloat16


class VectorNestEmitter(NestEmitter):
    """Emits elementwise maps and reductions on the Vector, Scalar and GpSimd Engines."""

    def emit_inside(self, env: Env) -> None:
        self.builder.loc = self.nest.loc
        reduction = self.nest.reduction
        closed = tuple(axis for axis in self.order if axis not in env)
        if reduction is None:
            along = tuple(axis for axis in closed if axis in self.carried)
            if along:
                outer = tuple(axis for axis in closed if axis not in along)
                self.tile_loops(outer, env, lambda e: self._carry(e, along))
                return
            self.tile_loops(closed, env, self._map_point)
            return
        outer = tuple(a for a in closed if a not in reduction.axes)
        self.tile_loops(outer, env, self._reduce_block)

    def _point(self, env: Env) -> Point:
        """The point of all axes, reduced ones innermost."""
        return self.point_over((*self.nest.parallel_axes, *self.nest.reduced_axes), env)

    def _carry(self, env: Env, along: tuple[str, ...]) -> None:
        """The loops over recurrences' axes; states go from tile to tile in columns of SBUF."""
        point = self._point(env)
        for scan in scans(self.nest):
            axes = [axis for axis in point.free if axis not in self.carried]
            count = math.prod(point.extents(axes))
            tile = self.builder.tile("state", Memory.SBUF, F32, point.partitions, count)
            value = identity(SCANS[scan.function], F32)
            columns = whole_tile(tile)
            self._emit(Memset(dst=columns, value=value, on="vector", loc=self.builder.loc))
            self.states[scan] = tile_pattern(tile, point, axes)
        self.tile_loops(along, env, self._map_point)
        self.states.clear()

    def _map_point(self, env: Env) -> None:
        self.finish_point(self._point(env), None, self.nest.finish or self.nest.body)

    def _reduce_block(self, env: Env) -> None:
        """Reduce everything below the parallel loops into one accumulator, then finish."""
        reduction = self.nest.reduction
        assert reduction is not None
        inner = tuple(a for a in self.order if a in reduction.axes)
        result = self.parallel_point(env)
        target = None if inner else self._target_of_total(result)
        finish: Expr = self.nest.finish or Accumulator(reduction.dtype)
        dtype = reduction.dtype
        if not inner and target is None and (rounded := self._rounded_finish(finish)) is not None:
            finish, dtype = rounded, BF16
        accumulator = target or self._accumulator(result, dtype)
        if inner:
            self._clear(accumulator)
            self.tile_loops(inner, env, lambda e: self._reduce_point(e, result, accumulator, True))
        else:
            self._reduce_point(env, result, accumulator, False)
        if target is None:
            self.finish_point(result, accumulator, finish)

    def _rounded_finish(self, finish: Expr) -> Expr | None:
        """What is left to compute of a total that is rounded to bfloat16 as it is written.

        None where that is not all that is done with it, or where it does not pay: the Vector Engine
        reduces bfloat16 to bfloat16 at twice its rate, and computes in float32. Sums are left to
        the Scalar Engine where Vector and GpSimd take turns at SBUF.
        """
        reduction = self.nest.reduction
        assert reduction is not None
        is_fast = reduction.dtype is F32 and reduction.function in FAST_REDUCTIONS
        takes_turns = self.context.costs.arch.capabilities.has_shared_sbuf_port
        if not is_fast or (takes_turns and reduction.function == "add"):
            return None
        if strip_widening(self.nest.body).dtype is not BF16:
            return None
        return rounded_total(finish, BF16)

    def _target_of_total(self, result: Point) -> Pattern | None:
        """The target in SBUF of a total, where nothing is left to compute; else None.

        A maximum may be rounded to the target's dtype on writing; sums have float32 accumulators.
        """
        reduction, finish, target = self.nest.reduction, self.nest.finish, self.nest.target
        home = self.context.sources[target.buffer].home
        is_final = finish is None or (
            isinstance(finish, Apply)
            and finish.function == "convert"
            and isinstance(finish.args[0], Accumulator)
        )
        if reduction is None or not reduction.dtype.is_float or home is None or not is_final:
            return None
        is_chosen = reduction.function in ("maximum", "minimum") and home.tile.dtype.is_float
        if not is_chosen and home.tile.dtype is not reduction.dtype:
            return None
        return home_pattern(home, target.index, result)

    def _accumulator(self, point: Point, dtype: DType) -> Pattern:
        count = math.prod(point.extents(point.free))
        tile = self.builder.tile("sum", Memory.SBUF, storage_dtype(dtype), point.partitions, count)
        return tile_pattern(tile, point, point.free)

    def _clear(self, accumulator: Pattern) -> None:
        reduction = self.nest.reduction
        assert reduction is not None
        value = identity(reduction.function, reduction.dtype)
        cleared = whole_tile(accumulator.tile)
        self.builder.emit(Memset(dst=cleared, value=value, on="vector", loc=self.builder.loc))

    def _reduce_point(self, env: Env, result: Point, total: Pattern, accumulates: bool) -> None:
        reduction = self.nest.reduction
        assert reduction is not None
        point = self._point(env)
        selector = self.selector(point)
        axes = [a for a in point.free if a in reduction.axes]
        partial = self._accumulator(result, reduction.dtype) if accumulates else total
        if reduction.dtype.is_integer:
            self._fold(selector.pattern(self.nest.body), partial, len(axes))
        elif not self._sum_row(selector, partial):
            body = strip_widening(self.nest.body)
            self._reduce(selector.pattern(body), partial, len(axes))
        if accumulates:
            op = reduce_op(reduction.function, reduction.dtype)
            engine = exact_engine(op) if reduction.dtype.is_integer else "vector"
            self._emit(
                TensorTensor(
                    dst=_flat(total), data1=_flat(total), data2=_flat(partial), op=op, on=engine,
                    loc=self.builder.loc,
                )
            )  # fmt: skip

    def _sum_row(self, selector: Selector, dst: Pattern) -> bool:
        """Whether the Scalar Engine adds up all free elements of each partition into a column."""
        reduction, column = self.nest.reduction, _flat(dst)
        assert reduction is not None
        is_sum = reduction.function == "add" and reduction.dtype is F32
        if not is_sum or column.free > 1 or not selector.point.free or dst.dtype is BF16:
            return False
        costs = self.context.costs
        return sum_row(self.builder, costs, selector, self.nest.body, column)

    def _emit(self, instruction: Instr) -> None:
        self.builder.emit(instruction)

    def _reduce(self, value: Pattern, dst: Pattern, axes: int) -> None:
        """One TensorReduce; the reduced dimensions are merged where their steps allow."""
        assert self.nest.reduction is not None
        if axes == 0:
            self._emit(TensorCopy(dst=_flat(dst), src=value, on="vector", loc=self.builder.loc))
            return
        kept, swept = value.dims[1 : len(value.dims) - axes], value.dims[len(value.dims) - axes :]
        swept = _merge(swept)
        kept = _merge(kept)
        data = replace(value, dims=(value.dims[0], *kept, *swept))
        op = reduce_op(self.nest.reduction.function, self.nest.reduction.dtype)
        self._emit(
            TensorReduce(
                dst=_flat(dst), data=data, op=op, axes=len(swept), on="vector", loc=self.builder.loc
            )
        )

    def _fold(self, value: Pattern, dst: Pattern, axes: int) -> None:
        """Exact integer reduction: halve the swept elements until one is left."""
        assert self.nest.reduction is not None
        split = len(value.dims) - axes
        kept_count, count = math.prod(value.shape[1:split]), math.prod(value.shape[split:])
        work = self.builder.tile(
            "fold", Memory.SBUF, dst.dtype, value.partitions, kept_count * count
        )
        loc = self.builder.loc
        rows = ((1, value.partitions), (count, kept_count))
        self._emit(TensorCopy(dst=whole_tile(work), src=_flat(value), on="gpsimd", loc=loc))
        op = reduce_op(self.nest.reduction.function, self.nest.reduction.dtype)
        while count > 1:
            half = count // 2
            low = Pattern(work, work.dtype, (*rows, (1, half)))
            high = replace(low, offset=low.offset + (count - half))
            engine = exact_engine(op)
            self._emit(TensorTensor(dst=low, data1=low, data2=high, op=op, on=engine, loc=loc))
            count -= half
        first = Pattern(work, work.dtype, (*rows, (1, 1)))
        self._emit(TensorCopy(dst=_flat(dst), src=first, on="gpsimd", loc=loc))


def _flat(pattern: Pattern) -> Pattern:
    """A pattern in as few free dimensions as its steps allow, a whole tile in one."""
    return replace(pattern, dims=(pattern.dims[0], *_merge(pattern.dims[1:])))


def _merge(dims: Dims) -> Dims:
    """Drop unit dimensions and merge contiguous ones; at least one dimension remains."""
    return merged(dims) or ((1, 1),)
