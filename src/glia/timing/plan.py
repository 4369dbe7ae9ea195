"""A machine program as tables: everything the timing model needs that does not change in a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from glia.arch import TARGETS
from glia.isa.kit import ENGINES, Instr
from glia.machine.columns.table import Columns, InstructionSpan, columns_of
from glia.machine.columns.value_numbering import Array
from glia.machine.ir import Branch, Loop, Program
from glia.timing.costs import Cost, Costs, cost_instructions
from glia.timing.errors import TimingTooLarge
from glia.timing.instruction_tables import Record, Scopes, step_tables

if TYPE_CHECKING:
    from glia.arch import Arch

MOST_INSTRUCTION_PICOSECONDS = 10**13  # of one instruction: ten seconds
MOST_DECISIONS = 100_000_000  # executions of one branch or run-time loop
MOST_ITERATED = 20_000_000  # instructions in all iterations of a run-time loop
MAX_CACHED_STEPS = 50_000  # steps of a plan that stays in memory with its program

Pairs = list[tuple[int, int]]  # (loop variable's slot, coefficient)


@dataclass(slots=True)
class LoopStep:
    """A counted loop and what its body touches."""

    slot: int
    variable: str
    trips: int
    body: tuple[PlanItem, ...]
    steps: tuple[int, int]  # numbers of the first step inside and the first after
    extents: dict[int, int]  # trips of the loops inside, by slot
    slowest_engine: int = -1  # the engine that is longest busy in one iteration
    is_regular: bool = False  # no barrier or run-time control flow; products reuse weights alike


@dataclass(slots=True)
class WhileStep:
    """A loop whose trips the trace of an execution knows; `ordinal` numbers it in program order.

    `iterations` are those of every execution where they are known without one, else 0.
    """

    ordinal: int
    iterations: int
    condition: tuple[PlanItem, ...]
    body: tuple[PlanItem, ...]
    condition_steps: tuple[int, int]  # the steps of the condition
    steps: tuple[int, int]


@dataclass(slots=True)
class BranchStep:
    """A choice whose outcomes the trace of an execution knows."""

    ordinal: int
    arms: tuple[tuple[PlanItem, ...], ...]


PlanItem = (
    InstructionSpan | LoopStep | WhileStep | BranchStep
)  # a Span without a statement: steps in a row


@dataclass(slots=True)
class PlannedWait:
    """`step` waits until `semaphore` has counted `constant + terms`; all of it if `is_unknown`."""

    number: int
    step: int
    engine: int
    semaphore: int
    constant: int
    is_unknown: bool
    terms: Pairs


@dataclass
class TimingPlan:
    """The tables of a program to be timed; a step is an instruction, numbered in program order.

    `steps` holds the tables of the steps and what hangs on them, `tables` the whole layout once
    there is one.
    """

    columns: Columns
    costs: Costs
    items: tuple[PlanItem, ...]
    steps: Record
    slots: int
    barriers: Array  # steps that are barriers
    tables: Record = field(default_factory=dict)
    engines: tuple[str, ...] = ENGINES

    @property
    def queues(self) -> list[str]:
        return self.costs.queues

    @property
    def semaphores(self) -> list[str]:
        return self.columns.semaphores

    def instruction(self, step: int) -> Instr:
        return self.columns.instructions[step]

    def cost(self, step: int) -> Cost:
        cost: Cost = self.costs.distinct[self.costs.number[step]]
        return cost

    def unit(self, semaphore: int) -> int:
        """Counts in a unit of a semaphore."""
        return int(self.steps["unit"][semaphore])

    def has_barrier(self, steps: tuple[int, int]) -> bool:
        """Whether a span of steps has one."""
        begin, end = np.searchsorted(self.barriers, steps)
        return bool(begin < end)

    def moves_weights(self, steps: tuple[int, int]) -> bool:
        """Whether the place of some weights in a span of steps depends on a loop."""
        begin, end = self.steps["step_term"][list(steps)]
        return bool(begin < end)

    def waits_in(self, steps: tuple[int, int]) -> list[PlannedWait]:
        """The waits of a span of steps."""
        begin, end = self.steps["step_wait"][list(steps)].tolist()
        return self._waits(begin, end)

    def wait(self, number: int) -> PlannedWait:
        """A wait by its number in program order."""
        return self._waits(number, number + 1)[0]

    def _waits(self, begin: int, end: int) -> list[PlannedWait]:
        tables, numbers = self.steps, np.arange(begin, end)
        steps = np.searchsorted(tables["step_wait"], numbers, "right") - 1
        semaphores, constants, unknown = (
            tables[f"wait_{name}"][begin:end] for name in ("semaphore", "constant", "is_unknown")
        )
        columns = (numbers, steps, tables["engine"][steps], semaphores, constants, unknown > 0)
        return [
            PlannedWait(number, step, engine, semaphore, constant, is_unknown, terms)
            for number, step, engine, semaphore, constant, is_unknown in zip(
                *(column.tolist() for column in columns), strict=True
            )
            for terms in (self._terms("wait_term", number),)
        ]

    def weights_terms(self, step: int) -> Pairs:
        """How the place of the weights that a product holds moves."""
        return self._terms("step_term", step)

    def _terms(self, table: str, number: int) -> Pairs:
        begin, end = self.steps[table][number : number + 2].tolist()
        if begin == end:
            return []
        span = slice(begin, end)
        slots, factors = self.steps["term_slot"][span], self.steps["term_factor"][span]
        return list(zip(slots.tolist(), factors.tolist(), strict=True))


def make_plan(program: Program, arch: Arch) -> TimingPlan:
    """The plan of a program: every kind of instruction costed once, names resolved to numbers.

    Plans for the targets' own cores are kept in the program's cache, unless they are large.
    """
    cached = program.cache.get_or_create(_CachedPlans)
    for known, plan in cached:
        if known is arch:
            return plan
    plan = _make_plan(program, arch)
    is_small = len(plan.columns.instructions) <= MAX_CACHED_STEPS
    if is_small and any(arch is own.arch for own in TARGETS.values()):
        cached.append((arch, plan))
    return plan


class _CachedPlans(list[tuple["Arch", TimingPlan]]):
    """The plans of one program, by target."""


def _make_plan(program: Program, arch: Arch) -> TimingPlan:
    columns = columns_of(program)
    costs = cost_instructions(columns, arch)
    _check_costs(costs)
    outline = _ControlFlow()
    items = outline.block(columns.body, {})
    steps = step_tables(program, columns, costs, outline.scopes(), outline.schedule, arch)
    barriers = np.flatnonzero(costs.is_barrier[costs.number])
    plan = TimingPlan(columns, costs, items, steps, outline.slots, barriers)
    _LoopSummary(plan).complete(items)
    _check_decisions(items)
    return plan


def _check_costs(costs: Costs) -> None:
    """TimingTooLarge when one instruction takes longer than 64-bit times allow."""
    for cost in costs.distinct:
        if cost.longest > MOST_INSTRUCTION_PICOSECONDS:
            seconds = cost.longest / 1e12
            raise TimingTooLarge(reason=f"one {cost.opcode} takes {seconds:.0f} seconds")


def _check_decisions(items: tuple[PlanItem, ...], times: int = 1) -> None:
    """TimingTooLarge when loops come to branches and run-time loops too often to go through.

    Run-time loops of too many iterations count as loops of which none is known.
    """
    for item in items:
        if isinstance(item, LoopStep):
            _check_decisions(item.body, times * item.trips)
        elif not isinstance(item, InstructionSpan):
            if times > MOST_DECISIONS:
                raise TimingTooLarge(reason=f"{times} branches are decided")
            if isinstance(item, WhileStep):
                begin, end = item.steps
                if times * item.iterations * (end - begin) > MOST_ITERATED:
                    item.iterations = 0
                inside = times * max(1, item.iterations)
                _check_decisions(item.condition, inside)
                _check_decisions(item.body, inside)
            else:
                for arm in item.arms:
                    _check_decisions(arm, times)


class _ControlFlow:
    """The control flow with numbers for loops and run-time decisions."""

    def __init__(self) -> None:
        self.slots = self.ordinals = 0
        self.schedule: list[tuple[bool, int, int]] = []  # see `timing.instruction_tables`
        self.begins, self.numbers = [0], [0]  # where the scope changes, and to which
        self.known: list[dict[str, int]] = [{}]

    def scopes(self) -> Scopes:
        return Scopes(np.array(self.begins), np.array(self.numbers), self.known)

    def block(
        self, spans: tuple[InstructionSpan, ...], scope: dict[str, int]
    ) -> tuple[PlanItem, ...]:
        return tuple([self._item(span, scope) for span in spans])

    def _item(self, span: InstructionSpan, scope: dict[str, int]) -> PlanItem:
        statement = span.statement
        if statement is None:
            return self._steps(span, scope)
        if isinstance(statement, Loop):
            return self._loop(span, statement, scope)
        ordinal, self.ordinals = self.ordinals, self.ordinals + 1
        blocks = [self.block(block, scope) for block in span.blocks]
        if isinstance(statement, Branch):
            return BranchStep(ordinal, tuple(blocks))
        condition, body = blocks
        condition_steps = [each for item in span.blocks[0] for each in (item.begin, item.end)]
        first, end = (min(condition_steps), max(condition_steps)) if condition_steps else (0, 0)
        return WhileStep(
            ordinal, statement.iterations, condition, body, (first, end), (span.begin, span.end)
        )

    def _steps(self, span: InstructionSpan, scope: dict[str, int]) -> InstructionSpan:
        self.schedule.append((True, span.begin, span.end))
        if self.known[-1] is not scope:
            self.known.append(scope)
        self.begins.append(span.begin)
        self.numbers.append(len(self.known) - 1)
        return span

    def _loop(self, span: InstructionSpan, loop: Loop, scope: dict[str, int]) -> LoopStep:
        slot, self.slots = self.slots, self.slots + 1
        if loop.trips > 1:
            # writers of an iteration's end are what readers at the next one's start depend on
            self.schedule.append((False, span.begin, span.end))
        body = self.block(span.blocks[0], {**scope, loop.variable: slot})
        extents: dict[int, int] = {}
        for inner in (item for item in body if isinstance(item, LoopStep)):
            extents |= {inner.slot: inner.trips} | inner.extents
        return LoopStep(slot, loop.variable, loop.trips, body, (span.begin, span.end), extents)


class _LoopSummary:
    """Determines of every loop its slowest engine and whether its iterations can repeat."""

    def __init__(self, plan: TimingPlan) -> None:
        self.plan, self.number = plan, plan.costs.number
        self.engine = plan.costs.engine.tolist()
        self.busy = [1 + cost.busy for cost in plan.costs.distinct]
        self.products = np.flatnonzero(plan.costs.is_matmul[self.number])
        self.trips: dict[int, int] = {}  # by slot

    def complete(self, items: tuple[PlanItem, ...]) -> None:
        """Complete the loops of a block."""
        for item in items:
            if isinstance(item, LoopStep):
                self._loop(item)
            elif isinstance(item, WhileStep):
                self.complete(item.condition + item.body)
            elif isinstance(item, BranchStep):
                for arm in item.arms:
                    self.complete(arm)

    def _loop(self, loop: LoopStep) -> dict[int, int]:
        """Complete a loop; the picoseconds that an iteration keeps each engine busy."""
        self.trips[loop.slot] = loop.trips
        busy: dict[int, int] = {}
        is_regular = True
        for item in loop.body:
            if isinstance(item, InstructionSpan):
                for cost in self.number[item.begin : item.end].tolist():
                    engine = self.engine[cost]
                    busy[engine] = busy.get(engine, 0) + self.busy[cost]
                is_regular = is_regular and not self.plan.has_barrier((item.begin, item.end))
            elif isinstance(item, LoopStep):
                for engine, time in self._loop(item).items():
                    busy[engine] = busy.get(engine, 0) + time * item.trips
                is_regular = is_regular and item.is_regular
            else:
                self.complete((item,))
                is_regular = False
        loop.slowest_engine = max(busy, key=lambda engine: busy[engine], default=-1)
        loop.is_regular = is_regular and self._weights_agree(loop)
        return busy

    def _weights_agree(self, loop: LoopStep) -> bool:
        """Whether two products that hold the same weights once do so in every iteration."""
        tables, plan = self.plan.steps, self.plan
        begin, end = np.searchsorted(self.products, loop.steps)
        steps = self.products[begin:end]
        if not plan.moves_weights(loop.steps):
            return True
        places = zip(
            tables["weights"][steps].tolist(),
            tables["weights_place"][steps].tolist(),
            [tuple(plan.weights_terms(step)) for step in steps.tolist()],
            strict=True,
        )
        by_weights: dict[int, list[tuple[int, tuple[tuple[int, int], ...]]]] = {}
        for weights, constant, terms in set(places):
            by_weights.setdefault(weights, []).append((constant, terms))
        for found in by_weights.values():
            moving = {dict(terms).get(loop.slot, 0) for _, terms in found}
            spans = sorted(self._value_range(constant, terms) for constant, terms in found)
            if len(moving) > 1 and any(a[1] >= b[0] for a, b in pairwise(spans)):
                return False
        return True

    def _value_range(self, constant: int, terms: tuple[tuple[int, int], ...]) -> tuple[int, int]:
        """The least and greatest value over all iterations of all loops."""
        low = high = constant
        for slot, coefficient in terms:
            reach = coefficient * max(0, self.trips[slot] - 1)
            low, high = low + min(0, reach), high + max(0, reach)
        return low, high


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
