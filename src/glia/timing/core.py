"""One core moved through time: the rules of `timing.events`, driven until the program ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from glia.base.errors import CompileError, InternalError
from glia.base.machine_code.native import Library
from glia.base.machine_code.native_records import arrays_of
from glia.machine.columns.value_numbering import Array
from glia.timing import events
from glia.timing.errors import TimingTooLarge
from glia.timing.plan import PlannedWait, TimingPlan, loops_in
from glia.timing.plan_tables import Trips, lay_out
from glia.timing.registers import (
    EVENT_WORDS,
    CoreRecord,
    CoreState,
    EngineState,
    RunParameter,
    StopReason,
    StreamOp,
)
from glia.timing.spans import EventLog, StepFacts

if TYPE_CHECKING:
    from glia.arch import Arch

EVENT_ROOM = 1 << 16  # executions that the record holds until they are logged
PIECE_STEPS = 1 << 22  # instructions executed at a time: a fraction of a second
MOST_STEPS = 400_000_000  # that are executed one by one: half a minute
MAX_TIME = 1 << 61  # picoseconds: 26 days, and counts fit into 64 bits with it
MOST_MOMENTS = 1 << 26  # that the rings of all semaphores keep
LIBRARY = Library(events, events.FUNCTIONS, tuple(arrays_of(CoreRecord)))
# for programs that are over before code would be optimised
QUICK = Library(events, events.FUNCTIONS, tuple(arrays_of(CoreRecord)), is_optimised=False)
SHORT = 50_000  # steps without loops


CONTINUED = (
    StopReason.RING_FULL,
    StopReason.LOOP_ITERATION,
    StopReason.EVENTS_FULL,
    StopReason.PAUSED,
)


class TimingDeadlock(CompileError):
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


class CoreTimer:
    """The simulation of one core's time: its record and the rules bound to it, in picoseconds.

    `is_native` False runs the same rules in Python. `on_iteration` is called with a loop's slot
    when one that is watched starts another iteration.
    """

    def __init__(
        self, plan: TimingPlan, arch: Arch, trips: Trips, max_events: int, *, is_native: bool = True
    ) -> None:
        self.plan, self.is_native = plan, is_native
        self.record = lay_out(plan, arch, trips, EVENT_ROOM if max_events else 0)
        self.log = EventLog(StepFacts.of(plan.costs), max_events)
        self.call = self._bind()
        self.begin = int(self.record["core"][CoreState.NOW])
        self.skips: list[tuple[str, int, int, int]] = []  # variable, start, end, iterations
        self.on_iteration: Callable[[int], None] | None = None
        self._stepped = 0  # instructions executed one by one
        # so few that their time fits into 64 bits, however long each waits for what it shares
        longest = max((cost.longest for cost in plan.costs.distinct), default=0)
        self._piece_steps = min(PIECE_STEPS, 1 + MAX_TIME // (16 * max(1, longest)))

    def run(self) -> None:
        """Execute the whole program; TimingDeadlock when it cannot end."""
        self.call("begin")
        if self.advance() == StopReason.DEADLOCK:
            raise self.deadlock()

    def advance(self, *, skips: bool = True) -> int:
        """Execute until the program ends, deadlocks or comes to a rendezvous; the StopReason.

        Repeated iterations are skipped only if `skips`.
        """
        while (reason := self._run_piece()) in CONTINUED:
            if reason == StopReason.RING_FULL:
                self._grow()
            elif reason == StopReason.EVENTS_FULL:
                self.log_events()
            if reason != StopReason.LOOP_ITERATION:
                continue
            slot = int(self.record["core"][CoreState.MARK]) - 1
            self.record["core"][CoreState.MARK] = 0
            if skips and self.on_iteration is not None:
                self.on_iteration(slot)
        return reason

    def _run_piece(self) -> int:
        """Execute until something is to be done; TimingTooLarge beyond MOST_STEPS in total."""
        before = self.executed
        self.record["parameter"][RunParameter.PAUSE] = before + self._piece_steps
        reason = self.call("run")
        self._stepped += self.executed - before
        if self._stepped > MOST_STEPS:
            raise TimingTooLarge(reason=f"{self._stepped} instructions run that do not repeat")
        if self.last > MAX_TIME:
            raise TimingTooLarge(reason="its run lasts for weeks")
        return reason

    def stop_at(self, steps: Array) -> None:
        """Treat these steps as rendezvous: `advance` returns whenever an engine comes to one."""
        op, arg = self.record["op"], self.record["arg"]
        self.record["op"] = np.where(
            (op == StreamOp.STEP) & np.isin(arg, steps), StreamOp.RENDEZVOUS, op
        )
        for loop in loops_in(self.plan.items):  # one with such a step is run in full
            begin, end = np.searchsorted(steps, loop.steps)
            if begin < end:
                self.record["watched"][loop.slot] = -1
        self.call = self._bind()

    @property
    def last(self) -> int:
        """When the latest result so far becomes visible."""
        return int(self.record["core"][CoreState.LAST])

    @property
    def executed(self) -> int:
        return int(self.record["core"][CoreState.EXECUTED])

    @property
    def assumed_trips(self) -> list[int]:
        """The ordinals of run-time control flow whose outcome was assumed."""
        return [int(number) for number in np.flatnonzero(self.record["is_assumed"])]

    def log_events(self) -> None:
        """Move the events of the record to the log."""
        core = self.record["core"]
        self.log.add(self.record["event"][: EVENT_WORDS * int(core[CoreState.EVENTS])])
        core[CoreState.EVENTS] = 0

    def _bind(self) -> Callable[[str], int]:
        """A function that calls a rule by name; valid until an array of the record is replaced."""
        if self.is_native:
            is_short = not self.plan.slots and len(self.plan.columns.instructions) < SHORT
            return (QUICK if is_short else LIBRARY).bind(self.record)
        return lambda name: LIBRARY.call(name, self.record, is_native=False)

    def _grow(self) -> None:
        """Give the semaphore whose ring is full one of twice the capacity it needs."""
        record = self.record
        semaphore, needed = (int(value) for value in record["overflow"])
        first, count = int(record["first"][semaphore]), int(record["count"][semaphore])
        base, mask = int(record["base"][semaphore]), int(record["mask"][semaphore])
        pending = record["ring"][base + (np.arange(first, count) & mask)]
        capacity = 1 << (2 * needed - 1).bit_length()
        if len(record["ring"]) + capacity > MOST_MOMENTS:
            name = self.plan.semaphores[semaphore]
            raise TimingTooLarge(reason=f"semaphore {name} counts {needed} ahead of its waits")
        record["base"][semaphore] = len(record["ring"])
        record["mask"][semaphore] = capacity - 1
        record["ring"] = np.concatenate([record["ring"], np.zeros(capacity, np.int64)])
        record["pending"] = np.zeros(len(record["ring"]), np.int64)
        self.store_moments(semaphore, first, pending)
        self.call = self._bind()

    def store_moments(self, semaphore: int, first: int, moments: Array) -> None:
        """Record the moments at which the counts from `first` on were reached."""
        record = self.record
        indices = np.arange(first, first + moments.size) & record["mask"][semaphore]
        record["ring"][record["base"][semaphore] + indices] = moments

    def deadlock(self) -> TimingDeadlock:
        """The error that names a blocked engine and its semaphore."""
        record = self.record
        blocked = np.flatnonzero(record["start"] == EngineState.BLOCKED)
        if not blocked.size:
            raise InternalError("engines do not come to the same barrier or decision")
        engine = int(blocked[0])
        wait = self.plan.wait(int(record["blocked"][engine]))
        return _deadlock(
            self.plan, wait, self.awaited_count(engine, wait), self._reached_count(wait)
        )

    def awaited_count(self, engine: int, wait: PlannedWait) -> int:
        """The count that an engine waits for in its present iterations."""
        variables = self.record["variable"][engine * self.plan.slots :]
        return wait.constant + sum(c * int(variables[slot]) for slot, c in wait.terms)

    def _reached_count(self, wait: PlannedWait) -> int:
        return int(self.record["count"][wait.semaphore]) * self.plan.unit(wait.semaphore)


def _deadlock(plan: TimingPlan, wait: PlannedWait, needed: int, reached: int) -> TimingDeadlock:
    rows = np.flatnonzero(plan.steps["signal_semaphore"] == wait.semaphore)
    steps = np.searchsorted(plan.steps["step_signal"], rows, "right") - 1
    signalling = [plan.cost(step) for step in dict.fromkeys(steps.tolist())]
    where = "; ".join(f"{plan.engines[cost.engine]}: {cost.opcode}" for cost in signalling[:4])
    cure = f"its signals come from {where}" if where else "no instruction signals it"
    cost = plan.cost(wait.step)
    return TimingDeadlock(
        loc=plan.instruction(wait.step).loc,
        instruction=cost.opcode,
        engine=plan.engines[cost.engine],
        semaphore=plan.semaphores[wait.semaphore],
        needed=needed,
        reached=reached,
        signallers=cure + "; signal it often enough before the wait, or wait for less",
    )
