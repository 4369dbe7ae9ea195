"""The order of list scheduling: which task is issued next, and on which of its streams.

Of the tasks whose operands are known and that are near the oldest one left, it is the one that can
start first; the longest chain of dependents breaks ties, then program order.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from glia.machine.ordering.tasks import Task

if TYPE_CHECKING:
    from glia.machine.ordering.memory_pressure import MemoryPressure

FreeTimes = Mapping[str, float]  # by stream, ns
TableLoad = Callable[[str, str], float]  # ns, of one activation table where another is loaded
Rank = tuple[float, float, int]  # when a task can start (ns), minus its height (ns), its position


class Issue(NamedTuple):
    """A task as it is issued, in one of its variants."""

    task: Task
    number: int

    @property
    def way(self) -> str:
        """What makes the variant of the instruction."""
        return self.task.ways[self.number]


@dataclass(frozen=True)
class StartState:
    """When streams are free as a run starts, and from when the operands of each task are there."""

    free_ns: FreeTimes
    ready_ns: Sequence[float]


@dataclass
class _SimilarTasks:
    """Available tasks with the same gates and the same table, in the order of their ranks.

    The operands of those in `waiting` are there once all of the gates have work.
    """

    gates: tuple[str, ...]
    table: str
    arrived: list[tuple[float, int]] = field(default_factory=list)
    waiting: list[Rank] = field(default_factory=list)

    def remove(self, position: int) -> None:
        """Take the task of a position out."""
        self.arrived = [each for each in self.arrived if each[1] != position]
        self.waiting = [each for each in self.waiting if each[2] != position]

    def ranks(self, free_ns: FreeTimes, load_ns: float) -> Iterator[Rank]:
        """The ranks of the tasks, least first, where a table takes so long to load before them."""
        free = min([free_ns.get(gate, 0.0) for gate in self.gates])
        while self.waiting and self.waiting[0][0] <= free:
            insort(self.arrived, self.waiting.pop(0)[1:])
        for height, position in self.arrived:
            yield free + load_ns, height, position
        for ready, height, position in self.waiting:
            yield ready + load_ns, height, position


class _Available:
    """The available tasks before a limit in program order, by what is alike, and those after it."""

    def __init__(self, tasks: Sequence[Task], ready_ns: Sequence[float]) -> None:
        self.tasks = tasks
        self.ready_ns = ready_ns
        self.heights = _heights(tasks)
        self.limit = 0
        self.similar: dict[tuple[tuple[str, ...], str], _SimilarTasks] = {}
        self.far: list[int] = []

    def add(self, task: Task) -> None:
        """A task whose operands are known."""
        if task.position >= self.limit:
            heapq.heappush(self.far, task.position)
            return
        kind = task.gates, task.table
        place = self.ready_ns[task.position], -self.heights[task.position], task.position
        insort(self.similar.setdefault(kind, _SimilarTasks(*kind)).waiting, place)

    def reach(self, limit: int) -> None:
        """Move the limit, which never comes back."""
        self.limit = limit
        while self.far and self.far[0] < limit:
            self.add(self.tasks[heapq.heappop(self.far)])

    def first(
        self,
        free_ns: FreeTimes,
        load_ns: Mapping[str, float],
        pressures: Sequence[MemoryPressure],
    ) -> Task | None:
        """Take the task of least rank whose tiles fit; None where there is none."""
        best: Rank | None = None
        for similar in self.similar.values():
            for rank in similar.ranks(free_ns, load_ns[similar.table]):
                if best and rank >= best:
                    break
                if all(pressure.has_capacity(rank[2]) for pressure in pressures):
                    best = rank
                    break
        return self.take(best[2]) if best else None

    def take(self, position: int) -> Task:
        """Take the task of a position."""
        task = self.tasks[position]
        similar = self.similar[task.gates, task.table]
        similar.remove(position)
        if not similar.arrived and not similar.waiting:
            del self.similar[task.gates, task.table]
        return task


def list_order(
    tasks: Sequence[Task],
    window: int,
    pressures: Sequence[MemoryPressure],
    load_ns: TableLoad,
    start: StartState | None = None,
) -> list[Issue]:
    """The tasks in the order of issue, each in the variant that ends first.

    A task is at most `window` positions ahead of the oldest that is left, and its tiles fit in the
    memories' capacities; where nothing fits it is the oldest, which frees tiles soonest. `load_ns`
    is the time to load one activation table where another is loaded. Without a start all is free,
    and there, at 0.
    """
    free_ns = dict(start.free_ns) if start else {}
    ready_ns = [*start.ready_ns] if start else [0.0] * len(tasks)
    waiting_for = [task.waiting_for for task in tasks]
    is_issued = [False] * len(tasks)
    oldest = 0
    available = _Available(tasks, ready_ns)
    for task in tasks:
        if not task.waiting_for:
            available.add(task)
    table = next((task.table for task in tasks if task.table), "")
    loads = {each: load_ns(each, table) for each in {task.table for task in tasks}}
    result = []
    for _ in tasks:
        while is_issued[oldest]:
            oldest += 1
        available.reach(oldest + window)
        tight = [pressure for pressure in pressures if pressure.may_overflow()]
        task = available.first(free_ns, loads, tight) or available.take(oldest)
        is_issued[task.position] = True
        for pressure in pressures:
            pressure.issue(task.position)
        issued_ns = ready_ns[task.position]
        if task.issuer:
            issued_ns = max(issued_ns, free_ns.get(task.issuer, 0.0))
            free_ns[task.issuer] = issued_ns + task.issue_ns
        number, end = _fastest_variant(task, free_ns, issued_ns)
        end += loads[task.table]
        if task.table not in ("", table):
            table = task.table
            loads = {each: load_ns(each, table) for each in loads}
        stream = task.streams[number]
        free_ns[stream] = end
        result.append(Issue(task, number))
        for successor in task.successors:
            seen_ns = task.seen_ns(tasks[successor], stream, end)
            ready_ns[successor] = max(ready_ns[successor], seen_ns)
            waiting_for[successor] -= 1
            if not waiting_for[successor]:
                available.add(tasks[successor])
    return result


def _heights(tasks: Sequence[Task]) -> list[float]:
    """The longest chain of dependents of each task, with itself, in nanoseconds."""
    heights = [0.0] * len(tasks)
    for task in reversed(tasks):
        after = max((heights[each] for each in task.successors), default=0.0)
        heights[task.position] = min(task.durations) + task.latency + after
    return heights


def _fastest_variant(task: Task, free_ns: FreeTimes, ready_ns: float) -> tuple[int, float]:
    """The variant that finishes first, and the time at which it does."""
    best, best_end = 0, float("inf")
    for number, (stream, duration) in enumerate(zip(task.streams, task.durations, strict=True)):
        start = max(free_ns.get(stream, 0.0), ready_ns)
        if start + duration < best_end:
            best, best_end = number, start + duration
    return best, best_end
