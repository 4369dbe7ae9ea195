"""The arithmetic of views: dimensions of (step, count), offsets, and what rules see of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import DType
from glia.isa.operand import Dims, Pattern, Tile, row_major

MOST_EXPRESSIONS = 1 << 16
MOST_LAYOUTS = 1 << 16
MOST_CUTS = 1 << 12  # remembered of one layout


class Layout:
    """The dimensions of views, made once for all that have the same, with what cutting them gives.

    `named` are the dimensions of an operand that names such a view: on chip one is free.
    """

    __slots__ = ("_cuts", "dims", "is_on_chip", "named", "shape")

    def __init__(self, dims: Dims, is_on_chip: bool) -> None:
        self.dims = dims
        self.is_on_chip = is_on_chip
        self.shape = tuple([count for _, count in dims])
        self.named: Dims = (*dims, (1, 1)) if is_on_chip and len(dims) < 2 else dims
        self._cuts: dict[tuple[int | tuple[int, int], ...], Layout] = {}

    def cut(self, counts: tuple[int | tuple[int, int], ...]) -> Layout:
        """With so many elements of each leading dimension, or (elements, step).

        0 is one element, whose dimension goes.
        """
        known = self._cuts.get(counts)
        if known is None:
            dims = []
            for (step, _), count in zip(self.dims, counts, strict=False):
                elements, every = count if isinstance(count, tuple) else (count or 1, 1)
                dims.append((step * every, elements))
            dims += self.dims[len(counts) :]
            dropped = [dimension for dimension, count in enumerate(counts) if not count]
            if dropped:
                dims = without_dims(dims, dropped, self.is_on_chip)
            known = layout_of(tuple(dims), self.is_on_chip)
            if len(self._cuts) < MOST_CUTS:
                self._cuts[counts] = known
        return known


_LAYOUTS: dict[tuple[Dims, bool], Layout] = {}


def layout_of(dims: Dims, is_on_chip: bool) -> Layout:
    """The layout of these dimensions."""
    known = _LAYOUTS.get((dims, is_on_chip))
    if known is None:
        if len(_LAYOUTS) >= MOST_LAYOUTS:
            _LAYOUTS.clear()
        known = _LAYOUTS[dims, is_on_chip] = Layout(dims, is_on_chip)
    return known


def whole(shape: tuple[int, ...], is_on_chip: bool) -> Layout:
    """The layout of a tensor with storage of its own: row-major, on chip in each partition."""
    fixed = 1 if is_on_chip else 0
    first = tuple([(1, count) for count in shape[:fixed]])
    return layout_of((*first, *row_major(shape[fixed:])), is_on_chip)


_HOLDINGS: dict[tuple[str, str, int], int] = {}


def holding_of(tile: Tile, stored: DType) -> int:
    """A number for all storage of one memory, dtype and count of partitions."""
    return _HOLDINGS.setdefault((tile.memory._value_, stored.name, tile.partitions), len(_HOLDINGS))


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy; truth values are not."""
    kind = value.__class__
    return kind is int or (isinstance(value, int | np.integer) and kind is not bool)


def without_dims(
    dims: list[tuple[int, int]], dropped: list[int], on_chip: bool
) -> list[tuple[int, int]]:
    """Without the dimensions of integers, but for the partitions and the least rank."""
    kept = [dimension not in dropped for dimension in range(len(dims))]
    if on_chip:
        kept[0] = True
    least = 2 if on_chip else 1
    for dimension in reversed(range(len(dims))):
        kept[dimension] |= sum(kept) < least
    return [dim for dim, keeps in zip(dims, kept, strict=True) if keeps]


_EXPRESSIONS: dict[int, Affine] = {}


def expression(value: int | Affine) -> Affine:
    """An offset as an expression; those of small numbers are made once."""
    if value.__class__ is not int:
        return Affine.of(value)
    known = _EXPRESSIONS.get(value)  # type: ignore[arg-type]
    if known is None:
        known = Affine((), value)  # type: ignore[arg-type]
        if len(_EXPRESSIONS) < MOST_EXPRESSIONS:
            _EXPRESSIONS[value] = known  # type: ignore[index]
    return known


def signature_of(pattern: Pattern) -> tuple[Any, ...]:
    """What the rules of an instruction see of an operand: all but where in its tile it lies."""
    tile, partition = pattern.tile, pattern.partition
    row = partition if partition.terms else partition.constant
    return (tile.memory._value_, pattern.dtype.name, pattern.dims, row, tile.partitions)


def group_names(entry: Any) -> list[str]:
    """The names of a dimension of a pattern, which may be a group."""
    return [entry] if isinstance(entry, str) else list(entry)
