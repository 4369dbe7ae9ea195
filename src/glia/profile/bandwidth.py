"""HBM traffic over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glia.machine.columns.value_numbering import Array
from glia.timing.costs import PS
from glia.timing.simulate import Timing

INTERVALS = 400


@dataclass(frozen=True)
class Bandwidth:
    """Bytes per nanosecond to and from HBM, in equal intervals from the start of the program."""

    begin_ns: float
    interval_ns: float
    read: tuple[float, ...]
    written: tuple[float, ...]

    def to_dict(self) -> dict[str, object]:
        """In JSON's types; three decimals are a kilobyte in a millisecond."""
        return {
            "begin_ns": self.begin_ns,
            "interval_ns": self.interval_ns,
            "read_gbps": [round(each, 3) for each in self.read],
            "written_gbps": [round(each, 3) for each in self.written],
        }


def hbm_bandwidth(timing: Timing, intervals: int = INTERVALS) -> Bandwidth:
    """The traffic of a run, each transfer's spread evenly over the time from its start to its end.

    The sum over the intervals is all that was moved. A run without traffic has no intervals.
    """
    run = timing.executions
    spans = run.spans() if run is not None else None
    if spans is None or not (spans.read.any() or spans.written.any()):
        return Bandwidth(timing.begin_ns, 0.0, (), ())
    begin, end = int(spans.start.min()), int(max(spans.end.max(), spans.start.max() + 1))
    edges = np.linspace(begin, end, intervals + 1)
    width = (end - begin) / intervals / PS
    rates = [
        tuple((np.diff(_moved_until(edges, spans.start, spans.end, moved)) / width).tolist())
        for moved in (spans.read, spans.written)
    ]
    return Bandwidth(begin / PS, width, *rates)


def _moved_until(moments: Array, start: Array, end: Array, moved: Array) -> Array:
    """The bytes moved before each of the ascending moments."""
    rows = np.flatnonzero(moved)
    if not rows.size:
        return np.zeros(moments.size)
    start, length = start[rows], np.maximum(end[rows] - start[rows], 1)
    rate = moved[rows] / length
    turns = np.concatenate([start, start + length])
    order = np.argsort(turns, kind="stable")
    turns, slope = turns[order], np.cumsum(np.concatenate([rate, -rate])[order])
    total = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(turns))])
    found: Array = np.interp(moments, turns, total)
    return found
