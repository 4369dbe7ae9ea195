"""When a semaphore reached each count, including counts inside iterations that were skipped."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(slots=True)
class _Segment:
    """Counts from `start` on: listed moments, or a repetition of the `units` counts before."""

    start: int
    moments: list[int]
    units: int = 0
    period: int = 0


class SemaphoreHistory:
    """The moments at which a semaphore reached 1, 2, 3 ... units, in program order of the signals.

    A later signal never counts before an earlier one: moments do not decrease.
    """

    __slots__ = ("_segments", "_starts", "first", "last", "moments")

    def __init__(self) -> None:
        self.moments: list[int] = []  # of counts first+1, first+2, ...
        self.first = 0
        self.last = 0
        self._segments: list[_Segment] = []
        self._starts: list[int] = []

    @property
    def count(self) -> int:
        """Units counted so far."""
        return self.first + len(self.moments)

    def add(self, moment: int, units: int) -> None:
        """Count `units` more at `moment`."""
        if moment < self.last:
            moment = self.last
        self.last = moment
        if units == 1:
            self.moments.append(moment)
        else:
            self.moments.extend([moment] * units)

    def moment(self, units: int) -> int:
        """When the count reached `units` >= 1; IndexError when it has not."""
        index = units - 1 - self.first
        if index >= 0:
            return self.moments[index]
        shift, index = 0, units - 1
        while True:
            segment = self._segments[bisect_right(self._starts, index) - 1]
            if not segment.units:
                return segment.moments[index - segment.start] + shift
            periods = (index - segment.start) // segment.units + 1
            index -= periods * segment.units
            shift += periods * segment.period

    def repeat(self, units: int, period: int, times: int) -> None:
        """Let the last `units` counts happen `times` more, `period` later each time."""
        self._close()
        self._append(_Segment(self.first, [], units, period))
        self.first += units * times
        self.last += period * times

    def _close(self) -> None:
        if self.moments:
            self._append(_Segment(self.first, self.moments))
            self.first += len(self.moments)
            self.moments = []

    def _append(self, segment: _Segment) -> None:
        self._segments.append(segment)
        self._starts.append(segment.start)
