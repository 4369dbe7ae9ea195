"""Nests whose results come from whole rows: elements at computed places, and places of elements."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glia.base.affine import Affine
from glia.base.dtype import BF16, F16, F32, PRED, S32, U32
from glia.graph.ops.scalar_regions import identity
from glia.tile.contraction import PARTITIONS, axes_of
from glia.tile.ir import Apply, Axis, Expr, Index, Literal, Load, Nest, Reduction, ordered_axes

PICKED_DTYPES = (F32, BF16, F16, S32, U32)
MOST_PICKED = 4096  # elements that one instruction picks
_PICKING = "maximum"  # of one element, and of what is below all


@dataclass(frozen=True)
class Pick:
    """An element of each row of a load, at a place along a reduced axis."""

    row: Load
    place: Expr
    axis: str


def pick(row: Load, place: Expr, axis: str) -> tuple[Expr, Reduction]:
    """The body and the reduction of a nest that picks the element at `place` along an axis."""
    dtype = F32 if row.dtype.is_float else row.dtype
    is_there = Apply("equal", (Index(Affine.of(axis), S32), place), PRED)
    nothing = Literal(identity(_PICKING, dtype).item(), dtype)
    element: Expr = row if row.dtype is dtype else Apply("convert", (row,), dtype)
    return Apply("select", (is_there, element, nothing), dtype), Reduction((axis,), _PICKING, dtype)


def picked(nest: Nest) -> Pick | None:
    """What a nest picks from rows; None for a nest that does something else."""
    reduction = nest.reduction
    if reduction is None or len(reduction.axes) != 1 or reduction.rank:
        return None
    axis = reduction.axes[0]
    match nest.body:
        case Apply("select", (Apply("equal", (Index(at), place)), element, Literal())):
            inner = element.args[0] if isinstance(element, Apply) else element
            if not isinstance(inner, Load) or at != Affine.of(axis):
                return None
            found = Pick(inner, place, axis)
            return found if (nest.body, reduction) == pick(inner, place, axis) else None
    return None


def with_place(nest: Nest, found: Pick, place: Expr) -> Nest:
    """The nest that picks, with the place computed in another way."""
    return replace(nest, body=pick(found.row, place, found.axis)[0])


def whole_axes(nest: Nest) -> frozenset[str]:
    """The axes of which every tile has all values: rows that are searched, and ranks."""
    reduction = nest.reduction
    if reduction is None or not (reduction.rank or picked(nest)):
        return frozenset()
    return frozenset((*reduction.axes, reduction.rank)) - {""}


def rows_of_search(nest: Nest) -> frozenset[str] | None:
    """The axes that choose a row; None where nothing is searched."""
    found = picked(nest)
    if found is not None:
        return axes_of(found.row) - {found.axis}
    if nest.reduction is None or not nest.reduction.rank:
        return None
    return frozenset(axis.name for axis in nest.parallel_axes) - {nest.reduction.rank}


def row_axes(nest: Nest) -> list[Axis]:
    """The parallel axes that may be on the partitions, or in loops with other nests.

    Those that choose a row, where rows are searched; else all that are taken in no order.
    """
    rows, ordered = rows_of_search(nest), ordered_axes(nest)
    free = [axis for axis in nest.parallel_axes if axis.name not in ordered]
    return free if rows is None else [axis for axis in free if axis.name in rows]


def search_tiles(nest: Nest, partition: str) -> dict[str, int] | None:
    """The values of each axis for one search of a row; None where nothing is searched."""
    rows = rows_of_search(nest)
    if rows is None:
        return None
    whole, room, found = whole_axes(nest), MOST_PICKED, {}
    for axis in reversed(nest.axes):
        if axis.name in whole:
            found[axis.name] = axis.extent
        elif axis.name == partition:
            found[axis.name] = min(PARTITIONS, axis.extent)
        elif axis.name in rows:
            found[axis.name] = 1
        else:
            found[axis.name] = min(room, axis.extent)
            room //= found[axis.name]
    return found
