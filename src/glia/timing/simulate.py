"""The simulated time of a machine program: discrete events on engines and DMA queues.

Every engine and DMA queue has its own time line; waits, results of the same engine, DMA engines,
HBM, memory ports, weights loads, activation tables and the array's warm-up delay its events. The
steady state of a loop is skipped, with the same result as running it. `Timing.not_modelled` says
what is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

import numpy as np

from glia.isa.kit import INSTRUCTIONS, Instr
from glia.machine.columns.value_numbering import Array, group_rows
from glia.machine.ir import Program
from glia.timing.core import CoreTimer, TimingDeadlock
from glia.timing.costs import PS, Cost
from glia.timing.plan import TimingPlan, make_plan
from glia.timing.registers import RunParameter
from glia.timing.spans import Executions
from glia.timing.steady_state import skip_repetitions

if TYPE_CHECKING:
    from glia.arch import Arch

__all__ = [
    "CoreWait",
    "Event",
    "OpcodeTime",
    "Skip",
    "Stall",
    "Timing",
    "TimingDeadlock",
    "simulate_timing",
]

MAX_EVENTS = 1_000_000  # executions with an event of their own
UNWATCHED = 250_000  # instructions executed before it pays to look for what repeats
Executed = list[tuple[Cost, int, int]]  # a cost, how often it ran, its busy picoseconds

UNTIMED_RENDEZVOUS = "waiting for other cores in collectives and at barriers of cores"
NOT_MODELLED = (
    "HBM latency, refresh and channel conflicts; other cores' traffic",
    "a DMA engine shared by queues delays later transfers only, not those that have begun",
    "instruction fetch and queue depth",
    "conflicts on PSUM banks that a loop variable chooses",
    "loop branches and counters: sequencers are assumed to run ahead of their engines",
    "descriptor generation, where a transfer names no generator and no register or index",
    "reports of indices that are outside of their table",
)

TIMED_CONSTANTS = (
    "clocks_ghz",
    "tensor_passes",
    "transpose_passes",
    "load_stationary_cycles",
    "tensor_ramp_ns",
    "tensor_ramp_rate",
    "tensor_ramp_part",
    "tensor_rest_ns",
    "tensor_rest_part",
    "vector_modes",
    "scalar_half_speedup",
    "gpsimd_dispatch_cycles",
    "accumulator_read_cycles",
    "reciprocal_cycles",
    "two_input_cycles",
    "register_load_cycles",
    "dma_transpose_rate",
    "dma_transpose_sbuf_rate",
    "dma_compute_rate",
    "strided_access_bytes",
    "hbm_bytes_per_ns",
    "dma_bytes_per_ns",
    "semaphore_ns",
    "min_issue_cycles",
    "issue_gap_cycles",
    "operand_read_cycles",
    "latency_cycles",
    "activation_table_load_ns",
    "sequencer_cycles",
    "semaphore_wake_ns",
    "dma_descriptor_ns",
    "dma_issue_ns",
    "dma_software_issue_ns",
    "dma_hardware_issue_ns",
    "dma_ring_skew_ns",
    "strided_access_rate",
    "dma_start_ns",
    "dma_completion_ns",
    "collective_hop_ns",
    "collective_bytes_per_ns",
    "collective_mesh_bytes",
    "collective_doubling_bytes",
    "preamble_ns",
    "postamble_ns",
    "unmeasured_ns",
    "logical_core_ns",
)


def queue_track(queue: str) -> str:
    """The time line of a DMA queue; that of an engine has the engine's name."""
    return f"dma {queue}"


def is_queue(track: str) -> bool:
    """Whether a time line is that of a DMA queue."""
    return track.startswith("dma ")


@dataclass(frozen=True)
class Event:
    """One executed instruction on its time line; `track` is an engine or a `queue_track`."""

    track: str
    start_ns: float
    end_ns: float
    instr: Instr
    was_queued: bool = False  # a transfer that waited for the one before it on its queue


@dataclass(frozen=True)
class Skip:
    """Skipped iterations of a loop in its steady state; they have no events."""

    variable: str
    start_ns: float
    end_ns: float
    iterations: int


@dataclass(frozen=True)
class Stall:
    """Time that one semaphore alone delayed an engine."""

    engine: str
    semaphore: str
    ns: float
    opcode: str


@dataclass(frozen=True)
class CoreWait:
    """Time an engine waited at rendezvous for `core`, the last one to arrive."""

    engine: str
    core: int
    ns: float
    opcode: str


@dataclass(frozen=True)
class OpcodeTime:
    """The executions of one opcode on one engine or queue, in total."""

    engine: str  # or a `queue_track`
    opcode: str
    count: int
    busy_ns: float  # the sum, also of transfers that overlap


