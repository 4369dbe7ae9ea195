"""The critical path of a run by source line: the chain of instructions that delayed each other.

The path is followed from the last event of a timeline back to its first. The event that delayed
another is the one that ended last of those it could have waited for: the event before it on its own
engine or queue, and events of engines and queues whose semaphores it waits for. The time from the
end of one to the end of the next belongs to the next one's source line.

A transfer may begin on one DMA engine long before the others are done with the transfer before it
on its queue, which then is the one that delayed it, although they overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from glia.base.loc import Loc
from glia.isa.kit import ENGINES
from glia.machine.queues import queue_of
from glia.timing.costs import PS
from glia.timing.simulate import Timing, queue_track
from glia.timing.spans import Executions

TOLERANCE = 1 * PS  # a moment that precedes another by less may still have delayed it


@dataclass(frozen=True)
class PathLine:
    """The contribution of a source line to the critical path."""

    loc: Loc
    opcode: str
    track: str  # of its last instruction: an engine, or a `queue_track`
    ns: float
    share: float  # of the path
    count: int  # instructions of it on the path

    def to_dict(self) -> dict[str, object]:
        """In JSON's types."""
        return vars(self) | {"loc": str(self.loc)}


def critical_path(timing: Timing) -> tuple[PathLine, ...]:
    """The source lines on the critical path, the longest first; empty without events.

    Iterations of a loop that repeat are not listed as events: their time is spread over the lines
    in proportion to the rest. Of a run with more executions than have events, the path is that of
    the part that has.
    """
    run = timing.executions
    if run is None or not len(run.rows):
        return ()
    walk, repeated = _Walk(run), _RepetitionTime(timing)
    begin = round(timing.begin_ns * PS)
    event = max(range(len(walk.end)), key=walk.end.__getitem__)
    whole = walk.end[event] - begin
    lines: dict[tuple[str, str], list[int]] = {}
    found: dict[tuple[str, str], int] = {}  # the last step
    position: int | None = event
    while position is not None:
        step, end = walk.step[position], walk.end[position]
        blocking = walk.blocking(position)
        since = walk.end[blocking] if blocking is not None else begin
        key = walk.key(step)
        found.setdefault(key, step)
        entry = lines.setdefault(key, [0, 0])
        entry[0] += max(0, end - since - repeated.between(since, end))
        entry[1] += 1
        position = blocking
    total = sum(time for time, _ in lines.values()) or 1
    rows = [
        PathLine(
            run.instruction(found[key]).loc, key[1], run.track(found[key]),
            time / total * whole / PS, time / total, count,
        )
        for key, (time, count) in lines.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.ns))


class _Walk:
    """The events of a run by number, with what each could have waited for."""

    def __init__(self, run: Executions) -> None:
        self.run = run
        self.step, self.start, self.end, self.queued = (
            run.rows[:, column].tolist() for column in range(4)
        )
        self.numbers = {name: number for number, name in enumerate(run.tracks)}
        self.track = run.facts.track[run.rows[:, 0]].tolist()
        self.before = self._queue_predecessors()
        self.by_track = self._by_track()
        self.waited: dict[int, tuple[int, ...]] = {}  # tracks, by step
        self.keys: dict[int, tuple[str, str]] = {}

    def key(self, step: int) -> tuple[str, str]:
        """What a step's time counts under: source line and opcode."""
        if step not in self.keys:
            instr = self.run.instruction(step)
            self.keys[step] = str(instr.loc), instr.mnemonic()
        return self.keys[step]

    def blocking(self, event: int) -> int | None:
        """The event that ended last of those that this one could have waited for."""
        start, end = self.start[event], self.end[event]
        predecessor = self.before.get(event)
        if predecessor is not None and self.queued[event] and self.end[predecessor] < end:
            return predecessor
        found: int | None = None
        for track in self._tracks_waited_for(self.step[event]):
            ends, events = self.by_track[track]
            position = bisect_right(ends, start + TOLERANCE)
            for other in events[max(0, position - 2) : position]:
                is_earlier = self.start[other] < start and self.end[other] < end
                if is_earlier and (found is None or self.end[other] > self.end[found]):
                    found = other
        return found

    def _tracks_waited_for(self, step: int) -> tuple[int, ...]:
        if step not in self.waited:
            instr = self.run.instruction(step)
            names = {self.run.track(step)} | {_track_of(wait.semaphore) for wait in instr.waits}
            if self.run.facts.track[step] >= len(ENGINES):
                names.add(instr.runs_on)
            numbers = sorted(self.numbers[name] for name in names if name in self.numbers)
            self.waited[step] = tuple(n for n in numbers if n in self.by_track)
        return self.waited[step]

    def _by_track(self) -> dict[int, tuple[list[int], list[int]]]:
        """For each track the ends of its events, ascending, and the events in that order."""
        tracks: dict[int, list[int]] = {}
        for event, track in enumerate(self.track):
            tracks.setdefault(track, []).append(event)
        for listed in tracks.values():
            listed.sort(key=self.end.__getitem__)
        return {track: ([self.end[e] for e in each], each) for track, each in tracks.items()}

    def _queue_predecessors(self) -> dict[int, int]:
        """The transfer before each on its queue."""
        latest: dict[int, int] = {}
        predecessors = {}
        for event, track in enumerate(self.track):
            if track >= len(ENGINES):
                if track in latest:
                    predecessors[event] = latest[track]
                latest[track] = event
        return predecessors


def _track_of(semaphore: str) -> str:
    """The track whose instructions signal a semaphore."""
    queue = queue_of(semaphore)
    return queue_track(queue) if queue else semaphore


class _RepetitionTime:
    """The time of repeated iterations; of nested loops the outermost counts."""

    def __init__(self, timing: Timing) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.until: list[int] = [0]  # before each span, in total
        for start, end in sorted((s.start_ns, s.end_ns) for s in timing.skips):
            first = max(round(start * PS), self.ends[-1] if self.ends else 0)
            last = round(end * PS)
            if last > first:
                self.starts.append(first)
                self.ends.append(last)
                self.until.append(self.until[-1] + last - first)

    def between(self, begin: int, end: int) -> int:
        """Picoseconds of repeated iterations between two moments."""
        return max(0, self._total_until(end) - self._total_until(begin))

    def _total_until(self, moment: int) -> int:
        position = bisect_right(self.starts, moment)
        if not position:
            return 0
        inside = min(moment, self.ends[position - 1]) - self.starts[position - 1]
        return self.until[position - 1] + inside
