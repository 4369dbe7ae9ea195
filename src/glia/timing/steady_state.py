"""Detection of a loop's steady state, whose iterations are skipped with the same result.

What a core does next depends on its record alone, and a moment before NOW delays nothing any more.
So when, as a watched loop starts an iteration, every engine is where it was `distance` iterations
ago, everything after NOW is as far from it as then, and every wait inside either looks for counts
as far back as then or for counts long reached, the next iterations can only repeat: the record is
advanced by as many periods as fit, with exactly the result of running them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from glia.base.errors import CompileError
from glia.machine.columns.value_numbering import Array
from glia.timing.core import MAX_TIME, CoreTimer
from glia.timing.plan import LoopStep, PlannedWait, loops_in
from glia.timing.registers import ENGINES, CoreState, Engine, EngineState, RunParameter, state_names
from glia.timing.spans import Spans

DISTANCES = (1, 2, 3, 4, 6, 8)
PICOSECONDS_A_DAY = 86_400 * 10**12
WINDOW, PAUSE = 24, 64  # iterations watched, out of every this many
MAX_FRUITLESS_WINDOWS = 4  # windows without a skip before a loop is no longer watched
LAST_RUN = 1  # iterations at the end that are always run, so that traces show them

# Of the core: what must be the same, and what moves
SAME_WORDS = (
    CoreState.IS_WARM,
    CoreState.HEAT,
    CoreState.WEIGHTS,
    CoreState.WEIGHTS_TILE,
    CoreState.WEIGHTS_STEP,
    CoreState.TABLE,
)
MOVING_WORDS = (CoreState.LAST, CoreState.TENSOR_END)


class RunTooLong(CompileError):
    """The program would run for weeks, longer than its time can be counted.

    Cause: Loops nest with so many trips that one run takes more than 26 days of device time.
    Fix: Lower the trip counts, or time a part of the program.
    Example: a loop of 10**15 trips around one copy
    """

    code = "GLIA402"
    message = "the loop over {variable} alone lasts until day {days} of the run"
    help = "lower the trip counts, or time a part of the program"


def skip_repetitions(machine: CoreTimer, unwatched: int) -> None:
    """Skip steady states of a timer's loops once it has executed `unwatched` instructions."""
    machine.record["parameter"][RunParameter.UNWATCHED] = unwatched
    watchers: dict[int, _LoopWatcher] = {}

    def observe_iteration(slot: int) -> None:
        if slot not in watchers:
            loop = next(loop for loop in loops_in(machine.plan.items) if loop.slot == slot)
            watchers[slot] = _LoopWatcher(machine, loop)
        watchers[slot].observe_iteration()

    machine.on_iteration = observe_iteration


@dataclass(slots=True)
class _Snapshot:
    """The part of the record that decides what comes next in a loop, and the totals so far."""

    now: int
    parts: dict[str, Array]
    pending: Array  # moments that may still delay a wait, relative to now
    past: Array  # by semaphore: the counts that cannot


