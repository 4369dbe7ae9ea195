"""Boxes of elements: what a nest reads and writes of each buffer, an interval in each dimension."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from glia.tile.ir import Buffer, Load, Nest, Store

Box = tuple[tuple[int, int], ...]  # in each dimension the first element, and that after the last


def box_of(access: Load | Store, extents: Mapping[str, int], buffer: Buffer) -> Box:
    """The least box that holds what an access reaches; all of a dimension with run-time offsets."""
    found = []
    dynamic = {offset.dimension for offset in access.dynamic}
    for dimension, (expression, extent) in enumerate(zip(access.index, buffer.shape, strict=True)):
        low, high = (0, extent - 1) if dimension in dynamic else expression.bounds(extents)
        found.append((max(0, low), max(0, min(extent, high + 1))))
    return tuple(found)


def read_boxes(nest: Nest, buffers: Mapping[str, Buffer]) -> list[tuple[str, Box]]:
    """What each load of a nest reaches, those of run-time offsets included."""
    extents = nest.extents
    return [(load.buffer, box_of(load, extents, buffers[load.buffer])) for load in nest.loads]


def moved_box(access: Load | Store, extents: Mapping[str, int], buffer: Buffer) -> Box:
    """A box of as many elements as an access moves, wherever run-time offsets put it."""
    return box_of(replace(access, dynamic=()), extents, buffer)


def written_box(nest: Nest, buffers: Mapping[str, Buffer]) -> Box:
    """What a nest writes of its target."""
    return box_of(nest.target, nest.extents, buffers[nest.target.buffer])


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes of a buffer have an element in common."""
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))


def hull(one: Box, other: Box) -> Box:
    """The least box that holds two."""
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))


def holds(outer: Box, inner: Box) -> bool:
    """Whether a box has all elements of another one."""
    return all(a <= c and d <= b for (a, b), (c, d) in zip(outer, inner, strict=True))


def elements(box: Box) -> int:
    """How many elements a box has."""
    return math.prod(max(0, high - low) for low, high in box)


def pieces(box: Box, shape: Sequence[int]) -> int:
    """Into how many contiguous runs of its buffer a box falls."""
    run = 1
    for (low, high), extent in zip(reversed(box), reversed(shape), strict=True):
        run *= max(1, high - low)
        if high - low < extent:
            break
    return elements(box) // run
