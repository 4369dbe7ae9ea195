"""Footprints: the bytes of a tile that a pattern accesses, for alias analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from glia.base.affine import ZERO, Affine
from glia.base.fast_objects import fields_of, from_fields, set_field
from glia.isa.kit import is_register
from glia.isa.operand import Dims, Memory, Pattern, Tile, reach


def _differ_by_constant(a: Affine, b: Affine) -> bool:
    """Whether two expressions differ by a constant; those of registers may change in between."""
    if a.terms != b.terms:
        return False
    return not a.terms or not any(is_register(name) for name, _ in a.terms)


@dataclass(frozen=True)
class Footprint:
    """Some bytes of start+low .. start+high of the tile in rows first_row .. first_row+rows-1.

    `start` (bytes) and `first_row` are affine in loop variables and registers. The bytes are runs
    of `width` from start+low on, repeated at each of `steps`, (bytes apart, count). `gaps` are the
    steps that leave bytes out, those between one and the next; with `is_dense` no byte between the
    first and the last is left out.
    """

    start: Affine
    low: int
    high: int
    first_row: Affine
    rows: int
    width: int
    steps: tuple[tuple[int, int], ...] = ()
    gaps: tuple[int, ...] = field(init=False, repr=False, compare=False)
    is_dense: bool = field(init=False, repr=False, compare=False)
    first: int = field(init=False, repr=False, compare=False)  # bytes, where variables are 0
    last: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        gaps = tuple([step for step, _ in self.steps if self._extent_modulo(step) < step])
        set_field(self, "gaps", gaps)
        set_field(self, "first", self.start.constant + self.low)
        set_field(self, "last", self.start.constant + self.high)
        set_field(self, "is_dense", _is_gapless(self.width, self.steps))

    @staticmethod
    def of(pattern: Pattern) -> Footprint:
        """The footprint of a pattern."""
        is_on_chip = pattern.memory is not Memory.HBM
        width = pattern.dtype.bytes
        return Footprint.at(
            pattern.dims, width, pattern.offset * width, pattern.partition, is_on_chip
        )

    @staticmethod
    def at(dims: Dims, width: int, start: Affine, first_row: Affine, is_on_chip: bool) -> Footprint:
        """The footprint of `dims` in elements of `width` bytes, from `start` (bytes) on."""
        shape = _shape_fields(dims, width, is_on_chip)
        ends = {"first": start.constant + shape["low"], "last": start.constant + shape["high"]}
        return from_fields(Footprint, {**shape, "start": start, "first_row": first_row, **ends})

    @staticmethod
    def of_tile(tile: Tile) -> Footprint:
        """Every byte of a tile."""
        return _whole_tile(tile.bytes_per_partition, tile.partitions)

    def may_overlap(self, other: Footprint) -> bool:
        """False only when the two touch no common byte, whatever the variables are."""
        mine, its = self.start, other.start
        if not (mine.terms or its.terms) or _differ_by_constant(mine, its):
            shift = its.constant - mine.constant
            if self.high < other.low + shift or other.high + shift < self.low:
                return False
            if (self.gaps or other.gaps) and self._interleaves(other, shift):
                return False
        mine, its = self.first_row, other.first_row
        if not (mine.terms or its.terms) or _differ_by_constant(mine, its):
            shift = its.constant - mine.constant
            if shift >= self.rows or -shift >= other.rows:
                return False
        return True

    def _interleaves(self, other: Footprint, shift: int) -> bool:
        """Whether both stay in disjoint parts of some period, as even columns and odd ones do."""
        apart = other.low + shift - self.low
        for period in {*self.gaps, *other.gaps}:
            mine, its = self._extent_modulo(period), other._extent_modulo(period)
            if mine <= apart % period and apart % period + its <= period:
                return True
        return False

    def _extent_modulo(self, period: int) -> int:
        """Length in bytes of the interval it touches modulo a period."""
        return self.width + sum(s * (n - 1) for s, n in self.steps if s % period)

    def covers(self, other: Footprint) -> bool:
        """True only when every byte of the other is in this one, whatever the variables are."""
        mine, its = self.start, other.start
        if (mine.terms or its.terms) and not _differ_by_constant(mine, its):
            return False
        shift = its.constant - mine.constant
        if self.low > other.low + shift or other.high + shift > self.high:
            return False
        mine, its = self.first_row, other.first_row
        if (mine.terms or its.terms) and not _differ_by_constant(mine, its):
            return False
        row = its.constant - mine.constant
        if row < 0 or row + other.rows > self.rows:
            return False
        is_alike = self.steps == other.steps and self.width == other.width
        return (is_alike and self.low == other.low + shift) or self.is_dense

    def swept(self, variable: str, trips: int) -> Footprint:
        """The union of the footprints of all iterations of a loop."""
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

    def substitute(self, variable: str, value: Affine) -> Footprint:
        """The footprint with a variable replaced."""
        values = {variable: value}
        start, first_row = self.start.substitute(values), self.first_row.substitute(values)
        if start is self.start and first_row is self.first_row:
            return self
        ends = {"first": start.constant + self.low, "last": start.constant + self.high}
        moved = {"start": start, "first_row": first_row, **ends}
        return from_fields(Footprint, {**fields_of(self), **moved})


def _is_gapless(width: int, steps: tuple[tuple[int, int], ...]) -> bool:
    reached = width
    for step, count in sorted(steps):
        if step > reached:
            return False
        reached += step * (count - 1)
    return True


@lru_cache(maxsize=1 << 14)
def _shape_fields(dims: Dims, width: int, is_on_chip: bool) -> dict[str, Any]:
    """The fields of a footprint that do not depend on its start."""
    free = dims[1:] if is_on_chip else dims
    low, high = reach(free)
    steps = tuple((abs(step) * width, count) for step, count in free if step and count > 1)
    rows = dims[0][1] if is_on_chip else 1
    first, last = low * width, (high + 1) * width - 1
    return vars(Footprint(ZERO, first, last, ZERO, rows, width, steps))


@lru_cache(maxsize=1 << 14)
def _whole_tile(size: int, rows: int) -> Footprint:
    return Footprint(ZERO, 0, size - 1, ZERO, rows, size)
