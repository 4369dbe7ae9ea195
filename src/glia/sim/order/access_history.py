"""Which execution wrote each byte of a buffer last, and which read it since, stream by stream.

Beside every few bytes stands the number of an execution. A table with one entry for each stream
and block of addresses says what could at most stand there, so that an access whose past is known
is checked without looking at its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.sim.byte_tags import Cells
from glia.sim.memory import Region
from glia.sim.order.execution import Clock

Array = np.ndarray[Any, Any]

ON_CHIP_BLOCK_BYTES = 512
MOST_BLOCKS = 1024  # of a buffer in HBM
SMALLEST_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of one access, all in `data`; blocks first..last-1 of the table hold them.

    `rows` are the entries of the first dimension that it touches, None for all.
    """

    data: Array
    first: int
    last: int
    rows: Array | None = None

    @property
    def chosen(self) -> Any:
        """The index of what it touches."""
        return ... if self.rows is None else self.rows


class Shadow:
    """The numbers kept beside one buffer."""

    def __init__(self, region: Region, streams: int, granule: int) -> None:
        self._region = region
        self._granule = granule
        self._writes = Cells(region, granule)
        self._reads: dict[int, Cells] = {}
        size = self._writes.pitch
        is_on_chip = region.pitch > 0
        in_hbm = max(SMALLEST_BLOCK_BYTES, -(-size // MOST_BLOCKS))
        self._block = ON_CHIP_BLOCK_BYTES if is_on_chip else in_hbm
        self._outer = 1 if is_on_chip else 0  # dimensions that do not move within a partition
        blocks = -(-size // self._block) + 1
        self._latest_writes = np.zeros((streams, blocks), np.int64)
        self._latest_reads = np.zeros((streams, blocks), np.int64)

    def span(self, data: Array, rows: Array | None = None) -> Span:
        """Where (rows of) a view of the buffer lies."""
        inner = zip(data.strides[self._outer :], data.shape[self._outer :], strict=True)
        reaches = [step * (count - 1) for step, count in inner]
        column = self._writes.offset(data) % self._writes.pitch
        low = column + sum(min(0, reach) for reach in reaches)
        high = column + sum(max(0, reach) for reach in reaches) + data.itemsize - 1
        return Span(data, low // self._block, high // self._block + 1, rows)

    def unknown_writes(self, span: Span, clock: Clock) -> bool:
        """Whether something not known at `clock` may have written bytes of the span."""
        latest = self._latest_writes[:, span.first : span.last].max(axis=1)
        return bool((latest > clock).any())

    def unknown_reads(self, span: Span, clock: Clock) -> Iterator[int]:
        """The streams of which something not known at `clock` may have read bytes of the span."""
        latest = self._latest_reads[:, span.first : span.last].max(axis=1)
        yield from np.flatnonzero(latest > clock).tolist()

    def writes(self, span: Span) -> Array:
        """The numbers of the last writes of the span's bytes."""
        return self._writes.at(span.data)[span.chosen]

    def reads(self, span: Span, stream: int) -> Array:
        """The numbers of a stream's last reads of the span's bytes."""
        return self._reads[stream].at(span.data)[span.chosen]

    def note_write(self, span: Span, stream: int, number: int) -> None:
        """Note that an execution writes the span."""
        self._writes.at(span.data)[span.chosen] = number
        self._latest_writes[stream, span.first : span.last] = number

    def note_read(self, span: Span, stream: int, number: int) -> None:
        """Note that an execution reads the span."""
        if stream not in self._reads:
            self._reads[stream] = Cells(self._region, self._granule)
        self._reads[stream].at(span.data)[span.chosen] = number
        self._latest_reads[stream, span.first : span.last] = number

    def bytes_of(self, span: Span, chosen: Array) -> tuple[tuple[int, int], tuple[int, int]]:
        """((first, last) byte, (first, last) partition) of the span's cells where `chosen`."""
        whole = np.zeros(self._writes.at(span.data).shape, np.bool_)
        whole[span.chosen] = chosen
        return self._writes.bytes_of(span.data, whole)
