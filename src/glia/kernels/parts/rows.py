"""Iteration over rows: tiles with several rows per partition, and rotating buffers.

A transfer is fast when it uses all partitions, because each DMA engine serves eight of them, and
moves a few KiB of each, because every descriptor has a fixed cost. Several short rows share a
partition.
"""

from __future__ import annotations

from collections.abc import Iterator

from glia.nki import isa as nisa
from glia.nki import language as nl
from glia.nki.language import MemoryRegion, NkiTensor
from glia.nki.names.dtypes import DTYPES

TRANSFER_BYTES = 8192  # of a partition in one transfer


def bytes_of(dtype: str) -> int:
    """Bytes of one element."""
    return DTYPES[dtype].bytes


def ceil_div(value: int, divisor: int) -> int:
    """value / divisor rounded up."""
    return -(-value // divisor)


def split(extent: int, most: int) -> Iterator[tuple[int, int]]:
    """(start, count) of consecutive pieces of an extent, each of at most `most`."""
    for start in range(0, extent, most):
        yield start, min(most, extent - start)


def row_tiles(rows: int, most: int) -> Iterator[tuple[int, int, int]]:
    """(first row, partitions, rows of each partition) of tiles that cover all rows.

    A partition has at most `most` rows, fewer where that uses more partitions.
    """
    done = 0
    while done < rows:
        each = max(1, min(most, ceil_div(rows - done, nl.tile_size.pmax)))
        partitions = min(nl.tile_size.pmax, (rows - done) // each)
        yield done, partitions, each
        done += partitions * each


def clear_border(
    tile: NkiTensor, first: tuple[int, int], extents: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Write zeros to the part of a tile [P, rows, columns] outside an image of these extents.

    `first` is the image row and column of the tile's first element. Returns the (start, end) of
    rows and columns of the tile inside the image, possibly empty.
    """
    inside = [
        (min(max(0, -start), count), max(0, min(count, extent - start)))
        for start, count, extent in zip(first, tile.shape[1:], extents, strict=True)
    ]
    (y0, y1), (x0, x1) = inside
    rows, columns = tile.shape[1:]
    strips = (
        ((0, y0), (0, columns)),
        ((y1, rows), (0, columns)),
        ((y0, y1), (0, x0)),
        ((y0, y1), (x1, columns)),
    )
    for (top, bottom), (left, right) in strips:
        if top < bottom and left < right:
            nisa.memset(tile[:, top:bottom, left:right], 0, engine=nisa.gpsimd_engine)
    return inside


class BufferRing:
    """`count` on-chip buffers of one shape, used round-robin.

    While an engine works on one, others are loaded or stored; an instruction waits only for the
    last use of the same buffer.
    """

    def __init__(
        self, count: int, shape: tuple[int, ...], dtype: str, buffer: MemoryRegion = nl.sbuf
    ) -> None:
        self.shape = shape
        self._buffers = [nl.ndarray(shape, dtype, buffer=buffer) for _ in range(count)]
        self._position = 0

    def next(self) -> NkiTensor:
        """The next buffer."""
        self._position += 1
        return self._buffers[(self._position - 1) % len(self._buffers)]