@dataclass(frozen=True)
class Timing:
    """The result of `simulate_timing`: times in nanoseconds, counts over the whole run."""

    latency_ns: float
    busy_ns: Mapping[str, float]  # by engine; transfers count on queues, not here
    instructions: Mapping[str, int]  # by engine, transfers on the engine that issues them
    opcodes: tuple[OpcodeTime, ...]
    hbm_read_bytes: int
    hbm_written_bytes: int
    moved_bytes: int
    queue_busy_ns: Mapping[str, float]  # with at least one transfer in flight
    matmul_flops: int
    transpose_flops: int
    flops_by_dtype: Mapping[str, int]
    table_loads: int
    throttled_ns: float
    stalls: tuple[Stall, ...]  # longest first
    executions: Executions | None = field(default=None, compare=False)  # None: not traced
    skips: tuple[Skip, ...] = ()
    begin_ns: float = 0.0  # end of the preamble
    end_ns: float = 0.0  # start of the postamble
    core_waits: tuple[CoreWait, ...] = ()  # longest first; only from `simulate_cores`
    not_modelled: tuple[str, ...] = field(default=NOT_MODELLED)

    @property
    def tracks(self) -> tuple[str, ...]:
        """The time lines of all engines and queues."""
        return (*self.busy_ns, *map(queue_track, self.queue_busy_ns))

    @property
    def events(self) -> Sequence[Event]:
        """The executions that were kept by themselves, in the order in which they happened."""
        return EventList(self.executions) if self.executions is not None else ()

    @property
    def events_left_out(self) -> int:
        """Executions without an event: repeated iterations, and those beyond the number kept."""
        return sum(self.instructions.values()) - len(self.events)

    @property
    def used_tracks(self) -> list[str]:
        """The time lines on which something is executed."""
        if self.executions is None:
            return []
        used = {track for _, track, _, _ in self.executions.executed_steps()}
        return [track for track in self.tracks if track in used]


class EventList(Sequence[Event]):
    """The events of a run, made when they are asked for."""

    def __init__(self, executions: Executions) -> None:
        self._executions = executions

    def __len__(self) -> int:
        return len(self._executions.rows)

    def __iter__(self) -> Iterator[Event]:
        return map(self._event, self._executions.rows.tolist())

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        rows = self._executions.rows[index].tolist()
        return list(map(self._event, rows)) if isinstance(index, slice) else self._event(rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def _event(self, row: Sequence[int]) -> Event:
        step, start, end, queued = row
        run = self._executions
        return Event(run.track(step), start / PS, end / PS, run.instruction(step), bool(queued))


def simulate_timing(
    program: Program,
    arch: Arch,
    *,
    trace: bool = True,
    trips: Mapping[int, Sequence[int]] | None = None,
    skip: bool = True,
    max_events: int = MAX_EVENTS,
    is_native: bool = True,
) -> Timing:
    """Time one core's program.

    `trips` gives, for each While and Branch numbered in program order, the trip counts or arms
    taken by its executions in order. Without it a While runs as often as it is known to; one trip
    of another and the first arm are assumed and reported. `trace` keeps what is executed when: up
    to `max_events` executions by themselves, the others merged. `skip=False` runs every iteration
    of every loop; the result is the same but for `executions`. `is_native=False` runs the rules in
    Python, with the same result. Raises TimingDeadlock.
    """
    plan = make_plan(program, arch)
    machine = CoreTimer(plan, arch, trips or {}, max_events if trace else 0, is_native=is_native)
    if skip:
        skip_repetitions(machine, 0 if trace else UNWATCHED)
    machine.run()
    return summarize(machine, arch)


def summarize(machine: CoreTimer, arch: Arch) -> Timing:
    """The Timing of a timer that has run to its end."""
    plan = machine.plan
    counts, busied, table_loads, throttled = (
        _by_cost(plan, machine.record[name])
        for name in ("counts", "busied", "table_loads", "throttled")
    )
    costs = [(cost, counts[cost.number], busied[cost.number]) for cost in plan.costs.distinct]
    transfers = [(c.transfer, n) for c, n, _ in costs if c.transfer is not None]
    queue_busy = machine.record["queue_busy"][: len(plan.queues)].tolist()
    machine.log_events()
    return Timing(
        latency_ns=machine.last / PS + arch.postamble_ns,
        begin_ns=machine.begin / PS,
        end_ns=machine.last / PS,
        busy_ns=_nanoseconds(_by_engine(plan, [(c, b) for c, _, b in costs if c.queue < 0])),
        instructions=_by_engine(plan, [(c, n) for c, n, _ in costs]),
        opcodes=_opcodes(plan, costs),
        hbm_read_bytes=sum(t.read_bytes * n for t, n in transfers),
        hbm_written_bytes=sum(t.written_bytes * n for t, n in transfers),
        moved_bytes=sum(t.moved_bytes * n for t, n in transfers),
        queue_busy_ns=_nanoseconds(dict(zip(plan.queues, queue_busy, strict=True))),
        matmul_flops=sum(c.flops * n for c, n, _ in costs),
        transpose_flops=sum(c.transpose_flops * n for c, n, _ in costs),
        flops_by_dtype=_flops_by_dtype(costs),
        table_loads=sum(table_loads),
        throttled_ns=sum(throttled) / PS,
        stalls=_stalls(plan, machine.record["stalled"]),
        executions=_executions(machine),
        skips=tuple(Skip(v, a / PS, b / PS, n) for v, a, b, n in machine.skips),
        not_modelled=NOT_MODELLED + _assumptions(machine, arch),
    )


def _by_cost(plan: TimingPlan, values: Array) -> list[int]:
    """The totals of values of steps, by their cost."""
    numbers = plan.costs.number
    found = np.zeros(len(plan.costs.distinct), np.int64)
    np.add.at(found, numbers, values[: len(numbers)])
    return found.tolist()


def _by_engine(plan: TimingPlan, values: Iterable[tuple[Cost, int]]) -> dict[str, int]:
    totals = dict.fromkeys(plan.engines, 0)
    for cost, value in values:
        totals[plan.engines[cost.engine]] += value
    return totals


def _nanoseconds(picoseconds: Mapping[str, int]) -> dict[str, float]:
    return {name: each / PS for name, each in picoseconds.items()}


def _opcodes(plan: TimingPlan, costs: Executed) -> tuple[OpcodeTime, ...]:
    found: dict[tuple[str, str], list[int]] = {}
    for cost, count, busied in costs:
        entry = found.setdefault((_track(plan, cost), cost.opcode), [0, 0])
        entry[0] += count
        entry[1] += busied
    rows = [OpcodeTime(track, opcode, n, ps / PS) for (track, opcode), (n, ps) in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.busy_ns, row.engine, row.opcode)))


