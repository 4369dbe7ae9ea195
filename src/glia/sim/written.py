"""Which bytes of the memories have been written: the shadow behind the uninitialised-read check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from glia.isa.operand import Pattern, Tile
from glia.sim.memory import Environment, Memories, Region, viewer

Array = np.ndarray[Any, Any]


class WrittenBytes:
    """A shadow of every buffer: all ones where a byte has been written."""

    def __init__(self, memories: Memories) -> None:
        self._memories = memories
        self._shadows: dict[int, Array] = {}

    def mark_tile(self, tile: Tile) -> None:
        """Note that all of an HBM tile has been written."""
        shadow = self._shadow(tile)
        shadow.buffer[shadow.start : shadow.start + tile.bytes] = 0xFF

    def marker(self, pattern: Pattern) -> Callable[[Environment], None]:
        """A function that notes that the pattern has been written."""
        view = self._view(pattern)

        def mark(environment: Environment) -> None:
            target = view(environment)
            target[...] = target.dtype.type(-1 & ((1 << (8 * target.itemsize)) - 1))

        return mark

    def unwritten(self, pattern: Pattern) -> Callable[[Environment], int]:
        """A function that counts the pattern's elements with a byte never written."""
        view = self._view(pattern)

        def count(environment: Environment) -> int:
            shadow = view(environment)
            return int(np.count_nonzero(shadow != np.iinfo(shadow.dtype).max))

        return count

    def _view(self, pattern: Pattern) -> Callable[[Environment], Array]:
        dtype = np.dtype(f"u{pattern.dtype.bytes}")
        return viewer(pattern, self._shadow(pattern.tile), dtype)

    def _shadow(self, tile: Tile) -> Region:
        region = self._memories.region(tile)
        key = id(region.buffer)
        if key not in self._shadows:
            self._shadows[key] = np.zeros_like(region.buffer)
        return Region(self._shadows[key], region.start, region.pitch)
