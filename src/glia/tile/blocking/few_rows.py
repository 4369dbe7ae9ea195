"""Products of few rows: a matrix of weights that is read once, and little beside it.

Their time is that of bringing the weights in, which goes at the full rate only where runs in HBM
are as long as a packet, and transfers are large enough to hide how each begins and ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from glia.arch import Arch
from glia.tile.blocking.wide_tiles import can_widen, instruction_width
from glia.tile.contraction import PARTITIONS, axes_of
from glia.tile.ir import Load, Nest

TRANSFER_BYTES = 1024 * 1024  # of weights, brought in at once
BANKS = 4  # of PSUM, for the sums of one iteration: as many are left for the next one's


def wide_tiles(
    nest: Nest,
    tiles: Mapping[str, int],
    rows: str,
    contract: str,
    operands: tuple[Load, Load],
    arch: Arch,
) -> dict[str, int]:
    """The tiles of a contraction, wider along the rows of weights in HBM that are read once.

    `tiles` are those of single instructions, and `operands` the stationary and the moving one. The
    axis `rows` lies on the partitions of the result; another one of the stationary operand that
    stays takes one value in an instruction.
    """
    extents, fixed = nest.extents, axes_of(operands[0]) - {rows}
    parallel = [axis.name for axis in nest.parallel_axes]
    for weights in operands:
        inner = weights.index[-1]
        axis = next(iter(inner.variables), "")
        others = math.prod(extents[a] for a in parallel if a not in axes_of(weights))
        own = math.prod(extents[a] for a in parallel if a in axes_of(weights))
        if inner.terms != ((axis, 1),) or others > PARTITIONS or others >= own:
            continue
        found = dict(tiles)
        if axis == contract:
            found[axis] = _turned_tile(nest, tiles, axis, weights, arch)
        elif axis in parallel and axis not in fixed:
            found[axis] = _wide_tile(nest, tiles, axis, axis == rows, weights, arch)
            if found[axis] > tiles[axis]:
                found[contract] = _deep_tile(nest, found, axis, contract, weights)
        if found != tiles:
            return found
    return dict(tiles)


def _turned_tile(nest: Nest, tiles: Mapping[str, int], axis: str, weights: Load, arch: Arch) -> int:
    """The extent of a contracted axis along HBM, which is transposed on its way, in packets."""
    extent = nest.extents[axis]
    if extent % PARTITIONS or not can_widen(nest, axis):
        return tiles[axis]
    run = arch.dma_packet_bytes // weights.dtype.bytes
    return PARTITIONS * max(1, min(extent, run) // PARTITIONS)


def _wide_tile(
    nest: Nest, tiles: Mapping[str, int], axis: str, is_rows: bool, weights: Load, arch: Arch
) -> int:
    """The extent of an axis whose run in HBM is a packet, as far as PSUM holds the sums."""
    extent = nest.extents[axis]
    most = PARTITIONS if is_rows else arch.moving_columns
    width = instruction_width(extent, extent, most)
    if not can_widen(nest, axis) or (is_rows and width < PARTITIONS) or width < tiles[axis] // 2:
        return tiles[axis]
    columns = math.prod(tiles[a.name] for a in nest.parallel_axes if a.name not in axes_of(weights))
    blocks = BANKS * arch.moving_columns // columns if is_rows else BANKS
    run = arch.dma_packet_bytes // weights.dtype.bytes
    return width * max(1, min(extent // width, run // width, blocks))


def _deep_tile(
    nest: Nest, tiles: Mapping[str, int], axis: str, contract: str, weights: Load
) -> int:
    """The extent of the contracted axis with which a transfer is large enough."""
    extent = nest.extents[contract]
    if extent % PARTITIONS or not can_widen(nest, contract):
        return tiles[contract]
    block_bytes = PARTITIONS * tiles[axis] * weights.dtype.bytes
    return PARTITIONS * max(1, min(extent // PARTITIONS, TRANSFER_BYTES // block_bytes))
