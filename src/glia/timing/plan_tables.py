"""A plan laid out as the integer arrays that the rules of `timing.events` work on."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.base.machine_code.native_records import as_words, words_of
from glia.machine.columns.table import InstructionSpan
from glia.machine.columns.value_numbering import Array
from glia.timing.costs import PS, Cost, cycles_to_ps
from glia.timing.instruction_tables import PSUM_PORT, Record
from glia.timing.plan import BranchStep, LoopStep, PlanItem, TimingPlan, WhileStep
from glia.timing.registers import (
    ENGINES,
    EVENT_WORDS,
    LANES,
    CoreState,
    CostKind,
    EngineState,
    Overflow,
    RunParameter,
    StreamOp,
    state_names,
)

if TYPE_CHECKING:
    from glia.arch import Arch

Trips = Mapping[int, Sequence[int]]

KINDS = {
    "compute": CostKind.COMPUTE,
    "activation": CostKind.ACTIVATION,
    "matmul": CostKind.MATMUL,
    "transfer": CostKind.TRANSFER,
    "barrier": CostKind.COMPUTE,
}
FEWEST_TRIPS = 8  # a shorter loop is not watched
NEVER = 1 << 62
SMALLEST_RING = 16  # initial capacity of a semaphore's ring, in moments


def lay_out(plan: TimingPlan, arch: Arch, trips: Trips, event_room: int) -> Record:
    """Every array of the core's record, in the state before the first instruction.

    What depends on the plan alone is built once and cached there.
    """
    if not plan.tables:
        plan.tables = _tables(plan, arch)
    record = dict(plan.tables)
    record |= {name: record[name].copy() for name in ("parameter", "watched", "base", "mask")}
    record["parameter"][RunParameter.EVENT_ROOM] = event_room
    record["event"] = np.zeros(max(1, EVENT_WORDS * event_room), np.int64)
    for name in ("ring", "pending"):
        record[name] = np.zeros(int(record["mask"].sum()) + record["mask"].size, np.int64)
    record |= _outcomes(int(record["parameter"][RunParameter.ORDINALS]), trips)
    return record | _with_state({name: record[name] for name in state_names()})


def _tables(plan: TimingPlan, arch: Arch) -> Record:
    """The arrays that a run does not change, and the initial state."""
    streams = EngineStreams(plan)
    tables: dict[str, Any] = {}
    tables |= streams.arrays()
    tables |= cost_tables(plan.costs.distinct)
    tables |= plan.steps
    tables["latency"] = [result_latency(arch, name) for name in plan.engines]
    tables |= _state(plan, arch, streams)
    return as_words(tables)


def _with_state(arrays: Record) -> Record:
    """The arrays as views of one, `state`, so that states are compared in one operation."""
    state = np.concatenate(list(arrays.values()))
    ends = np.cumsum([array.size for array in arrays.values()])
    parts = np.split(state, ends[:-1])
    return dict(zip(arrays, parts, strict=True)) | {"state": state}


def _offsets(lists: Iterable[Sequence[Any]]) -> list[int]:
    """Where each list begins when they lie one behind the other, and where the last ends."""
    return [0, *accumulate(map(len, lists))]


class EngineStreams:
    """The instruction stream of each engine: operations on steps, loops and decisions."""

    def __init__(self, plan: TimingPlan) -> None:
        self.plan = plan
        self.op, self.arg, self.aux = (array("q") for _ in range(3))
        self.arms: list[int] = []
        self.trips = [0] * plan.slots
        self.watched = [-1] * plan.slots  # on which engine a loop is watched
        self.groups: dict[int, tuple[WhileStep, int]] = {}  # by ordinal, with engines that decide
        self.ordinals = 0
        self.places = []
        is_barrier = plan.costs.is_barrier[plan.costs.number]
        for engine in range(ENGINES):
            steps = np.flatnonzero((plan.steps["engine"] == engine) | is_barrier)
            self.own_steps = _array(steps)
            self.own_ops = _array(np.where(is_barrier[steps], StreamOp.BARRIER, StreamOp.STEP))
            self.places.append(len(self.op))
            self._emit_block(plan.items, engine)
            self._emit(StreamOp.STOP)

    def arrays(self) -> Mapping[str, Sequence[int]]:
        """The operations, the loops' trips and the groups that decide together."""
        count = max(self.groups, default=-1) + 1
        sizes, firsts, ends, known = ([0] * count for _ in range(4))
        for number, (loop, engines) in self.groups.items():
            sizes[number], known[number] = engines, loop.iterations
            firsts[number], ends[number] = loop.condition_steps
        return {
            "op": self.op, "arg": self.arg, "aux": self.aux, "arm": self.arms,
            "trips": self.trips,
            "group_size": sizes,
            "group_arrived": [0] * count,
            "group_first": firsts,
            "group_end": ends,
            "iterations": known,
        }  # fmt: skip

    def _emit(self, op: int, arg: int = 0, aux: int = 0) -> int:
        self.op.append(op)
        self.arg.append(arg)
        self.aux.append(aux)
        return len(self.op) - 1

    def _emit_block(self, items: tuple[PlanItem, ...], engine: int) -> None:
        for item in items:
            if isinstance(item, InstructionSpan):
                self._emit_steps(item)
            elif isinstance(item, LoopStep):
                self._emit_loop(item, engine)
            elif isinstance(item, WhileStep):
                self._emit_while(item, engine)
            else:
                self._emit_branch(item, engine)

    def _emit_steps(self, span: InstructionSpan) -> None:
        begin, end = bisect_left(self.own_steps, span.begin), bisect_left(self.own_steps, span.end)
        self.op += self.own_ops[begin:end]
        self.arg += self.own_steps[begin:end]
        self.aux.frombytes(bytes(self.aux.itemsize * (end - begin)))

    def _emit_loop(self, loop: LoopStep, engine: int) -> None:
        self.trips[loop.slot] = loop.trips
        if loop.is_regular and loop.trips >= FEWEST_TRIPS:
            self.watched[loop.slot] = loop.slowest_engine
        begin = self._emit(StreamOp.LOOP, loop.slot)
        self._emit_block(loop.body, engine)
        if len(self.op) == begin + 1:  # nothing of it is this engine's
            del self.op[begin:], self.arg[begin:], self.aux[begin:]
            return
        self._emit(StreamOp.LOOP_END, loop.slot, begin + 1)
        self.aux[begin] = len(self.op)

    def _emit_while(self, loop: WhileStep, engine: int) -> None:
        self.ordinals = max(self.ordinals, loop.ordinal + 1)
        engines = np.unique(self.plan.steps["engine"][slice(*loop.steps)]).tolist()
        if engine not in engines and not self.plan.has_barrier(loop.steps):
            return
        self.groups[loop.ordinal] = loop, len(engines)
        self._emit(StreamOp.WHILE, loop.ordinal)
        begin = len(self.op)
        self._emit_block(loop.condition, engine)
        if engine in engines:
            self._emit(StreamOp.DECIDE, loop.ordinal)
        repeat = self._emit(StreamOp.REPEAT, loop.ordinal)
        self._emit_block(loop.body, engine)
        self._emit(StreamOp.JUMP, begin)
        self.aux[repeat] = len(self.op)

    def _emit_branch(self, branch: BranchStep, engine: int) -> None:
        self.ordinals = max(self.ordinals, branch.ordinal + 1)
        table = len(self.arms)
        self.arms += [len(branch.arms)] + [0] * len(branch.arms)
        self._emit(StreamOp.BRANCH, branch.ordinal, table)
        exits = []
        for number, arm in enumerate(branch.arms):
            self.arms[table + 1 + number] = len(self.op)
            self._emit_block(arm, engine)
            exits.append(self._emit(StreamOp.JUMP))
        for place in exits:
            self.arg[place] = len(self.op)


