"""Which bytes of a tile a pattern touches, precisely enough to tell disjoint accesses apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glia.base.affine import ZERO, Affine
from glia.isa.operand import Memory, Pattern, Tile


def _comparable(a: Affine, b: Affine) -> bool:
    """Whether two expressions differ by a constant; a register may hold another value by now."""
    return a.terms == b.terms and not any(name.startswith("$") for name, _ in a.terms)


@dataclass(frozen=True)
class Footprint:
    """Bytes start+low .. start+high of the tile in rows first_row .. first_row+rows-1.

    `start` (bytes) and `first_row` are affine in loop variables and registers.
    """

    start: Affine
    low: int
    high: int
    first_row: Affine
    rows: int

    @staticmethod
    def of(pattern: Pattern) -> Footprint:
        """The footprint of a pattern; gaps between strided elements count as touched."""
        on_chip = pattern.memory is not Memory.HBM
        low = high = 0
        for step, count in pattern.dims[1:] if on_chip else pattern.dims:
            reach = step * (count - 1)
            low, high = low + min(0, reach), high + max(0, reach)
        width = pattern.dtype.bytes
        return Footprint(
            pattern.offset * width,
            low * width,
            (high + 1) * width - 1,
            pattern.partition,
            pattern.partitions if on_chip else 1,
        )

    @staticmethod
    def whole(tile: Tile) -> Footprint:
        """Every byte of a tile."""
        return Footprint(ZERO, 0, tile.bytes_per_partition - 1, ZERO, tile.partitions)

    def may_overlap(self, other: Footprint) -> bool:
        """False only when the two touch no common byte, whatever the variables are."""
        if _comparable(self.start, other.start):
            shift = other.start.constant - self.start.constant
            if self.high < other.low + shift or other.high + shift < self.low:
                return False
        if _comparable(self.first_row, other.first_row):
            shift = other.first_row.constant - self.first_row.constant
            if shift >= self.rows or -shift >= other.rows:
                return False
        return True

    def covers(self, other: Footprint) -> bool:
        """True only when every byte of the other is in this one, whatever the variables are."""
        if not (
            _comparable(self.start, other.start) and _comparable(self.first_row, other.first_row)
        ):
            return False
        shift = other.start.constant - self.start.constant
        row = other.first_row.constant - self.first_row.constant
        in_bytes = self.low <= other.low + shift and other.high + shift <= self.high
        return in_bytes and row >= 0 and row + other.rows <= self.rows

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
        )

    def shifted(self, variable: str, value: Affine) -> Footprint:
        """The footprint with a variable replaced."""
        values = {variable: value}
        return replace(
            self,
            start=self.start.substitute(values),
            first_row=self.first_row.substitute(values),
        )
