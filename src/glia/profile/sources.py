"""The time of a run by source line and by operator of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from glia.base.loc import Loc
from glia.timing.costs import PS
from glia.timing.simulate import Timing


@dataclass(frozen=True)
class SourceTime:
    """The executions of the instructions that one place of the user's program became.

    `busy_ns` is their sum over all tracks, which run side by side.
    """

    source: str
    count: int
    busy_ns: float
    tracks: dict[str, float]  # nanoseconds by engine or queue, the longest first

    def to_dict(self) -> dict[str, object]:
        """In JSON's types."""
        return vars(self) | {"tracks": dict(self.tracks)}


def time_by_line(timings: Iterable[Timing]) -> tuple[SourceTime, ...]:
    """By file and line, the longest first; an instruction without one counts under ""."""
    return _grouped(timings, lambda loc: f"{loc.file}:{loc.line}" if loc.file else "")


def time_by_operator(timings: Iterable[Timing]) -> tuple[SourceTime, ...]:
    """By the framework's name of the operation, the longest first; "" where it has none."""
    return _grouped(timings, lambda loc: loc.name)


def _grouped(timings: Iterable[Timing], key: Callable[[Loc], str]) -> tuple[SourceTime, ...]:
    found: dict[str, tuple[list[int], dict[str, int]]] = {}
    names: dict[Loc, str] = {}
    for run in (each.executions for each in timings if each.executions is not None):
        for instr, track, count, busy in run.executed_steps():
            name = names.get(instr.loc)
            if name is None:
                name = names[instr.loc] = key(instr.loc)
            counts, tracks = found.setdefault(name, ([0], {}))
            counts[0] += count
            tracks[track] = tracks.get(track, 0) + busy
    rows = [
        SourceTime(name, counts[0], sum(tracks.values()) / PS, _longest_first(tracks))
        for name, (counts, tracks) in found.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.busy_ns, row.source)))


def _longest_first(tracks: dict[str, int]) -> dict[str, float]:
    return {track: busy / PS for track, busy in sorted(tracks.items(), key=lambda each: -each[1])}
