"""Executions as columns: each by itself while they are few, then merged without losing any.

A span is a stretch of one time line with the executions in it: how many, how long they were busy in
total, what they moved. Times are picoseconds. Merging joins neighbours that are short, so that a
run of any length has a bounded number of spans whose sums are those of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from glia.isa.kit import ENGINES, Instr
from glia.machine.columns.table import Columns
from glia.machine.columns.value_numbering import Array
from glia.timing.costs import Costs
from glia.timing.registers import EVENT_WORDS

PIECE_SPANS = 2_000  # that events without a row of their own are merged to, a buffer at a time
MAX_BLOCKS = 50_000  # before they are merged to half as many


SUMS = ("count", "busy", "read", "written")


@dataclass(frozen=True)
class StepFacts:
    """What every execution of a step has in common, by step; tracks are engines, then queues."""

    track: Array
    read: Array  # bytes from HBM
    written: Array  # bytes to HBM

    @classmethod
    def of(cls, costs: Costs) -> StepFacts:
        """The facts of all steps of a plan."""
        tracks, read, written = [], [], []
        for cost in costs.distinct:
            tracks.append(cost.engine if cost.queue < 0 else len(ENGINES) + cost.queue)
            read.append(cost.transfer.read_bytes if cost.transfer else 0)
            written.append(cost.transfer.written_bytes if cost.transfer else 0)
        return cls(*(np.array(each, np.int64)[costs.number] for each in (tracks, read, written)))


def _none() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Spans:
    """One row for each span, ascending by start where nothing else is said.

    `step` is what the longest of its executions ran, and says on which track the span lies.
    """

    step: Array = field(default_factory=_none)
    start: Array = field(default_factory=_none)
    end: Array = field(default_factory=_none)
    count: Array = field(default_factory=_none)  # executions
    busy: Array = field(default_factory=_none)  # the sum over them, also where they overlap
    read: Array = field(default_factory=_none)  # bytes from HBM
    written: Array = field(default_factory=_none)  # bytes to HBM

    def __len__(self) -> int:
        return int(self.step.size)

    def take(self, rows: Array) -> Spans:
        """The spans in these rows."""
        return Spans(*(getattr(self, each.name)[rows] for each in fields(self)))

    @staticmethod
    def joined(parts: Sequence[Spans]) -> Spans:
        """All spans of several tables, by start."""
        if not parts:
            return Spans()
        names = [each.name for each in fields(Spans)]
        found = Spans(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))
        return found.take(np.argsort(found.start, kind="stable"))


def merge_spans(spans: Spans, track: Array, limit: int) -> Spans:
    """At most `limit` spans, where there are tracks enough for that, with the same sums.

    Spans of a track that are shorter than the resolution and begin in the same interval of it
    become one, from the first start to the last end. The resolution doubles until they are few
    enough. Spans that did not overlap on their track do not overlap after either.
    """
    if len(spans) <= limit:
        return spans
    tracks = track[spans.step]
    length = spans.end - spans.start
    extent = int(spans.end.max() - spans.start.min())
    resolution = max(1, extent // max(1, limit))
    while True:
        groups = _groups(spans.start, tracks, length < resolution, resolution)
        found = np.unique(groups)
        if found.size <= limit or resolution > 2 * extent:
            return _merged(spans, groups)
        resolution *= 2


def _groups(start: Array, tracks: Array, is_short: Array, resolution: int) -> Array:
    """A number for each span: equal for those that become one."""
    intervals = start // resolution
    intervals -= intervals.min()
    of_short = tracks * (int(intervals.max()) + 1) + intervals
    return np.where(is_short, of_short, -1 - np.arange(start.size))


def _merged(spans: Spans, groups: Array) -> Spans:
    length = spans.end - spans.start
    order = np.lexsort((length, groups))
    ordered, sums = spans.take(order), groups[order]
    begin = np.flatnonzero(np.concatenate([[True], sums[1:] != sums[:-1]]))
    last = np.append(begin[1:], sums.size) - 1  # the longest of each group
    found = Spans(
        ordered.step[last],
        np.minimum.reduceat(ordered.start, begin),
        np.maximum.reduceat(ordered.end, begin),
        *(np.add.reduceat(getattr(ordered, name), begin) for name in SUMS),
    )
    return found.take(np.argsort(found.start, kind="stable"))


class EventLog:
    """Takes a run's executions as they happen: the first `max_events` by themselves."""

    def __init__(self, facts: StepFacts, max_events: int) -> None:
        self.facts, self.room = facts, max_events
        self._kept: list[Array] = []
        self._blocks: list[Spans] = []
        self._block_rows = 0

    def add(self, words: Array) -> None:
        """Log events, EVENT_WORDS words each."""
        rows = words.reshape(-1, EVENT_WORDS)
        if self.room:
            self._kept.append(rows[: self.room].copy())
            self.room -= len(self._kept[-1])
            rows = rows[len(self._kept[-1]) :]
        if len(rows):
            spans = single_spans(rows.copy(), self.facts)
            self.add_block(merge_spans(spans, self.facts.track, PIECE_SPANS))

    def add_block(self, spans: Spans) -> None:
        """Log executions that are spans already."""
        self._blocks.append(spans)
        self._block_rows += len(spans)
        if self._block_rows > MAX_BLOCKS:
            merged = merge_spans(self.blocks, self.facts.track, MAX_BLOCKS // 2)
            self._blocks, self._block_rows = [merged], len(merged)

    @property
    def events(self) -> Array:
        """The rows of the executions kept by themselves: step, start, end, whether queued."""
        return np.concatenate(self._kept) if self._kept else np.zeros((0, EVENT_WORDS), np.int64)

    @property
    def blocks(self) -> Spans:
        """All other executions."""
        return Spans.joined(self._blocks)


def single_spans(rows: Array, facts: StepFacts) -> Spans:
    """The span of each event."""
    step, start, end = rows[:, 0], rows[:, 1], rows[:, 2]
    ones = np.ones(step.size, np.int64)
    return Spans(step, start, end, ones, end - start, facts.read[step], facts.written[step])


@dataclass(frozen=True)
class Executions:
    """What a run executed and when.

    `rows` are the executions that have an event, `blocks` all others; together they are every
    execution of the run once.
    """

    columns: Columns
    tracks: tuple[str, ...]  # names, by the numbers of `facts`
    facts: StepFacts
    count: Array  # of executions, by step
    busy: Array  # picoseconds, by step
    rows: Array
    blocks: Spans

    def spans(self) -> Spans:
        """Every execution, merged where they are merged already; by start."""
        return Spans.joined([single_spans(self.rows, self.facts), self.blocks])

    def instruction(self, step: int) -> Instr:
        """The instruction of a step."""
        return self.columns.instructions[step]

    def track(self, step: int) -> str:
        """The time line that a step runs on."""
        return self.tracks[int(self.facts.track[step])]

    def executed_steps(self) -> Iterator[tuple[Instr, str, int, int]]:
        """(instruction, track, executions, busy picoseconds) of every step that ran."""
        steps = np.flatnonzero(self.count)
        numbers = (self.facts.track[steps], self.count[steps], self.busy[steps])
        instructions = self.columns.instructions
        for step, track, count, busy in zip(
            steps.tolist(), *(each.tolist() for each in numbers), strict=True
        ):
            yield instructions[step], self.tracks[track], count, busy
