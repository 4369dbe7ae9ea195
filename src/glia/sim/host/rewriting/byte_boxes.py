"""Rectangles of bytes on chip: what a pattern may touch over the iterations of loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glia.isa.operand import Pattern
from glia.sim.host.rewriting.element_moves import MoveTracer

MOST_RUNS = 64  # of neighbouring bytes in a row, which are looked at one by one
Runs = tuple[tuple[int, int], ...]
Part = tuple[int, int, int, int]  # from one row to another, from one byte to before another


@dataclass(frozen=True)
class ByteBox:
    """Bytes of a tile on chip: from `low` to before `high` in rows `first` to `last`.

    `runs` are the bytes of a row that are touched in all of these rows, each from one to before
    another; none where that is not known. `terms` are loop variables that the box moves with, and
    their factors in bytes from the tile's first, `pitch` bytes from row to row.
    """

    terms: tuple[tuple[str, int], ...]
    first: int
    last: int
    low: int
    high: int
    runs: Runs
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
        row_steps = [(step // pitch, count) for step, count in steps if step % pitch == 0]
        column_steps = [(step, count) for step, count in steps if step % pitch]
        first, low = divmod(begin, pitch)
        height = 1 + sum(step * (count - 1) for step, count in row_steps)
        width = pattern.dtype.bytes + sum(step * (count - 1) for step, count in column_steps)
        last, high, runs = first + height - 1, low + width, Runs()
        if high > pitch:
            last, low, high = last + (high - 1) // pitch, 0, pitch
        elif len(_runs(row_steps, 1)) == 1:
            found = _runs(column_steps, pattern.dtype.bytes)
            runs = tuple((low + a, low + b) for a, b in found)
        terms = tuple((n, step) for n, step in start.terms if n not in free)
        return ByteBox(terms, first, last, low, high, runs, pitch)

    def may_meet(self, other: ByteBox) -> bool:
        """Whether both may have a byte."""
        if self.terms != other.terms:
            return True
        has_rows = self.first <= other.last and other.first <= self.last
        return has_rows and self.low < other.high and other.low < self.high

    def has_runs_of(self, other: ByteBox) -> bool:
        """Whether it is known which bytes it has of the other."""
        return bool(self.runs) and self.terms == other.terms

    def taken_from(self, parts: Sequence[Part]) -> list[Part]:
        """What remains of parts without its runs."""
        left = list(parts)
        for low, high in self.runs:
            before, left = left, []
            for part in before:
                first, last, begin, end = part
                if self.last < first or last < self.first or high <= begin or end <= low:
                    left.append(part)
                    continue
                top, bottom = max(first, self.first), min(last, self.last)
                around = (
                    (first, top - 1, begin, end), (bottom + 1, last, begin, end),
                    (top, bottom, begin, low), (top, bottom, high, end),
                )  # fmt: skip
                left += [each for each in around if each[0] <= each[1] and each[2] < each[3]]
        return left


def are_apart(boxes: Sequence[ByteBox], variable: str) -> bool:
    """Whether boxes of one iteration of a loop have no byte of those of another one."""
    if any(each.terms != boxes[0].terms for each in boxes):
        return False
    step, pitch = abs(dict(boxes[0].terms).get(variable, 0)), boxes[0].pitch
    if step % pitch == 0:
        rows = max(each.last for each in boxes) + 1 - min(each.first for each in boxes)
        return step // pitch >= rows
    return step >= max(each.high for each in boxes) - min(each.low for each in boxes)


def _runs(dims: Sequence[tuple[int, int]], unit: int) -> list[tuple[int, int]]:
    """What dimensions, the least step first, touch in units; nothing where that is many parts."""
    found = [(0, unit)]
    for step, count in dims:
        span = found[-1][1]
        if len(found) == 1 and step <= span:
            found = [(0, step * (count - 1) + span)]
        elif len(found) * count > MOST_RUNS:
            return []
        else:
            found = [(a + n * step, b + n * step) for n in range(count) for a, b in found]
    return found