class _LoopWatcher:
    """Compares the iterations of one loop."""

    def __init__(self, machine: CoreTimer, loop: LoopStep) -> None:
        self.machine, self.loop = machine, loop
        self.snapshots: list[_Snapshot] = []
        self.iterations = self.fruitless = 0
        self.waits = machine.plan.waits_in(loop.steps)
        self.parts, positions = _parts(machine, loop)
        self.positions = np.concatenate(positions)
        self.margin = int(machine.record["parameter"][RunParameter.MARGIN])
        self.own_slots = np.arange(ENGINES) * machine.plan.slots + loop.slot

    def observe_iteration(self) -> None:
        """The watched engine starts an iteration: skip the next ones if they repeat."""
        self.iterations += 1
        phase = self.iterations % PAUSE
        if phase >= WINDOW:
            if phase == WINDOW:
                self.snapshots.clear()
                self.fruitless += 1
                if self.fruitless >= MAX_FRUITLESS_WINDOWS:
                    self.machine.record["watched"][self.loop.slot] = -1
            return
        self.snapshots.append(self._snapshot())
        for distance in DISTANCES:
            if len(self.snapshots) > distance and self._skip(self.snapshots[-1 - distance]):
                self.snapshots.clear()
                self.fruitless = 0
                return
        del self.snapshots[: -max(DISTANCES)]

    def _snapshot(self) -> _Snapshot:
        machine, record = self.machine, self.machine.record
        listed = machine.call("list_pending")
        values = record["state"][self.positions]
        parts = {name: values[part] for name, part in self.parts.items()}
        past = record["first"].copy()
        return _Snapshot(
            int(record["core"][CoreState.NOW]), parts, record["pending"][:listed].copy(), past
        )

    def _skip(self, then: _Snapshot) -> bool:
        now, machine = self.snapshots[-1], self.machine
        period = now.now - then.now
        if period <= 0 or not self._is_same(now, then, period):
            return False
        advanced = self._advanced(now, then)
        if advanced is None:
            return False
        times = self._repetitions(now, then, *advanced)
        last = machine.last
        end = now.now + period * times
        if times < 1 or end < last:
            return False
        if end > MAX_TIME:
            raise RunTooLong(variable=self.loop.variable, days=end // PICOSECONDS_A_DAY)
        self._skip_ahead(now, then, period, times, *advanced)
        machine.skips.append((self.loop.variable, last, end, advanced[1] * times))
        return True

    def _is_same(self, now: _Snapshot, then: _Snapshot, period: int) -> bool:
        """Whether the state is that of `then`, moved on by `period`."""
        a, b = now.parts, then.parts
        if not np.array_equal(a["same"], b["same"]) or not np.array_equal(
            now.pending, then.pending
        ):
            return False
        if not np.array_equal(self._lead(now), self._lead(then)):
            return False
        live = a["start"] >= 0
        same = a["start"] - b["start"] == np.where(live, period, 0)
        same &= ~live | ((a["waited"] - b["waited"] == period) & (a["binding"] == b["binding"]))
        if not same.all():
            return False
        if not np.array_equal(a["count"] - now.past, b["count"] - then.past):
            return False
        came = a["free"] - b["free"]
        if not ((came == period) | ((came == 0) & (a["free"] <= then.now))).all():
            return False
        last, tensor = (a["moving"] - b["moving"]).tolist()
        return bool(last == period and tensor == (0 if came[Engine.TENSOR] == 0 else period))

    def _lead(self, snapshot: _Snapshot) -> Array:
        """How far moments that can still delay something lie ahead of NOW, 0 for others."""
        ahead: Array = np.maximum(snapshot.parts["ahead"] - (snapshot.now - self.margin), 0)
        return ahead

    def _advanced(self, now: _Snapshot, then: _Snapshot) -> tuple[list[int], int] | None:
        """The engines that advanced in this loop, and by how many iterations; None if unevenly."""
        came = now.parts["variable"] - then.parts["variable"]
        own_slots = came[self.own_slots]
        came[self.own_slots] = 0
        distance = int(own_slots.max())
        if came.any() or distance < 1 or not ((own_slots == 0) | (own_slots == distance)).all():
            return None
        return np.flatnonzero(own_slots).tolist(), distance

    def _repetitions(
        self, now: _Snapshot, then: _Snapshot, engines: list[int], distance: int
    ) -> int:
        """The number of periods before the loop ends or a wait no longer repeats."""
        record = self.machine.record
        indices = {e: int(record["variable"][self.own_slots[e]]) for e in engines}
        left = min(self.loop.trips - 1 - LAST_RUN - index for index in indices.values())
        times = left // distance
        gained = now.parts["count"] - then.parts["count"]
        for wait in self.waits:
            if wait.engine in indices and times > 0:
                index = indices[wait.engine]
                times = min(times, self._wait_repetitions(wait, index, distance, gained, then))
        for engine in range(ENGINES):
            start = record["start"][engine]
            if engine not in indices and start == EngineState.BLOCKED:
                times = min(times, self._blocked_repetitions(engine, gained))
            elif engine not in indices and start >= 0:
                return 0
        return times

    def _wait_repetitions(
        self,
        wait: PlannedWait,
        index: int,
        distance: int,
        gained: Array,
        then: _Snapshot,
    ) -> int:
        """The number of periods in which a wait behaves as in the last one."""
        forever = self.loop.trips
        unit = self.machine.plan.unit(wait.semaphore)
        step = sum(c for slot, c in wait.terms if slot == self.loop.slot) * distance
        if wait.is_unknown:
            return 0
        if step == int(gained[wait.semaphore]) * unit:
            return forever
        needed = self._greatest_count(wait, index)
        reached = int(then.past[wait.semaphore]) * unit
        if needed > reached:
            return 0
        if step <= int(gained[wait.semaphore]) * unit:
            return forever
        return (reached - needed) // step

    def _greatest_count(self, wait: PlannedWait, index: int) -> int:
        """The greatest count waited for in iteration `index`, whatever inner loops are at."""
        variables = self.machine.record["variable"]
        begin = wait.engine * self.machine.plan.slots
        most = wait.constant
        for slot, factor in wait.terms:
            if slot in self.loop.extents:
                most += max(0, factor * (self.loop.extents[slot] - 1))
            else:
                value = index if slot == self.loop.slot else int(variables[begin + slot])
                most += factor * value
        return most

    def _blocked_repetitions(self, engine: int, gained: Array) -> int:
        """The number of periods for which an engine outside the loop stays blocked."""
        machine = self.machine
        wait = machine.plan.wait(int(machine.record["blocked"][engine]))
        growth = int(gained[wait.semaphore])
        if not growth:
            return self.loop.trips
        needed = -(-machine.awaited_count(engine, wait) // machine.plan.unit(wait.semaphore))
        return (needed - 1 - int(machine.record["count"][wait.semaphore])) // growth

    def _skip_ahead(
        self,
        now: _Snapshot,
        then: _Snapshot,
        period: int,
        times: int,
        engines: list[int],
        distance: int,
    ) -> None:
        """Advance the record by `times` periods."""
        record, shift = self.machine.record, period * times
        a, b = now.parts, then.parts
        self._log_repetitions((a["totals"] - b["totals"]) * times, shift)
        changed = dict(a)
        changed["ahead"] = a["ahead"] + np.where(self._lead(now) > 0, shift, 0)
        for name in ("free", "moving"):
            changed[name] = a[name] + np.where(a[name] != b[name], shift, 0)
        for name in ("start", "waited"):
            changed[name] = a[name] + np.where(a["start"] >= 0, shift, 0)
        for name in ("variable", "count", "totals"):
            changed[name] = a[name] + (a[name] - b[name]) * times
        record["state"][self.positions] = np.concatenate([changed[name] for name in self.parts])
        core = record["core"]
        core[CoreState.NOW] += shift
        core[CoreState.WEIGHTS_PLACE] += self._place_shift(engines, distance) * times
        self._move_moments(now, shift)

    def _log_repetitions(self, totals: Array, shift: int) -> None:
        """Log the executions that are skipped: one span for each engine and queue.

        Each does all of them between the end of what it has done so far and `shift` later.
        """
        record, log = self.machine.record, self.machine.log
        first, end = self.loop.steps
        count, busy = totals[: end - first], totals[end - first : 2 * (end - first)]
        tracks = log.facts.track[first:end]
        since = np.concatenate([record["free"], record["queue_end"]])
        rows = []
        for track in np.unique(tracks[count > 0]).tolist():
            own = np.flatnonzero(tracks == track)
            steps, start = own + first, int(since[track])
            moved = (log.facts.read[steps], log.facts.written[steps])
            sums = (count[own].sum(), busy[own].sum(), *(count[own] @ each for each in moved))
            rows.append((steps[busy[own].argmax()], start, start + shift, *sums))
        if rows:
            log.add_block(Spans(*np.array(rows, np.int64).T))

    def _move_moments(self, now: _Snapshot, shift: int) -> None:
        """Attach the pending moments to the counts after those that were added."""
        machine, record = self.machine, self.machine.record
        lengths = now.parts["count"] - now.past
        ends = np.cumsum(lengths)
        for semaphore in np.flatnonzero(lengths).tolist():
            end = int(ends[semaphore])
            moments = now.pending[end - int(lengths[semaphore]) : end] + (now.now + shift)
            machine.store_moments(
                semaphore, int(record["count"][semaphore]) - moments.size, moments
            )
        record["first"][:] = record["count"] - lengths

    def _place_shift(self, engines: list[int], distance: int) -> int:
        """By how many elements the held weights' place moves in one period."""
        if Engine.TENSOR not in engines:
            return 0
        step = int(self.machine.record["core"][CoreState.WEIGHTS_STEP])
        terms = dict(self.machine.plan.weights_terms(step))
        return terms.get(self.loop.slot, 0) * distance


def _parts(machine: CoreTimer, loop: LoopStep) -> tuple[dict[str, slice], list[Array]]:
    """Where in the machine's state lies what a loop can change or depend on, by its kind."""
    record = machine.record
    names = state_names()
    begins = dict(zip(names, accumulate((record[n].size for n in names), initial=0), strict=False))

    def at(name: str, indices: Array | Sequence[int] | None = None) -> Array:
        inside = np.arange(record[name].size) if indices is None else np.asarray(indices)
        return begins[name] + inside

    tables, (first, end) = machine.plan.steps, loop.steps
    steps = np.arange(first, end)
    waits = np.arange(*tables["step_wait"][[first, end]])
    reads = np.unique(tables["read_step"][slice(*tables["step_read"][[first, end]])])
    touched = np.concatenate([steps, reads[reads < first]])
    ahead = [at(name) for name in ("generator", "lane", "port", "queue_ready", "queue_end")]
    ahead += [at("latest"), at("counted"), at("visible", touched), at("core", (CoreState.SWAP,))]
    same = [at(name) for name in ("place", "blocked", "seen", "left", "group_arrived")]
    totals = [at(name, steps) for name in ("counts", "busied", "table_loads", "throttled")]
    totals += [at("stalled", waits), at("queue_busy"), at("core", (CoreState.EXECUTED,))]
    kinds = {
        "ahead": ahead,
        "same": [*same, at("core", SAME_WORDS)],
        "start": [at("start")],
        "waited": [at("waited")],
        "binding": [at("binding")],
        "free": [at("free")],
        "moving": [at("core", MOVING_WORDS)],
        "variable": [at("variable")],
        "count": [at("count")],
        "totals": totals,
    }
    parts, positions, begin = {}, [], 0
    for name, lists in kinds.items():
        positions += lists
        end = begin + sum(each.size for each in lists)
        parts[name] = slice(begin, end)
        begin = end
    return parts, positions
