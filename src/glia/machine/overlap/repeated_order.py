"""The order of a loop's body that repeats soonest, once its iterations overlap.

The list scheduler gives an instruction to the engine that would end it first, which fills engines
while there is work, but not evenly over an iteration. Here work is also divided so that the busiest
engine has the least, and the better of both orders is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glia.arch import Arch
from glia.base.affine import Affine
from glia.isa.kit import Instr
from glia.machine.instruction_rewriting import substitute_instruction

if TYPE_CHECKING:
    from glia.machine.passes.schedule import Scheduler, Task

REPETITIONS = 4  # of a body, after which its iterations follow each other evenly
LEAST_GAIN = 0.02  # of the busiest engine's time, for which a division is tried


@dataclass(frozen=True)
class RepeatedOrder:
    """A body in order, and the time from one run of it to the next; an estimate."""

    instructions: Sequence[Instr]
    interval_ns: float


def repeated_order(body: Sequence[Instr], variable: str, scheduler: Scheduler) -> RepeatedOrder:
    """The better of the list scheduler's choice of engines and the even one."""
    tasks = scheduler.tasks(body)
    variants = [(task.streams, task.durations) for task in tasks]
    first = scheduler.order(tasks)
    best = RepeatedOrder(first, _interval_ns(first, variable, scheduler))
    chosen = divide_evenly(variants, scheduler.arch)
    even = _busiest_ns(
        [(s[n], d[n]) for (s, d), n in zip(variants, chosen, strict=True)], scheduler.arch
    )
    issued = [scheduler.task(0, each) for each in first]
    if even > (1 - LEAST_GAIN) * _busiest_ns(
        [(task.streams[0], task.durations[0]) for task in issued], scheduler.arch
    ):
        return best
    tasks = scheduler.tasks(body)
    second = scheduler.order([_fixed(t, n) for t, n in zip(tasks, chosen, strict=True)])
    found = RepeatedOrder(second, _interval_ns(second, variable, scheduler))
    return found if found.interval_ns < best.interval_ns else best


def least_interval_ns(body: Sequence[Instr], scheduler: Scheduler) -> float:
    """The time of the busiest engine, or of DMA, in one run of a body: no order repeats sooner."""
    tasks = [scheduler.task(0, each) for each in body]
    variants = [(task.streams, task.durations) for task in tasks]
    chosen = divide_evenly(variants, scheduler.arch)
    work = [(s[n], d[n]) for (s, d), n in zip(variants, chosen, strict=True)]
    return max(_loads(work, scheduler.arch).values(), default=0.0)


def _fixed(task: Task, number: int) -> Task:
    """The task with one of its variants."""
    return replace(
        task,
        ways=(task.ways[number],),
        streams=(task.streams[number],),
        durations=(task.durations[number],),
    )


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


def _busiest_ns(work: Iterable[tuple[str, float]], arch: Arch) -> float:
    """The time of the busiest engine, from streams and durations; DMA is none."""
    loads = _loads(work, arch)
    return max((time for name, time in loads.items() if name != "dma"), default=0.0)


def _loads(work: Iterable[tuple[str, float]], arch: Arch) -> dict[str, float]:
    loads: dict[str, float] = {}
    for stream, duration in work:
        resource = resource_of(stream, arch)
        loads[resource] = loads.get(resource, 0.0) + duration
    return loads


def _interval_ns(ordered: Sequence[Instr], variable: str, scheduler: Scheduler) -> float:
    """The time from one run of a body to the next, each engine and all of DMA doing one thing."""
    runs = [
        substitute_instruction(each, {}, {variable: Affine((), run)})
        for run in range(REPETITIONS)
        for each in ordered
    ]
    tasks = [_fixed(task, 0) for task in scheduler.tasks(runs)]
    free_ns: dict[str, float] = {}
    table = ""
    ends = [0.0]
    for task in tasks:
        resource = resource_of(task.streams[0], scheduler.arch)
        end = max(free_ns.get(resource, 0.0), task.ready_ns) + task.durations[0]
        end += scheduler.table_load_ns(task, table)
        table = task.table or table
        free_ns[resource] = end
        for successor in task.successors:
            after = tasks[successor]
            after.ready_ns = max(after.ready_ns, task.seen_ns(after, task.streams[0], end))
        if task.position % len(ordered) == len(ordered) - 1:
            ends.append(max(free_ns.values()))
    return ends[-1] - ends[-2]
