"""The time lines of a run as a bounded number of slices that a picture or a trace can show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from glia.isa.kit import ENGINES
from glia.timing.costs import PS
from glia.timing.simulate import Timing
from glia.timing.spans import Spans, merge_spans


@dataclass(frozen=True)
class TrackSlice:
    """One execution, or a block of `count` that are too short to be shown by themselves.

    `busy_ns` is the sum over its executions, of a block less than its length where the engine was
    idle in between, and more where transfers overlap. `step` is that of the longest. Slices of one
    lane of a track do not overlap.
    """

    track: str
    lane: int
    start_ns: float
    end_ns: float
    step: int
    count: int
    busy_ns: float

    @property
    def is_block(self) -> bool:
        """Whether it stands for several executions."""
        return self.count > 1


def slices_of(timing: Timing, limit: int, lanes: int) -> tuple[TrackSlice, ...]:
    """Every execution of a run in at most about `limit` slices, by start.

    Engines have one lane, queues up to `lanes`: what is in flight beyond them joins the slice that
    ends first.
    """
    run = timing.executions
    if run is None:
        return ()
    merged = merge_spans(run.spans(), run.facts.track, limit)
    placing = _LanePlacement()
    for row in _rows(merged):
        track = int(run.facts.track[row.step])
        placing.add(track, row, 1 if track < len(ENGINES) else lanes)
    found = [
        TrackSlice(
            run.tracks[track], lane, row.start / PS, row.end / PS, row.step, row.count,
            row.busy / PS,
        )
        for (track, lane), rows in placing.rows.items()
        for row in rows
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda each: (each.start_ns, each.track, each.lane)))


def lanes_of(slices: Sequence[TrackSlice]) -> dict[str, int]:
    """The number of lanes of every track that has slices."""
    found: Counter[str] = Counter()
    for each in slices:
        found[each.track] = max(found[each.track], each.lane + 1)
    return dict(found)


@dataclass(frozen=True)
class _Row:
    step: int
    start: int
    end: int
    count: int
    busy: int
    longest: int  # of the spans that were joined into this one


def _rows(spans: Spans) -> list[_Row]:
    columns = (spans.step, spans.start, spans.end, spans.count, spans.busy, spans.end - spans.start)
    return [_Row(*values) for values in zip(*(c.tolist() for c in columns), strict=True)]


class _LanePlacement:
    """Gives spans, which come by start, the lowest lane that is free."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], list[_Row]] = {}

    def add(self, track: int, row: _Row, lanes: int) -> None:
        """Place one span on a track of up to `lanes` lanes."""
        first, earliest = 0, None
        for lane in range(lanes):
            placed = self.rows.get((track, lane))
            if placed is None or placed[-1].end <= row.start:
                self.rows.setdefault((track, lane), []).append(row)
                return
            if earliest is None or placed[-1].end < earliest:
                first, earliest = lane, placed[-1].end
        placed = self.rows[track, first]
        placed[-1] = _joined(placed[-1], row)


def _joined(one: _Row, other: _Row) -> _Row:
    longer = max(one, other, key=lambda row: row.longest)
    return replace(
        longer,
        start=one.start,
        end=max(one.end, other.end),
        count=one.count + other.count,
        busy=one.busy + other.busy,
    )
