"""Resolving an index of a tensor: for each dimension an affine expression of result axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.nki.beta1.errors import (
    IndirectFreeDimension,
    MixedIndexing,
    OneDimensionalIndex,
    UnsupportedIndex,
)
from glia.nki.beta1.tensors.index import DynamicSlice, Index, broadcast_shape
from glia.nki.session.session import caller
from glia.nki.tensors.views import is_integer


@dataclass(frozen=True)
class DynamicIndex:
    """An index read from memory: dimension `dim` starts at `tensor`, plus its affine entry.

    `is_vector`: the tensor has an index for each partition, instead of a single element.
    """

    dim: int
    tensor: Any
    is_vector: bool


@dataclass(frozen=True)
class TileAccess:
    """The result's `shape`, and for each dimension of the tensor an index over its axes."""

    shape: tuple[int, ...]
    entries: tuple[Index, ...]
    dynamic: DynamicIndex | None = None


@dataclass(frozen=True, eq=False)
class ShiftedIndex:
    """An index read from memory plus an affine one: `offset[0, 0] + i_f`."""

    tensor: Any
    index: Index


def resolve_access(shape: tuple[int, ...], partition: int | None, key: Any) -> TileAccess:
    """Resolve a subscript; `partition` is the partition dimension, None for a tensor in HBM.

    UnsupportedIndex, MixedIndexing, OneDimensionalIndex or IndirectFreeDimension for others.
    """
    entries = _expand_ellipsis(key if isinstance(key, tuple) else (key,), len(shape))
    kinds = [_entry_kind(entry) for entry in entries]
    if "index" in kinds or "tensor" in kinds:
        return _resolve_indices(shape, partition, entries, kinds)
    return _resolve_slices(shape, partition, entries)


def _expand_ellipsis(key: tuple[Any, ...], rank: int) -> list[Any]:
    entries = list(key)
    positions = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(positions) > 1 or len(entries) - len(positions) > rank:
        raise UnsupportedIndex(what=f"{len(entries)} indices for {rank} dimensions", loc=caller())
    if positions:
        missing = rank - len(entries) + 1
        entries[positions[0] : positions[0] + 1] = [slice(None)] * missing
    return entries


def _entry_kind(entry: Any) -> str:
    if is_integer(entry):
        return "integer"
    if isinstance(entry, slice | DynamicSlice):
        return "slice"
    if isinstance(entry, Index):
        return "index"
    if isinstance(entry, ShiftedIndex) or hasattr(entry, "is_tile"):
        return "tensor"
    raise UnsupportedIndex(what=f"an index of type {type(entry).__name__}", loc=caller())


# --- integers and slices -----------------------------------------------------------------------


def _resolve_slices(
    shape: tuple[int, ...], partition: int | None, entries: list[Any]
) -> TileAccess:
    entries += [slice(None)] * (len(shape) - len(entries))
    is_kept = [isinstance(entry, slice | DynamicSlice) for entry in entries]
    if partition is not None:
        is_kept[partition] = True
    least = 2 if partition is None else partition_rank(is_kept, partition)
    for dim in reversed(range(partition or 0, len(entries))):
        is_kept[dim] |= sum(is_kept) < least
    rank = sum(is_kept)
    axis, counts, found = 0, [], []
    dynamic: DynamicIndex | None = None
    for dim, entry in enumerate(entries):
        if isinstance(entry, DynamicSlice):
            if dynamic is not None:
                raise UnsupportedIndex(
                    what="two indices in memory (add them up first)", loc=caller()
                )
            dynamic = DynamicIndex(dim, entry.start, is_vector=False)
        start, step, count = _slice_range(entry, shape[dim])
        steps = [0] * rank
        if is_kept[dim]:
            steps[axis] = step
            counts.append(count)
            axis += 1
        found.append((start, steps))
    result = tuple(counts)
    indices = tuple(Index(result, tuple(steps), start) for start, steps in found)
    return TileAccess(result, indices, dynamic)


