"""Which elements of PSUM hold sums of products: products accumulate there and overwrite others."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glia.arch import Arch
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Tile, reach
from glia.nki.names.language_errors import advise

ACCUMULATES_UNWRITTEN = (
    "this product accumulates into PSUM elements that no product has written, which is undefined "
    "before generation 4: let the first product overwrite (accumulate=False, or None)"
)
Footprint = tuple[int, tuple[tuple[int, int], ...], int, int]  # (bytes, dims, offset, partition)


@dataclass
class _TileState:
    """The flags of one tile: one for each footprint while these are disjoint, else per byte."""

    by_footprint: dict[Footprint, bool] = field(default_factory=dict)
    by_byte: np.ndarray | None = None


class AccumulationState:
    """Which elements of each PSUM tile were last written by products.

    `latest` maps a tile to the pattern written last, where that was by a product.
    """

    def __init__(self) -> None:
        self.latest: dict[str, Pattern] = {}
        self._states: dict[str, _TileState] = {}

    def mark(self, pattern: Pattern, is_sum: bool) -> None:
        """Record that a product (`is_sum`) or another instruction has written the elements."""
        name = pattern.tile.name
        if is_sum and self.latest.get(name) is pattern:
            return
        state = self._states.get(name)
        if state is None:
            if not is_sum:
                return
            state = self._states[name] = _TileState()
        if is_sum:
            self.latest[name] = pattern
        else:
            self.latest.pop(name, None)
        footprint = _footprint(pattern)
        if _is_disjoint(state, footprint):
            state.by_footprint[footprint] = is_sum
        else:
            _byte_flags(state, pattern)[...] = is_sum

    def write(self, pattern: Pattern, instr: Instr, arch: Arch) -> None:
        """Record a write; warns where a product accumulates into elements without a sum."""
        is_sum = bool(instr.sums) and instr.is_sum
        has_any_value = arch.capabilities.has_accumulation_on_any_value
        adds = is_sum and not has_any_value and getattr(instr, "accumulate", None)
        if adds and self.has_sum(pattern) is False:
            advise(ACCUMULATES_UNWRITTEN, instr.loc)
        self.mark(pattern, is_sum)

    def has_sum(self, pattern: Pattern) -> bool | None:
        """Whether all (True), none (False) or some (None) elements hold sums of products."""
        name = pattern.tile.name
        if self.latest.get(name) is pattern:
            return True
        state = self._states.get(name)
        if state is None:
            return False
        footprint = _footprint(pattern)
        if _is_disjoint(state, footprint):
            return state.by_footprint.get(footprint, False)
        held = _byte_flags(state, pattern)
        return bool(held.all()) if held.all() == held.any() else None

    def elements(self, pattern: Pattern) -> np.ndarray:
        """For every element of the pattern whether it holds a sum."""
        state = self._states.setdefault(pattern.tile.name, _TileState())
        return np.asarray(_byte_flags(state, pattern).all(axis=-1))


def _footprint(pattern: Pattern) -> Footprint:
    offset, partition = pattern.offset.constant, pattern.partition.constant
    return pattern.dtype.bytes, pattern.dims, offset, partition


def _is_disjoint(state: _TileState, footprint: Footprint) -> bool:
    """Whether it equals one of the known footprints or overlaps none of them."""
    if state.by_byte is not None:
        return False
    return footprint in state.by_footprint or not any(
        _overlap(footprint, known) for known in state.by_footprint
    )


def _overlap(first: Footprint, second: Footprint) -> bool:
    return all(
        low_a < high_b and low_b < high_a
        for (low_a, high_a), (low_b, high_b) in zip(_box(first), _box(second), strict=True)
    )


def _box(footprint: Footprint) -> tuple[tuple[int, int], tuple[int, int]]:
    """The ranges of bytes and of partitions that a footprint lies in."""
    width, dims, offset, partition = footprint
    low, high = reach(dims[1:])
    rows = reach(dims[:1])
    return (
        ((offset + low) * width, (offset + high + 1) * width),
        (partition + rows[0], partition + rows[1] + 1),
    )


def _byte_flags(state: _TileState, pattern: Pattern) -> np.ndarray:
    """A writable view of the pattern's flags; the last axis is the bytes of an element."""
    tile = pattern.tile
    if state.by_byte is None:
        state.by_byte = np.zeros((tile.partitions, tile.bytes_per_partition), dtype=bool)
        for footprint, is_sum in state.by_footprint.items():
            _strided_flags(state.by_byte, tile, footprint)[...] = is_sum
        state.by_footprint.clear()
    return _strided_flags(state.by_byte, tile, _footprint(pattern))


def _strided_flags(by_byte: np.ndarray, tile: Tile, footprint: Footprint) -> np.ndarray:
    width, ((step, rows), *free), offset, partition = footprint
    strides = (step * tile.bytes_per_partition, *(each * width for each, _ in free), 1)
    shape = (rows, *(count for _, count in free), width)
    return np.lib.stride_tricks.as_strided(by_byte[partition:, offset * width :], shape, strides)
