"""What of a box is inside the guards of its load, and what is around that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glia.base.affine import Affine
from glia.isa.operand import Pattern
from glia.isa.rules import FREE_DIMS
from glia.machine.emit.box import Box
from glia.machine.emit.layout import AxisRange, fold_dims
from glia.machine.emit.refusal import Refusal


def range_in_bounds(
    expression: Affine, axis: str, spans: Mapping[str, AxisRange], extent: int
) -> AxisRange | None:
    """The range of `axis` where 0 <= expression < extent; all other axes have one value."""
    coefficient = expression.coefficient(axis)
    span = spans[axis]
    start = expression.substitute({a: s.base for a, s in spans.items()})
    if not start.is_constant:
        raise Refusal(f"a guard depends on a loop: {start}")
    first, count = 0, span.extent
    values = [v for v in range(first, count) if 0 <= start.constant + coefficient * v < extent]
    if not values:
        return None
    return AxisRange(span.base + values[0], values[-1] - values[0] + 1)


def values_inside(box: Box, axis: str, clipped: Mapping[int, int]) -> range:
    """The values of an axis, from its first, at which no guard clips a row of the box."""
    first, last = 0, box.env[axis].extent
    for position, extent in clipped.items():
        expression = box.index[position]
        step = expression.coefficient(axis)
        if not step:
            continue
        if step < 0:
            return range(0)
        rows = {box.partition: box.rows, axis: 1}
        lows = {axis: box.env[axis].base + axis, box.partition: box.low + box.partition}
        low, high = expression.substitute(lows).bounds(rows)
        first, last = max(first, -(low // step)), min(last, (extent - 1 - high) // step + 1)
    return range(first, last)


def is_inside(expression: Affine, spans: Mapping[str, AxisRange], extent: int) -> bool:
    """Whether 0 <= expression < extent for all values of the axes; False where loops decide."""
    start = expression.substitute({a: s.base for a, s in spans.items()})
    if not start.is_constant:
        return False
    steps = [c * (spans[a].extent - 1) for a, c in expression.terms if a in spans]
    low, high = (sum(bound(0, step) for step in steps) for bound in (min, max))
    return start.constant + low >= 0 and start.constant + high < extent


def join_values(single: list[tuple[int, int]], inside: range) -> list[tuple[int, int]]:
    """(first, count) of values by themselves, with those of a range joined."""
    if not inside:
        return single
    return [*single[: inside.start], (inside.start, len(inside)), *single[inside.stop :]]


def overlap(one: range, other: range) -> range:
    """The values that are in both."""
    return range(max(one.start, other.start), min(one.stop, other.stop))


def parts_around(whole: Pattern, box: Box, inside: Mapping[str, range]) -> list[Pattern]:
    """The parts of a tile that holds a box which are not inside, as few boxes."""
    ranges = {box.axis_of(dim): range(dim.extent) for dim in box.dims}
    found: list[Pattern] = []
    for axis, values in inside.items():
        for outside in (range(values.start), range(max(values.stop, 0), ranges[axis].stop)):
            if not values:
                return [whole]
            part = {**ranges, axis: outside}
            if not all(part.values()):
                continue
            offset = sum(part[box.axis_of(dim)].start * dim.stride for dim in box.dims)
            dims = tuple((dim.stride, len(part[box.axis_of(dim)])) for dim in box.dims)
            found.append(replace(whole, dims=(whole.dims[0], *dims), offset=Affine((), offset)))
        ranges[axis] = values
    folded = [fold_dims([each])[0] for each in found]
    return [whole] if any(len(each.dims) > FREE_DIMS + 1 for each in folded) else folded
