"""The arithmetic of views: dimensions of (step, count), offsets, and what rules see of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import DType
from glia.isa.operand import Dims, Memory, Pattern, row_major

MOST_EXPRESSIONS = 1 << 16
MOST_LAYOUTS = 1 << 16
MOST_CUTS = 1 << 12  # remembered of one layout, and so many others that follow from it
Cut = tuple[int | tuple[int, int], ...]
Method = TypeVar("Method", bound=Callable[..., Any])


class Holding:
    """What all storage of one memory, dtype and count of partitions has in common."""

    __slots__ = ("is_on_chip",)

    def __init__(self, is_on_chip: bool) -> None:
        self.is_on_chip = is_on_chip


_HOLDINGS: dict[tuple[str, str, int], Holding] = {}


def holding_of(memory: Memory, stored: DType, partitions: int) -> Holding:
    """The holding of such storage, made once."""
    key = memory._value_, stored.name, partitions
    known = _HOLDINGS.get(key)
    if known is None:
        known = _HOLDINGS[key] = Holding(memory is not Memory.HBM)
    return known


class Layout:
    """How views lie in their tiles, made once for all that lie alike, with what cutting them gives.

    It is all that the rules of an instruction see of a view, which has a tile and a start besides.
    `named` and `row` are the dimensions and the first partition of an operand that names such a
    view: on chip one dimension is free.
    """

    __slots__ = (
        "cuts", "dims", "holding", "is_on_chip", "named", "partition", "relaid", "row", "shape",
    )  # fmt: skip

    def __init__(self, dims: Dims, holding: Holding, partition: int | Affine) -> None:
        self.dims = dims
        self.holding = holding
        self.partition = partition
        self.is_on_chip = holding.is_on_chip
        self.shape = tuple([count for _, count in dims])
        self.named: Dims = (*dims, (1, 1)) if self.is_on_chip and len(dims) < 2 else dims
        self.row = expression(partition)
        self.cuts: dict[Cut, Layout] = {}
        self.relaid: dict[tuple[Any, ...], Layout] = {}  # by method and arguments

    def cut(self, cut: Cut) -> Layout:
        """From a partition on, and with so many elements of each leading dimension.

        Or with (elements, step); 0 is one element, whose dimension goes.
        """
        known = self.cuts.get(cut)
        if known is None:
            first, *counts = cut
            assert isinstance(first, int)
            dims = []
            for (step, _), count in zip(self.dims, counts, strict=False):
                elements, every = count if isinstance(count, tuple) else (count or 1, 1)
                dims.append((step * every, elements))
            dims += self.dims[len(counts) :]
            dropped = [dimension for dimension, count in enumerate(counts) if not count]
            if dropped:
                dims = without_dims(dims, dropped, self.is_on_chip)
            known = layout_of(tuple(dims), self.holding, self.partition + first)
            if len(self.cuts) < MOST_CUTS:
                self.cuts[cut] = known
        return known


def relaid(method: Method) -> Method:
    """A method of tensors whose view has the same start, and a layout that follows from theirs.

    What follows from the arguments is worked out once for tensors that lie alike.
    """
    name = method.__name__

    @wraps(method)
    def view(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or tensor.indirection is not None:
            return method(tensor, *args, **kwargs)
        key: list[Any] = [name]
        for value in args:
            if value.__class__ is tuple or value.__class__ is list:
                key += value.__class__, *value, *map(type, value)
            else:
                key += value.__class__, value
        layout = tensor.layout
        try:
            known = layout.relaid.get(tuple(key))
        except TypeError:  # an argument that cannot be compared
            return method(tensor, *args)
        if known is None:
            known = method(tensor, *args).layout
            if len(layout.relaid) < MOST_CUTS:
                layout.relaid[tuple(key)] = known
        return tensor._at(known, tensor.start)

    return cast(Method, view)


_LAYOUTS: dict[tuple[Dims, Holding, int | Affine], Layout] = {}


def layout_of(dims: Dims, holding: Holding, partition: int | Affine = 0) -> Layout:
    """The layout of these dimensions from a partition on."""
    known = _LAYOUTS.get((dims, holding, partition))
    if known is None:
        if len(_LAYOUTS) >= MOST_LAYOUTS:
            _LAYOUTS.clear()
        known = _LAYOUTS[dims, holding, partition] = Layout(dims, holding, partition)
    return known


def whole(shape: tuple[int, ...], holding: Holding) -> Layout:
    """The layout of a tensor with storage of its own: row-major, on chip in each partition."""
    fixed = 1 if holding.is_on_chip else 0
    first = tuple([(1, count) for count in shape[:fixed]])
    return layout_of((*first, *row_major(shape[fixed:])), holding)


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


EXPRESSIONS: dict[int, Affine] = {}  # of small numbers, made once


def expression(value: int | Affine) -> Affine:
    """An offset as an expression; those of small numbers are made once."""
    if value.__class__ is not int:
        return Affine.of(value)
    known = EXPRESSIONS.get(value)
    if known is None:
        known = Affine((), value)
        if len(EXPRESSIONS) < MOST_EXPRESSIONS:
            EXPRESSIONS[value] = known
    return known


def signature_of(pattern: Pattern) -> tuple[Any, ...]:
    """What the rules of an instruction see of an operand: all but where in its tile it lies."""
    tile, partition = pattern.tile, pattern.partition
    row = partition if partition.terms else partition.constant
    return (tile.memory._value_, pattern.dtype.name, pattern.dims, row, tile.partitions)


def group_names(entry: Any) -> list[str]:
    """The names of a dimension of a pattern, which may be a group."""
    return [entry] if isinstance(entry, str) else list(entry)
