"""Memory for results, which is used again when no array refers to it any more.

A new array of many MiB costs more than it takes to write it once: the system clears each of its
pages when it is first touched. Of a softmax of 64 MiB that is a third of the time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glia.base.fork_safe_lock import ForkSafeLock
from glia.base.machine_code.native import address_of
from glia.machine.ir import Binding

Array = np.ndarray[Any, Any]

LARGE_BYTES = 1 << 20  # results from this size on are kept; the C library keeps smaller ones
MOST_KEPT = 2  # for each result: the caller has one still while the next is made
MOST_KEPT_BYTES = 1 << 29  # of all results of one memory
PAGE_BYTES = 4096


class ResultMemory:
    """Arrays for results, a set of them for every run."""

    def __init__(self, outputs: Sequence[Binding], is_cleared: Sequence[bool]) -> None:
        """`is_cleared` says which outputs a run needs to begin as zeros."""
        kinds = [(b.shape, b.dtype.numpy) for b in outputs]
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in kinds]
        large = sum(size for size in sizes if size >= LARGE_BYTES)
        has_room = _COUNTS_REFERENCES and MOST_KEPT * large <= MOST_KEPT_BYTES
        self._kinds = [
            (*kind, _OutputMemory(size, cleared) if has_room and size >= LARGE_BYTES else None)
            for kind, size, cleared in zip(kinds, sizes, is_cleared, strict=True)
        ]
        self._lock = ForkSafeLock()

    def arrays(self) -> list[Array]:
        """An array for each output, whose memory no other array has."""
        return [
            np.zeros(shape, dtype) if kept is None else self._view(kept, shape, dtype)
            for shape, dtype, kept in self._kinds
        ]

    def _view(self, kept: _OutputMemory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        with self._lock:
            # A view is made while the lock is held: from then on the memory is not free
            memory, is_new = kept.free_memory()
            start = -address_of(memory) % PAGE_BYTES
            array = memory[start : start + kept.size].view(dtype).reshape(shape)
        if kept.is_cleared and not is_new:
            array.fill(0)
        return array


@dataclass
class _OutputMemory:
    """The memory of one output's arrays."""

    size: int
    is_cleared: bool
    memories: list[Array] = field(default_factory=list)

    def free_memory(self) -> tuple[Array, bool]:
        """Memory that no array lies in, and whether it is new; new memory is zeros."""
        for at in range(len(self.memories)):
            if _references(self.memories, at) == _UNSHARED:
                return self.memories[at], False
        memory = np.zeros(self.size + PAGE_BYTES, np.uint8)
        self.memories.append(memory)
        del self.memories[:-MOST_KEPT]  # whoever has arrays there keeps them
        return memory, True


def _references(arrays: list[Array], at: int) -> int:
    """How often an array of a list is referred to; every view of an array refers to the array."""
    return sys.getrefcount(arrays[at])


_UNSHARED = _references([np.zeros(1, np.uint8)], 0)
_COUNTS_REFERENCES = (
    sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
)
