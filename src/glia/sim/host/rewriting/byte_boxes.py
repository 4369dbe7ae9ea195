"""Rectangles of bytes on chip: what a pattern may touch over the iterations of loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glia.isa.operand import Pattern
from glia.sim.host.rewriting.element_moves import MoveTracer


@dataclass(frozen=True)
class ByteBox:
    """Bytes of a tile on chip: from `low` to before `high` in rows `first` to `last`.

    They are all of these or some. `terms` are loop variables that it moves with, and their factors
    in bytes from the tile's first, `pitch` bytes from row to row.
    """

    terms: tuple[tuple[str, int], ...]
    first: int
    last: int
    low: int
    high: int
    is_dense: bool
    pitch: int

    @staticmethod
    def of(pattern: Pattern, pitch: int, tracer: MoveTracer, free: Mapping[str, int]) -> ByteBox:
        """The bytes of a pattern in all iterations of loops, of which `free` has the trips.

        `pitch` is that of the tile, which the pattern may step through as plain bytes.
        """
        start, dims = tracer.flat(pattern)
        all_dims = [*dims, *((step, free[n]) for n, step in start.terms if n in free)]
        begin = start.constant + sum(step * (count - 1) for step, count in all_dims if step < 0)
        steps = sorted((abs(step), count) for step, count in all_dims if step and count > 1)
        height, has_all_rows = _span([each for each in steps if each[0] % pitch == 0], pitch)
        columns = [each for each in steps if each[0] % pitch]
        width, has_all_columns = _span(columns, pattern.dtype.bytes)
        first, low = divmod(begin, pitch)
        last, high = first + height // pitch - 1, low + width
        is_dense = has_all_rows and has_all_columns and high <= pitch
        if high > pitch:
            last, low, high = last + (high - 1) // pitch, 0, pitch
        terms = tuple((n, step) for n, step in start.terms if n not in free)
        return ByteBox(terms, first, last, low, high, is_dense, pitch)

    def may_meet(self, other: ByteBox) -> bool:
        """Whether both may have a byte."""
        if self.terms != other.terms:
            return True
        has_rows = self.first <= other.last and other.first <= self.last
        return has_rows and self.low < other.high and other.low < self.high

    def covers_rows(self, other: ByteBox) -> bool:
        """Whether it has whole columns of all rows of the other."""
        is_same = self.is_dense and self.terms == other.terms
        return is_same and self.first <= other.first and other.last <= self.last


def are_apart(boxes: Sequence[ByteBox], variable: str) -> bool:
    """Whether boxes of one iteration of a loop have no byte of those of another one."""
    if any(each.terms != boxes[0].terms for each in boxes):
        return False
    step, pitch = abs(dict(boxes[0].terms).get(variable, 0)), boxes[0].pitch
    if step % pitch == 0:
        rows = max(each.last for each in boxes) + 1 - min(each.first for each in boxes)
        return step // pitch >= rows
    return step >= max(each.high for each in boxes) - min(each.low for each in boxes)


def _span(dims: Sequence[tuple[int, int]], unit: int) -> tuple[int, bool]:
    """The bytes from the first of dimensions of units to their last, and whether all are theirs."""
    span, is_dense = unit, True
    for step, count in dims:
        is_dense &= step <= span
        span += step * (count - 1)
    return span, is_dense
