"""Which elements of PSUM hold sums of products: a product adds to those and replaces others."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glia.arch import Arch
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Tile, reach
from glia.nki.names.language_errors import advise

ADDED_TO_NOTHING = (
    "this product adds to what no product wrote, which is undefined before generation 4: let the "
    "first one overwrite (accumulate=False, or None)"
)
ADDS_TO_ANYTHING = 4  # the generation whose products add to what other instructions wrote
Place = tuple[int, tuple[tuple[int, int], ...], int, int]  # (bytes, dims, offset, partition)


@dataclass
class _Marks:
    """The state of one tile: by place while places are apart, else for every byte."""

    places: dict[Place, bool] = field(default_factory=dict)
    by_byte: np.ndarray | None = None


class Sums:
    """Which elements of each PSUM tile products have written since anything else did.

    `latest` is by tile what was written last, where that was a sum.
    """

    def __init__(self) -> None:
        self.latest: dict[str, Pattern] = {}
        self._tiles: dict[str, _Marks] = {}

    def mark(self, pattern: Pattern, is_sum: bool) -> None:
        """Note that a product, or something else, has written the elements."""
        name = pattern.tile.name
        if is_sum and self.latest.get(name) is pattern:
            return
        marks = self._tiles.get(name)
        if marks is None:
            if not is_sum:
                return
            marks = self._tiles[name] = _Marks()
        if is_sum:
            self.latest[name] = pattern
        else:
            self.latest.pop(name, None)
        place = _place(pattern)
        if _is_apart(marks, place):
            marks.places[place] = is_sum
        else:
            _bytes(marks, pattern)[...] = is_sum

    def write(self, pattern: Pattern, instr: Instr, arch: Arch) -> None:
        """Note an instruction; a warning where it adds a product to what no product wrote."""
        is_sum = bool(instr.sums) and instr.is_sum
        adds = is_sum and arch.generation < ADDS_TO_ANYTHING and getattr(instr, "accumulate", None)
        if adds and self.has_sum(pattern) is False:
            advise(ADDED_TO_NOTHING, instr.loc)
        self.mark(pattern, is_sum)

    def has_sum(self, pattern: Pattern) -> bool | None:
        """Whether products have written the elements: all (True), none (False) or some (None)."""
        name = pattern.tile.name
        if self.latest.get(name) is pattern:
            return True
        marks = self._tiles.get(name)
        if marks is None:
            return False
        place = _place(pattern)
        if _is_apart(marks, place):
            return marks.places.get(place, False)
        held = _bytes(marks, pattern)
        return bool(held.all()) if held.all() == held.any() else None

    def elements(self, pattern: Pattern) -> np.ndarray:
        """For every element of the pattern whether it holds a sum."""
        marks = self._tiles.setdefault(pattern.tile.name, _Marks())
        return np.asarray(_bytes(marks, pattern).all(axis=-1))


def _place(pattern: Pattern) -> Place:
    offset, partition = pattern.offset.constant, pattern.partition.constant
    return pattern.dtype.bytes, pattern.dims, offset, partition


def _is_apart(marks: _Marks, place: Place) -> bool:
    """Whether it is one of the known places or touches none of them."""
    if marks.by_byte is not None:
        return False
    return place in marks.places or not any(_overlap(place, known) for known in marks.places)


def _overlap(first: Place, second: Place) -> bool:
    return all(
        low_a < high_b and low_b < high_a
        for (low_a, high_a), (low_b, high_b) in zip(_box(first), _box(second), strict=True)
    )


def _box(place: Place) -> tuple[tuple[int, int], tuple[int, int]]:
    """The bytes and the partitions between which a place lies."""
    width, dims, offset, partition = place
    low, high = reach(dims[1:])
    rows = reach(dims[:1])
    return (
        ((offset + low) * width, (offset + high + 1) * width),
        (partition + rows[0], partition + rows[1] + 1),
    )


def _bytes(marks: _Marks, pattern: Pattern) -> np.ndarray:
    """A writable view of the marks of the pattern's bytes, those of an element last."""
    tile = pattern.tile
    if marks.by_byte is None:
        marks.by_byte = np.zeros((tile.partitions, tile.bytes_per_partition), dtype=bool)
        for place, is_sum in marks.places.items():
            _bytes_of(marks.by_byte, tile, place)[...] = is_sum
        marks.places.clear()
    return _bytes_of(marks.by_byte, tile, _place(pattern))


def _bytes_of(by_byte: np.ndarray, tile: Tile, place: Place) -> np.ndarray:
    width, ((step, rows), *free), offset, partition = place
    strides = (step * tile.bytes_per_partition, *(each * width for each, _ in free), 1)
    shape = (rows, *(count for _, count in free), width)
    return np.lib.stride_tricks.as_strided(by_byte[partition:, offset * width :], shape, strides)
