"""Which bytes of a tile a pattern touches, precisely enough to tell disjoint accesses apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glia.base.affine import ZERO, Affine
from glia.isa.operand import Memory, Pattern, Tile


def _comparable(a: Affine, b: Affine) -> bool:
    """Whether two expressions differ by a constant; a register may hold another value by now."""
    if a.terms != b.terms:
        return False
    return not a.terms or not any(name.startswith("$") for name, _ in a.terms)


@dataclass(frozen=True)
class Footprint:
    """Some bytes of start+low .. start+high of the tile in rows first_row .. first_row+rows-1.

    `start` (bytes) and `first_row` are affine in loop variables and registers. The bytes are runs
    of `width` from start+low on, repeated at each of `steps`, (bytes apart, count).
    """

    start: Affine
    low: int
    high: int
    first_row: Affine
    rows: int
    width: int
    steps: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(pattern: Pattern) -> Footprint:
        """The footprint of a pattern."""
        on_chip = pattern.memory is not Memory.HBM
        dims = pattern.dims[1:] if on_chip else pattern.dims
        low = high = 0
        for step, count in dims:
            reach = step * (count - 1)
            low, high = low + min(0, reach), high + max(0, reach)
        width = pattern.dtype.bytes
        return Footprint(
            pattern.offset * width,
            low * width,
            (high + 1) * width - 1,
            pattern.partition,
            pattern.partitions if on_chip else 1,
            width,
            tuple((abs(step) * width, count) for step, count in dims if step and count > 1),
        )

    @staticmethod
    def whole(tile: Tile) -> Footprint:
        """Every byte of a tile."""
        size = tile.bytes_per_partition
        return Footprint(ZERO, 0, size - 1, ZERO, tile.partitions, size)

    def may_overlap(self, other: Footprint) -> bool:
        """False only when the two touch no common byte, whatever the variables are."""
        if _comparable(self.start, other.start):
            shift = other.start.constant - self.start.constant
            if self.high < other.low + shift or other.high + shift < self.low:
                return False
            if self._interleaves(other, shift):
                return False
        if _comparable(self.first_row, other.first_row):
            shift = other.first_row.constant - self.first_row.constant
            if shift >= self.rows or -shift >= other.rows:
                return False
        return True

    def _interleaves(self, other: Footprint, shift: int) -> bool:
        """Whether a period of one of them keeps them apart, as even columns from odd ones."""
        apart = other.low + shift - self.low
        for period in {step for step, _ in (*self.steps, *other.steps)}:
            mine, its = self._within(period), other._within(period)
            if mine <= apart % period and apart % period + its <= period:
                return True
        return False

    def _within(self, period: int) -> int:
        """Bytes from the first to the last it touches, counted modulo a period."""
        return self.width + sum(s * (n - 1) for s, n in self.steps if s % period)

    @property
    def _is_dense(self) -> bool:
        """Whether no byte between the first and the last is left out."""
        reached = self.width
        for step, count in sorted(self.steps):
            if step > reached:
                return False
            reached += step * (count - 1)
        return True

    def covers(self, other: Footprint) -> bool:
        """True only when every byte of the other is in this one, whatever the variables are."""
        if not (
            _comparable(self.start, other.start) and _comparable(self.first_row, other.first_row)
        ):
            return False
        shift = other.start.constant - self.start.constant
        row = other.first_row.constant - self.first_row.constant
        if row < 0 or row + other.rows > self.rows:
            return False
        if not (self.low <= other.low + shift and other.high + shift <= self.high):
            return False
        is_alike = (self.width, self.steps) == (other.width, other.steps)
        return (is_alike and self.low == other.low + shift) or self._is_dense

    def swept(self, variable: str, trips: int) -> Footprint:
        """What is touched over all iterations of a loop."""
        start, row = self.start.coefficient(variable), self.first_row.coefficient(variable)
        if not start and not row:
            return self
        reach, rows = start * (trips - 1), row * (trips - 1)
        at_zero = {variable: 0}
        return Footprint(
            self.start.substitute(at_zero),
            self.low + min(0, reach),
            self.high + max(0, reach),
            self.first_row.substitute(at_zero) + min(0, rows),
            self.rows + abs(rows),
            self.width,
            (*self.steps, (abs(start), trips)) if start and trips > 1 else self.steps,
        )

    def shifted(self, variable: str, value: Affine) -> Footprint:
        """The footprint with a variable replaced."""
        values = {variable: value}
        return replace(
            self,
            start=self.start.substitute(values),
            first_row=self.first_row.substitute(values),
        )
