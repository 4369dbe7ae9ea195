"""A machine program turned into steps with everything known before time starts to run."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from glia.base.affine import Affine
from glia.isa.dma import Transfer
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Pattern
from glia.isa.sync import RegisterAlu, RegisterLoad, RegisterMove, register_variable
from glia.machine.ir import Branch, Loop, Program, Statement, walk
from glia.sim.timing_costs import (
    ENGINES,
    Cost,
    cost_of,
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

MOST_KEPT = 50_000  # steps of a plan that stays in memory with its program
WRITERS_REMEMBERED = 32  # per engine and tile, when looking for what a result depends on

Array = np.ndarray[Any, Any]
Record = dict[str, Array]
Terms = tuple[tuple[int, int], ...]  # (loop variable's slot, coefficient)
Weights = tuple[object, ...]  # what tells patterns apart that may hold other weights; () for none
Touched = list[tuple[str, str, Pattern]]  # (operand, access, pattern)
Place = tuple[object, ...]  # where a write goes, as a key


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
    """One instruction, numbered in program order."""

    number: int
    instr: Instr
    cost: Cost
    waits: tuple[PlannedWait, ...] = ()
    signals: tuple[tuple[int, int], ...] = ()  # (semaphore, units)
    reads: tuple[int, ...] = ()  # steps of the same engine whose results this one needs
    spoils: str = ""  # a tile it writes that some matmul holds stationary
    ports: tuple[int, ...] = ()  # memory ports it shares with other engines
    stationary: tuple[Weights, int, Terms] = ((), 0, ())  # weights and address expression
    held_tile: str = ""


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
    slowest: int  # the engine that is longest busy in one iteration
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
    costs: list[Cost] = field(default_factory=list)
    planned_waits: list[tuple[Step, PlannedWait]] = field(default_factory=list)
    engines: tuple[str, ...] = ENGINES
    queues: list[str] = field(default_factory=list)
    semaphores: list[str] = field(default_factory=list)
    units: list[int] = field(default_factory=list)  # counts per unit, by semaphore
    slots: int = 0
    tables: Record = field(default_factory=dict)  # its layout, once there is one


def make_plan(program: Program, arch: Arch) -> Plan:
    """Cost every kind of instruction of `program` once and resolve names to numbers.

    A program never changes, so its plans are kept beside it, in a list of (arch, plan), unless they
    are large.
    """
    kept: list[tuple[Arch, Plan]] = vars(program).setdefault("_timing_plans", [])
    for known, plan in kept:
        if known is arch:
            return plan
    plan = _make_plan(program, arch)
    if len(plan.steps) <= MOST_KEPT:
        kept.append((arch, plan))
    return plan


def _make_plan(program: Program, arch: Arch) -> Plan:
    is_collecting = gc.isenabled()
    gc.disable()  # a plan has no cycles, and to look for some in a long one takes longer than it
    try:
        return _Planner(program, arch).plan_program()
    finally:
        if is_collecting:
            gc.enable()


class _Planner:
    def __init__(self, program: Program, arch: Arch) -> None:
        self.program, self.arch = program, arch
        self.plan = Plan()
        self.scope: dict[str, int] = {}
        self.trips: dict[int, int] = {}  # by slot
        self.ordinal = 0
        self.writers: dict[tuple[str, str], dict[Place, tuple[int, Pattern]]] = {}
        self.costs: dict[tuple[object, ...], Cost] = {}
        self.queues: dict[str, int] = {}
        self.register_writers: dict[tuple[str, str], int] = {}
        self.instructions = list(program.instructions())
        self.held = {
            instr.stationary.tile.name  # type: ignore[attr-defined]
            for instr in self.instructions
            if instr.runs_on == "tensor" and matmul_flops(instr)
        }
        self._number_semaphores()

    def plan_program(self) -> Plan:
        self.plan.items = self._block(self.program.body)
        self.plan.queues = list(self.queues)
        return self.plan

    def _number_semaphores(self) -> None:
        units: dict[str, int] = {}
        for instr in self.instructions:
            for signal in instr.signals:
                units[signal.semaphore] = math.gcd(units.get(signal.semaphore, 0), signal.amount)
            for wait in instr.waits:
                units.setdefault(wait.semaphore, 0)
        self.plan.semaphores = list(units)
        self.plan.units = [unit or 1 for unit in units.values()]
        self.semaphore_numbers = {name: number for number, name in enumerate(units)}

    def _block(self, statements: tuple[Statement, ...]) -> tuple[PlanItem, ...]:
        return tuple([self._statement(statement) for statement in statements])

    def _statement(self, statement: Statement) -> PlanItem:
        if isinstance(statement, Instr):
            return self._step(statement)
        if isinstance(statement, Loop):
            return self._loop(statement)
        ordinal, self.ordinal = self.ordinal, self.ordinal + 1
        if isinstance(statement, Branch):
            return BranchStep(ordinal, tuple(self._block(arm) for arm in statement.arms))
        condition, body = self._block(statement.condition), self._block(statement.body)
        engines = {step.cost.engine for step in steps_in(condition + body)}
        return WhileStep(ordinal, condition, body, tuple(sorted(engines)))

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

    def _remember_writer(self, number: int, instr: Instr, touched: Touched | None = None) -> None:
        """The latest writer of each place; only the last few places of a tile are remembered."""
        engine = instr.runs_on
        if isinstance(instr, RegisterLoad | RegisterMove | RegisterAlu):
            self.register_writers[engine, register_variable(instr.register)] = number
        if instr.arrives_by_dma or engine == "tensor":
            return
        for _, access, pattern in touched or touched_by(instr):
            if access == "reads":
                continue
            writers = self.writers.setdefault((engine, pattern.tile.name), {})
            offset, partition = pattern.offset, pattern.partition
            place = (
                pattern.dims, offset.constant, offset.terms, partition.constant, partition.terms,
                id(pattern.dtype),
            )  # fmt: skip
            writers.pop(place, None)
            writers[place] = number, pattern
            if len(writers) > WRITERS_REMEMBERED:
                del writers[next(iter(writers))]

    def _step(self, instr: Instr) -> Step:
        number = len(self.plan.steps)
        touched = touched_by(instr)
        cost = self._cost(instr, touched)
        step = Step(number, instr, cost)
        if instr.signals:
            step.signals = self._signals(instr)
        if instr.waits:
            step.waits = tuple([self._wait(step, w.semaphore, w.value) for w in instr.waits])
        for _, access, pattern in touched:
            if access != "reads" and pattern.tile.name in self.held:
                step.spoils = pattern.tile.name
        step.reads = self._dependences(instr, touched)
        if cost.kind == "matmul":
            stationary: Pattern = instr.stationary  # type: ignore[attr-defined]
            step.stationary, step.held_tile = self._address(stationary), stationary.tile.name
        elif cost.kind != "transfer":
            step.ports = self._ports(instr.runs_on, touched)
        self._remember_writer(number, instr, touched)
        self.plan.steps.append(step)
        return step

    def _cost(self, instr: Instr, touched: Touched) -> Cost:
        """The cost that all instructions share that differ in nothing it depends on."""
        key = _cost_key(instr, touched)
        cost = self.costs.get(key)
        if cost is None:
            queue = -1
            if isinstance(instr, Transfer):
                name = instr.queue or f"of {instr.runs_on}"
                queue = self.queues.setdefault(name, len(self.queues))
            cost = cost_of(instr, self.arch, len(self.plan.costs), queue)
            self.plan.costs.append(cost)
            self.costs[key] = cost
        return cost

    def _ports(self, engine: str, touched: Touched) -> tuple[int, ...]:
        """On generation 2 one for SBUF and one for all of PSUM, later one for each bank of PSUM."""
        taken = set()
        is_shared = self.arch.generation <= LAST_SHARED_PORTS
        for _, _, pattern in touched:
            memory = pattern.tile.memory
            if memory is Memory.SBUF and is_shared and engine in SBUF_PORT_ENGINES:
                taken.add(SBUF_PORT)
            elif memory is Memory.PSUM and engine in PSUM_PORT_ENGINES:
                taken.update([PSUM_PORT] if is_shared else self._bank(pattern))
        return tuple(sorted(taken)) if taken else ()

    def _bank(self, pattern: Pattern) -> list[int]:
        """The PSUM bank where an access begins; none when it moves or is not placed."""
        address = self.program.addresses.get(pattern.tile.name)
        if address is None or pattern.offset.terms:
            return []
        byte = address + pattern.offset.constant * pattern.dtype.bytes
        return [PSUM_PORT + byte // self.arch.psum_bank_bytes % self.arch.psum_banks]

    def _address(self, pattern: Pattern) -> tuple[Weights, int, Terms]:
        """A number that tells this pattern's place in its tile from every other's."""
        name = (pattern.tile.name, pattern.dims, pattern.dtype.name)
        offset, partition = pattern.offset, pattern.partition
        if not offset.terms and not partition.terms:
            return name, offset.constant + partition.constant * pattern.tile.elements, ()
        place = offset + partition * pattern.tile.elements
        return name, place.constant, self._terms(place)

    def _terms(self, value: Affine) -> Terms:
        return tuple((self.scope[v], c) for v, c in value.terms if v in self.scope)

    def _signals(self, instr: Instr) -> tuple[tuple[int, int], ...]:
        found = []
        for signal in instr.signals:
            number = self.semaphore_numbers[signal.semaphore]
            found.append((number, signal.amount // self.plan.units[number]))
        return tuple(found)

    def _wait(self, step: Step, semaphore: str, value: Affine) -> PlannedWait:
        waits, number = self.plan.planned_waits, self.semaphore_numbers[semaphore]
        terms = self._terms(value) if value.terms else ()
        is_unknown = len(terms) < len(value.terms)
        wait = PlannedWait(len(waits), number, value.constant, terms, is_unknown)
        waits.append((step, wait))
        return wait

    def _dependences(self, instr: Instr, touched: Touched) -> tuple[int, ...]:
        """The latest overlapping writer of each operand, before it or an iteration ago."""
        engine, here = instr.runs_on, len(self.plan.steps)
        found = set()
        if self.register_writers:
            registers = [r for _, _, pattern in touched for r in registers_of(pattern)]
            found = {self.register_writers.get((engine, r), -1) for r in registers}
        if not instr.arrives_by_dma and engine != "tensor":
            for _, access, pattern in touched:
                writers = self.writers.get((engine, pattern.tile.name))
                if access != "writes" and writers:
                    found.update(_latest(pattern, writers, here))
        found.discard(-1)
        return tuple(sorted(found)) if found else ()


@dataclass(frozen=True, slots=True)
class _Shape:
    """How to read the instructions of one class."""

    operands: tuple[tuple[str, bool, str], ...]  # name, is several, access ("": each its own)
    operand_values: Callable[[Instr], tuple[object, ...]]
    attribute_values: Callable[[Instr], tuple[object, ...]]


@cache
def _shape(kind: type[Instr]) -> _Shape:
    is_fixed = kind.access is Instr.access
    declared = kind.operand_declarations
    operands = tuple(
        (name, each.is_several, each.access if is_fixed and name not in kind.read_when else "")
        for name, each in declared.items()
    )
    return _Shape(operands, _getter(tuple(declared)), _getter(kind.attribute_names))


def _getter(names: tuple[str, ...]) -> Callable[[Instr], tuple[object, ...]]:
    """A function that gives these attributes as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda instr: tuple([getattr(instr, name) for name in names])


