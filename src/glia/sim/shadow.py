"""Which execution wrote each byte of a buffer last, and which read it since, stream by stream.

Beside every few bytes stands the number of an execution. A table with one entry for each stream
and block of addresses says what could at most stand there, so that an access whose past is known
is checked without looking at its bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.isa.operand import Pattern
from glia.sim.execution import Clock
from glia.sim.memory import Region

Array = np.ndarray[Any, Any]

ON_CHIP_BLOCK_BYTES = 512
MOST_BLOCKS = 1024  # of a buffer in HBM
SMALLEST_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of one access, all in `data`; blocks first..last-1 of the table hold them."""

    data: Array
    offset: int  # of the first element in the buffer
    first: int
    last: int


class Shadow:
    """The numbers kept beside one buffer."""

    def __init__(self, region: Region, streams: int, granule: int) -> None:
        size = region.buffer.size
        self.region = region
        self._granule = granule
        self._is_on_chip = region.pitch > 0
        self._pitch = region.pitch or max(1, size)
        self._block = (
            ON_CHIP_BLOCK_BYTES
            if self._is_on_chip
            else max(SMALLEST_BLOCK_BYTES, -(-size // MOST_BLOCKS))
        )
        blocks = -(-self._pitch // self._block) + 1
        self._cells = -(-size // granule) + 1
        self._address = _address(region.buffer)
        self._writes = np.zeros(self._cells, np.int32)
        self._reads: dict[int, Array] = {}
        self.latest_writes = np.zeros((streams, blocks), np.int64)
        self.latest_reads = np.zeros((streams, blocks), np.int64)

    def span(self, data: Array) -> Span:
        """Where a view of the buffer lies."""
        offset = _address(data) - self._address
        shape, strides = data.shape, data.strides
        if self._is_on_chip:
            shape, strides = shape[1:], strides[1:]
        reaches = [step * (count - 1) for step, count in zip(strides, shape, strict=True)]
        column = offset % self._pitch
        low = column + sum(min(0, reach) for reach in reaches)
        high = column + sum(max(0, reach) for reach in reaches) + data.itemsize - 1
        return Span(data, offset, low // self._block, high // self._block + 1)

    def unknown_writes(self, span: Span, clock: Clock) -> bool:
        """Whether something not known at `clock` may have written bytes of the span."""
        return _exceeds(self.latest_writes[:, span.first : span.last], clock)

    def unknown_reads(self, span: Span, clock: Clock) -> Iterator[int]:
        """The streams of which something not known at `clock` may have read bytes of the span."""
        latest = self.latest_reads[:, span.first : span.last].max(axis=1)
        yield from np.flatnonzero(latest > clock).tolist()

    def writes(self, span: Span) -> Array:
        """The numbers of the last writes of the span's bytes, as a view."""
        return self._cells_of(self._writes, span)

    def reads(self, span: Span, stream: int) -> Array:
        """The numbers of a stream's last reads of the span's bytes, as a view."""
        if stream not in self._reads:
            self._reads[stream] = np.zeros(self._cells, np.int32)
        return self._cells_of(self._reads[stream], span)

    def note_write(self, span: Span, stream: int, number: int) -> None:
        """Note that an execution writes the span."""
        self.writes(span)[...] = number
        self.latest_writes[stream, span.first : span.last] = number

    def note_read(self, span: Span, stream: int, number: int) -> None:
        """Note that an execution reads the span."""
        self.reads(span, stream)[...] = number
        self.latest_reads[stream, span.first : span.last] = number

    def bytes_of(self, span: Span, chosen: Array) -> tuple[tuple[int, int], tuple[int, int]]:
        """((first, last) byte, (first, last) partition) of the span's cells where `chosen`.

        On chip bytes count from the start of the partition, in HBM from that of the buffer.
        """
        flat = np.array(span.offset)
        for stride, count in zip(span.data.strides, span.data.shape, strict=True):
            flat = flat[..., None] + np.arange(count) * stride
        if chosen.ndim > flat.ndim:
            chosen = chosen.any(axis=-1)
        flat = flat[chosen]
        columns, rows = flat % self._pitch, flat // self._pitch
        last = int(columns.max()) + span.data.itemsize - 1
        return (int(columns.min()), last), (int(rows.min()), int(rows.max()))

    def _cells_of(self, plane: Array, span: Span) -> Array:
        granule, data = self._granule, span.data
        width = plane.itemsize
        strides = tuple(width * (stride // granule) for stride in data.strides)
        shape = data.shape
        if data.itemsize > granule:
            shape, strides = (*shape, data.itemsize // granule), (*strides, width)
        return np.ndarray(shape, plane.dtype, plane, width * (span.offset // granule), strides)


def granule_of(accesses: Iterable[tuple[Pattern, Region]]) -> int:
    """The most bytes, at most four, that all accesses take, skip and start at whole."""
    granule = 4
    for pattern, region in accesses:
        granule = math.gcd(granule, pattern.dtype.bytes, region.start, region.pitch)
    return granule


def _exceeds(latest: Array, clock: Clock) -> bool:
    return bool((latest.max(axis=1) > clock).any())


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
