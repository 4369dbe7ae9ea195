"""Run-time offsets: uniform ones become registers, varying ones DMA gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from glia.base.affine import ZERO, Affine
from glia.base.dtype import PRED, S32, U32, DType
from glia.isa.instructions.dma import DmaGather, DmaScatter
from glia.isa.instructions.sync import RegisterAlu, RegisterLoad
from glia.isa.instructions.vector import Memset, TensorTensor
from glia.isa.operand import Memory, Pattern, row_major, whole_tile
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.box import storage_dtype
from glia.machine.emit.covering import InstructionCosts
from glia.machine.emit.layout import (
    Point,
    drop_replication,
    fold_dims,
    hbm_pattern,
    linearise,
    partition_scalar,
    tile_pattern,
)
from glia.machine.emit.monoids import exact_engine, reduce_op
from glia.machine.emit.refusal import Refusal
from glia.machine.emit.selection import Selector
from glia.machine.emit.staging import Source
from glia.tile.ir import Apply, Dynamic, Expr, Index, Literal, Load, Store


class IndirectAccess:
    """Emits accesses whose offsets are computed at run time."""

    def __init__(
        self,
        builder: BlockBuilder,
        costs: InstructionCosts,
        sources: Mapping[str, Source],
        read: Callable[[Load, Point], Pattern],
    ) -> None:
        self.builder = builder
        self.costs = costs
        self.sources = sources
        self.read = read
        self._registers: dict[tuple[Dynamic, str], str] = {}

    @staticmethod
    def is_indirect(load: Load) -> bool:
        """Whether an offset varies over the nest's axes."""
        return any(not offset.is_uniform for offset in load.dynamic)

    @staticmethod
    def is_scatter(target: Store) -> bool:
        """Whether a store needs a scatter: offsets that vary, may be dropped, or are combined."""
        is_uniform = all(o.is_uniform and o.clamps for o in target.dynamic)
        return bool(target.combine) or not is_uniform

    def register(self, offset: Dynamic, engine: str, extent: int) -> Affine:
        """The register of `engine` holding a uniform offset, clamped; loaded on first use.

        `extent` is that of the dimension it moves in.
        """
        known = self._registers.get((offset, engine))
        if known is None:
            known = self._load_register(offset, engine, extent)
            self._registers[offset, engine] = known
        return Affine.of(known)

    def _load_register(self, offset: Dynamic, engine: str, extent: int) -> str:
        source = self.sources[offset.load.buffer]
        if source.tile is None:
            raise Refusal(f"the offset {offset.load.buffer} has to be in HBM", offset.load.buffer)
        linear = linearise(offset.load.index, source.shape)
        cell = Pattern(source.tile, source.tile.dtype, ((1, 1), (1, 1)), linear)
        register = self.builder.unique_name("$offset")
        loc = self.builder.loc
        is_first = not any(known == offset for known, _ in self._registers)
        limit, extent = (offset.limit, extent) if is_first else (0, 0)
        self.builder.emit(
            RegisterLoad(
                register=register, src=cell, on=engine, loc=loc, limit=limit, extent=extent
            )
        )
        if offset.load.dtype is U32:
            self._saturate(register, offset.limit, engine)
        self._compute(register, "maximum", register, 0, engine)
        self._compute(register, "minimum", register, offset.limit, engine)
        return register

    def _saturate(self, register: str, limit: int, engine: str) -> None:
        """Make the limit of an unsigned value from 2**31 on, which registers take as negative."""
        is_large = self.builder.unique_name("$large")
        self._compute(register, "add", register, 0, engine)
        self._compute(is_large, "less", register, 0, engine)
        self._compute(is_large, "multiply", is_large, limit, engine)
        self._compute(register, "maximum", register, is_large, engine)

    def _compute(self, register: str, op: str, a: str, b: str | int, engine: str) -> None:
        left, right = Affine.of(a), b if isinstance(b, int) else Affine.of(b)
        loc = self.builder.loc
        self.builder.emit(
            RegisterAlu(register=register, op=op, a=left, b=right, on=engine, loc=loc)
        )

    # --- gathers and scatters -------------------------------------------------------------------

    def gather(self, load: Load, point: Point, extents: Mapping[str, int]) -> Pattern:
        """Fetch the rows that an index tensor selects, one row to a partition."""
        table = self._row_table(load.buffer, load.index, load.dynamic, point, extents)
        tile = self.builder.tile(
            load.buffer,
            Memory.SBUF,
            storage_dtype(load.dtype),
            point.partitions,
            table.row_elements,
        )
        dst = tile_pattern(tile, point, table.row_axes)
        (rows,) = fold_dims((drop_replication(dst),))
        self.builder.emit(
            DmaGather(
                dst=rows, src=replace(table.pattern, dtype=tile.dtype),
                indices=table.indices, queue="gather", on="gpsimd", out_of_bounds="error",
                loc=self.builder.loc, given=table.given, limits=table.limits, extents=table.extents,
            )
        )  # fmt: skip
        return dst

    def scatter(
        self, target: Store, value: Pattern, point: Point, extents: Mapping[str, int]
    ) -> None:
        """Write rows to the positions in an index tensor; rows out of range are dropped."""
        table = self._row_table(target.buffer, target.index, target.dynamic, point, extents)
        keep = (0, *(1 + i for i, a in enumerate(point.free) if a in table.row_axes))
        dims = tuple(value.dims[i] for i in keep)
        src = replace(value, dims=dims if len(dims) > 1 else (*dims, (1, 1)))
        src = fold_dims((src,))[0]
        combine = target.combine
        if needs_serial_combine(target, src.dtype):
            src, combine = self._combine_rows(target.combine, table, src), ""
        self.builder.emit(
            DmaScatter(
                dst=replace(table.pattern, dtype=src.dtype), src=src, indices=table.indices,
                combine=combine, out_of_bounds="skip", queue="scatter", on="gpsimd",
                loc=self.builder.loc, given=table.given, limits=table.limits, extents=table.extents,
            )
        )  # fmt: skip

    def _combine_rows(self, function: str, table: RowTable, update: Pattern) -> Pattern:
        """Combine an update with the row it goes to, one update at a time."""
        loc = self.builder.loc
        tile = self.builder.tile(
            "row", Memory.SBUF, update.dtype, update.partitions, table.row_elements
        )
        row = whole_tile(tile)
        self.builder.emit(Memset(dst=row, value=0, on="gpsimd", loc=loc))
        self.builder.emit(
            DmaGather(
                dst=row, src=replace(table.pattern, dtype=row.dtype), indices=table.indices,
                out_of_bounds="skip", queue="gather", on="gpsimd", loc=loc,
            )
        )  # fmt: skip
        op = reduce_op(function, update.dtype)
        self.builder.emit(
            TensorTensor(dst=row, data1=row, data2=update, op=op, on=exact_engine(op), loc=loc)
        )
        return row

    def _row_table(
        self,
        buffer: str,
        index: tuple[Affine, ...],
        dynamic: tuple[Dynamic, ...],
        point: Point,
        extents: Mapping[str, int],
    ) -> RowTable:
        """View an HBM tensor as a table; offsets and the partition axis select its rows."""
        source = self.sources[buffer]
        if source.tile is None:
            raise Refusal(f"{buffer} is accessed indirectly and has to be in HBM", buffer)
        varying = {v for o in dynamic for e in o.load.index for v in e.variables}
        row_axes = tuple(a for a in point.free if point.env[a].extent > 1)
        if varying & set(row_axes):
            raise Refusal(f"an index of {buffer} varies along free axes")
        strides = [step for step, _ in row_major(source.shape)]
        along = linearise(index, source.shape).coefficient(point.partition)
        chosen = [strides[o.dimension] for o in dynamic]
        unit = math.gcd(along, *chosen)
        reach = sum(o.limit * s for o, s in zip(dynamic, chosen, strict=True))
        if along:
            reach += along * (extents[point.partition] - 1)
        rows = Affine.of(point.partition) * (along // unit) if along else ZERO
        expression = _row_expression(dynamic, [s // unit for s in chosen], rows)
        column = Point(point.env, point.partition, ())
        selector = Selector(self.builder, self.costs, column, self.read)
        given = tuple(partition_scalar(selector.pattern(o.load)) for o in dynamic)
        indices = partition_scalar(selector.pattern(expression))
        fixed = tuple(e.substitute({point.partition: 0}) for e in index)
        row = hbm_pattern(source.tile, fixed, source.shape, replace(point, free=row_axes))
        dims = ((unit, reach // unit + 1), *(row.dims[1:] or ((1, 1),)))
        pattern = fold_dims((replace(row, dims=dims),))[0]
        limits = tuple(o.limit for o in dynamic)
        indexed = tuple(source.shape[o.dimension] for o in dynamic)
        elements = math.prod(point.extents(row_axes))
        return RowTable(pattern, indices, row_axes, elements, given, limits, indexed)


def needs_serial_combine(target: Store, dtype: DType) -> bool:
    """Whether updates are combined one at a time: DMA itself can only add floats."""
    return bool(target.combine) and (target.combine != "add" or not dtype.is_float)


@dataclass(frozen=True)
class RowTable:
    """An HBM tensor as a table of rows, and the [P, 1] row numbers to access.

    `given` are the indices that the row numbers come from, `limits` their greatest valid values and
    `extents` those of the dimensions they index.
    """

    pattern: Pattern
    indices: Pattern
    row_axes: tuple[str, ...]
    row_elements: int
    given: tuple[Pattern, ...]
    limits: tuple[int, ...]
    extents: tuple[int, ...]


def _row_expression(dynamic: tuple[Dynamic, ...], strides: list[int], rows: Affine) -> Expr:
    """sum(offset * stride) + rows as int32; -1 where an unclamped offset is out of range."""
    total: Expr = Index(rows, S32)
    valid: Expr | None = None
    for offset, stride in zip(dynamic, strides, strict=True):
        value, inside = _clamped(offset) if offset.clamps else _checked(offset)
        if inside is not None:
            valid = inside if valid is None else Apply("and", (valid, inside), PRED)
        scaled = Apply("multiply", (value, Literal(stride, S32)), S32)
        total = Apply("add", (total, scaled), S32)
    if valid is None:
        return total
    return Apply("select", (valid, total, Literal(-1, S32)), S32)


def _clamped(offset: Dynamic) -> tuple[Expr, None]:
    """The offset as int32 in 0..limit; 32 unsigned bits are bounded before they are converted."""
    load = offset.load
    if load.dtype is U32:
        bounded = Apply("minimum", (load, Literal(offset.limit, U32)), U32)
        return Apply("convert", (bounded,), S32), None
    value = Apply("maximum", (_as_int32(load), Literal(0, S32)), S32)
    return Apply("minimum", (value, Literal(offset.limit, S32)), S32), None


def _checked(offset: Dynamic) -> tuple[Expr, Expr]:
    """The offset as int32, and whether it is in 0..limit."""
    load = offset.load
    value = _as_int32(load)
    if load.dtype is U32:
        return value, Apply("less_equal", (load, Literal(offset.limit, U32)), PRED)
    low = Apply("greater_equal", (value, Literal(0, S32)), PRED)
    high = Apply("less_equal", (value, Literal(offset.limit, S32)), PRED)
    return value, Apply("and", (low, high), PRED)


def _as_int32(load: Load) -> Expr:
    return load if load.dtype is S32 else Apply("convert", (load,), S32)
