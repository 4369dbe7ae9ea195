"""The order of a loop's body that repeats soonest, once its iterations overlap.

The list scheduler gives an instruction to the engine that would end it first, which fills engines
while there is work, but not evenly over an iteration. Here work is also divided so that the busiest
engine has the least, and the better of both orders is taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glia.arch import Arch
from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.machine.instruction_rewriting import substitute_instruction
from glia.machine.ordering.list_order import Issue, StartState, list_order
from glia.machine.ordering.tasks import Task, in_way

if TYPE_CHECKING:
    from glia.machine.passes.schedule import Scheduler

REPETITIONS = 4  # of a body, after which its iterations follow each other evenly
LEAST_GAIN = 0.02  # of the busiest engine's time, for which a division is tried, or of a body's


@dataclass(frozen=True)
class RepeatedOrder:
    """A body in order, and the time from one run of it to the next; an estimate.

    `issues` has the position of each instruction in the body, and the way in which it is issued.
    """

    issues: Sequence[tuple[int, str]]
    interval_ns: float


def repeated_order(
    body: Sequence[Instr], variable: str, scheduler: Scheduler, windows: Sequence[int]
) -> RepeatedOrder:
    """The best of the list scheduler's choice of engines and the even one, by each window."""
    used = _distinct(windows, len(body))
    key = scheduler.key_of(scheduler.structures.of(body, variable), body)
    missing = [window for window in used if (key, window) not in scheduler.orders]
    if missing:
        found = zip(missing, _best_orders(body, variable, scheduler, missing), strict=True)
        scheduler.orders.update({(key, window): order for window, order in found})
    return min((scheduler.orders[key, window] for window in used), key=lambda o: o.interval_ns)


def _best_orders(
    body: Sequence[Instr], variable: str, scheduler: Scheduler, windows: Sequence[int]
) -> list[RepeatedOrder]:
    """The best order for each window: with sums where they are, or where that is sooner divided."""
    kept = _Orders(body, variable, scheduler, moves_sums=False)
    found = [kept.best(window) for window in windows]
    if scheduler.has_sums(body):
        moved = _Orders(body, variable, scheduler, moves_sums=True)
        for number, window in enumerate(windows):
            order = moved.best(window)
            if order.interval_ns <= (1 - LEAST_GAIN) * found[number].interval_ns:
                found[number] = order
    return found


class _Orders:
    """The orders of a body for each window: from a start, and from what the run before leaves."""

    def __init__(
        self, body: Sequence[Instr], variable: str, scheduler: Scheduler, *, moves_sums: bool
    ) -> None:
        self.scheduler = scheduler
        self.tasks = scheduler.tasks(body, moves_sums=moves_sums)
        self.even = _divided_evenly(self.tasks, scheduler.arch)
        self.pressures = scheduler.pressures(self.tasks)
        self.repetition = _Repetition(body, variable, scheduler, moves_sums=moves_sums)

    def best(self, window: int) -> RepeatedOrder:
        """The order that repeats soonest, of those that look so far ahead."""
        scheduler, repetition = self.scheduler, self.repetition
        listed = self._listed(self.tasks, window)
        choices = [(self.tasks, listed)]
        listed_ns = _busiest_ns(repetition.issued(listed), scheduler.arch)
        if _busiest_ns(self.even, scheduler.arch) <= (1 - LEAST_GAIN) * listed_ns:
            choices.append((self.even, self._listed(self.even, window)))
        best = RepeatedOrder((), math.inf)
        for tasks, first in choices:
            steady = repetition.run(repetition.issued(first))
            second = self._listed(tasks, window, steady.start_of_next(tasks, scheduler.arch))
            orders = [(first, steady), (second, repetition.run(repetition.issued(second)))]
            for order, its in orders:
                if its.interval_ns < best.interval_ns:
                    issues = [(each.task.position, each.way) for each in order]
                    best = RepeatedOrder(issues, its.interval_ns)
        return best

    def _listed(
        self, tasks: Sequence[Task], window: int, start: StartState | None = None
    ) -> list[Issue]:
        pressures = [each.copy() for each in self.pressures]
        return list_order(tasks, window, pressures, self.scheduler.table_load_ns, start)


def _distinct(windows: Sequence[int], count: int) -> list[int]:
    """The windows up to the first that holds so many instructions."""
    enough = next((n for n, each in enumerate(windows) if each >= count), len(windows) - 1)
    return list(windows[: enough + 1])


def least_interval_ns(body: Sequence[Instr], scheduler: Scheduler) -> float:
    """The time of the busiest engine, or of DMA, in one run of a body: no order repeats sooner."""
    even = _divided_evenly([scheduler.task(0, each) for each in body], scheduler.arch)
    return max(_loads(even, scheduler.arch).values(), default=0.0)


def _divided_evenly(tasks: Sequence[Task], arch: Arch) -> list[Task]:
    """The tasks, each with the variant with which the busiest engine has little to do."""
    chosen = divide_evenly([(task.streams, task.durations) for task in tasks], arch)
    return [
        replace(task, ways=(task.ways[n],), streams=(task.streams[n],),
                durations=(task.durations[n],))
        for task, n in zip(tasks, chosen, strict=True)
    ]  # fmt: skip


def resource_of(stream: str, arch: Arch) -> str:
    """What a stream occupies: all queues share DMA, and where they share a port Vector and GpSimd.

    Streams are queues and engines.
    """
    if stream.startswith("queue."):
        return "dma"
    is_shared = arch.capabilities.has_shared_sbuf_port and stream == "gpsimd"
    return "vector" if is_shared else stream


