"""The algebra of views: interned layouts of (step, count) dimensions, and offsets into tiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np

from glia.base.affine import Affine
from glia.base.dtype import DType
from glia.isa.operand import Dims, Memory, Pattern, row_major

NO_ELEMENT = "it names no element"  # the fault of an empty view
MAX_EXPRESSIONS = 1 << 16
MAX_LAYOUTS = 1 << 16
MAX_CUTS = 1 << 12  # cached slices of one layout, and as many other views
Cut = tuple[int | tuple[int, int], ...]
Method = TypeVar("Method", bound=Callable[..., Any])


class StorageClass:
    """The class of all tiles of one memory, dtype and number of partitions."""

    __slots__ = ("is_on_chip",)

    def __init__(self, is_on_chip: bool) -> None:
        self.is_on_chip = is_on_chip


_STORAGE_CLASSES: dict[tuple[str, str, int], StorageClass] = {}


def storage_class(memory: Memory, stored: DType, partitions: int) -> StorageClass:
    """The interned storage class of such tiles."""
    key = memory._value_, stored.name, partitions
    known = _STORAGE_CLASSES.get(key)
    if known is None:
        known = _STORAGE_CLASSES[key] = StorageClass(memory is not Memory.HBM)
    return known


class ViewLayout:
    """The interned layout of views in their tiles, with a cache of the layouts derived from it.

    It is the part of a view that rules of instructions depend on; tile and start are the rest.
    `operand_dims` and `operand_partition` are the dimensions and first partition as an operand:
    on chip it has at least one free dimension. `fault` says why no instruction can use it.
    """

    __slots__ = (
        "cuts", "derived", "dims", "fault", "is_on_chip", "operand_dims", "operand_partition",
        "partition", "shape", "storage",
    )  # fmt: skip

    def __init__(self, dims: Dims, storage: StorageClass, partition: int | Affine) -> None:
        self.dims = dims
        self.storage = storage
        self.partition = partition
        self.is_on_chip = storage.is_on_chip
        self.shape = tuple([count for _, count in dims])
        self.fault = NO_ELEMENT if 0 in self.shape else ""
        self.operand_dims: Dims = (*dims, (1, 1)) if self.is_on_chip and len(dims) < 2 else dims
        self.operand_partition = as_affine(partition)
        self.cuts: dict[Cut, ViewLayout] = {}
        self.derived: dict[tuple[Any, ...], ViewLayout] = {}  # by method and arguments

    def cut(self, cut: Cut) -> ViewLayout:
        """The layout of a slice: (first partition, then the count of each leading dimension).

        A count may be (count, step); 0 selects one element and drops the dimension.
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
                dims = drop_dims(dims, dropped, self.is_on_chip)
            known = layout_of(tuple(dims), self.storage, self.partition + first)
            if len(self.cuts) < MAX_CUTS:
                self.cuts[cut] = known
        return known


def memoize_view(method: Method) -> Method:
    """Decorate a view method that keeps `start`: its resulting layout is cached per layout.

    The layout must depend only on the tensor's layout and the arguments.
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
            known = layout.derived.get(tuple(key))
        except TypeError:  # an unhashable argument
            return method(tensor, *args)
        if known is None:
            known = method(tensor, *args).layout
            if len(layout.derived) < MAX_CUTS:
                layout.derived[tuple(key)] = known
        return tensor._view_at(known, tensor.start)

    return cast(Method, view)


_LAYOUTS: dict[tuple[Dims, StorageClass, int | Affine], ViewLayout] = {}


def layout_of(dims: Dims, storage: StorageClass, partition: int | Affine = 0) -> ViewLayout:
    """The interned layout of these dimensions from a partition on."""
    known = _LAYOUTS.get((dims, storage, partition))
    if known is None:
        if len(_LAYOUTS) >= MAX_LAYOUTS:
            _LAYOUTS.clear()
        known = _LAYOUTS[dims, storage, partition] = ViewLayout(dims, storage, partition)
    return known


def row_major_layout(shape: tuple[int, ...], storage: StorageClass) -> ViewLayout:
    """The layout of a tensor that owns its tile: row-major, on chip within each partition."""
    fixed = 1 if storage.is_on_chip else 0
    first = tuple([(1, count) for count in shape[:fixed]])
    return layout_of((*first, *row_major(shape[fixed:])), storage)


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy, and no bool."""
    kind = value.__class__
    return kind is int or (isinstance(value, int | np.integer) and kind is not bool)


def drop_dims(
    dims: list[tuple[int, int]], dropped: list[int], on_chip: bool
) -> list[tuple[int, int]]:
    """The dims without those dropped, but for the partitions and the minimal rank."""
    kept = [dimension not in dropped for dimension in range(len(dims))]
    if on_chip:
        kept[0] = True
    least = 2 if on_chip else 1
    for dimension in reversed(range(len(dims))):
        kept[dimension] |= sum(kept) < least
    return [dim for dim, keeps in zip(dims, kept, strict=True) if keeps]


EXPRESSIONS: dict[int, Affine] = {}  # interned constant expressions


def as_affine(value: int | Affine) -> Affine:
    """An offset as an affine expression, interned for constants."""
    if value.__class__ is not int:
        return Affine.of(value)
    known = EXPRESSIONS.get(value)
    if known is None:
        known = Affine((), value)
        if len(EXPRESSIONS) < MAX_EXPRESSIONS:
            EXPRESSIONS[value] = known
    return known


def pattern_signature(pattern: Pattern) -> tuple[Any, ...]:
    """The key of an operand for rules: everything but its offset within the tile."""
    tile, partition = pattern.tile, pattern.partition
    row = partition if partition.terms else partition.constant
    return (tile.memory._value_, pattern.dtype.name, pattern.dims, row, tile.partitions)


def group_names(entry: Any) -> list[str]:
    """The names in an entry of a rearrange pattern: one name, or a group of them."""
    return [entry] if isinstance(entry, str) else list(entry)
