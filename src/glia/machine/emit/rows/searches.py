"""Searches of rows: one row to a partition, along the free dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from glia.base.affine import ZERO, Affine
from glia.base.dtype import F32, S32, U32, DType
from glia.isa.instructions.gpsimd_gather import NcNGather
from glia.isa.instructions.vector import Memset
from glia.isa.instructions.vector_statistics import FindIndex8, MatchReplace8, Max8
from glia.isa.operand import Dims, Memory, Pattern, Tile, merged, whole_tile
from glia.machine.emit.block_builder import BlockBuilder
from glia.machine.emit.layout import Point, tile_pattern

EIGHT = 8  # elements that one instruction finds
MOST_UNROLLED = 16  # searches for eight elements; of more there is a loop
BELOW = -math.inf  # below every element that has a place


@dataclass(frozen=True)
class RowSearch:
    """Emits the instructions that search rows."""

    builder: BlockBuilder

    def pick(self, row: Pattern, places: Pattern, result: Point) -> Pattern:
        """The elements of rows at places, which have no replicated dimensions, over a point."""
        tile = self._tile("picked", row.dtype, result, math.prod(result.extents(result.free)))
        indices = replace(places, dtype=U32)
        data, indices = (replace(each, dims=_with_free(each.dims)) for each in (row, indices))
        loc = self.builder.loc
        self.builder.emit(
            NcNGather(dst=whole_tile(tile), data=data, indices=indices, on="gpsimd", loc=loc)
        )
        return tile_pattern(tile, result, result.free)

    def places(self, row: Point, result: Point, fill: Callable[[Pattern], None]) -> Pattern:
        """Where the greatest of the elements are that `fill` computes over the point of a row.

        Eight are found at a time, and put below all others.
        """
        count, wanted = (math.prod(each.extents(each.free)) for each in (row, result))
        blocks = -(-wanted // EIGHT)
        work = self._tile("row", F32, result, max(count, EIGHT))
        if count < EIGHT:
            loc = self.builder.loc
            self.builder.emit(Memset(dst=whole_tile(work), value=BELOW, on="vector", loc=loc))
        fill(tile_pattern(work, row, row.free))
        eight = self._tile("eight", F32, result, EIGHT)
        found = self._tile("places", U32, result, blocks * EIGHT)
        if blocks - 1 > MOST_UNROLLED:
            with self.builder.loop(blocks - 1) as block:
                self._find_eight(work, eight, _eight_of(found, block), is_last=False)
        else:
            for number in range(blocks - 1):
                self._find_eight(work, eight, _eight_of(found, number), is_last=False)
        self._find_eight(work, eight, _eight_of(found, blocks - 1), is_last=True)
        return replace(tile_pattern(found, result, result.free), dtype=S32)

    def _find_eight(self, work: Tile, eight: Tile, found: Pattern, *, is_last: bool) -> None:
        """Find where the eight greatest are; what follows does not find them again.

        Of equal values the last of the eight takes the first place in what an instruction replaces,
        so that it gets them in reverse.
        """
        loc, data, values = self.builder.loc, whole_tile(work), whole_tile(eight)
        self.builder.emit(Max8(dst=values, data=data, on="vector", loc=loc))
        if is_last:
            self.builder.emit(FindIndex8(dst=found, data=data, vals=values, on="vector", loc=loc))
            return
        self.builder.emit(
            MatchReplace8(
                dst=data, index=_reversed(found), data=data, vals=_reversed(values), imm=BELOW,
                on="vector", loc=loc,
            )
        )  # fmt: skip

    def _tile(self, stem: str, dtype: DType, point: Point, elements: int) -> Tile:
        return self.builder.tile(stem, Memory.SBUF, dtype, point.partitions, elements)


def _eight_of(tile: Tile, block: Affine | int) -> Pattern:
    """Eight elements of a tile in each partition."""
    offset = ZERO + block * EIGHT
    return replace(whole_tile(tile), dims=((1, tile.partitions), (1, EIGHT)), offset=offset)


def _reversed(eight: Pattern) -> Pattern:
    """The same elements, last first."""
    rows, _ = eight.dims
    return replace(eight, dims=(rows, (-1, EIGHT)), offset=eight.offset + (EIGHT - 1))


def _with_free(dims: Dims) -> Dims:
    """Dimensions with one free at least, neighbours that step evenly made one."""
    return (dims[0], *(merged(dims[1:]) or ((1, 1),)))
