"""Loops whose states are linear in themselves become scans.

A loop that counts from 0 to a constant is taken apart where every other state is one of three: kept
as it is; a recurrence, whose coefficients no other state enters; or an array that one iteration
after the other fills along its first dimension. What does not depend on the states is computed for
all iterations at once, a recurrence becomes a `scan`, and what is computed from its states follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from glia.base.dtype import S32
from glia.graph.ir import Graph, Node, Parameter
from glia.graph.ops import DynamicUpdateSlice, Map, While
from glia.graph.recurrences.all_iterations import AllIterations, NotSeparable, is_counter
from glia.graph.recurrences.linear import NotLinear, Recurrence, recurrence_of
from glia.graph.recurrences.prefix_networks import prefix_rule
from glia.graph.recurrences.stacked_updates import stacked_updates
from glia.graph.rules.constructors import (
    apply,
    broadcast,
    concatenate,
    constant,
    iota,
    move_back,
    move_last,
    reshape,
    scan,
    select,
    slice_along,
    take,
)
from glia.graph.rules.driver import apply_rules, results_as_node, rule, rules_of
from glia.graph.rules.facts import integer, is_uniform
from glia.options import CompileOptions

FEWEST_ITERATIONS = 8
MOST_ELEMENTS = 1 << 28  # of a state at all iterations


def recognise_recurrences(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with scans in place of what computes recurrences; no option changes it."""
    return apply_rules(graph, (*RULES, stacked_updates, prefix_rule()))


@rule
def loop_of_recurrences(op: While) -> Node | None:
    """while(s, i < n, body) = scans, where the body is linear in each state"""
    count = _iterations_from_0(op)
    if count is None or count < FEWEST_ITERATIONS:
        return None
    try:
        return results_as_node(_Loop(op, count).results())
    except (NotSeparable, NotLinear):
        return None


def _iterations_from_0(loop: While) -> int | None:
    """How often a loop runs that counts its one counter from 0 to a constant; None for others."""
    match loop.condition.results[0]:
        case Map("less", (Parameter() as counter, limit)) if integer(limit) is not None:
            position = counter.index
        case _:
            return None
    counts = is_counter(loop.body.results[position], loop.body.parameters[position])
    return integer(limit) if counts and integer(loop.state[position]) == 0 else None


@dataclass(frozen=True)
class _Filled:
    """A state that each iteration writes `value` to, at `index` along the first dimension."""

    value: Node
    index: Node