def touched_by(instr: Instr) -> Touched:
    """Every operand that is a pattern, with what this instruction does to it."""
    shape = _shape(type(instr))
    touched = []
    for (name, is_several, access), value in zip(
        shape.operands, shape.operand_values(instr), strict=True
    ):
        if type(value) is Pattern:
            touched.append((name, access or instr.access(name), value))
        elif is_several and value:
            touched += [(name, access or instr.access(name), each) for each in value]  # type: ignore[attr-defined]
    return touched


def _cost_key(instr: Instr, touched: Touched) -> tuple[object, ...]:
    """Equal for instructions of equal cost: what it may depend on, without places in tiles."""
    key: list[object] = [type(instr), instr.on, instr.queue]
    for name, _, pattern in touched:
        partition = pattern.partition
        key += (name, id(pattern.tile.memory), id(pattern.dtype), pattern.dims, partition.constant)
        if pattern.offset.terms or partition.terms:
            key.append(bool(registers_of(pattern)))
    for value in _shape(type(instr)).attribute_values(instr):
        kind = type(value)
        key.append("affine" if kind is Affine else repr(value) if kind in (list, dict) else value)
    return tuple(key)


def _latest(
    pattern: Pattern, writers: Mapping[Place, tuple[int, Pattern]], here: int
) -> tuple[int, int]:
    """The last overlapping writer before step `here`, and the last from it on; -1 for none."""
    before = after = -1
    for number, written in reversed(writers.values()):
        best = before if number < here else after
        if number > best and may_overlap(pattern, written):
            if number < here:
                before = number
            else:
                after = number
    return before, after


