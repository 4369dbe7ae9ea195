"""The box of a buffer that a load sweeps in one iteration of the loops that are open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from glia.base.affine import ZERO, Affine
from glia.base.dtype import F32, PRED, TF32, U8, DType
from glia.machine.emit.layout import AxisRange, Dim, Env
from glia.tile.contraction import PARTITIONS, row_dim
from glia.tile.ir import Load

GAP_BYTES = 128  # a shorter gap is loaded with what is around it: a descriptor would take longer


@dataclass(frozen=True)
class Box:
    """The part of a buffer that a load sweeps in one iteration, ready to be copied.

    `index` is the load's index over the partition axis and box axes; `env` spans every box axis.
    """

    index: tuple[Affine, ...]
    env: dict[str, AxisRange]
    dims: tuple[Dim, ...]
    partition: str
    partition_dim: int
    low: Affine  # of the partition axis
    rows: int  # values of the partition axis, over all blocks
    block: int  # rows of one block, at most one for each partition

    @property
    def free(self) -> tuple[str, ...]:
        """The box axes, in the order of the dimensions."""
        return tuple(self.axis_of(dim) for dim in self.dims)

    @staticmethod
    def axis_of(dim: Dim) -> str:
        """The box axis that runs over a dimension."""
        return dim.axis or f"box{dim.dim}"

    def with_innermost(self, axis: str) -> Box:
        """The box in whose tile neighbours along a box axis lie side by side."""
        dims = sorted(self.dims, key=lambda dim: self.axis_of(dim) == axis)
        return replace(self, dims=tuple(_assign_strides(dims)))

    @property
    def elements(self) -> int:
        """Elements per partition of one block."""
        return math.prod(dim.extent for dim in self.dims)

    @property
    def blocks(self) -> int:
        """Blocks of rows, each on the same partitions; the last may be shorter."""
        return -(-self.rows // self.block)


def find_box(
    load: Load,
    partition: str,
    env: Env,
    extents: Mapping[str, int],
    block: int = PARTITIONS,
    *,
    least_gap: int | None = None,
    is_one_block: bool = False,
) -> Box:
    """The box of a load inside the loops over the axes in `env`; other axes sweep their extent.

    A dimension that one axis steps through has the elements of the steps only, where at least
    `least_gap` bytes lie between them. What chooses blocks of rows is a free dimension of the box
    where that `is_one_block`.
    """
    spans = {a: env.get(a, AxisRange(ZERO, n)) for a, n in extents.items()}
    stepped = {} if least_gap is None else _stepped_dims(load, partition, spans, least_gap)
    row = spans.get(partition, AxisRange(ZERO, 1))
    index: list[Affine] = []
    dims: list[Dim] = []
    single = row_dim(load.index, partition, 0 if is_one_block else block)
    in_blocks = _row_blocks(load.index[single], partition, spans, block) if single >= 0 else None
    for position, expression in enumerate(load.index):
        if position == single and in_blocks is not None:
            row = in_blocks
            index.append(Affine.of(partition))
            continue
        axes = [a for a in expression.variables if a in spans and spans[a].extent > 1]
        others = [a for a in axes if a != partition]
        if partition and expression.coefficient(partition):
            along = expression - Affine.of(partition) * expression.coefficient(partition)
            low, extent = _interval(along, spans)
            apart = 2 * abs(expression.coefficient(partition))
            if extent <= apart and _is_near(along, others, extent, spans, load.dtype):
                dims.append(Dim(0, extent, low, dim=position))
                index.append(expression - along + low + f"box{position}")
                continue
            others.sort(key=lambda a: -abs(expression.coefficient(a)))
            dims += [Dim(0, spans[a].extent, spans[a].base, axis=a) for a in others]
            kept = {partition, *others}
            fixed = {a: spans[a].base for a in expression.variables if a in spans and a not in kept}
            index.append(expression.substitute(fixed))
            continue
        if position in stepped:
            axis = stepped[position]
            dims.append(Dim(0, spans[axis].extent, spans[axis].base, axis=axis))
            fixed = {a: spans[a].base for a in expression.variables if a in spans and a != axis}
            index.append(expression.substitute(fixed))
            continue
        low, extent = _interval(expression, spans)
        if others:
            dims.append(Dim(0, extent, low, dim=position))
            low = low + f"box{position}"
        index.append(low)
    found = tuple(_assign_strides(dims))
    env_of_box = {Box.axis_of(d): AxisRange(d.low if d.axis else ZERO, d.extent) for d in found}
    mentions = any(partition and e.coefficient(partition) for e in load.index)
    size = min(block, row.extent)
    return Box(
        tuple(index), env_of_box, found, partition if mentions else "",
        single if in_blocks else -1, row.base, row.extent if mentions else size, size,
    )  # fmt: skip


def _is_near(along: Affine, axes: Sequence[str], extent: int, spans: Env, dtype: DType) -> bool:
    """Whether all between the elements that axes sweep comes in one run, with small gaps at most.

    One axis that steps through neighbours in order needs nothing between them.
    """
    swept = math.prod(spans[axis].extent for axis in axes)
    if not axes or [along.coefficient(axis) for axis in axes] == [1]:
        return False
    return (extent - swept) * dtype.bytes < GAP_BYTES // 4 * swept


def _stepped_dims(load: Load, partition: str, spans: Env, least_gap: int) -> dict[int, str]:
    """By dimension, the axis whose steps alone are worth loading."""
    swept = [
        [a for a in each.variables if a in spans and spans[a].extent > 1] for each in load.index
    ]
    found: dict[int, str] = {}
    run = load.dtype.bytes
    for position in reversed(range(len(load.index))):
        axes, expression = swept[position], load.index[position]
        step = expression.coefficient(axes[0]) if len(axes) == 1 else 1
        is_alone = sum(axes[0] in each for each in swept) == 1 if axes else False
        if step > 1 and is_alone and axes[0] != partition and run * (step - 1) >= least_gap:
            found[position] = axes[0]
        run *= _interval(expression, spans)[1]
    return found


def _row_blocks(
    expression: Affine, partition: str, spans: Mapping[str, AxisRange], block: int
) -> AxisRange | None:
    """The rows that an index sweeps whose blocks another axis chooses; None if in another order."""
    blocks = expression - partition
    row = spans[partition]
    if not blocks.terms:
        return AxisRange(row.base + blocks.constant, row.extent)
    moving = [a for a in blocks.variables if a in spans and spans[a].extent > 1]
    is_whole = row.extent == block and row.base == ZERO
    if not is_whole or any(blocks.coefficient(a) != block for a in moving) or len(moving) > 1:
        return None
    low = blocks.substitute({a: spans[a].base for a in blocks.variables if a in spans})
    return AxisRange(low, block * (spans[moving[0]].extent if moving else 1))


def _interval(expression: Affine, spans: Mapping[str, AxisRange]) -> tuple[Affine, int]:
    """The least value of an expression, and the length of the interval of its values."""
    low, extent = Affine((), expression.constant), 1
    for variable, coefficient in expression.terms:
        span = spans.get(variable)
        if span is None:
            low = low + Affine.of(variable) * coefficient
            continue
        reach = coefficient * (span.extent - 1)
        low = low + span.base * coefficient + min(0, reach)
        extent += abs(reach)
    return low, extent


def _assign_strides(dims: Sequence[Dim]) -> list[Dim]:
    stride, result = 1, []
    for dim in reversed(dims):
        result.append(replace(dim, stride=stride))
        stride *= dim.extent
    return result[::-1]


def storage_dtype(dtype: DType) -> DType:
    """The dtype of a tile of `dtype` values: booleans are bytes 0 and 1, tf32 is float32."""
    return {PRED: U8, TF32: F32}.get(dtype, dtype)
