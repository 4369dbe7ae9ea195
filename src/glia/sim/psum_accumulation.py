"""Which elements of PSUM hold a matrix product that later products accumulate onto."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from glia.base.errors import InternalError
from glia.isa.operand import Memory, Pattern, Tile
from glia.sim.memory import Environment, Memories, Region, viewer

Array = np.ndarray[Any, Any]
MAX_TILES = 0xFFFF


class AccumulationShadow:
    """A shadow of PSUM: for each element the number of the tile through which a product wrote it.

    Tiles that share an address start accumulation separately; any other write to an element ends
    its accumulation.
    """

    def __init__(self, memories: Memories, tiles: Mapping[str, Tile]) -> None:
        self._memories = memories
        names = [name for name, tile in tiles.items() if tile.memory is Memory.PSUM]
        if len(names) > MAX_TILES:
            raise InternalError(f"{len(names)} tiles in PSUM are more than {MAX_TILES}")
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._shadows: dict[int, Array] = {}

    def accumulating_mask(
        self, pattern: Pattern, shape: tuple[int, ...]
    ) -> Callable[[Environment], Array]:
        """A function that gives the mask, in `shape`, of elements with products of the tile."""
        view, tag = self._view(pattern), self._tag(pattern)
        return lambda environment: np.reshape(view(environment) == tag, shape)

    def idle_element_counter(self, pattern: Pattern) -> Callable[[Environment], int]:
        """A function that counts the elements that hold no product of any tile."""
        view = self._view(pattern)
        return lambda environment: int(np.count_nonzero(view(environment) == 0))

    def marker(self, pattern: Pattern, is_sum: bool) -> Callable[[Environment], None]:
        """A function that records a write of the pattern, by a product (`is_sum`) or otherwise."""
        view, tag = self._view(pattern), self._tag(pattern) if is_sum else 0

        def mark(environment: Environment) -> None:
            view(environment)[...] = tag

        return mark

    def _tag(self, pattern: Pattern) -> int:
        """The tile's 16-bit number repeated to the element's width."""
        number = self._numbers[pattern.tile.name]
        return int.from_bytes((number.to_bytes(2, "little") * 4)[: pattern.dtype.bytes], "little")

    def _view(self, pattern: Pattern) -> Callable[[Environment], Array]:
        region = self._memories.region(pattern.tile)
        key = id(region.buffer)
        if key not in self._shadows:
            self._shadows[key] = np.zeros_like(region.buffer)
        shadow = Region(self._shadows[key], region.start, region.pitch)
        return viewer(pattern, shadow, np.dtype(f"u{pattern.dtype.bytes}"))