def _summarize_loop(
    slot: int,
    loop: Loop,
    body: tuple[PlanItem, ...],
    steps: tuple[int, int],
    waits: tuple[int, int],
    trips: dict[int, int],
) -> LoopStep:
    inside = list(steps_in(body))
    engines = {s.cost.engine for s in inside}
    return LoopStep(
        slot=slot,
        variable=loop.variable,
        trips=loop.trips,
        body=body,
        steps=steps,
        waits=waits,
        engines=tuple(sorted(engines)),
        queues=tuple(sorted({s.cost.queue for s in inside} - {-1})),
        transfer_engines=tuple(
            sorted({s.cost.engine for s in inside if s.cost.kind == "transfer"})
        ),
        signalled=tuple(sorted({n for s in inside for n, _ in s.signals})),
        outer_reads=tuple(sorted({r for s in inside for r in s.reads if r < steps[0]})),
        extents=_extents(body),
        slowest=_slowest(body),
        is_regular=all(_is_regular(item) for item in body) and _weights_agree(inside, slot, trips),
    )


def _weights_agree(steps: list[Step], slot: int, trips: dict[int, int]) -> bool:
    """Whether two matmuls that hold the same weights once do so in every iteration."""
    places = {s.stationary for s in steps if s.cost.kind == "matmul"}
    by_name: dict[Weights, list[tuple[int, Terms]]] = {}
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


