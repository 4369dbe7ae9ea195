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
from glia.machine.queues import queue_of
from glia.timing.simulate import Event, Timing, is_queue, queue_track

TOLERANCE_NS = 1.0  # times are rounded to picoseconds


@dataclass(frozen=True)
class PathLine:
    """The contribution of a source line to the critical path."""

    loc: Loc
    opcode: str
    track: str  # of its last instruction: an engine, or a `queue_track`
    ns: float
    share: float  # of the path
    count: int  # instructions of it on the path


def critical_path(timing: Timing) -> tuple[PathLine, ...]:
    """The source lines on the critical path, the longest first; empty without events.

    Iterations of a loop that repeat are not listed as events: their time is spread over the lines
    in proportion to the rest.
    """
    by_track = _by_track(timing.events)
    predecessors = _queue_predecessors(timing.events)
    last = max(timing.events, key=lambda event: event.end_ns, default=None)
    lines: dict[tuple[str, str], list[float]] = {}
    found: dict[tuple[str, str], Event] = {}
    while last is not None:
        blocking = _blocking_event(last, by_track, predecessors.get(id(last)))
        begin = blocking.end_ns if blocking is not None else timing.begin_ns
        key = str(last.instr.loc), last.instr.mnemonic()
        found.setdefault(key, last)
        entry = lines.setdefault(key, [0.0, 0])
        entry[0] += max(0.0, last.end_ns - begin - _skipped_ns(timing, begin, last.end_ns))
        entry[1] += 1
        last = blocking
    total = sum(ns for ns, _ in lines.values()) or 1.0
    whole = max((e.end_ns for e in timing.events), default=timing.begin_ns) - timing.begin_ns
    rows = [
        PathLine(found[key].instr.loc, key[1], found[key].track, ns / total * whole, ns / total,
                 int(count))
        for key, (ns, count) in lines.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: -row.ns))


def _by_track(events: tuple[Event, ...]) -> dict[str, tuple[list[float], list[Event]]]:
    """For each track the ends of its events, ascending, and the events in that order."""
    tracks: dict[str, list[Event]] = {}
    for event in events:
        tracks.setdefault(event.track, []).append(event)
    for listed in tracks.values():
        listed.sort(key=lambda event: event.end_ns)
    return {name: ([e.end_ns for e in listed], listed) for name, listed in tracks.items()}


def _queue_predecessors(events: tuple[Event, ...]) -> dict[int, Event]:
    """The transfer before each on its queue, by the id of the later one."""
    latest: dict[str, Event] = {}
    predecessors = {}
    for event in events:
        if is_queue(event.track):
            if event.track in latest:
                predecessors[id(event)] = latest[event.track]
            latest[event.track] = event
    return predecessors


def _blocking_event(
    event: Event, by_track: dict[str, tuple[list[float], list[Event]]], predecessor: Event | None
) -> Event | None:
    """The event that ended last of those that this one could have waited for."""
    if predecessor is not None and event.was_queued and predecessor.end_ns < event.end_ns:
        return predecessor
    names = {event.track} | {_track_of(wait.semaphore) for wait in event.instr.waits}
    if is_queue(event.track):
        names.add(event.instr.runs_on)
    candidates = []
    for ends, events in (by_track[name] for name in names if name in by_track):
        position = bisect_right(ends, event.start_ns + TOLERANCE_NS)
        candidates += [e for e in events[max(0, position - 2) : position] if e is not event]
    earlier = [e for e in candidates if e.start_ns < event.start_ns and e.end_ns < event.end_ns]
    return max(earlier, key=lambda e: e.end_ns, default=None)


def _track_of(semaphore: str) -> str:
    """The track whose instructions signal a semaphore."""
    queue = queue_of(semaphore)
    return queue_track(queue) if queue else semaphore


def _skipped_ns(timing: Timing, begin: float, end: float) -> float:
    """Time of repeated iterations between two moments; of nested loops the outermost counts."""
    spans = sorted((s.start_ns, s.end_ns) for s in timing.skips)
    total, reached = 0.0, begin
    for start, stop in spans:
        start, stop = max(start, reached), min(stop, end)
        if stop > start:
            total, reached = total + stop - start, stop
    return total
