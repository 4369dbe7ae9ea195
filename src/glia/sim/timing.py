"""How long a machine program takes: its engines moved through time, event by event.

Every engine and DMA queue has its own time line; waits, results of the same engine, DMA engines,
HBM, memory ports, weights loads, activation tables and the array's warm-up move it. Loops are
skipped through once they repeat, with the same result as running them. `Timing.not_modelled` says
what is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from glia.isa.kit import Instr
from glia.machine.ir import Program
from glia.sim.timing_costs import PS, matmul_flops, transpose_flops
from glia.sim.timing_machine import Deadlock, Machine
from glia.sim.timing_plan import Plan, Step, make_plan
from glia.sim.timing_steady import skip_repetitions

if TYPE_CHECKING:
    from glia.arch import Arch

__all__ = ["Deadlock", "Event", "OpcodeTime", "Skip", "Stall", "Timing", "simulate_timing"]

MOST_EVENTS = 20_000

NOT_MODELLED = (
    "HBM latency and refresh; channels beyond rows that meet in one; traffic of other cores",
    "round robin among queues of a DMA engine: earlier in the program goes first",
    "instruction fetch and queue depth",
    "conflicts on PSUM banks that a loop variable chooses",
    "branches and counters of loops, taken as run ahead by the sequencers",
    "DMA descriptors of static queues are taken as prepared, unless a pattern names a register",
)

TIMED_CONSTANTS = (
    "clocks_ghz",
    "tensor_passes",
    "transpose_passes",
    "load_stationary_cycles",
    "tensor_ramp_ns",
    "tensor_ramp_rate",
    "vector_modes",
    "scalar_half_speedup",
    "gpsimd_dispatch_cycles",
    "accumulator_read_cycles",
    "register_load_cycles",
    "strided_access_bytes",
    "hbm_bytes_per_ns",
    "dma_bytes_per_ns",
    "semaphore_ns",
    "min_issue_cycles",
    "issue_gap_cycles",
    "latency_cycles",
    "activation_table_load_ns",
    "sequencer_cycles",
    "semaphore_wake_ns",
    "dma_descriptor_ns",
    "dma_issue_ns",
    "dma_software_issue_ns",
    "dma_hardware_issue_ns",
    "dma_ring_skew_ns",
    "hbm_conflict_bytes",
    "hbm_conflict_rate",
    "strided_access_rate",
    "dma_start_ns",
    "dma_completion_ns",
    "preamble_ns",
    "postamble_ns",
)


@dataclass(frozen=True)
class Event:
    """One executed instruction on its time line; `track` is an engine or "dma QUEUE"."""

    track: str
    start_ns: float
    end_ns: float
    instr: Instr


@dataclass(frozen=True)
class Skip:
    """Iterations of a loop that repeated; between start and end no event is listed."""

    variable: str
    start_ns: float
    end_ns: float
    iterations: int


@dataclass(frozen=True)
class Stall:
    """Time an engine spent waiting for one semaphore and for nothing else that came later."""

    engine: str
    semaphore: str
    ns: float
    opcode: str


@dataclass(frozen=True)
class OpcodeTime:
    """All executions of one opcode on one engine."""

    engine: str  # or "dma QUEUE"
    opcode: str
    count: int
    busy_ns: float


@dataclass(frozen=True)
class Timing:
    """What `simulate_timing` found; times in nanoseconds, counts over the whole run."""

    latency_ns: float
    busy_ns: Mapping[str, float]  # by engine; transfers count on queues, not here
    instructions: Mapping[str, int]  # by engine, transfers on the engine that issues them
    opcodes: tuple[OpcodeTime, ...]
    hbm_read_bytes: int
    hbm_written_bytes: int
    moved_bytes: int
    queue_busy_ns: Mapping[str, float]  # sum over transfers of first to last byte
    matmul_flops: int
    transpose_flops: int
    flops_by_dtype: Mapping[str, int]
    table_loads: int
    throttled_ns: float
    stalls: tuple[Stall, ...]  # longest first
    events: tuple[Event, ...] = ()
    skips: tuple[Skip, ...] = ()
    events_left_out: int = 0
    begin_ns: float = 0.0  # end of the preamble
    not_modelled: tuple[str, ...] = field(default=NOT_MODELLED)


def simulate_timing(
    program: Program,
    arch: Arch,
    *,
    trace: bool = True,
    trips: Mapping[int, Sequence[int]] | None = None,
    skip: bool = True,
    most_events: int = MOST_EVENTS,
    is_native: bool = True,
) -> Timing:
    """Time one core's program.

    `trips` gives, for each While and Branch numbered in program order, the trip counts or arms
    taken by its executions in order; without it one trip of the body and the first arm are
    assumed and reported. `trace` keeps up to `most_events` events. `skip=False` runs every
    iteration of every loop; the result is the same but for the events. `is_native=False` runs the
    rules in Python, with the same result. Raises Deadlock.
    """
    plan = make_plan(program, arch)
    machine = Machine(plan, arch, trips or {}, most_events if trace else 0, is_native=is_native)
    if skip:
        skip_repetitions(machine)
    machine.run()
    return _summarize(plan, machine, arch)


def _summarize(plan: Plan, machine: Machine, arch: Arch) -> Timing:
    counts, busied, stalled, table_loads, throttled = (
        machine.record[name].tolist()
        for name in ("counts", "busied", "stalled", "table_loads", "throttled")
    )
    executed = [(s, counts[s.number]) for s in plan.steps]
    on_engine = [(s, n) for s, n in executed if s.kind != "transfer"]
    transfers = [(s.transfer, n) for s, n in executed if s.transfer is not None]
    events = _events(plan, machine)
    return Timing(
        latency_ns=machine.last / PS + arch.postamble_ns,
        begin_ns=machine.begin / PS,
        busy_ns=_sum_by(plan.engines, ((s.engine, busied[s.number]) for s, _ in on_engine)),
        instructions=_instructions(plan, executed),
        opcodes=_opcodes(plan, counts, busied),
        hbm_read_bytes=sum(t.read_bytes * n for t, n in transfers),
        hbm_written_bytes=sum(t.written_bytes * n for t, n in transfers),
        moved_bytes=sum(t.moved_bytes * n for t, n in transfers),
        queue_busy_ns=_sum_by(
            plan.queues,
            ((s.queue, busied[s.number]) for s, _ in executed if s.kind == "transfer"),
        ),
        matmul_flops=sum(matmul_flops(s.instr) * n for s, n in executed if s.kind == "matmul"),
        transpose_flops=sum(transpose_flops(s.instr) * n for s, n in on_engine),
        flops_by_dtype=_flops_by_dtype(executed),
        table_loads=sum(table_loads),
        throttled_ns=sum(throttled) / PS,
        stalls=_stalls(plan, stalled),
        events=events,
        skips=tuple(Skip(v, a / PS, b / PS, n) for v, a, b, n in machine.skips),
        events_left_out=machine.executed - len(events),
        not_modelled=NOT_MODELLED + _assumptions(machine, arch),
    )


def _instructions(plan: Plan, executed: list[tuple[Step, int]]) -> dict[str, int]:
    found = [0] * len(plan.engines)
    for step, count in executed:
        found[step.engine] += count
    return dict(zip(plan.engines, found, strict=True))


def _sum_by(names: Sequence[str], values: object) -> dict[str, float]:
    totals = [0] * len(names)
    for number, picoseconds in values:  # type: ignore[attr-defined]
        totals[number] += picoseconds
    return {name: total / PS for name, total in zip(names, totals, strict=True)}


def _opcodes(plan: Plan, counts: list[int], busied: list[int]) -> tuple[OpcodeTime, ...]:
    found: dict[tuple[str, str], list[int]] = {}
    for step in plan.steps:
        entry = found.setdefault((_track(plan, step), step.instr.mnemonic()), [0, 0])
        entry[0] += counts[step.number]
        entry[1] += busied[step.number]
    rows = [OpcodeTime(track, opcode, n, ps / PS) for (track, opcode), (n, ps) in found.items()]
    return tuple(sorted(rows, key=lambda row: (-row.busy_ns, row.engine, row.opcode)))


def _track(plan: Plan, step: Step) -> str:
    return plan.engines[step.engine] if step.queue < 0 else f"dma {plan.queues[step.queue]}"


def _flops_by_dtype(executed: list[tuple[Step, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for step, count in executed:
        if step.kind == "matmul":
            name = step.instr.moving.dtype.name  # type: ignore[attr-defined]
            found[name] = found.get(name, 0) + matmul_flops(step.instr) * count
    return found


def _stalls(plan: Plan, stalled: list[int]) -> tuple[Stall, ...]:
    found: dict[tuple[str, str, str], int] = {}
    for step, wait in plan.planned_waits:
        if picoseconds := stalled[wait.number]:
            key = plan.engines[step.engine], plan.semaphores[wait.semaphore], step.instr.mnemonic()
            found[key] = found.get(key, 0) + picoseconds
    rows = [Stall(engine, semaphore, ps / PS, op) for (engine, semaphore, op), ps in found.items()]
    return tuple(sorted(rows, key=lambda row: -row.ns))


def _events(plan: Plan, machine: Machine) -> tuple[Event, ...]:
    steps = plan.steps
    return tuple(
        Event(_track(plan, steps[number]), start / PS, end / PS, steps[number].instr)
        for number, start, end in machine.events()
    )


def _assumptions(machine: Machine, arch: Arch) -> tuple[str, ...]:
    timed = [name for name in arch.assumed if name.split(".")[0] in TIMED_CONSTANTS]
    found = (f"no public number, value assumed: {', '.join(timed)}",) if timed else ()
    if machine.assumed_trips:
        listed = ", ".join(map(str, machine.assumed_trips))
        found += (
            f"run-time control flow {listed}: one trip of each loop, first arm of each branch",
        )
    return found