def _slowest(items: tuple[PlanItem, ...]) -> int:
    """The engine that is longest busy in a block, with what its inner loops repeat; -1 for none."""
    busy: dict[int, int] = {}
    _add_busy(items, 1, busy)
    return max(busy, key=lambda engine: busy[engine], default=-1)


def _add_busy(items: tuple[PlanItem, ...], times: int, busy: dict[int, int]) -> None:
    for item in items:
        if isinstance(item, Step):
            engine = item.cost.engine
            busy[engine] = busy.get(engine, 0) + (1 + item.cost.busy) * times
        elif isinstance(item, LoopStep):
            _add_busy(item.body, times * item.trips, busy)


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
        return item.cost.kind != "barrier"
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
    rows, length = _reach(one.dims)
    other_rows, other_length = _reach(other.dims)
    return not (
        _intervals_apart(one.partition, rows, other.partition, other_rows)
        or _intervals_apart(one.offset, length, other.offset, other_length)
    )


@lru_cache(maxsize=4096)
def _reach(dims: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Partitions and elements of each that a pattern reaches over."""
    (row_step, rows), *free = dims
    return 1 + abs(row_step) * (rows - 1), 1 + sum(abs(step) * (n - 1) for step, n in free)


def _intervals_apart(start: Affine, length: int, other_start: Affine, other_length: int) -> bool:
    if start.terms != other_start.terms:
        return False
    distance = start.constant - other_start.constant
    return distance >= other_length or -distance >= length
