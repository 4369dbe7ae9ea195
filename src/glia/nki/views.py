"""The arithmetic of views: dimensions of (step, count), offsets, and what rules see of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.isa.operand import Pattern

MOST_EXPRESSIONS = 1 << 16


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
