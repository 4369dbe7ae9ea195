"""Pieces of a buffer that are accessed in one iteration, and the box around them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from glia.base.affine import Affine

Piece = tuple[Sequence[Affine], Mapping[str, int]]  # an index; extents of axes that begin at 0
Box = list[tuple[int, int]]  # (least value, number of values), by dimension


@dataclass(frozen=True)
class _Progression:
    """The values that an index takes in one dimension: `count` of them, from `low` by `step`."""

    low: int
    step: int
    count: int

    @property
    def high(self) -> int:
        return self.low + self.step * (self.count - 1)

    def meets(self, other: _Progression) -> bool:
        """Whether it may have a value in common with another."""
        if self.high < other.low or other.high < self.low:
            return False
        return (self.low - other.low) % math.gcd(self.step, other.step) == 0


def filled_box(pieces: Sequence[Piece]) -> Box | None:
    """The box that pieces fill without overlap.

    None where elements are missing or in two pieces, or that cannot be told.
    """
    found = _all_progressions(pieces)
    if found is None:
        return None
    for one, other in combinations(found, 2):
        if all(here.meets(there) for here, there in zip(one, other, strict=True)):
            return None
    box = _box_around(found)
    written = sum(math.prod(each.count for each in piece) for piece in found)
    return box if written == math.prod(count for _, count in box) else None


def common_box(pieces: Sequence[Piece]) -> Box | None:
    """The box around pieces, where it has no more elements than they have; else None."""
    found = _all_progressions(pieces)
    if found is None:
        return None
    box = _box_around(found)
    read = sum(math.prod(each.count for each in piece) for piece in found)
    return box if math.prod(count for _, count in box) <= read else None


def _box_around(found: Sequence[Sequence[_Progression]]) -> Box:
    box = []
    for column in zip(*found, strict=True):
        low = min(each.low for each in column)
        box.append((low, max(each.high for each in column) - low + 1))
    return box


def _all_progressions(pieces: Sequence[Piece]) -> list[list[_Progression]] | None:
    found = [_progressions(index, extents) for index, extents in pieces]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _progressions(index: Sequence[Affine], extents: Mapping[str, int]) -> list[_Progression] | None:
    """The values of each dimension; None where two axes sweep one, or one axis sweeps two."""
    found, used = [], set[str]()
    for expression in index:
        axes = [a for a in expression.variables if extents.get(a, 1) > 1]
        if len(axes) > 1 or used & set(axes):
            return None
        used.update(axes)
        step = expression.coefficient(axes[0]) if axes else 1
        count = extents[axes[0]] if axes else 1
        low = expression.constant + min(0, step * (count - 1))
        found.append(_Progression(low, abs(step), count))
    swept = {a for a, n in extents.items() if n > 1}
    return found if used == swept else None
