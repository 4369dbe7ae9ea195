"""Which elements of a tile have been written: what a copy of its contents must take along."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from glia.base.affine import Affine
from glia.isa.operand import Dims, Memory, Pattern, Tile

Part = tuple[int, int, int, int]  # first row, rows, first element, elements
Place = tuple[int, Dims, int, int]  # bytes of an element, dims, offset, partition


class WrittenParts:
    """The elements of one tile on chip that instructions have written, as rectangles."""

    def __init__(self) -> None:
        self._is_all = False
        self._places: set[Place] = set()  # not in `_flags` yet
        self._flags: np.ndarray | None = None  # [rows, elements]

    def add(self, pattern: Pattern | None) -> None:
        """Record a write; None is one whose place is known only at run time."""
        if self._is_all:
            return
        if pattern is None or pattern.offset.terms or pattern.partition.terms:
            self._is_all = True
        else:
            start = pattern.offset.constant, pattern.partition.constant
            self._places.add((pattern.dtype.bytes, pattern.dims, *start))

    def parts(self, tile: Tile) -> Iterator[Part]:
        """Disjoint rectangles, of rows and elements in the tile's dtype, that hold all of them."""
        if not self._is_all:
            self._settle(tile)
        if self._is_all or self._flags is None:
            yield 0, tile.partitions, 0, tile.elements
            return
        flags = self._flags
        changes = np.flatnonzero((flags[1:] != flags[:-1]).any(axis=1)) + 1
        for first, end in pairwise([0, *changes.tolist(), tile.partitions]):
            padded = np.concatenate([[False], flags[first], [False]])
            edges = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
            for begin, stop in zip(edges[::2], edges[1::2], strict=True):
                yield first, end - first, begin, stop - begin

    def _settle(self, tile: Tile) -> None:
        """Mark the elements at the recorded places."""
        if self._flags is None:
            self._flags = np.zeros((tile.partitions, tile.elements), bool)
        for place in self._places:
            rows, elements = _touched(place, tile.dtype.bytes)
            self._flags[rows[:, None], elements[None, :]] = True
        self._places.clear()
        if self._flags.all():
            self._is_all, self._flags = True, None


def _touched(place: Place, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a place and its elements in each, counted in elements of `width` bytes."""
    own, ((row_step, rows), *free), offset, partition = place
    starts = np.array([offset])
    for step, count in free:
        starts = (starts[:, None] + step * np.arange(count)).ravel()
    inner = np.arange(max(1, own // width)) * width
    touched = (starts[:, None] * own + inner).ravel() // width
    return partition + row_step * np.arange(rows), np.unique(touched)


def part_of(tile: Tile, part: Part, row_elements: int) -> Pattern:
    """The pattern of a rectangle; a tile of HBM holds rows of so many elements."""
    first, rows, begin, count = part
    if tile.memory is Memory.HBM:
        start = Affine.of(first * row_elements + begin)
        return Pattern(tile, tile.dtype, ((row_elements, rows), (1, count)), start)
    dims = ((1, rows), (1, count))
    return Pattern(tile, tile.dtype, dims, Affine.of(begin), Affine.of(first))
