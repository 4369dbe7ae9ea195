"""A machine program turned into steps with everything known before time starts to run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from glia.base.affine import Affine
from glia.isa.activation import ACTIVATIONS
from glia.isa.cost import engine_cycles
from glia.isa.dma import Transfer
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.isa.sync import Barrier, RegisterAlu, RegisterLoad, RegisterMove, register_variable
from glia.machine.ir import Branch, Loop, Program, Statement, While, walk
from glia.sim.timing_costs import (
    ENGINES,
    PS,
    TransferCost,
    cost_transfer,
    cycles_to_ps,
    matmul_flops,
    registers_of,
)

if TYPE_CHECKING:
    from glia.arch import Arch

# Trainium/Inferentia2 guide: engines that take turns at SBUF and PSUM; Trainium2 guide: from
# generation 3 on only at the same bank of PSUM.
LAST_SHARED_PORTS = 2
SBUF_PORT, PSUM_PORT = 0, 1
SBUF_PORT_ENGINES = ("vector", "gpsimd")
PSUM_PORT_ENGINES = ("vector", "scalar")

WRITERS_REMEMBERED = 32  # per engine and tile, when looking for what a result depends on

Terms = tuple[tuple[int, int], ...]  # (loop variable's slot, coefficient)


@dataclass(slots=True)
class PlannedWait:
    """Wait until `semaphore` has counted `constant + terms` units; all of them if `is_unknown`."""

    number: int
    semaphore: int
    constant: int
    terms: Terms
    is_unknown: bool


@dataclass(slots=True)
class Step:
    """One instruction: numbered in program order, with costs in picoseconds."""

    number: int
    instr: Instr
    kind: str  # "compute" | "matmul" | "activation" | "transfer" | "barrier"
    engine: int
    busy: int
    waits: tuple[PlannedWait, ...]
    signals: tuple[tuple[int, int], ...]  # (semaphore, units)
    reads: tuple[int, ...] = ()  # steps of the same engine whose results this one needs
    spoils: str = ""  # a tile it writes that some matmul holds stationary
    transfer: TransferCost | None = None
    queue: int = -1
    generation: int = 0  # time of the hardware that makes its descriptors
    ports: tuple[int, ...] = ()  # memory ports it shares with other engines
    stationary: tuple[str, int, Terms] = ("", 0, ())  # tile and address expression
    held_tile: str = ""
    load: int = 0  # LoadStationary
    table: str = ""  # activation-table set; "" = none needed


@dataclass(slots=True)
class LoopStep:
    """A counted loop and what its body touches."""

    slot: int
    variable: str
    trips: int
    body: tuple[PlanItem, ...]
    steps: tuple[int, int]  # numbers of the first step inside and the first after
    waits: tuple[int, int]
    engines: tuple[int, ...]
    queues: tuple[int, ...]
    transfer_engines: tuple[int, ...]
    signalled: tuple[int, ...]  # semaphores
    outer_reads: tuple[int, ...]  # steps before the loop that steps inside depend on
    extents: dict[int, int]  # trips of the loops inside, by slot
    inner_trips: dict[int, int]  # how often steps in inner loops run, by number
    is_regular: bool  # no barrier or run-time control flow; matmuls meet the same weights each time
    kind: str = "loop"


@dataclass(slots=True)
class WhileStep:
    """A loop whose trips the trace of an execution knows; `ordinal` numbers it in program order."""

    ordinal: int
    condition: tuple[PlanItem, ...]
    body: tuple[PlanItem, ...]
    engines: tuple[int, ...]
    kind: str = "while"


@dataclass(slots=True)
class BranchStep:
    """A choice whose outcomes the trace of an execution knows."""

    ordinal: int
    arms: tuple[tuple[PlanItem, ...], ...]
    kind: str = "branch"


PlanItem = Step | LoopStep | WhileStep | BranchStep


@dataclass
class Plan:
    """A program ready to be timed."""

    items: tuple[PlanItem, ...] = ()
    steps: list[Step] = field(default_factory=list)
    planned_waits: list[tuple[Step, PlannedWait]] = field(default_factory=list)
    engines: tuple[str, ...] = ENGINES
    queues: list[str] = field(default_factory=list)
    semaphores: list[str] = field(default_factory=list)
    units: list[int] = field(default_factory=list)  # counts per unit, by semaphore
    slots: int = 0


def make_plan(program: Program, arch: Arch) -> Plan:
    """Cost every instruction of `program` once and resolve names to numbers."""
    return _Planner(program, arch).plan_program()


class _Planner:
    def __init__(self, program: Program, arch: Arch) -> None:
        self.program, self.arch = program, arch
        self.plan = Plan()
        self.scope: dict[str, int] = {}
        self.trips: dict[int, int] = {}  # by slot
        self.ordinal = 0
        self.writers: dict[tuple[int, str], list[tuple[int, Pattern]]] = {}
        self.register_writers: dict[tuple[str, str], int] = {}
        self.instructions = list(program.instructions())
        self.semaphore_numbers: dict[str, int] = {}
        self.held = {
            instr.stationary.tile.name  # type: ignore[attr-defined]
            for instr in self.instructions
            if matmul_flops(instr)
        }
        self._number_semaphores()

    def plan_program(self) -> Plan:
        self.plan.items = self._block(self.program.body)
        return self.plan

    def _number_semaphores(self) -> None:
        for instr in self.instructions:
            names = [s.semaphore for s in instr.signals] + [w.semaphore for w in instr.waits]
            for name in names:
                if name not in self.semaphore_numbers:
                    self.semaphore_numbers[name] = len(self.plan.semaphores)
                    self.plan.semaphores.append(name)
                    self.plan.units.append(0)
            for signal in instr.signals:
                number = self.semaphore_numbers[signal.semaphore]
                self.plan.units[number] = math.gcd(self.plan.units[number], signal.amount)
        self.plan.units = [unit or 1 for unit in self.plan.units]

    def _block(self, statements: tuple[Statement, ...]) -> tuple[PlanItem, ...]:
        return tuple(self._statement(s) for s in statements)

    def _statement(self, statement: Statement) -> PlanItem:
        if isinstance(statement, Loop):
            return self._loop(statement)
        if isinstance(statement, While | Branch):
            ordinal, self.ordinal = self.ordinal, self.ordinal + 1
            if isinstance(statement, Branch):
                return BranchStep(ordinal, tuple(self._block(arm) for arm in statement.arms))
            condition, body = self._block(statement.condition), self._block(statement.body)
            inside = condition + body
            return WhileStep(
                ordinal, condition, body, tuple(sorted({s.engine for s in steps_in(inside)}))
            )
        return self._step(statement)

    def _loop(self, loop: Loop) -> LoopStep:
        slot = self.plan.slots
        self.plan.slots += 1
        self.trips[slot] = loop.trips
        shadowed = self.scope.get(loop.variable)
        self.scope[loop.variable] = slot
        first, first_wait = len(self.plan.steps), len(self.plan.planned_waits)
        if loop.trips > 1:
            self._foresee_writers(loop, first)
        body = self._block(loop.body)
        if shadowed is None:
            del self.scope[loop.variable]
        else:
            self.scope[loop.variable] = shadowed
        spans = (first, len(self.plan.steps)), (first_wait, len(self.plan.planned_waits))
        return _summarize_loop(slot, loop, body, *spans, self.trips)

    def _foresee_writers(self, loop: Loop, first: int) -> None:
        """Writers of an iteration's end are what readers at the next one's start depend on."""
        for number, instr in enumerate(walk(loop.body), first):
            self._remember_writer(number, instr)

    def _remember_writer(self, number: int, instr: Instr) -> None:
        if isinstance(instr, RegisterLoad | RegisterMove | RegisterAlu):
            self.register_writers[instr.runs_on, register_variable(instr.register)] = number
        if isinstance(instr, Transfer) or instr.runs_on == "tensor":
            return
        for pattern in instr.written_patterns():
            writers = self.writers.setdefault((self._engine(instr), pattern.tile.name), [])
            writers.append((number, pattern))
            del writers[:-WRITERS_REMEMBERED]

    def _engine(self, instr: Instr) -> int:
        return self.plan.engines.index(instr.runs_on)

    def _step(self, instr: Instr) -> Step:
        number = len(self.plan.steps)
        engine = self._engine(instr)
        step = Step(number, instr, "compute", engine, 0, (), self._signals(instr))
        step.waits = tuple(self._wait(step, w.semaphore, w.value) for w in instr.waits)
        step.spoils = next(
            (p.tile.name for p in instr.written_patterns() if p.tile.name in self.held), ""
        )
        step.reads = self._dependences(engine, instr)
        if isinstance(instr, Transfer):
            self._plan_transfer(step, instr)
        else:
            self._plan_compute(step)
        self._remember_writer(number, instr)
        self.plan.steps.append(step)
        return step

    def _plan_transfer(self, step: Step, instr: Transfer) -> None:
        step.kind, step.transfer = "transfer", cost_transfer(instr, self.arch)
        step.busy = cycles_to_ps(instr.cycles(self.arch), instr.runs_on, self.arch)
        generator = step.transfer.generator
        if generator == "software":
            step.busy = max(step.busy, round(self.arch.dma_software_issue_ns * PS))
        elif generator:
            step.generation = round(self.arch.dma_hardware_issue_ns * PS)
        queue = instr.queue or f"of {instr.runs_on}"
        if queue not in self.plan.queues:
            self.plan.queues.append(queue)
        step.queue = self.plan.queues.index(queue)

    def _plan_compute(self, step: Step) -> None:
        instr = step.instr
        step.busy = cycles_to_ps(engine_cycles(instr, self.arch), instr.runs_on, self.arch)
        step.ports = self._ports(instr)
        if isinstance(instr, Barrier):
            step.kind = "barrier"
        elif instr.runs_on == "tensor" and matmul_flops(instr):
            stationary: Pattern = instr.stationary  # type: ignore[attr-defined]
            step.kind, step.stationary = "matmul", self._address(stationary)
            step.held_tile = stationary.tile.name
            part = stationary.free / self.arch.stationary_columns
            part *= self.arch.tensor_passes.get(stationary.dtype.name, 1.0)
            step.load = cycles_to_ps(self.arch.load_stationary_cycles * part, "tensor", self.arch)
        elif table := activation_table(instr):
            step.kind, step.table = "activation", table

    def _ports(self, instr: Instr) -> tuple[int, ...]:
        """On generation 2 one for SBUF and one for all of PSUM, later one for each bank of PSUM."""
        taken = set()
        is_shared = self.arch.generation <= LAST_SHARED_PORTS
        for _, _, pattern in instr.operands():
            if pattern.memory is Memory.SBUF and is_shared:
                taken.update([SBUF_PORT] if instr.runs_on in SBUF_PORT_ENGINES else [])
            elif pattern.memory is Memory.PSUM and instr.runs_on in PSUM_PORT_ENGINES:
                taken.update([PSUM_PORT] if is_shared else self._bank(pattern))
        return tuple(sorted(taken))

    def _bank(self, pattern: Pattern) -> list[int]:
        """The PSUM bank where an access begins; none when it moves or is not placed."""
        address = self.program.addresses.get(pattern.tile.name)
        if address is None or not pattern.offset.is_constant:
            return []
        byte = address + pattern.offset.constant * pattern.dtype.bytes
        return [PSUM_PORT + byte // self.arch.psum_bank_bytes % self.arch.psum_banks]

    def _address(self, pattern: Pattern) -> tuple[str, int, Terms]:
        """A number that tells this pattern's place in its tile from every other's."""
        place = pattern.offset + pattern.partition * pattern.tile.elements
        return (
            f"{pattern.tile.name}{pattern.dims}{pattern.dtype}",
            place.constant,
            self._terms(place),
        )

    def _terms(self, value: Affine) -> Terms:
        return tuple((self.scope[v], c) for v, c in value.terms if v in self.scope)

    def _signals(self, instr: Instr) -> tuple[tuple[int, int], ...]:
        numbered = ((self.semaphore_numbers[s.semaphore], s.amount) for s in instr.signals)
        return tuple((n, amount // self.plan.units[n]) for n, amount in numbered)

    def _wait(self, step: Step, semaphore: str, value: Affine) -> PlannedWait:
        unknown = any(v not in self.scope for v in value.variables)
        number = self.semaphore_numbers[semaphore]
        count = len(self.plan.planned_waits)
        wait = PlannedWait(count, number, value.constant, self._terms(value), unknown)
        self.plan.planned_waits.append((step, wait))
        return wait

    def _dependences(self, engine: int, instr: Instr) -> tuple[int, ...]:
        """The latest overlapping writer of each operand, before it or an iteration ago."""
        registers = [r for _, _, pattern in instr.operands() for r in registers_of(pattern)]
        found = {self.register_writers.get((instr.runs_on, r), -1) for r in registers}
        if isinstance(instr, Transfer) or self.plan.engines[engine] == "tensor":
            return tuple(sorted(found - {-1}))
        for pattern in instr.read_patterns():
            if pattern.memory is Memory.HBM:
                continue
            writers = self.writers.get((engine, pattern.tile.name), [])
            here = len(self.plan.steps)
            before = [n for n, w in writers if n < here and may_overlap(pattern, w)]
            after = [n for n, w in writers if n >= here and may_overlap(pattern, w)]
            found |= {max(before, default=-1), max(after, default=-1)}
        return tuple(sorted(found - {-1}))


def _summarize_loop(
    slot: int,
    loop: Loop,
    body: tuple[PlanItem, ...],
    steps: tuple[int, int],
    waits: tuple[int, int],
    trips: dict[int, int],
) -> LoopStep:
    inside = list(steps_in(body))
    engines = {s.engine for s in inside}
    return LoopStep(
        slot=slot,
        variable=loop.variable,
        trips=loop.trips,
        body=body,
        steps=steps,
        waits=waits,
        engines=tuple(sorted(engines)),
        queues=tuple(sorted({s.queue for s in inside} - {-1})),
        transfer_engines=tuple(sorted({s.engine for s in inside if s.kind == "transfer"})),
        signalled=tuple(sorted({n for s in inside for n, _ in s.signals})),
        outer_reads=tuple(sorted({r for s in inside for r in s.reads if r < steps[0]})),
        extents=_extents(body),
        inner_trips=_inner_trips(body),
        is_regular=all(_is_regular(item) for item in body) and _weights_agree(inside, slot, trips),
    )


def _weights_agree(steps: list[Step], slot: int, trips: dict[int, int]) -> bool:
    """Whether two matmuls that hold the same weights once do so in every iteration."""
    places = {s.stationary for s in steps if s.kind == "matmul"}
    by_name: dict[str, list[tuple[int, Terms]]] = {}
    for name, constant, terms in places:
        by_name.setdefault(name, []).append((constant, terms))
    for found in by_name.values():
        moving = {dict(terms).get(slot, 0) for _, terms in found}
        spans = sorted(_span(constant, terms, trips) for constant, terms in found)
        if len(moving) > 1 and any(a[1] >= b[0] for a, b in pairwise(spans)):
            return False
    return True


def _span(constant: int, terms: Terms, trips: dict[int, int]) -> tuple[int, int]:
    """The least and greatest value over all iterations of all loops."""
    low = high = constant
    for slot, coefficient in terms:
        reach = coefficient * max(0, trips[slot] - 1)
        low, high = low + min(0, reach), high + max(0, reach)
    return low, high


def _extents(items: tuple[PlanItem, ...]) -> dict[int, int]:
    found: dict[int, int] = {}
    for item in items:
        if isinstance(item, LoopStep):
            found |= {item.slot: item.trips} | item.extents
    return found


def _inner_trips(items: tuple[PlanItem, ...]) -> dict[int, int]:
    found: dict[int, int] = {}
    for item in items:
        if isinstance(item, LoopStep):
            for step in item.body:
                if isinstance(step, Step):
                    found[step.number] = item.trips
            found |= {number: n * item.trips for number, n in item.inner_trips.items()}
    return found


def loops_in(items: tuple[PlanItem, ...]) -> Iterator[LoopStep]:
    """Every loop of a block, outer ones first."""
    for item in items:
        if isinstance(item, LoopStep):
            yield item
            yield from loops_in(item.body)
        elif isinstance(item, WhileStep):
            yield from loops_in(item.condition + item.body)
        elif isinstance(item, BranchStep):
            for arm in item.arms:
                yield from loops_in(arm)


def _is_regular(item: PlanItem) -> bool:
    """Whether an item repeats like the one before; at a barrier semaphores start again at 0."""
    if isinstance(item, Step):
        return item.kind != "barrier"
    return isinstance(item, LoopStep) and item.is_regular


def steps_in(items: tuple[PlanItem, ...]) -> Iterator[Step]:
    """Every step of a block once, in program order."""
    for item in items:
        if isinstance(item, Step):
            yield item
        elif isinstance(item, LoopStep):
            yield from steps_in(item.body)
        elif isinstance(item, WhileStep):
            yield from steps_in(item.condition + item.body)
        else:
            for arm in item.arms:
                yield from steps_in(arm)


def may_overlap(one: Pattern, other: Pattern) -> bool:
    """Whether two patterns of one tile may share an element, in the same loop iteration."""
    if one.dtype is not other.dtype:
        return True
    apart = _intervals_apart(
        one.partition, _reach(one.dims[:1]), other.partition, _reach(other.dims[:1])
    )
    return not (
        apart
        or _intervals_apart(one.offset, _reach(one.dims[1:]), other.offset, _reach(other.dims[1:]))
    )


def _reach(dims: tuple[tuple[int, int], ...]) -> int:
    return 1 + sum(abs(step) * (count - 1) for step, count in dims)


def _intervals_apart(start: Affine, length: int, other_start: Affine, other_length: int) -> bool:
    distance = start - other_start
    if not distance.is_constant:
        return False
    return distance.constant >= other_length or -distance.constant >= length


def activation_table(instr: Instr) -> str:
    """The table set an instruction of the Scalar Engine needs loaded, "" for none."""
    function = getattr(instr, "function", "")
    if instr.runs_on != "scalar" or function not in ACTIVATIONS:
        return ""
    return ACTIVATIONS[function].table_set
