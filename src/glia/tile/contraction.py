"""Recognition of contractions and of the layouts that the PE can read."""

from __future__ import annotations

import math
from collections.abc import Mapping

from glia.base.affine import ZERO, Affine
from glia.base.dtype import F32
from glia.tile.ir import Apply, Expr, Load, Nest

PARTITIONS = 128  # rows of SBUF and PSUM, of every generation
BANK_COLUMNS = 512  # float32 elements of a bank of PSUM in each partition, of every generation
LEAST_SUMMED_COLUMNS = 64  # of fewer, an instruction for each factor spends its time beginning
MOST_FACTORS = 128  # of one sum, each an instruction of its own
TRANSPOSABLE_BYTES = (1, 2, 4)  # element widths of tiles that can be transposed


def contraction_operands(nest: Nest) -> tuple[Load, Load] | None:
    """The two loads of a nest that is a float contraction, or None.

    Run-time offsets are the same for all of the nest.
    """
    reduction, body = nest.reduction, nest.body
    if reduction is None or reduction.function != "add" or not reduction.dtype.is_float:
        return None
    if not isinstance(body, Apply) or body.function != "multiply":
        return None
    left, right = (_strip_widening(argument) for argument in body.args)
    if isinstance(left, Load) and isinstance(right, Load):
        return (left, right) if are_uniform(left) and are_uniform(right) else None
    return None


def are_uniform(load: Load) -> bool:
    """Whether the run-time offsets of a load, if any, are registers."""
    return all(offset.is_uniform and offset.clamps for offset in load.dynamic)


def columns_and_factors(nest: Nest, partition: str) -> tuple[Load, Load] | None:
    """The operands of a sum of columns, each times one value in every partition; None for others.

    Neighbours of the target are neighbours of a column: it would be stored one by one else.
    So are windows of images whose channels have a filter each, with channels on the partitions.
    """
    operands, reduction = contraction_operands(nest), nest.reduction
    if operands is None or reduction is None or reduction.dtype is not F32 or not partition:
        return None
    extents = nest.extents
    if math.prod(extents[axis] for axis in reduction.axes) > MOST_FACTORS:
        return None
    parallel = {axis.name for axis in nest.parallel_axes}
    innermost = {a for e in nest.target.index[-1:] for a in e.variables if extents[a] > 1}
    for columns, factors in (operands, operands[::-1]):
        fixed = {partition} | (axes_of(factors) & parallel)
        swept = axes_of(columns) & parallel - fixed
        if innermost - {partition} - swept:
            continue
        if swept == parallel - fixed and (
            math.prod(extents[axis] for axis in swept) >= LEAST_SUMMED_COLUMNS
        ):
            return columns, factors
    return None


def column_tiles(nest: Nest, partition: str, columns: Load, factors: Load) -> Mapping[str, int]:
    """The values of each axis that a sum of columns sweeps: as many as a bank of PSUM holds."""
    extents = nest.extents
    found = {axis.name: 1 for axis in nest.parallel_axes} | {
        a.name: a.extent for a in nest.reduced_axes
    }
    found[partition] = min(PARTITIONS, extents[partition])
    room = BANK_COLUMNS
    for expression in reversed(nest.target.index):
        for axis in expression.variables:
            if axis == partition or axis in axes_of(factors) or axis not in axes_of(columns):
                continue
            count = -(-extents[axis] // max(1, min(extents[axis], room)))
            found[axis] = -(-extents[axis] // count)
            room //= found[axis]
    return found


def _strip_widening(expression: Expr) -> Expr:
    """The operand of a conversion to float32, which the PE does itself; else the expression."""
    if isinstance(expression, Apply) and expression.function == "convert":
        inner = expression.args[0]
        if expression.dtype is F32 and inner.dtype.is_float and inner.dtype.bits <= 16:
            return inner
    return expression


def axes_of(load: Load) -> frozenset[str]:
    """The axes in a load's index."""
    return frozenset(v for position in load.index for v in position.variables)


def row_dim(index: tuple[Affine, ...], partition: str, block: int = 0) -> int:
    """The only dimension indexed by the partition axis, if by nothing else; -1 if none.

    Of a dimension in blocks of rows, other axes may choose the block.
    """
    if not partition:
        return -1
    named = [d for d, e in enumerate(index) if e.coefficient(partition)]
    if len(named) != 1:
        return -1
    others = index[named[0]] - partition
    if block and not others.constant % block and not any(c % block for _, c in others.terms):
        return named[0]
    return named[0] if others == ZERO else -1


def can_transpose(load: Load, partition: str, rows: int) -> bool:
    """Whether the PE can transpose a buffer with dimension `rows` on the partitions for a load.

    The load's partition axis must have step 1 in another dimension, and one axis alone must index
    `rows`, with step 1.
    """
    if load.guards or load.dynamic or load.dtype.bytes not in TRANSPOSABLE_BYTES:
        return False
    steps = [e.coefficient(partition) for e in load.index if partition and e.coefficient(partition)]
    along = load.index[rows]
    is_swept = len(along.terms) == 1 and along.terms[0][1] == 1 and along.constant == 0
    return steps == [1] and is_swept and not along.coefficient(partition)