def _array(values: Array) -> array[int]:
    return array("q", values.astype(np.int64).tobytes())


def cost_tables(costs: Sequence[Cost]) -> dict[str, Any]:
    """The table of costs and the lanes that transfers take."""
    tables = _Numbering()
    lanes = [_lane_shares(cost) for cost in costs]
    return {
        "kind": [KINDS[c.kind] for c in costs],
        "busy": [c.busy for c in costs],
        "load": [c.load for c in costs],
        "generation": [c.generation for c in costs],
        "queue": [max(0, c.queue) for c in costs],
        "skew": [c.transfer.skew if c.transfer else 0 for c in costs],
        "table": [tables.of(c.table) for c in costs],
        "cost_lane": _offsets(lanes),
        "lane_work": [work for shares in lanes for work, _ in shares],
        "lane_members": [members for shares in lanes for _, members in shares],
    }


class _Numbering:
    """Numbers names from 0; -1 for an empty name."""

    def __init__(self) -> None:
        self.found: dict[object, int] = {}

    def of(self, name: object) -> int:
        return self.found.setdefault(name, len(self.found)) if name else -1


def _lane_shares(cost: Cost) -> list[tuple[int, int]]:
    """(picoseconds, bit mask of the lanes) of each share of a transfer."""
    if cost.transfer is None:
        return []
    return [(work, sum(1 << lane for lane in lanes)) for work, lanes in cost.transfer.lanes]


