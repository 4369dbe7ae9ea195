"""Timing of several cores that run together: each on its own, synchronised at rendezvous.

A core runs until one of its engines could start an instruction at which cores synchronise: a
collective, an exchange or a barrier. The engine is held there until all participants have come;
they go on at the arrival of the last. In between cores do not affect each other. See
`glia.isa.rendezvous`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.base.errors import CompileError
from glia.isa.kit import ENGINES
from glia.machine.columns.table import Columns
from glia.machine.columns.value_numbering import Array
from glia.machine.ir import Program
from glia.timing.core import CoreTimer
from glia.timing.costs import PS
from glia.timing.plan import make_plan
from glia.timing.registers import RENDEZVOUS_OPEN, CoreState, StopReason
from glia.timing.simulate import (
    MAX_EVENTS,
    UNTIMED_RENDEZVOUS,
    UNWATCHED,
    CoreWait,
    Timing,
    simulate_timing,
    summarize,
)
from glia.timing.steady_state import skip_repetitions

if TYPE_CHECKING:
    from glia.arch import Arch


class UnmatchedRendezvous(CompileError):
    """A core waits at a collective, exchange or barrier that another core never reaches.

    Cause: The programs of the cores do not agree: one has a collective, an exchange or a barrier
        that another core lacks, or has in another order.
    Fix: Give every participating core the same collectives, exchanges and barriers, in one order.
    Example: two cores of which only the first has a core_barrier
    """

    code = "GLIA403"
    message = "deadlock: {engine} of core {core} waits at {rendezvous} for {missing}"
    help = "give every participating core the same collectives and barriers in the same order"


@dataclass
class _Arrival:
    """An engine held at a rendezvous since `moment`."""

    core: _Core
    engine: int
    instr: Any
    moment: int


@dataclass
class _Core:
    """One of `count` cores and what it waits for."""

    index: int
    lnc: int
    count: int
    machine: CoreTimer = field(init=False)
    arrivals: list[_Arrival] = field(default_factory=list)
    waits: dict[tuple[str, int, str], int] = field(default_factory=dict)
    reason: int = StopReason.LOOP_ITERATION  # why it stopped last

    def number(self, among: str) -> int:
        """The core's number within its logical core, or that of its logical core."""
        return self.index % self.lnc if among == "cores" else self.index // self.lnc

    def rendezvous_steps(self, columns: Columns) -> Array:
        """The steps at which it synchronises with other cores of this simulation."""
        representatives = [columns.instructions[row] for row in columns.form.first.tolist()]
        joins = np.array([self._is_rendezvous(instr) for instr in representatives], bool)
        return np.flatnonzero(joins[columns.form.number])

    def _is_rendezvous(self, instr: Any) -> bool:
        if instr.arrives != "participants":
            return False
        present = self.lnc if instr.among == "cores" else -(-self.count // self.lnc)
        ranks = instr.ranks(self.number(instr.among))
        return len(ranks) > 1 and max(ranks) < present

    def advance(self) -> None:
        """Run to the next rendezvous, or as far as possible."""
        self.reason = self.machine.advance(skips=not self.arrivals)
        if self.reason == StopReason.RENDEZVOUS:
            record = self.machine.record
            engine = int(record["core"][CoreState.ARRIVING])
            step = int(record["arg"][record["place"][engine]])
            instr = self.machine.plan.instruction(step)
            moment = int(record["core"][CoreState.NOW])
            self.arrivals.append(_Arrival(self, engine, instr, moment))

    def release(self, arrival: _Arrival, last: _Arrival) -> None:
        """Let an engine start its rendezvous at the arrival of the last participant."""
        self.arrivals.remove(arrival)
        self.machine.record["start"][arrival.engine] = last.moment
        self.machine.record["blocked"][arrival.engine] = RENDEZVOUS_OPEN
        if waited := last.moment - arrival.moment:
            key = ENGINES[arrival.engine], last.core.index, arrival.instr.mnemonic()
            self.waits[key] = self.waits.get(key, 0) + waited


def simulate_cores(
    programs: Sequence[Program],
    arch: Arch,
    *,
    lnc: int = 0,
    trace: bool = True,
    skip: bool = True,
    max_events: int = MAX_EVENTS,
    is_native: bool = True,
) -> tuple[Timing, ...]:
    """Time the programs of several cores that start together, one Timing for each.

    Each `lnc` neighbours are the cores of one logical core, a rank (0: all are one). The other
    options are those of `simulate_timing`, which times cores that never synchronise. Raises
    TimingDeadlock, RunTooLong or UnmatchedRendezvous.
    """
    lnc = lnc or max(1, len(programs))
    cores = [_Core(index, lnc, len(programs)) for index in range(len(programs))]
    plans = [make_plan(program, arch) for program in programs]
    rendezvous_steps = [
        core.rendezvous_steps(plan.columns) for core, plan in zip(cores, plans, strict=True)
    ]
    if not any(each.size for each in rendezvous_steps):
        alone = tuple(
            simulate_timing(
                program, arch, trace=trace, skip=skip, max_events=max_events, is_native=is_native
            )
            for program in programs
        )
        return _as_logical_cores(alone, lnc, arch)
    for core, plan, steps in zip(cores, plans, rendezvous_steps, strict=True):
        core.machine = CoreTimer(plan, arch, {}, max_events if trace else 0, is_native=is_native)
        core.machine.stop_at(steps)
        core.machine.call("begin")
        if skip:
            skip_repetitions(core.machine, 0 if trace else UNWATCHED)
    _run(cores)
    return _as_logical_cores(tuple(_summarized(core, arch) for core in cores), lnc, arch)


def _as_logical_cores(timings: tuple[Timing, ...], lnc: int, arch: Arch) -> tuple[Timing, ...]:
    """The times of cores with what a run on several in one logical core takes besides.

    Where in a run that lies is not published: it counts after the programs.
    """
    if lnc == 1:
        return timings
    more = arch.logical_core_ns
    return tuple(replace(each, latency_ns=each.latency_ns + more) for each in timings)


def _run(cores: Sequence[_Core]) -> None:
    """Move all cores to their ends.

    A core with an engine at a rendezvous stops while others can advance to theirs; when none can,
    its other engines go on.
    """
    running = list(cores)
    while running:
        for core in running:
            core.advance()
        released = _complete_rendezvous(cores)
        running = [core for core in cores if core.index in released]
        if not running:
            running = [core for core in cores if core.reason == StopReason.RENDEZVOUS]
    for core in cores:
        if core.arrivals:
            raise _unmatched(core.arrivals[0], cores)
        if core.reason == StopReason.DEADLOCK:
            raise core.machine.deadlock()


def _complete_rendezvous(cores: Sequence[_Core]) -> set[int]:
    """Release every rendezvous that all participants have reached; the indices of their cores."""
    found: set[int] = set()
    for core in cores:
        for arrival in list(core.arrivals):
            if arrival not in core.arrivals:
                continue
            together = [_arrival_of(arrival, rank, cores) for rank in _ranks(arrival)]
            if any(each is None for each in together):
                continue
            present = [each for each in together if each is not None]
            last = max(present, key=lambda each: (each.moment, -each.core.index))
            for each in present:
                each.core.release(each, last)
            found.update(each.core.index for each in present)
    return found


def _ranks(arrival: _Arrival) -> tuple[int, ...]:
    ranks: tuple[int, ...] = arrival.instr.ranks(arrival.core.number(arrival.instr.among))
    return ranks


def _arrival_of(arrival: _Arrival, rank: int, cores: Sequence[_Core]) -> _Arrival | None:
    """The first arrival of a rank at the same rendezvous, None if it has not come."""
    among, own = arrival.instr.among, arrival.core
    if rank == own.number(among):
        return arrival
    for core in cores:
        is_near = among == "ranks" or core.number("ranks") == own.number("ranks")
        if not is_near or core.number(among) != rank:
            continue
        for other in core.arrivals:
            if other.instr.topic() == arrival.instr.topic():
                return other
    return None


def _unmatched(arrival: _Arrival, cores: Sequence[_Core]) -> UnmatchedRendezvous:
    among = arrival.instr.among
    missing = [rank for rank in _ranks(arrival) if _arrival_of(arrival, rank, cores) is None]
    return UnmatchedRendezvous(
        loc=arrival.instr.loc,
        engine=ENGINES[arrival.engine],
        core=arrival.core.index,
        rendezvous=arrival.instr.mnemonic(),
        missing=", ".join(f"{among[:-1]} {rank}" for rank in missing),
    )


def _summarized(core: _Core, arch: Arch) -> Timing:
    """A core's Timing with its waits for other cores."""
    timing = summarize(core.machine, arch)
    waits = [CoreWait(engine, late, ps / PS, op) for (engine, late, op), ps in core.waits.items()]
    waits.sort(key=lambda wait: -wait.ns)
    left_out = tuple(note for note in timing.not_modelled if note != UNTIMED_RENDEZVOUS)
    return replace(timing, core_waits=tuple(waits), not_modelled=left_out)