def _track(plan: TimingPlan, cost: Cost) -> str:
    return plan.engines[cost.engine] if cost.queue < 0 else queue_track(plan.queues[cost.queue])


def _flops_by_dtype(costs: Executed) -> dict[str, int]:
    found: dict[str, int] = {}
    for cost, count, _ in costs:
        if cost.kind == "matmul":
            found[cost.dtype] = found.get(cost.dtype, 0) + cost.flops * count
    return found


def _stalls(plan: TimingPlan, stalled: Array) -> tuple[Stall, ...]:
    tables = plan.steps
    waits = np.flatnonzero(stalled)
    steps = np.searchsorted(tables["step_wait"], waits, "right") - 1
    semaphores = tables["wait_semaphore"][waits]
    alike = group_rows(plan.costs.number[steps], semaphores)
    totals = np.zeros(alike.first.size, np.int64)
    np.add.at(totals, alike.number, stalled[waits])
    found: dict[tuple[str, str, str], int] = {}
    for row, total in zip(alike.first.tolist(), totals.tolist(), strict=True):
        cost = plan.cost(steps[row])
        key = plan.engines[cost.engine], plan.semaphores[semaphores[row]], cost.opcode
        found[key] = found.get(key, 0) + total
    rows = [Stall(engine, semaphore, ps / PS, op) for (engine, semaphore, op), ps in found.items()]
    return tuple(sorted(rows, key=lambda row: -row.ns))


def _executions(machine: CoreTimer) -> Executions | None:
    """What was executed when, if it was traced."""
    if not machine.record["parameter"][RunParameter.EVENT_ROOM]:
        return None
    plan, steps = machine.plan, len(machine.plan.columns.instructions)
    return Executions(
        columns=plan.columns,
        tracks=(*plan.engines, *map(queue_track, plan.queues)),
        facts=machine.log.facts,
        count=machine.record["counts"][:steps].copy(),
        busy=machine.record["busied"][:steps].copy(),
        rows=machine.log.events,
        blocks=machine.log.blocks,
    )


def _assumptions(machine: CoreTimer, arch: Arch) -> tuple[str, ...]:
    timed = [name for name in arch.assumed if name.split(".")[0] in TIMED_CONSTANTS]
    found: tuple[str, ...] = (
        (f"no public number, value assumed: {', '.join(timed)}",) if timed else ()
    )
    opcodes = {cost.opcode for cost in machine.plan.costs.distinct}
    if any(INSTRUCTIONS[opcode].arrives == "participants" for opcode in opcodes):
        found += (UNTIMED_RENDEZVOUS,)
    if machine.assumed_trips:
        ordinals = ", ".join(map(str, machine.assumed_trips))
        found += (
            f"run-time control flow {ordinals}: one trip of each loop, first arm of each branch",
        )
    return found
