"""Whether a program without run-time control flow races, by brute force over all pairs.

Every execution has a start and an end; what orders them is written down edge by edge, and the
edges are closed over. It knows nothing of the simulator's clocks and shadows, only programs small
enough for it, and semaphores that one stream signals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from glia.isa.instructions.sync import Barrier
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.machine.ir import Loop, Program, Statement

Byte = tuple[str, int, int]  # memory or tile, partition, byte


class Verdict(Enum):
    """What is wrong with a program."""

    CLEAN = "clean"
    RACE = "race"
    DEADLOCK = "deadlock"


@dataclass
class _Event:
    instr: Instr
    waits: dict[str, int]
    reads: set[Byte] = field(default_factory=set)
    writes: set[Byte] = field(default_factory=set)

    @property
    def stream(self) -> str:
        return f"queue.{self.instr.queue}" if self.instr.queue else self.instr.runs_on


def judge(program: Program, registers: dict[str, int] | None = None) -> Verdict:
    """Whether the program's executions are ordered as they must be, with these registers."""
    events = list(_unrolled(program, program.body, registers or {}))
    before = _closure(_edges(events), 2 * len(events))
    if before is None:
        return Verdict.DEADLOCK
    for j, second in enumerate(events):
        for i, first in enumerate(events[:j]):
            conflicts = first.writes & (second.writes | second.reads) or first.reads & second.writes
            if conflicts and not before[2 * j] >> (2 * i + 1) & 1:
                return Verdict.RACE
    return Verdict.CLEAN


def _unrolled(
    program: Program, body: tuple[Statement, ...], variables: dict[str, int]
) -> Iterator[_Event]:
    for statement in body:
        if isinstance(statement, Loop):
            for index in range(statement.trips):
                inside = {**variables, statement.variable: index}
                yield from _unrolled(program, statement.body, inside)
            continue
        assert isinstance(statement, Instr)
        waits: dict[str, int] = {}
        for wait in statement.waits:
            count = wait.value.evaluate(variables)
            waits[wait.semaphore] = max(count, waits.get(wait.semaphore, count))
        event = _Event(statement, waits)
        for pattern in statement.read_patterns():
            event.reads |= _bytes(program, pattern, variables)
        for pattern in statement.written_patterns():
            event.writes |= _bytes(program, pattern, variables)
        yield event


def _bytes(program: Program, pattern: Pattern, variables: dict[str, int]) -> set[Byte]:
    tile, width = pattern.tile, pattern.dtype.bytes
    address = program.addresses.get(tile.name)
    place = tile.name if address is None else tile.memory.value
    start = (address or 0) + pattern.offset.evaluate(variables) * width
    dims = pattern.dims if tile.memory is Memory.HBM else pattern.dims[1:]
    bytes_ = np.arange(width) + start
    for step, count in dims:
        bytes_ = (np.arange(count)[:, None] * step * width + bytes_).reshape(-1)
    rows = [0]
    if tile.memory is not Memory.HBM:
        step, count = pattern.dims[0]
        rows = [pattern.partition.evaluate(variables) + step * n for n in range(count)]
    found = np.unique(bytes_).tolist()
    return {(place, row, byte) for row in rows for byte in found}


def _edges(events: list[_Event]) -> Iterator[tuple[int, int]]:
    """(earlier, later) points: 2i is the start of event i, 2i+1 its end."""
    last_of_engine: dict[str, int] = {}
    last_of_queue: dict[str, int] = {}
    barrier = -1
    for i, event in enumerate(events):
        instr = event.instr
        yield 2 * i, 2 * i + 1
        if barrier >= 0:
            yield 2 * barrier + 1, 2 * i
        if isinstance(instr, Barrier):
            yield from ((2 * j + 1, 2 * i) for j in range(i))
            barrier, last_of_engine, last_of_queue = i, {}, {}
            continue
        if instr.runs_on in last_of_engine:
            yield last_of_engine[instr.runs_on], 2 * i
        last_of_engine[instr.runs_on] = 2 * i if instr.queue else 2 * i + 1
        if instr.queue:
            if event.stream in last_of_queue:
                yield last_of_queue[event.stream], 2 * i + 1
            last_of_queue[event.stream] = 2 * i + 1
    for first, end in _phases(events):
        yield from _waits(events, first, end)


def _phases(events: list[_Event]) -> Iterator[tuple[int, int]]:
    """Where counts start at 0 again: (first, end) of the events between barriers."""
    barriers = [i for i, event in enumerate(events) if isinstance(event.instr, Barrier)]
    starts = [0, *(i + 1 for i in barriers)]
    yield from zip(starts, [*barriers, len(events)], strict=True)


def _waits(events: list[_Event], first: int, end: int) -> Iterator[tuple[int, int]]:
    reached: dict[str, list[tuple[int, int]]] = {}
    for i in range(first, end):
        for signal in events[i].instr.signals:
            so_far = reached.setdefault(signal.semaphore, [])
            so_far.append(((so_far[-1][0] if so_far else 0) + signal.amount, 2 * i + 1))
    for i in range(first, end):
        for semaphore, count in events[i].waits.items():
            if count > 0:
                points = [point for total, point in reached.get(semaphore, []) if total >= count]
                yield (points[0] if points else 2 * i), 2 * i  # a point before itself: never


def _closure(edges: Iterator[tuple[int, int]], points: int) -> list[int] | None:
    """For each point the set of points before it, as bits; None when they go round in a ring."""
    earlier: list[set[int]] = [set() for _ in range(points)]
    later: list[set[int]] = [set() for _ in range(points)]
    for a, b in edges:
        if a == b:
            return None
        earlier[b].add(a)
        later[a].add(b)
    before = [0] * points
    missing = [len(each) for each in earlier]
    ready = [point for point in range(points) if not missing[point]]
    done = 0
    while ready:
        point = ready.pop()
        done += 1
        for following in later[point]:
            before[following] |= before[point] | 1 << point
            missing[following] -= 1
            if not missing[following]:
                ready.append(following)
    return before if done == points else None