def divide_evenly(
    variants: Sequence[tuple[Sequence[str], Sequence[float]]], arch: Arch
) -> list[int]:
    """For each instruction the variant to take, so that the busiest engine has little to do.

    The longest choose first, each what leaves the busiest engine with the least, then one by one
    again as long as that gains.
    """
    chosen = [0] * len(variants)
    loads: dict[str, float] = {}

    def add(number: int, sign: int) -> None:
        streams, durations = variants[number]
        resource = resource_of(streams[chosen[number]], arch)
        loads[resource] = loads.get(resource, 0.0) + sign * durations[chosen[number]]

    free = [n for n, (streams, _) in enumerate(variants) if len(streams) > 1]
    for number in set(range(len(variants))) - set(free):
        add(number, 1)

    def choose(number: int) -> bool:
        streams, durations = variants[number]
        ends = [
            loads.get(resource_of(stream, arch), 0.0) + duration
            for stream, duration in zip(streams, durations, strict=True)
        ]
        best = min(range(len(ends)), key=lambda each: (ends[each], each))
        is_other = best != chosen[number]
        chosen[number] = best
        return is_other

    for number in sorted(free, key=lambda n: -min(variants[n][1])):
        choose(number)
        add(number, 1)
    for _ in range(len(free)):
        is_changed = False
        for number in free:
            add(number, -1)
            is_changed |= choose(number)
            add(number, 1)
        if not is_changed:
            break
    return chosen


def _busiest_ns(tasks: Sequence[Task], arch: Arch) -> float:
    """The time of the busiest engine that tasks take, in their first variants; DMA is none."""
    loads = _loads(tasks, arch)
    return max((time for name, time in loads.items() if name != "dma"), default=0.0)


def _loads(tasks: Sequence[Task], arch: Arch) -> dict[str, float]:
    loads: dict[str, float] = {}
    for task in tasks:
        resource = resource_of(task.streams[0], arch)
        loads[resource] = loads.get(resource, 0.0) + task.durations[0]
    return loads


@dataclass(frozen=True)
class _Steady:
    """A body whose runs follow each other evenly: the time from one to the next.

    In the next run resources are free at `free_ns`, and tasks wait for earlier runs to `ready_ns`.
    """

    interval_ns: float
    free_ns: Mapping[str, float]
    ready_ns: Sequence[float]

    def start_of_next(self, tasks: Sequence[Task], arch: Arch) -> StartState:
        """What the next run finds; its transfers may be issued at any time, and wait in queues."""
        streams = {each for task in tasks for each in task.streams if not each.startswith("queue.")}
        free_ns = {each: self.free_ns.get(resource_of(each, arch), 0.0) for each in streams}
        return StartState(free_ns, self.ready_ns)


class _Repetition:
    """A body that runs again and again: what waits for what, in one run of it and in the next.

    What waits for the run before the last waits for the last as well.
    """

    def __init__(
        self, body: Sequence[Instr], variable: str, scheduler: Scheduler, *, moves_sums: bool
    ) -> None:
        self.count = len(body)
        self.scheduler = scheduler
        self._variants: dict[tuple[int, str], Task] = {}
        runs = [
            substitute_instruction(each, {}, {variable: Affine((), run)})
            for run in range(2)
            for each in body
        ]
        self.tasks = scheduler.tasks(runs, moves_sums=moves_sums)[: self.count]

    def issued(self, order: Sequence[Issue]) -> list[Task]:
        """The tasks in order, in the variants that are issued."""
        return [self._variant(each.task, each.way) for each in order]

    def _variant(self, task: Task, way: str) -> Task:
        known = self._variants.get((task.position, way))
        if known is None:
            known = self.scheduler.task(task.position, in_way(task.instruction, way))
            self._variants[task.position, way] = known
        return known

    def run(self, issued: Sequence[Task]) -> _Steady:
        """What an order comes to, with each engine, and all of DMA, in turn."""
        arch, count, load_ns = self.scheduler.arch, self.count, self.scheduler.table_load_ns
        streams = {task.position: task.streams[0] for task in issued}
        steps = []
        for task in issued:
            edges, stream = self.tasks[task.position], task.streams[0]
            seen_ns = [
                (each, 0.0 if in_order and each not in edges.readers else task.latency)
                for each in edges.successors
                for in_order in [streams[each % count] == stream]
            ]
            resource = resource_of(stream, arch)
            gate = task.issuer, task.issue_ns
            steps.append((task.position, resource, task.durations[0], task.table, gate, seen_ns))
        ready_ns = [0.0] * (count * (REPETITIONS + 1))
        free_ns: dict[str, float] = {}
        table = ""
        ends = [0.0]
        for first in range(0, count * REPETITIONS, count):
            for position, resource, duration, needed, (issuer, issue_ns), seen_ns in steps:
                start = ready_ns[first + position]
                if issuer:
                    start = max(start, free_ns.get(issuer, 0.0))
                    free_ns[issuer] = start + issue_ns
                end = max(free_ns.get(resource, 0.0), start) + duration
                if needed:
                    end += load_ns(needed, table)
                    table = needed
                free_ns[resource] = end
                for successor, latency in seen_ns:
                    place = first + successor
                    ready_ns[place] = max(ready_ns[place], end + latency)
            ends.append(max(free_ns.values()))
        return _Steady(ends[-1] - ends[-2], free_ns, ready_ns[-count:])
