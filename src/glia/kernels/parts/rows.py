"""How kernels go over rows: tiles of several rows per partition, and buffers used in turn.

A transfer is fast when it uses all partitions, because each DMA engine serves eight of them, and
moves a few KiB of each, because a descriptor has a cost of its own. Rows that are shorter are put
on a partition by several.
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


def ceiling(value: int, divisor: int) -> int:
    """value / divisor rounded up."""
    return -(-value // divisor)


def split(extent: int, most: int) -> Iterator[tuple[int, int]]:
    """(start, count) of the pieces of at most `most` that an extent is cut into."""
    for start in range(0, extent, most):
        yield start, min(most, extent - start)


def row_tiles(rows: int, most: int) -> Iterator[tuple[int, int, int]]:
    """(first row, partitions, rows of each partition) of tiles that together cover all rows.

    A partition has at most `most` rows, fewer where that lets more partitions take part.
    """
    done = 0
    while done < rows:
        each = max(1, min(most, ceiling(rows - done, nl.tile_size.pmax)))
        partitions = min(nl.tile_size.pmax, (rows - done) // each)
        yield done, partitions, each
        done += partitions * each


def clear_border(
    tile: NkiTensor, first: tuple[int, int], extents: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Write zeros where a tile [P, rows, columns] lies outside of an image of these extents.

    `first` is the image row and column of the tile's first element. Returns the (start, end) of
    rows and columns of the tile that lie inside, which may be none.
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


class Ring:
    """Buffers of one shape on chip, used in turn.

    While an engine works on one, the others are being loaded or stored; an instruction waits only
    for what used the same buffer `count` turns before.
    """

    def __init__(
        self, count: int, shape: tuple[int, ...], dtype: str, buffer: MemoryRegion = nl.sbuf
    ) -> None:
        self.shape = shape
        self._buffers = [nl.ndarray(shape, dtype, buffer=buffer) for _ in range(count)]
        self._turn = 0

    def next(self) -> NkiTensor:
        """The buffer whose turn it is."""
        self._turn += 1
        return self._buffers[(self._turn - 1) % len(self._buffers)]
