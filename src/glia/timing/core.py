"""One core moved through time: the rules of `timing.events`, driven until the program is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from glia.base.errors import CompileError, InternalError
from glia.machine.columns.value_numbering import Array
from glia.timing import events
from glia.timing.native import Library
from glia.timing.plan import Plan, PlannedWait, loops_in
from glia.timing.plan_tables import Trips, lay_out
from glia.timing.registers import (
    EVENT_WORDS,
    CoreRecord,
    CoreState,
    EngineState,
    StopReason,
    StreamOp,
    arrays_of,
)

if TYPE_CHECKING:
    from glia.arch import Arch

LIBRARY = Library(events, events.FUNCTIONS, tuple(arrays_of(CoreRecord)))


class Deadlock(CompileError):
    """An engine waits for a semaphore count that nothing before it in the program can reach.

    Cause: A wait names a semaphore that no earlier instruction signals often enough: a missing
        signal, a wrong count, or two engines that wait for each other.
    Fix: Signal the semaphore before the wait in program order, or lower the count waited for.
    Example: a program whose only instruction waits for semaphore "ready" to be at least 1
    """

    code = "GLIA401"
    message = (
        "deadlock: {engine} waits for semaphore {semaphore} to reach {needed},"
        " but it stops at {reached}"
    )
    help = "{signallers}"


class Machine:
    """The record of one core and what moves it; all times in picoseconds.

    `is_native` False runs the same rules in Python. `at_mark` is called with a loop's slot when one
    that is watched turns.
    """

    def __init__(
        self, plan: Plan, arch: Arch, trips: Trips, most_events: int, *, is_native: bool = True
    ) -> None:
        self.plan, self.is_native = plan, is_native
        self.record = lay_out(plan, arch, trips, most_events)
        self.call = self._bound()
        self.begin = int(self.record["core"][CoreState.NOW])
        self.skips: list[tuple[str, int, int, int]] = []  # variable, start, end, iterations
        self.at_mark: Callable[[int], None] | None = None

    def run(self) -> None:
        """Execute the whole program; Deadlock when it cannot end."""
        self.call("begin")
        if self.advance() == StopReason.DEADLOCK:
            raise self.deadlock()

    def advance(self, *, skips: bool = True) -> int:
        """Execute until all is done, nothing can move, or an engine comes to a meeting.

        Loops that are watched are run as they are unless it `skips`.
        """
        while (reason := self.call("run")) in (StopReason.RING_FULL, StopReason.LOOP_ITERATION):
            if reason == StopReason.RING_FULL:
                self._grow()
                continue
            slot = int(self.record["core"][CoreState.MARK]) - 1
            self.record["core"][CoreState.MARK] = 0
            if skips and self.at_mark is not None:
                self.at_mark(slot)
        return reason

    def hold_at(self, steps: Array) -> None:
        """Let every engine be held up at these steps, as often as it comes to one."""
        op, arg = self.record["op"], self.record["arg"]
        self.record["op"] = np.where(
            (op == StreamOp.STEP) & np.isin(arg, steps), StreamOp.RENDEZVOUS, op
        )
        for loop in loops_in(self.plan.items):  # one with such a step is run turn by turn
            begin, end = np.searchsorted(steps, loop.steps)
            if begin < end:
                self.record["watched"][loop.slot] = -1
        self.call = self._bound()

    @property
    def last(self) -> int:
        """When the latest result so far counts."""
        return int(self.record["core"][CoreState.LAST])

    @property
    def executed(self) -> int:
        return int(self.record["core"][CoreState.EXECUTED])

    @property
    def assumed_trips(self) -> list[int]:
        """Run-time control flow whose outcome nobody gave, by number."""
        return [int(number) for number in np.flatnonzero(self.record["is_assumed"])]

    def events(self) -> list[tuple[int, int, int, int]]:
        """(step, start, end, whether behind another) of the executions that were kept."""
        kept = self.record["event"][: EVENT_WORDS * int(self.record["core"][CoreState.EVENTS])]
        return list(map(tuple, kept.reshape(-1, EVENT_WORDS).tolist()))

    def _bound(self) -> Callable[[str], int]:
        """Call a rule by name; anew when an array was replaced."""
        if self.is_native:
            return LIBRARY.bind(self.record)
        return lambda name: LIBRARY.call(name, self.record, is_native=False)

    def _grow(self) -> None:
        """Give the semaphore that ran out of room a ring twice as large as it needs."""
        record = self.record
        semaphore, needed = (int(value) for value in record["overflow"])
        first, count = int(record["first"][semaphore]), int(record["count"][semaphore])
        base, mask = int(record["base"][semaphore]), int(record["mask"][semaphore])
        pending = record["ring"][base + (np.arange(first, count) & mask)]
        capacity = 1 << (2 * needed - 1).bit_length()
        record["base"][semaphore] = len(record["ring"])
        record["mask"][semaphore] = capacity - 1
        record["ring"] = np.concatenate([record["ring"], np.zeros(capacity, np.int64)])
        record["pending"] = np.zeros(len(record["ring"]), np.int64)
        self.put_moments(semaphore, first, pending)
        self.call = self._bound()

    def put_moments(self, semaphore: int, first: int, moments: Array) -> None:
        """Let the counts after the first `first` be reached at these moments."""
        record = self.record
        indices = np.arange(first, first + moments.size) & record["mask"][semaphore]
        record["ring"][record["base"][semaphore] + indices] = moments

    def deadlock(self) -> Deadlock:
        """Why nothing can move."""
        record = self.record
        blocked = np.flatnonzero(record["start"] == EngineState.BLOCKED)
        if not blocked.size:
            raise InternalError("engines do not come to the same barrier or decision")
        engine = int(blocked[0])
        wait = self.plan.wait(int(record["blocked"][engine]))
        return _complain(self.plan, wait, self.needed(engine, wait), self._reached(wait))

    def needed(self, engine: int, wait: PlannedWait) -> int:
        """The count that an engine waits for now."""
        variables = self.record["variable"][engine * self.plan.slots :]
        return wait.constant + sum(c * int(variables[slot]) for slot, c in wait.terms)

    def _reached(self, wait: PlannedWait) -> int:
        return int(self.record["count"][wait.semaphore]) * self.plan.unit(wait.semaphore)


def _complain(plan: Plan, wait: PlannedWait, needed: int, reached: int) -> Deadlock:
    rows = np.flatnonzero(plan.steps["signal_semaphore"] == wait.semaphore)
    steps = np.searchsorted(plan.steps["step_signal"], rows, "right") - 1
    signalling = [plan.cost(step) for step in dict.fromkeys(steps.tolist())]
    where = "; ".join(f"{plan.engines[cost.engine]}: {cost.opcode}" for cost in signalling[:4])
    cure = f"its signals come from {where}" if where else "no instruction signals it"
    cost = plan.cost(wait.step)
    return Deadlock(
        loc=plan.instruction(wait.step).loc,
        instruction=cost.opcode,
        engine=plan.engines[cost.engine],
        semaphore=plan.semaphores[wait.semaphore],
        needed=needed,
        reached=reached,
        signallers=cure + "; signal it often enough before the wait, or wait for less",
    )
