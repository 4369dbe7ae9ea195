"""NkiTensor: a view of a tile, with shape, strides and basic indexing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from glia.base import dtype as types
from glia.base.affine import Affine
from glia.isa.operand import Memory, Pattern, Tile
from glia.nki.errors import ImpossibleTensor, IndexOutsideTensor, NotInNki
from glia.nki.recorder import caller, current

# NKI's name of each dtype that the instructions know.
DTYPES = {
    "float32": types.F32,
    "bfloat16": types.BF16,
    "float16": types.F16,
    "float8_e4m3": types.F8E4M3,
    "float8_e4m3fn": types.F8E4M3FN,
    "float8_e5m2": types.F8E5M2,
    "int32": types.S32,
    "uint32": types.U32,
    "int16": types.S16,
    "uint16": types.U16,
    "int8": types.S8,
    "uint8": types.U8,
    "bool": types.PRED,
}


class MemoryRegion(Enum):
    """Where a tensor lives; HBM is shared with the caller or private to the kernel."""

    sbuf = "sbuf"
    psum = "psum"
    shared_hbm = "shared_hbm"
    private_hbm = "private_hbm"

    @property
    def memory(self) -> Memory:
        """The memory of the machine that it is part of."""
        return Memory.HBM if self.value.endswith("hbm") else Memory[self.value.upper()]


@dataclass(frozen=True, eq=False)
class NkiTensor:
    """A tensor of a kernel: `dims` are (step, count) over a tile, `offset` where they start.

    On chip the first dimension is the partitions (step and start `partition` in partitions), the
    others step in elements of a partition; in HBM all step in elements of the tile.
    """

    tile: Tile
    dtype: str
    buffer: MemoryRegion
    dims: tuple[tuple[int, int], ...]
    offset: int = 0
    partition: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(count for _, count in self.dims)

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def name(self) -> str:
        return self.tile.name

    @property
    def is_on_chip(self) -> bool:
        return self.tile.memory is not Memory.HBM

    @property
    def pattern(self) -> Pattern:
        """The access pattern of an operand that names this tensor."""
        offset, partition = Affine.of(self.offset), Affine.of(self.partition)
        return Pattern(self.tile, self.tile.dtype, self.dims, offset, partition)

    @property
    def is_whole(self) -> bool:
        """Whether it holds every element of its tile, in order."""
        elements = self.tile.partitions * self.tile.elements
        return self.size == elements and self._is_contiguous()

    def __getitem__(self, index: Any) -> NkiTensor:
        """The view that integers, slices with positive step and `...` choose; nothing is clamped.

        In HBM an integer drops its dimension, but the last; on chip the partitions stay, and at
        least one free dimension. IndexOutsideTensor when an index is out of range.
        """
        entries = self._entries(index if isinstance(index, tuple) else (index,))
        view, dims, is_kept = self, [], []
        for dimension, entry in enumerate(entries):
            start, step, count, is_integer = self._range(dimension, entry)
            view = view._advanced(dimension, start)
            dims.append((self.dims[dimension][0] * step, count))
            is_kept.append(not is_integer)
        if self.is_on_chip:
            is_kept[0] = True
        least = 2 if self.is_on_chip else 1
        for dimension in reversed(range(len(dims))):
            is_kept[dimension] |= sum(is_kept) < least
        return replace(view, dims=tuple(d for d, kept in zip(dims, is_kept, strict=True) if kept))

    def __setitem__(self, index: Any, value: Any) -> None:
        raise NotInNki(feature="assigning to elements of a tensor (t[i] = x)", loc=caller())

    def __iter__(self) -> Any:
        raise NotInNki(feature="iterating over a tensor", loc=caller())

    def reshape(self, shape: tuple[int, ...] | list[int]) -> NkiTensor:
        """The same elements in order in another shape; on chip the partitions stay.

        ImpossibleTensor when the number of elements differs or the view has gaps.
        """
        shape = checked_shape(shape, self.dtype, self.buffer)
        fixed = 1 if self.is_on_chip else 0
        problem = ""
        if math.prod(shape) != self.size:
            problem = f"{self.size} elements cannot be reshaped to {math.prod(shape)}"
        elif shape[:fixed] != self.shape[:fixed]:
            problem = f"the partitions cannot be reshaped to {shape[0]}"
        elif not self._is_contiguous():
            problem = "a view with gaps cannot be reshaped"
        if problem:
            refuse_tensor(self.shape, self.dtype, self.buffer, problem)
        return replace(self, dims=(*self.dims[:fixed], *row_major(shape[fixed:])))

    def _is_contiguous(self) -> bool:
        fixed = 1 if self.is_on_chip else 0
        free = self.dims[fixed:]
        expected = row_major(tuple(count for _, count in free))
        return all(
            count == 1 or step == wanted
            for (step, count), (wanted, _) in zip(free, expected, strict=True)
        )

    def _entries(self, index: tuple[Any, ...]) -> list[Any]:
        """One entry for each dimension."""
        positions = [i for i, entry in enumerate(index) if entry is Ellipsis]
        given = len(index) - len(positions)
        if len(positions) > 1 or given > self.ndim:
            raise IndexOutsideTensor(
                index=len(index) - 1, dimension=given - 1, shape=self.shape, loc=caller()
            )
        at = positions[0] if positions else len(index)
        missing = [slice(None)] * (self.ndim - given)
        return [*index[:at], *missing, *index[at + 1 :]]

    def _range(self, dimension: int, entry: Any) -> tuple[int, int, int, bool]:
        """(start, step, count, whether it was an integer) of one entry of an index."""
        extent = self.shape[dimension]
        if isinstance(entry, int | np.integer) and not isinstance(entry, bool):
            start = int(entry) + (extent if entry < 0 else 0)
            self._require(0 <= start < extent, dimension, entry)
            return start, 1, 1, True
        if not isinstance(entry, slice):
            raise NotInNki(feature=f"indexing a tensor by {type(entry).__name__}", loc=caller())
        parts = (entry.start, entry.stop, entry.step)
        if not all(part is None or isinstance(part, int | np.integer) for part in parts):
            raise NotInNki(feature=f"a slice of other than integers ({entry})", loc=caller())
        step = 1 if entry.step is None else int(entry.step)
        if step < 1:
            raise NotInNki(feature=f"a slice with step {step}", loc=caller())
        start = 0 if entry.start is None else int(entry.start)
        stop = extent if entry.stop is None else int(entry.stop)
        start, stop = (value + extent if value < 0 else value for value in (start, stop))
        text = f"{'' if entry.start is None else entry.start}:{stop}"
        self._require(0 <= start < stop <= extent, dimension, text)
        return start, step, -(-(stop - start) // step), False

    def _require(self, holds: bool, dimension: int, index: object) -> None:
        if not holds:
            raise IndexOutsideTensor(
                index=index, dimension=dimension, shape=self.shape, loc=caller()
            )

    def _advanced(self, dimension: int, start: int) -> NkiTensor:
        distance = start * self.dims[dimension][0]
        if self.is_on_chip and dimension == 0:
            return replace(self, partition=self.partition + distance)
        return replace(self, offset=self.offset + distance)


def new_tensor(
    shape: tuple[int, ...] | list[int], dtype: str, buffer: MemoryRegion, name: str
) -> NkiTensor:
    """A tensor with a tile of its own in the kernel being traced, by default named as its buffer.

    ImpossibleTensor when the memory cannot hold it, NotInNki for another buffer.
    """
    recorder = current("nl.ndarray")
    if not isinstance(buffer, MemoryRegion):
        raise NotInNki(feature=f"buffer {buffer!r}", loc=caller())
    shape = checked_shape(shape, dtype, buffer)
    if not isinstance(dtype, str) or dtype not in DTYPES:
        refuse_tensor(shape, dtype, buffer, f"the dtypes are {', '.join(DTYPES)}")
    arch = recorder.target.arch
    is_on_chip = buffer.memory is not Memory.HBM
    if is_on_chip and shape[0] > arch.partitions:
        refuse_tensor(shape, dtype, buffer, f"{shape[0]} partitions of {arch.partitions}")
    fixed = 1 if is_on_chip else 0
    partitions, elements = math.prod(shape[:fixed]), math.prod(shape[fixed:])
    capacity = {
        Memory.HBM: recorder.target.chip_hbm_bytes,
        Memory.SBUF: arch.sbuf_bytes_per_partition,
        Memory.PSUM: arch.psum_bytes_per_partition,
    }[buffer.memory]
    if elements * DTYPES[dtype].bytes > capacity:
        needed = elements * DTYPES[dtype].bytes
        refuse_tensor(shape, dtype, buffer, f"it needs {needed} bytes of {capacity}")
    tile = recorder.add_tile(
        name or buffer.name, buffer.memory, DTYPES[dtype], partitions, elements
    )
    first = ((1, partitions),) if is_on_chip else ()
    return NkiTensor(tile, dtype, buffer, (*first, *row_major(shape[fixed:])))


def checked_shape(shape: object, dtype: str, buffer: MemoryRegion) -> tuple[int, ...]:
    """`shape` as a tuple of positive integers, two or more on chip; ImpossibleTensor otherwise."""
    if not isinstance(shape, tuple | list):
        refuse_tensor(shape, dtype, buffer, "a shape is a tuple of integers")
    if not all(isinstance(n, int | np.integer) and n >= 1 for n in shape):
        refuse_tensor(shape, dtype, buffer, "every extent is an integer of at least 1")
    least = 1 if buffer.memory is Memory.HBM else 2
    if len(shape) < least:
        refuse_tensor(shape, dtype, buffer, f"it needs at least {least} dimensions")
    return tuple(int(n) for n in shape)


def refuse_tensor(shape: object, dtype: object, buffer: MemoryRegion, reason: str) -> Any:
    """Raise ImpossibleTensor at the user's line."""
    partitions = current("nl.ndarray").target.arch.partitions
    raise ImpossibleTensor(
        shape=shape, dtype=dtype, buffer=buffer.value, reason=reason, partitions=partitions,
        loc=caller(),
    )  # fmt: skip


def row_major(shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(step, count) of each dimension of a row-major array."""
    return tuple((math.prod(shape[i + 1 :]), count) for i, count in enumerate(shape))