class _Loop:
    """A loop that is taken apart; raises NotSeparable or NotLinear where it cannot be."""

    def __init__(self, loop: While, count: int) -> None:
        self.loop, self.count = loop, count
        self.parameters, body = loop.body.parameters, loop.body.results
        condition = loop.condition.results[0]
        assert isinstance(condition, Map) and isinstance(condition.args[0], Parameter)
        self.counter = self.parameters[condition.args[0].index]
        kept = [p for p, result in zip(self.parameters, body, strict=True) if result is p]
        invariants: dict[Node, Node] = {p: loop.state[p.index] for p in kept}
        self.all = AllIterations(count, self.counter, invariants)
        self.others = self._other_counters()
        self.filled: dict[Parameter, _Filled] = {}
        self.recurrences: dict[Parameter, Recurrence] = {}
        for parameter, result in zip(self.parameters, body, strict=True):
            if parameter is self.counter or parameter in (*invariants, *self.others):
                continue
            filled = self._filled(parameter, result)
            if filled is not None:
                self.filled[parameter] = filled
            else:
                self.recurrences[parameter] = recurrence_of(result, parameter)
        if not self.recurrences:
            raise NotSeparable

    def _other_counters(self) -> dict[Parameter, int]:
        """Where other states begin that count as the loop does."""
        found: dict[Parameter, int] = {}
        for parameter, result in zip(self.parameters, self.loop.body.results, strict=True):
            start = integer(self.loop.state[parameter.index])
            is_other = parameter is not self.counter and parameter.dtype is S32
            if is_other and start is not None and is_counter(result, parameter):
                found[parameter] = start
                first = broadcast(constant(start, S32), (self.count,))
                self.all.know(parameter, apply("add", iota(S32, (self.count,), 0), first))
        return found

    def _filled(self, parameter: Parameter, result: Node) -> _Filled | None:
        """The array that a state is, filled at the counter; None for another state."""
        if not isinstance(result, DynamicUpdateSlice) or result.x is not parameter:
            return None
        if not result.starts:
            raise NotSeparable
        first, *others = result.starts
        is_row = result.update.shape == (1, *parameter.shape[1:])
        is_whole = parameter.shape[0] == self.count
        is_aligned = all(integer(each) == 0 for each in others)
        readers = self.loop.body.users[parameter]
        if not (is_row and is_whole and is_aligned) or readers != (result,):
            raise NotSeparable
        return _Filled(result.update, first)

    def results(self) -> list[Node]:
        """Every state after the last iteration."""
        found: dict[Node, Node] = {self.counter: constant(self.count, S32)}
        for parameter, start in self.others.items():
            found[parameter] = constant(start + self.count, S32)
        for parameter, recurrence in self.recurrences.items():
            states = self._states(parameter, recurrence)
            found[parameter] = take(states, 0, self.count - 1)
            before = reshape(self.loop.state[parameter.index], (1, *parameter.shape))
            earlier = concatenate([before, slice_along(states, 0, 0, self.count - 1)], 0)
            result = self.loop.body.results[parameter.index]
            self.all.know(result, states)
            self.all.know(parameter, earlier)
        for parameter, filled in self.filled.items():
            rows = reshape(self.all.of(filled.value), parameter.shape)
            found[parameter] = self.all.in_order(rows, filled.index)
        found |= self.all.invariants
        return [found[parameter] for parameter in self.parameters]

    def _states(self, parameter: Parameter, recurrence: Recurrence) -> Node:
        """A recurrence's states after each iteration, iterations first."""
        if self.count * math.prod(parameter.shape) > MOST_ELEMENTS:
            raise NotSeparable
        term = self.all.of(recurrence.term) if recurrence.term else None
        factor = self.all.of(recurrence.factor) if recurrence.factor else None
        factor, term = self._with_start(parameter, recurrence.monoid, factor, term)
        factor = None if factor is None else move_last(factor, 0)
        return move_back(scan(recurrence.monoid, move_last(term, 0), factor), 0)

    def _with_start(
        self, parameter: Parameter, monoid: str, factor: Node | None, term: Node | None
    ) -> tuple[Node | None, Node]:
        """Factors and terms, the first term combined with what the state before the loop gives."""
        start, shape = self.loop.state[parameter.index], (self.count, *parameter.shape)
        neutral = {"add": 0.0, "maximum": -math.inf, "minimum": math.inf}[monoid]
        if term is not None and (is_uniform(start, neutral) or _is_zero(start, monoid)):
            return factor, term
        start = broadcast(start, shape, range(1, len(shape)))
        first = start if factor is None else apply("multiply", factor, start)
        first = first if term is None else apply(monoid, first, term)
        rest = _splat_like(neutral, first) if term is None else term
        is_first = apply("equal", iota(S32, shape, 0), broadcast(constant(0, S32), shape))
        if factor is not None:  # times a state of zero, which would not stay zero if it is infinite
            factor = select(is_first, _splat_like(0.0, factor), factor)
        return factor, select(is_first, first, rest)


def _is_zero(start: Node, monoid: str) -> bool:
    return monoid == "add" and (is_uniform(start, 0.0) or is_uniform(start, -0.0))


def _splat_like(value: float, like: Node) -> Node:
    return broadcast(constant(value, like.dtype), like.shape)


RULES = rules_of(globals())
