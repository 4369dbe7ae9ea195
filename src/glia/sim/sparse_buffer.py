"""Sparse host buffers: physical memory is used for accessed pages only."""

from __future__ import annotations

import math
import mmap
import tempfile
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

CHUNK_BYTES = 1 << 16  # filled with poison at once
SPARSE_THRESHOLD_BYTES = 1 << 20  # smaller buffers are allocated and filled eagerly


def zeros(count: int, dtype: Any = np.uint8) -> Array:
    """`count` zeros, sparse; MemoryError when the host cannot provide the address space."""
    dtype = np.dtype(dtype)
    size = count * dtype.itemsize
    if size < SPARSE_THRESHOLD_BYTES:
        return np.zeros(count, dtype)
    try:
        return np.frombuffer(_pages(size), dtype, count)
    except (OSError, ValueError, OverflowError) as problem:
        raise MemoryError(f"{size} bytes: {problem}") from problem


HUGE_PAGE = 1 << 21


def dense_zeros(count: int) -> Array:
    """`count` zeros that are all used: in huge pages, where the host has them."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or count < HUGE_PAGE:
        return np.zeros(count, np.uint8)
    try:
        pages = mmap.mmap(-1, count + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(advice)
    except (OSError, OverflowError):
        return np.zeros(count, np.uint8)
    found = np.frombuffer(pages, np.uint8)
    skipped = -int(found.__array_interface__["data"][0]) % HUGE_PAGE
    return found[skipped : skipped + count]


_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)


def _pages(size: int) -> mmap.mmap:
    """Anonymous pages; a sparse temporary file where the host refuses to overcommit."""
    try:
        return mmap.mmap(-1, size, flags=_FLAGS)
    except OSError:
        with tempfile.TemporaryFile() as sparse_file:
            sparse_file.truncate(size)
            return mmap.mmap(sparse_file.fileno(), size)


class Backing:
    """The bytes of an allocation, filled with `poison` chunk by chunk on first access."""

    def __init__(self, count: int, poison: int | None) -> None:
        self.bytes = zeros(count)
        self._poison = poison or 0
        chunks = -(-count // CHUNK_BYTES) if self._poison else 0
        self._is_filled = np.zeros(chunks, np.bool_)
        self._is_whole = chunks == 0
        if chunks and count < SPARSE_THRESHOLD_BYTES:
            self._fill(0, chunks)

    @property
    def touched_bytes(self) -> int:
        """Bytes accessed so far, in whole chunks; all of them where there is no poison."""
        if not self._is_filled.size:
            return self.bytes.size
        return min(self.bytes.size, int(np.count_nonzero(self._is_filled)) * CHUNK_BYTES)

    def touch(
        self, start: int, shape: tuple[int, ...], strides: tuple[int, ...], width: int
    ) -> None:
        """Fill the chunks of elements of `width` bytes at `start` with these strides in bytes."""
        if self._is_whole:
            return
        reaches = [stride * (count - 1) for stride, count in zip(strides, shape, strict=True)]
        low = start + sum(min(0, reach) for reach in reaches)
        high = start + sum(max(0, reach) for reach in reaches) + width
        if shape and high - low > 4 * math.prod(shape) * width + CHUNK_BYTES:
            for index in range(shape[0]):
                self.touch(start + index * strides[0], shape[1:], strides[1:], width)
            return
        first, last = low // CHUNK_BYTES, -(-high // CHUNK_BYTES)
        if not self._is_filled[first:last].all():
            self._fill(first, last)

    def overwrite(self, start: int, contents: Array) -> None:
        """Set the bytes from `start` on to `contents`."""
        self.touch(start, (contents.size,), (1,), 1)
        self.bytes[start : start + contents.size] = contents

    def _fill(self, first: int, last: int) -> None:
        for chunk in (first + np.flatnonzero(~self._is_filled[first:last])).tolist():
            self.bytes[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES] = self._poison
        self._is_filled[first:last] = True
        self._is_whole = bool(self._is_filled.all())
