"""The last write of each byte of a buffer, and the last read since by each stream.

Where cores write the same bytes unordered, the last write of the other core is known too.

Shadow memory has the number of an execution for every few bytes. A table of the latest number by
stream and block of addresses bounds them, so that an ordered access is checked without a scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glia.sim.byte_tags import ByteTags
from glia.sim.memory import Region
from glia.sim.order.execution import Clock

Array = np.ndarray[Any, Any]

ON_CHIP_BLOCK_BYTES = 512
MAX_HBM_BLOCKS = 1024  # of a buffer in HBM
MIN_HBM_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class AccessSpan:
    """The bytes of one access: a view `data`, in blocks first..last-1 of the table.

    `rows` are the indices of the first dimension that are accessed, None for all.
    """

    data: Array
    first: int
    last: int
    rows: Array | None = None

    @property
    def index(self) -> Any:
        """The index of the accessed elements in `data`."""
        return ... if self.rows is None else self.rows


class AccessHistory:
    """The executions that last wrote and read each byte of one buffer."""

    def __init__(self, region: Region, streams: int, granule: int) -> None:
        self._region = region
        self._granule = granule
        self._writes = ByteTags(region, granule)
        self._contested: ByteTags | None = None
        self._changes: ByteTags | None = None
        self._reads: dict[int, ByteTags] = {}
        size = self._writes.pitch
        is_on_chip = region.pitch > 0
        in_hbm = max(MIN_HBM_BLOCK_BYTES, -(-size // MAX_HBM_BLOCKS))
        self._block = ON_CHIP_BLOCK_BYTES if is_on_chip else in_hbm
        self._outer = 1 if is_on_chip else 0  # dimensions that do not move within a partition
        blocks = -(-size // self._block) + 1
        self._last_writes = np.zeros((streams, blocks), np.int64)
        self._last_reads = np.zeros((streams, blocks), np.int64)

    def span(self, data: Array, rows: Array | None = None) -> AccessSpan:
        """The span of (rows of) a view of the buffer."""
        inner = zip(data.strides[self._outer :], data.shape[self._outer :], strict=True)
        reaches = [step * (count - 1) for step, count in inner]
        column = self._writes.offset(data) % self._writes.pitch
        low = column + sum(min(0, reach) for reach in reaches)
        high = column + sum(max(0, reach) for reach in reaches) + data.itemsize - 1
        return AccessSpan(data, low // self._block, high // self._block + 1, rows)

    def unknown_writes(self, span: AccessSpan, clock: Clock) -> bool:
        """Whether a write of the span's blocks is not ordered before `clock`."""
        latest = self._last_writes[:, span.first : span.last].max(axis=1)
        return bool((latest > clock).any())

    def unknown_reads(self, span: AccessSpan, clock: Clock) -> Iterator[int]:
        """The streams with a read of the span's blocks that is not ordered before `clock`."""
        latest = self._last_reads[:, span.first : span.last].max(axis=1)
        yield from np.flatnonzero(latest > clock).tolist()

    def writes(self, span: AccessSpan) -> Array:
        """The executions that last wrote the span's bytes."""
        numbers: Array = self._writes.at(span.data)[span.index]
        return numbers

    def reads(self, span: AccessSpan, stream: int) -> Array:
        """The executions of a stream that last read the span's bytes."""
        numbers: Array = self._reads[stream].at(span.data)[span.index]
        return numbers

    def contested_writes(self, span: AccessSpan) -> Array | None:
        """The other core's last writes of the span's bytes, unordered with the last; 0 for none."""
        if self._contested is None:
            return None
        numbers: Array = self._contested.at(span.data)[span.index]
        return numbers

    def changes(self, span: AccessSpan) -> Array:
        """The moments at which the span's bytes last changed, 0 for never."""
        if self._changes is None:
            self._changes = ByteTags(self._region, self._granule)
        moments: Array = self._changes.at(span.data)[span.index]
        return moments

    def note_change(self, span: AccessSpan, changed: Array, moment: int) -> None:
        """Record that the elements of a span where `changed` did so at a moment."""
        moments = self.changes(span)
        chosen = changed[..., None] if moments.ndim > changed.ndim else changed
        moments = np.where(chosen, moment, moments)
        assert self._changes is not None
        self._changes.at(span.data)[span.index] = moments

    def note_write(
        self, span: AccessSpan, stream: int, number: int, contested: Array | None = None
    ) -> None:
        """Record a write of the span, and by byte the unordered writes of the other core."""
        if contested is not None and self._contested is None:
            self._contested = ByteTags(self._region, self._granule)
        if self._contested is not None:
            others = 0 if contested is None else contested
            self._contested.at(span.data)[span.index] = others
        self._writes.at(span.data)[span.index] = number
        self._last_writes[stream, span.first : span.last] = number

    def note_read(self, span: AccessSpan, stream: int, number: int) -> None:
        """Record a read of the span."""
        if stream not in self._reads:
            self._reads[stream] = ByteTags(self._region, self._granule)
        self._reads[stream].at(span.data)[span.index] = number
        self._last_reads[stream, span.first : span.last] = number

    def bytes_of(self, span: AccessSpan, chosen: Array) -> tuple[tuple[int, int], tuple[int, int]]:
        """((first, last) byte, (first, last) partition) of the span's bytes where `chosen`."""
        whole = np.zeros(self._writes.at(span.data).shape, np.bool_)
        whole[span.index] = chosen
        return self._writes.bytes_of(span.data, whole)