def result_latency(arch: Arch, engine: str) -> int:
    """From the end of an instruction's cycles, which include the gap to the next, to its result."""
    cycles = arch.latency_cycles.get(engine, 0) - arch.issue_gap_cycles.get(engine, 0)
    return cycles_to_ps(max(0, cycles), engine, arch)


def _outcomes(ordinals: int, trips: Trips) -> Record:
    known = [trips.get(number, ()) for number in range(ordinals)]
    return {
        "outcomes": words_of(_offsets(known)),
        "known_outcome": words_of([value for each in known for value in each]),
        "is_assumed": words_of([0] * ordinals),
        "seen": words_of([0] * (ordinals * ENGINES)),
        "left": words_of([0] * (ordinals * ENGINES)),
    }


def _state(plan: TimingPlan, arch: Arch, streams: EngineStreams) -> dict[str, Any]:
    """The initial state and the parameters."""
    zero = round(arch.preamble_ns * PS)
    semaphores = len(plan.semaphores)
    most = int(plan.steps["signal_units"].max(initial=1))
    capacity = 1 << (max(SMALLEST_RING, most) - 1).bit_length()
    return {
        "parameter": _parameters(plan, arch, streams),
        "core": _core(zero, is_warm=arch.tensor_ramp_ns == 0),
        "place": streams.places,
        "start": [EngineState.FINISHED] * ENGINES,
        **{name: [zero] * ENGINES for name in ("free", "generator", "waited")},
        **{name: [0] * ENGINES for name in ("blocked", "binding", "counted")},
        "variable": [0] * (ENGINES * plan.slots),
        "watched": streams.watched,
        "lane": [zero] * (LANES * len(plan.queues)),
        "port": [zero] * (PSUM_PORT + arch.psum_banks),
        **{name: [zero] * len(plan.queues) for name in ("queue_ready", "queue_end")},
        "queue_busy": [0] * len(plan.queues),
        "count": [0] * semaphores,
        "first": [0] * semaphores,
        "latest": [0] * semaphores,
        "base": [number * capacity for number in range(semaphores)],
        "mask": [capacity - 1] * semaphores,
        "overflow": [0] * len(Overflow),
    }


def _parameters(plan: TimingPlan, arch: Arch, streams: EngineStreams) -> list[int]:
    values = core_parameters(arch, len(plan.queues))
    values[RunParameter.SLOTS] = plan.slots
    values[RunParameter.ORDINALS] = streams.ordinals
    # a moment so long ago delays nothing: neither what waits for it nor a weights load after it
    load = max((cost.load for cost in plan.costs.distinct), default=0)
    values[RunParameter.MARGIN] = values[RunParameter.WAKE] + load
    values[RunParameter.SEMAPHORES] = len(plan.semaphores)
    return values


def core_parameters(arch: Arch, queues: int) -> list[int]:
    """The parameters that depend on the core and how many queues there are; 0 for the others."""
    values = [0] * len(RunParameter)
    wake = round(arch.semaphore_wake_ns * PS)
    values[RunParameter.WAKE] = wake
    values[RunParameter.DMA_START] = round(arch.dma_start_ns * PS)
    # dma_completion_ns reaches to the consumer's start, whose wake is added when it waits
    values[RunParameter.DMA_DONE] = round(arch.dma_completion_ns * PS) - wake
    values[RunParameter.TABLE_LOAD] = round(arch.activation_table_load_ns * PS)
    values[RunParameter.WARM_UP] = round(arch.tensor_ramp_ns * PS)
    values[RunParameter.RAMP] = round(arch.tensor_ramp_rate * 1000)
    drain = arch.tensor_rest_part / (1 - arch.tensor_rest_part)
    values[RunParameter.REST] = round(arch.tensor_rest_ns * drain * PS)
    values[RunParameter.REST_DRAIN] = round(1000 * drain)
    drain = arch.tensor_ramp_part / (1 - arch.tensor_ramp_part)
    values[RunParameter.RAMP_DRAIN] = round(1000 * drain)
    values[RunParameter.UNWATCHED] = NEVER
    values[RunParameter.QUEUES] = queues
    return values


def _core(zero: int, *, is_warm: bool) -> list[int]:
    values = [0] * len(CoreState)
    for moment in (CoreState.NOW, CoreState.LAST, CoreState.SWAP, CoreState.TENSOR_END):
        values[moment] = zero
    values[CoreState.IS_WARM] = int(is_warm)
    values[CoreState.WEIGHTS] = values[CoreState.WEIGHTS_TILE] = values[CoreState.TABLE] = -1
    return values