def partition_rank(is_kept: list[bool], partition: int) -> int:
    """The least rank of a tile's view: kept block axes, the partitions and a free axis."""
    free = len(is_kept) - partition - 1
    return sum(is_kept[:partition]) + (2 if free else 1)


def _slice_range(entry: Any, extent: int) -> tuple[int, int, int]:
    """(start, step, count), not clamped to the extent: a mask may exclude what is outside.

    A slice that ends where it starts is empty, as is any of a dimension without elements.
    """
    if isinstance(entry, DynamicSlice):
        return 0, 1, entry.count
    if not isinstance(entry, slice):
        start = int(entry)
        return (start + extent if start < 0 else start), 0, 1
    step = 1 if entry.step is None else int(entry.step)
    start = 0 if entry.start is None else int(entry.start)
    stop = extent if entry.stop is None else int(entry.stop)
    start = start + extent if start < 0 else start
    stop = stop + extent if stop < 0 else stop
    if extent == 0 and step > 0:
        return 0, step, 0
    if step < 1 or stop < start:
        raise UnsupportedIndex(what=f"the slice {start}:{stop}:{step}", loc=caller())
    return start, step, -(-(stop - start) // step)


# --- index objects and tensors -----------------------------------------------------------------


def _resolve_indices(
    shape: tuple[int, ...], partition: int | None, entries: list[Any], kinds: list[str]
) -> TileAccess:
    if "slice" in kinds:
        raise MixedIndexing(loc=caller())
    shapes = [_index_shape(e) for e, kind in zip(entries, kinds, strict=True) if kind != "integer"]
    result = broadcast_shape(*shapes)
    if len(result) < 2:
        raise OneDimensionalIndex(loc=caller())
    result += shape[len(entries) :]
    dynamic: DynamicIndex | None = None
    found = []
    for dim, (entry, kind) in enumerate(zip(entries, kinds, strict=True)):
        if kind == "tensor":
            if dynamic is not None:
                raise UnsupportedIndex(
                    what="two indices in memory (add them up first)", loc=caller()
                )
            dynamic = _dynamic_index(dim, entry, result)
            entry = entry.index if isinstance(entry, ShiftedIndex) else 0
        if isinstance(entry, Index):
            appended = len(shape) - len(entries)
            steps = (*entry.steps, *(0,) * appended)
            aligned = Index((*entry.shape, *(1,) * appended), steps, entry.start)
            found.append(_broadcast_index(aligned.at_rank(len(result)), result))
        else:
            start = int(entry) + (shape[dim] if entry < 0 else 0)
            found.append(Index(result, (0,) * len(result), start))
    for dim in range(len(entries), len(shape)):
        unit = [0] * len(result)
        unit[dim - len(shape)] = 1
        found.append(Index(result, tuple(unit), 0))
    return TileAccess(result, tuple(found), dynamic)


def _broadcast_index(entry: Index, shape: tuple[int, ...]) -> Index:
    """The index broadcast to a shape; its axes of one element get step 0."""
    steps = tuple(
        step if count > 1 else 0 for step, count in zip(entry.steps, entry.shape, strict=True)
    )
    return Index(shape, steps, entry.start)


def _index_shape(entry: Any) -> tuple[int, ...]:
    if isinstance(entry, ShiftedIndex):
        return broadcast_shape(entry.tensor.shape, entry.index.shape)
    return tuple(entry.shape)


def _dynamic_index(dim: int, entry: Any, result: tuple[int, ...]) -> DynamicIndex:
    tensor = entry.tensor if isinstance(entry, ShiftedIndex) else entry
    count = math.prod(tensor.shape)
    is_vector = count > 1
    if is_vector and (tensor.shape[0] != count or tensor.shape[0] != result[0]):
        raise IndirectFreeDimension(loc=caller())
    return DynamicIndex(dim, tensor, is_vector)


def row_major_steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The step of each dimension of a row-major array, in elements."""
    return tuple(int(n) for n in np.cumprod((1, *shape[:0:-1]))[::-1]) if shape else ()
