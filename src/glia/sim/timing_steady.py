"""Skipping iterations of a loop once they only repeat what the ones before did, later.

A machine's next moves depend on its state alone. When everything a loop touches is, after an
iteration, what it was `distance` iterations ago but `period` later, and every wait inside refers
to counts the same distance back (or to a moment already past), the iterations from here on can
only repeat: they are skipped by moving the state forward, with exactly the result of running them.
"""

from __future__ import annotations

from dataclasses import dataclass

from glia.base.errors import InternalError
from glia.sim.timing_costs import HBM_LANE
from glia.sim.timing_machine import PORT_ENGINES, TENSOR, Machine
from glia.sim.timing_plan import LoopStep, PlannedWait, Step

FEWEST_TRIPS = 8  # a shorter loop is run as it is
DISTANCES = (1, 2, 3, 4, 6, 8)
WINDOW, PAUSE = 48, 512  # iterations watched, out of every this many
MOST_FRUITLESS = 4  # runs of a loop without a skip, after which it is no longer watched
LAST_RUN = 1  # iterations at the end that are always run, so that a picture shows them


@dataclass(slots=True)
class _Snapshot:
    """State after an iteration: moments that must move together, and what must be equal."""

    times: list[int]
    modes: tuple[object, ...]
    past: int  # what is not later than this can no longer delay anything in the loop
    counts: list[int]  # of the signalled semaphores
    totals: list[list[int]]
    executed: int
    checksum: int


def skip_iterations(machine: Machine, loop: LoopStep) -> None:
    """Run a loop, skipping iterations that repeat; one that never does is soon not watched."""
    fruitless = machine.fruitless.get(loop.slot, 0)
    is_watched = loop.trips >= FEWEST_TRIPS and fruitless < MOST_FRUITLESS
    watcher = _Watcher(machine, loop) if is_watched else None
    index = skipped = 0
    while index < loop.trips:
        machine.variables[loop.slot] = index
        machine.run(loop.body)
        index += 1
        if watcher is not None and loop.trips - index > LAST_RUN:
            repeated = watcher.after(index)
            index, skipped = index + repeated, skipped + repeated
    machine.fruitless[loop.slot] = 0 if skipped else fruitless + 1


