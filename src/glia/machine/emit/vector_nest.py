"""Emission of nests without the PE: elementwise maps and reductions along free axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import product

from glia.base.affine import Affine
from glia.base.dtype import BF16, F32, S32, DType
from glia.isa.cost import dispatched_cycles, stream_cycles
from glia.isa.instructions.scalar import Activation
from glia.isa.instructions.vector import (
    Memset,
    ScalarTensorTensor,
    TensorCopy,
    TensorReduce,
    TensorTensor,
)
from glia.isa.kit import Instr
from glia.isa.operand import Dims, Memory, Pattern, merged, row_major, whole_tile
from glia.machine.emit.box import storage_dtype
from glia.machine.emit.covering import strip_widening
from glia.machine.emit.layout import AxisRange, Env, Point, home_pattern, tile_pattern
from glia.machine.emit.monoids import exact_engine, identity, reduce_op
from glia.machine.emit.nest import NestEmitter
from glia.machine.emit.refusal import Refusal
from glia.machine.emit.rows.searches import RowSearch
from glia.machine.emit.rows.sums import sum_row
from glia.machine.emit.selection import Selector
from glia.tile.contraction import column_tiles, columns_and_factors
from glia.tile.ir import SCANS, Accumulator, Apply, Expr, Load, scans
from glia.tile.nest_rewriting import rounded_total
from glia.tile.row_search import picked, whole_axes

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
        searched = self._search(env, result)
        if searched is not None:
            self.finish_point(result, searched, self.nest.finish or Accumulator(reduction.dtype))
            return
        if not inner and self._sum_columns(result):
            return
        finish: Expr = self.nest.finish or Accumulator(reduction.dtype)
        dtype = reduction.dtype
        target = None if inner else self._target_of_total(result, finish, dtype)
        if not inner and target is None and (rounded := self._rounded_finish(finish)) is not None:
            finish, dtype = rounded, BF16
            target = self._target_of_total(result, finish, dtype)
        accumulator = target or self._accumulator(result, dtype)
        if inner:
            self._clear(accumulator)
            self.tile_loops(inner, env, lambda e: self._reduce_point(e, result, accumulator, True))
        else:
            self._reduce_point(env, result, accumulator, False)
        if target is None:
            self.finish_point(result, accumulator, finish)

    def _search(self, env: Env, result: Point) -> Pattern | None:
        """What is picked from rows, or the places of the greatest; None for other reductions."""
        found, reduction = picked(self.nest), self.nest.reduction
        assert reduction is not None
        if found is None and not reduction.rank:
            return None
        if any(self.tile_of(axis) < self.extents[axis] for axis in whole_axes(self.nest)):
            raise Refusal("a row that is searched is cut")
        search = RowSearch(self.builder)
        row = self.point_over(self.nest.reduced_axes, env)
        if found is None:
            return search.places(row, result, partial(self._fill, row))
        listed = self.selector(result)
        places = listed.temporary(S32, result.free, "places")
        listed.store(found.place, places)
        return search.pick(self.read(found.row, row), places, result)

    def _fill(self, row: Point, dst: Pattern) -> None:
        """Compute the body over the point of a row."""
        self.selector(row).store(self.nest.body, dst)

    # --- columns times factors --------------------------------------------------------------------

    @cached_property
    def _summed(self) -> tuple[Load, Load] | None:
        """The columns and the factors of a sum of columns that a bank of PSUM holds."""
        found = columns_and_factors(self.nest, self.partition)
        if found is None:
            return None
        tiles = column_tiles(self.nest, self.partition, *found)
        is_as_chosen = all(self.tile_of(axis) <= tile for axis, tile in tiles.items())
        return found if is_as_chosen else None

    def stage(self, load: Load, partition: str, env: Env) -> None:
        """Stage a load; factors of columns become float32, as the engines take them."""
        super().stage(load, partition, env)
        if self._summed is None or load != self._summed[1]:
            return
        home = self.home_of(load, partition)
        if home.tile.dtype is not F32:
            wide = self.builder.tile(
                "factors", Memory.SBUF, F32, home.tile.partitions, home.tile.elements
            )
            self.add_home(load, partition, replace(home, tile=wide))
            source = whole_tile(home.tile)
            loc = self.builder.loc
            self._emit(TensorCopy(dst=whole_tile(wide), src=source, on="vector", loc=loc))

    def _sum_columns(self, result: Point) -> bool:
        """Add up columns, each times its factor, in PSUM, and finish the sums; False if not such.

        The Scalar Engine multiplies the first one, and those that GpSimd adds up. The Vector Engine
        multiplies and adds the others to what PSUM holds, which it reads beside SBUF at full rate.
        """
        if self._summed is None or self.nest.reduction is None:
            return False
        count, loc = math.prod(result.extents(result.free)), self.builder.loc
        terms = self._terms(result)
        total = self._columns_of(result, Memory.PSUM, count)
        aside = self._summed_aside(len(terms), count)
        self._multiply(total, *terms[0])
        for data, factor in terms[1 : len(terms) - aside]:
            self._emit(
                ScalarTensorTensor(
                    dst=total, data=data, operand0=factor, op0="multiply", operand1=total,
                    op1="add", on="vector", loc=loc,
                )
            )  # fmt: skip
        if aside:
            other = self._sum_aside(result, count, terms[len(terms) - aside :])
            self._add(total, other, total, "vector")
        self.finish_point(result, total, self.nest.finish or Accumulator(F32))
        return True

    def _terms(self, result: Point) -> list[tuple[Pattern, Pattern]]:
        """(columns, their factor) of every term of the sums over a point."""
        assert self._summed is not None and self.nest.reduction is not None
        columns, factors = self._summed
        swept = self.nest.reduction.axes
        values = self._as_float32(self.read(factors, replace(result, free=swept)))
        found = []
        for at in product(*(range(self.extents[axis]) for axis in swept)):
            spans = {a: AxisRange(Affine((), v), 1) for a, v in zip(swept, at, strict=True)}
            data = self.read(columns, replace(result, env={**result.env, **spans}))
            steps = sum(v * step for v, (step, _) in zip(at, values.dims[1:], strict=True))
            factor = replace(values, dims=(values.dims[0], (1, 1)), offset=values.offset + steps)
            found.append((data, factor))
        return found

    def _as_float32(self, values: Pattern) -> Pattern:
        """Values that an engine takes beside a tensor, copied where they are of another dtype."""
        if values.dtype is F32:
            return values
        tile = self.builder.tile("factors", Memory.SBUF, F32, values.partitions, values.free)
        dims = (values.dims[0], *row_major(values.shape[1:]))
        dst = Pattern(tile, F32, dims)
        loc = self.builder.loc
        self._emit(TensorCopy(dst=dst, src=values, on="vector", loc=loc))
        return dst

    def _sum_aside(
        self, result: Point, count: int, terms: Sequence[tuple[Pattern, Pattern]]
    ) -> Pattern:
        """What GpSimd adds up of columns that the Scalar Engine has multiplied."""
        total: Pattern | None = None
        for data, factor in terms:
            term = self._columns_of(result, Memory.SBUF, count)
            self._multiply(term, data, factor)
            if total is not None:
                self._add(term, total, term, "gpsimd")
            total = term
        assert total is not None
        return total

    def _summed_aside(self, factors: int, count: int) -> int:
        """How many terms the Scalar Engine and GpSimd take, so that all engines end together."""
        arch = self.context.costs.arch
        if arch.capabilities.has_shared_sbuf_port:
            return 0

        def longest_ns(aside: int) -> float:
            column = {e: stream_cycles(arch, e, count) for e in ("vector", "scalar")}
            cycles = {
                "vector": (factors - 1 - aside + bool(aside)) * column["vector"],
                "scalar": (2 + aside) * column["scalar"],
                "gpsimd": max(0, aside - 1) * dispatched_cycles(arch, 2 * count),
            }
            return max(n / arch.clocks_ghz[engine] for engine, n in cycles.items())

        choices: list[int] = [0, *range(2, factors)]
        return min(choices, key=longest_ns)

    def _columns_of(self, point: Point, memory: Memory, count: int) -> Pattern:
        tile = self.builder.tile("sum", memory, F32, point.partitions, count)
        return tile_pattern(tile, point, point.free)

    def _multiply(self, dst: Pattern, data: Pattern, factor: Pattern) -> None:
        self._emit(
            Activation(
                dst=dst, data=data, function="copy", scale=factor, on="scalar",
                loc=self.builder.loc,
            )
        )  # fmt: skip

    def _add(self, dst: Pattern, first: Pattern, second: Pattern, engine: str) -> None:
        first, second, dst = _flat(first), _flat(second), _flat(dst)
        loc = self.builder.loc
        self._emit(TensorTensor(dst=dst, data1=first, data2=second, op="add", on=engine, loc=loc))

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

    def _target_of_total(self, result: Point, finish: Expr, dtype: DType) -> Pattern | None:
        """The target in SBUF of a total of a dtype, where nothing is left to compute; else None.

        A maximum may be rounded to the target's dtype on writing; sums have float32 accumulators.
        """
        reduction, target = self.nest.reduction, self.nest.target
        home = self.context.sources[target.buffer].home
        if isinstance(finish, Apply) and finish.function == "convert":
            finish = finish.args[0]
        is_final = isinstance(finish, Accumulator)
        if reduction is None or not reduction.dtype.is_float or home is None or not is_final:
            return None
        is_chosen = reduction.function in ("maximum", "minimum") and home.tile.dtype.is_float
        if not is_chosen and home.tile.dtype is not dtype:
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
        if not is_sum or column.free > 1 or not selector.point.free:
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
