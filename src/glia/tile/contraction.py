"""Recognition of contractions and of the layouts that the PE can read."""

from __future__ import annotations

from glia.base.affine import ZERO, Affine
from glia.base.dtype import F32
from glia.tile.ir import Apply, Expr, Load, Nest

PARTITIONS = 128  # rows of SBUF and PSUM, of every generation
TRANSPOSABLE_BYTES = (1, 2, 4)  # element widths of tiles that can be transposed


def contraction_operands(nest: Nest) -> tuple[Load, Load] | None:
    """The two loads of a nest that is a float contraction, or None."""
    reduction, body = nest.reduction, nest.body
    if reduction is None or reduction.function != "add" or not reduction.dtype.is_float:
        return None
    if not isinstance(body, Apply) or body.function != "multiply":
        return None
    left, right = (_strip_widening(argument) for argument in body.args)
    if isinstance(left, Load) and isinstance(right, Load):
        return (left, right) if not left.dynamic and not right.dynamic else None
    return None


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