class _Watcher:
    def __init__(self, machine: Machine, loop: LoopStep) -> None:
        self.machine, self.loop = machine, loop
        self.snapshots: list[_Snapshot] = []
        self.paces: list[list[int]] = []
        self.streaks = dict.fromkeys(DISTANCES, (0, 0))  # distance -> (length, period)
        self.waits = machine.plan.planned_waits[slice(*loop.waits)]

    def after(self, done: int) -> int:
        """Skip if possible after `done` iterations; returns how many were skipped."""
        phase = done % PAUSE
        if phase > WINDOW:
            return 0
        if phase == 0 or not self._is_even_paced():
            self.snapshots.clear()
            self.streaks = dict.fromkeys(DISTANCES, (0, 0))
            return 0
        self.snapshots.append(self._snapshot(done))
        for distance in DISTANCES:
            period = self._period(distance)
            length, before = self.streaks[distance]
            length = (
                length + 1 if period is not None and period == before else int(period is not None)
            )
            self.streaks[distance] = (length, period or 0)
            times = (self.loop.trips - done - LAST_RUN) // distance
            if period is not None and times > 0 and self._repeats(distance, length, done):
                self._jump(distance, period, times)
                return distance * times
        return 0

    def _is_even_paced(self) -> bool:
        """Whether all engines moved by the same time since some iteration: what is cheap to see."""
        now = [self.machine.free[e] for e in self.loop.engines]
        self.paces.append(now)
        del self.paces[: -1 - max(DISTANCES)]
        for distance in DISTANCES:
            if distance < len(self.paces):
                then = self.paces[-1 - distance]
                step = now[0] - then[0]
                if all(a - b == step for a, b in zip(now, then, strict=True)):
                    return True
        return False

    def _snapshot(self, done: int) -> _Snapshot:
        machine, loop = self.machine, self.loop
        times, lengths = _pack(machine, loop)
        name, address = machine.held
        shift = dict(machine.held_terms).get(loop.slot, 0) * (done - 1)
        return _Snapshot(
            times=times,
            modes=(lengths, name, address - shift, machine.table, machine.heat, machine.is_warm),
            past=min((machine.free[e] for e in loop.engines), default=0),
            counts=[machine.histories[s].count for s in loop.signalled],
            totals=[list(part[span]) for part, span in _totals(machine, loop)],
            executed=machine.executed,
            checksum=machine.checksum,
        )

    def _period(self, distance: int) -> int | None:
        """How much later everything is than `distance` iterations ago; None if not the same."""
        if len(self.snapshots) < distance + 2:
            return None
        now, then = self.snapshots[-1], self.snapshots[-1 - distance]
        if now.modes != then.modes or len(now.times) != len(then.times) or not now.times:
            return None
        period = now.times[0] - then.times[0]
        for a, b in zip(now.times, then.times, strict=True):
            if a - b != period and (a != b or a > then.past):
                return None
        return period if self._iterations_agree(distance, period) else None

    def _iterations_agree(self, distance: int, period: int) -> bool:
        """Whether the last iteration did the same work as the one `distance` before, moved."""
        if len(self.snapshots) < distance + 2:
            return False
        now, before = self.snapshots[-1], self.snapshots[-2]
        then, then_before = self.snapshots[-1 - distance], self.snapshots[-2 - distance]
        executed = now.executed - before.executed
        moved = now.checksum - before.checksum - (then.checksum - then_before.checksum)
        return executed == then.executed - then_before.executed and moved == executed * period

    def _repeats(self, distance: int, streak: int, done: int) -> bool:
        """Whether every wait inside keeps its distance and looks back within the streak."""
        now, then = self.snapshots[-1], self.snapshots[-1 - distance]
        units = {
            semaphore: a - b
            for semaphore, a, b in zip(self.loop.signalled, now.counts, then.counts, strict=True)
        }
        reach = max((self._reach(s, w, distance, units, done) for s, w in self.waits), default=0)
        return streak > reach + distance

    def _reach(
        self, step: Step, wait: PlannedWait, distance: int, units: dict[int, int], done: int
    ) -> int:
        """How many iterations back the wait looks; more than any streak if it may not repeat."""
        never = WINDOW * max(DISTANCES)
        if wait.is_unknown:
            return 0
        unit = self.machine.plan.units[wait.semaphore]
        produced = units.get(wait.semaphore, 0)
        coefficient = sum(c for slot, c in wait.terms if slot == self.loop.slot)
        low, high = self._bounds(wait, done - distance)
        if high + coefficient * (self.loop.trips - 1 - (done - distance)) <= 0:
            return 0
        if coefficient * distance > produced * unit:
            return never
        if coefficient * distance < produced * unit or not produced:
            return 0 if self._is_past(step, wait, high, distance) else never
        if low <= 0:
            return never
        count = self.snapshots[-1 - distance].counts[self.loop.signalled.index(wait.semaphore)]
        behind = count - (-(-low // unit)) + 1
        return max(0, -(-behind * distance // produced))

    def _bounds(self, wait: PlannedWait, index: int) -> tuple[int, int]:
        """The least and greatest count waited for in iteration `index`."""
        low = high = wait.constant
        for slot, coefficient in wait.terms:
            if slot in self.loop.extents:
                reach = coefficient * (self.loop.extents[slot] - 1)
                low, high = low + min(0, reach), high + max(0, reach)
            else:
                value = index if slot == self.loop.slot else self.machine.variables[slot]
                low, high = low + coefficient * value, high + coefficient * value
        return low, high

    def _is_past(self, step: Step, wait: PlannedWait, value: int, distance: int) -> bool:
        """Whether the count was reached before the waiting engine came to the last iterations."""
        history = self.machine.histories[wait.semaphore]
        units = -(-value // self.machine.plan.units[wait.semaphore])
        if not 0 < units <= history.count:
            return units <= 0
        return history.moment(units) + self.machine.wake <= self.snapshots[-1 - distance].past

    def _jump(self, distance: int, period: int, times: int) -> None:
        """Move the machine `times` periods forward."""
        machine, loop = self.machine, self.loop
        now, then = self.snapshots[-1], self.snapshots[-1 - distance]
        begin = machine.last
        pairs = zip(now.times, then.times, strict=True)
        _unpack(
            machine, loop, [a + period * times if a != b else a for a, b in pairs], now.modes[0]
        )
        for semaphore, a, b in zip(loop.signalled, now.counts, then.counts, strict=True):
            if a > b:
                machine.histories[semaphore].repeat(a - b, period, times)
        for (part, span), new, old in zip(
            _totals(machine, loop), now.totals, then.totals, strict=True
        ):
            part[span] = [a + (a - b) * times for a, b in zip(new, old, strict=True)]
        executed = now.executed - then.executed
        machine.executed += executed * times
        sums = now.checksum - then.checksum
        machine.checksum += sums * times + executed * period * times * (times + 1) // 2
        name, address = machine.held
        shift = dict(machine.held_terms).get(loop.slot, 0) * distance * times
        machine.held = (name, address + shift)
        hidden_to = max(begin, now.past + period * times)
        machine.skips.append((loop.variable, begin, hidden_to, distance * times))


def _totals(machine: Machine, loop: LoopStep) -> list[tuple[list[int], slice]]:
    """The sums that grow by the same amount in every repetition, and the loop's part of each."""
    steps, waits = slice(*loop.steps), slice(*loop.waits)
    return [
        (machine.counts, steps),
        (machine.busy, steps),
        (machine.table_loads, steps),
        (machine.throttled, steps),
        (machine.stalled, waits),
    ]


def _pack(machine: Machine, loop: LoopStep) -> tuple[list[int], tuple[int, ...]]:
    """Every moment the loop can read or move, in one list, with the lengths of its lanes."""
    times = [machine.free[e] for e in loop.engines]
    times += machine.visible[slice(*loop.steps)]
    times += [machine.visible[n] for n in loop.outer_reads]
    times += [machine.queue_ready[q] for q in loop.queues]
    times += [machine.generators[e] for e in loop.transfer_engines]
    lengths = []
    for lane in _lanes(machine, loop):
        times += lane
        lengths.append(len(lane))
    if TENSOR in loop.engines:
        times += (machine.swap, machine.tensor_end)
    return times, tuple(lengths)


def _lanes(machine: Machine, loop: LoopStep) -> list[list[int]]:
    lanes = machine.lanes if loop.transfer_engines else []
    if set(PORT_ENGINES) & set(loop.engines):
        lanes = [*lanes, *machine.ports]
    return lanes


def _unpack(machine: Machine, loop: LoopStep, times: list[int], lengths: object) -> None:
    """Put back what `_pack` took, moved."""
    if not isinstance(lengths, tuple):
        raise InternalError("a snapshot's first mode is the lengths of its lanes")
    values = iter(times)
    for engine in loop.engines:
        machine.free[engine] = next(values)
    for number in (*range(*loop.steps), *loop.outer_reads):
        machine.visible[number] = next(values)
    for queue in loop.queues:
        machine.queue_ready[queue] = next(values)
    for engine in loop.transfer_engines:
        machine.generators[engine] = next(values)
    lanes: dict[tuple[int, ...], list[int]] = {}
    moved = [[next(values) for _ in range(length)] for length in lengths]
    shared = [lanes.setdefault(tuple(lane), lane) for lane in moved]
    if loop.transfer_engines:
        machine.lanes = shared[: HBM_LANE + 1]
        shared = shared[HBM_LANE + 1 :]
    if shared:
        machine.ports = shared
    if TENSOR in loop.engines:
        machine.swap, machine.tensor_end = next(values), next(values)
    machine.last = max(machine.last, *machine.visible[slice(*loop.steps)])
