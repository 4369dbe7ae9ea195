"""Operands that are one number in every partition, which instructions take beside a row."""

from __future__ import annotations

import math

from glia.tile.ir import Apply, Expr, Index, Load, Nest

LEAST_ROW = 256  # elements, in which an instruction spends most of its time on them
_TAKE_COLUMNS = ("add", "maximum", "minimum", "multiply", "subtract")


def column_axes(nest: Nest, partition: str) -> frozenset[str]:
    """The axes of which an instruction best sweeps one value, as some operand then is a column.

    So is a factor for each row and partition of rows that are long. Instructions take columns
    beside one tensor; swept, they are another tensor, which takes an instruction of its own.
    """
    position = _places(nest)
    found: set[str] = set()
    for outer, inner in _columns(nest, partition):
        length = math.prod(nest.extents[axis] for axis in inner)
        is_within = max(position[a] for a in outer) < min(position[a] for a in inner)
        if length >= LEAST_ROW and is_within:
            found |= outer
    return frozenset(found)


def _places(nest: Nest) -> dict[str, int]:
    """How far inside each axis is: by its place in the target, or that of a run-time offset.

    Axes that the target does not have, as those that are reduced, are further inside.
    """
    index, dynamic = nest.target.index, nest.target.dynamic
    offsets = {v: o.dimension for o in dynamic for e in o.load.index for v in e.variables}
    kept = offsets | {name: place for place, e in enumerate(index) for name in e.variables}
    swept = [axis.name for axis in nest.reduced_axes]
    swept += [axis.name for axis in nest.axes if axis.name not in {*kept, *swept}]
    return kept | {name: len(index) + place for place, name in enumerate(swept)}


def _columns(nest: Nest, partition: str) -> list[tuple[frozenset[str], frozenset[str]]]:
    """(axes of one operand, those that only the other varies along) of functions of two."""
    found: list[tuple[frozenset[str], frozenset[str]]] = []
    known: dict[int, frozenset[str]] = {}

    def visit(part: Expr) -> frozenset[str]:
        if id(part) not in known:
            each = [visit(argument) for argument in part.args] if isinstance(part, Apply) else []
            axes = (_own_axes(part) - {partition}).union(*each)
            if isinstance(part, Apply) and part.function in _TAKE_COLUMNS:
                found.extend((own, axes - own) for own in each if own and axes - own)
            known[id(part)] = axes
        return known[id(part)]

    for expression in (nest.body, nest.finish):
        if expression is not None:
            visit(expression)
    return found


def _own_axes(part: Expr) -> frozenset[str]:
    if isinstance(part, Load):
        return frozenset(name for each in part.index for name in each.variables)
    return frozenset(part.expression.variables) if isinstance(part, Index) else frozenset()
