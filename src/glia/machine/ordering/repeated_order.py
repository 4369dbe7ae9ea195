"""The order of a loop's body that repeats soonest, once its iterations overlap.

The list scheduler gives an instruction to the engine that would end it first, which fills engines
while there is work, but not evenly over an iteration. Here work is also divided so that the busiest
engine has the least, and the better of both orders is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glia.isa.kit import Instr
from glia.machine.ordering.structure import Structure
from glia.machine.ordering.task_graph import Order

if TYPE_CHECKING:
    from glia.machine.passes.schedule import Scheduler

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
    structure = scheduler.structures.of(body, variable)
    key = scheduler.key_of(structure, body)
    missing = [window for window in used if (key, window) not in scheduler.orders]
    if missing:
        found = zip(missing, _best_orders(body, structure, scheduler, missing), strict=True)
        scheduler.orders.update({(key, window): order for window, order in found})
    return min((scheduler.orders[key, window] for window in used), key=lambda o: o.interval_ns)


def _best_orders(
    body: Sequence[Instr], structure: Structure, scheduler: Scheduler, windows: Sequence[int]
) -> list[RepeatedOrder]:
    """The best order for each window: with sums where they are, or where that is sooner divided."""
    kept = _Orders(body, structure, scheduler, moves_sums=False)
    found = [kept.best(window) for window in windows]
    if scheduler.has_sums(body):
        moved = _Orders(body, structure, scheduler, moves_sums=True)
        for number, window in enumerate(windows):
            order = moved.best(window)
            if order.interval_ns <= (1 - LEAST_GAIN) * found[number].interval_ns:
                found[number] = order
    return found


class _Orders:
    """The orders of a body for each window: from a start, and from what the run before leaves."""

    def __init__(
        self, body: Sequence[Instr], structure: Structure, scheduler: Scheduler, *, moves_sums: bool
    ) -> None:
        graph = scheduler.graph(body, structure, moves_sums=moves_sums)
        self.orders = scheduler.orders_of(graph, repeats=True)
        self.even_ps = self.orders.divide_evenly()

    def best(self, window: int) -> RepeatedOrder:
        """The order that repeats soonest, of those that look so far ahead."""
        orders = self.orders
        orders.start_at({})
        choices = [(False, orders.listed(window))]
        if self.even_ps <= (1 - LEAST_GAIN) * orders.busiest_ps(choices[0][1].variants):
            choices.append((True, orders.listed(window, is_even=True)))
        best, best_ps = choices[0][1], math.inf
        for is_even, first in choices:
            first_ps = orders.repeat(first)
            orders.start_after_repetition()
            second = orders.listed(window, is_even=is_even)
            for order, its_ps in ((first, first_ps), (second, orders.repeat(second))):
                if its_ps < best_ps:
                    best, best_ps = order, its_ps
        return RepeatedOrder([*self._issues(best)], best_ps / 1000)

    def _issues(self, order: Order) -> Iterator[tuple[int, str]]:
        variants = self.orders.table.variants
        for node, variant in zip(order.nodes.tolist(), order.variants.tolist(), strict=True):
            yield node, variants[variant].way


def _distinct(windows: Sequence[int], count: int) -> list[int]:
    """The windows up to the first that holds so many instructions."""
    enough = next((n for n, each in enumerate(windows) if each >= count), len(windows) - 1)
    return list(windows[: enough + 1])


def least_interval_ns(body: Sequence[Instr], scheduler: Scheduler) -> float:
    """The time of the busiest engine, or of DMA, in one run of a body: no order repeats sooner."""
    return scheduler.orders_of(scheduler.graph(body)).least_ps() / 1000
