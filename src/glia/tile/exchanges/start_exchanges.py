"""Exchanges start as soon as what they send is computed, and other work runs while they travel.

Statements are ordered as a list scheduler orders instructions: nests take the time of the
core's engines, exchanges that of the links. Of what could begin first, what the exchange waits for
that has the least work left before it comes first, then what came first. So a step of training
computes the gradient of a weight, and sends it, before it goes on with the layers below, and of
what runs in parts the first comes as far as its exchange before the second begins. Parts of one
statement keep their order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from glia.arch.instances import get_target
from glia.options import CompileOptions
from glia.tile.dependences import predecessors
from glia.tile.estimated_time import estimated_ns
from glia.tile.exchanges.parts import whole_of
from glia.tile.ir import Branch, Exchange, Load, Nest, Program, Statement, While


def start_exchanges(program: Program, options: CompileOptions) -> Program:
    """The program in an order that lets exchanges begin early, under a distribution strategy."""
    if not options.distribution_strategy:
        return program
    return replace(program, body=_Orderer(program, options).block(program.body))


def is_sent(statement: Statement) -> bool:
    """Whether a statement is an exchange that takes the links between ranks."""
    return isinstance(statement, Exchange) and statement.kind not in ("rank-id", "barrier")


class _Orderer:
    """Orders the statements of each block of a program."""

    def __init__(self, program: Program, options: CompileOptions) -> None:
        self.buffers = program.buffers
        self.program = program
        self.arch = get_target(options.target).arch

    def block(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """The statements of a block, and of those inside of it, in their order."""
        body = [self._inside(each) for each in body]
        if not any(map(is_sent, body)):
            return (*body,)
        before = predecessors([(each,) for each in body], self.program)
        return tuple(body[position] for position in self._order(body, before))

    def _inside(self, statement: Statement) -> Statement:
        if isinstance(statement, While):
            return replace(statement, body=self.block(statement.body))
        if isinstance(statement, Branch):
            return replace(statement, arms=tuple(map(self.block, statement.arms)))
        return statement

    def _order(self, body: Sequence[Statement], before: Sequence[set[int]]) -> list[int]:
        """The positions of statements in the order in which they can begin."""
        took_ns = [estimated_ns(each, self.buffers, self.arch) for each in body]
        nearest = _Nearest(body, before, took_ns)
        after: list[list[int]] = [[] for _ in body]
        for position, earlier in enumerate(before):
            for each in earlier:
                after[each].append(position)
        waiting_for = [len(earlier) for earlier in before]
        ready_ns = [0.0] * len(body)
        free_ns = {True: 0.0, False: 0.0}  # of the links, and of the engines
        available = [position for position, count in enumerate(waiting_for) if not count]
        order = []
        wholes = [whole_of(each) for each in body]
        while available:
            left_ns: dict[str, float] = {}  # of each statement, its parts together
            for each in available:
                known = left_ns.get(wholes[each], math.inf)
                left_ns[wholes[each]] = min(known, nearest.left_ns(each))
            position = min(
                available,
                key=lambda n: (
                    # a queue takes what is ready while it sends what came before
                    ready_ns[n] if is_sent(body[n]) else max(ready_ns[n], free_ns[False]),
                    left_ns[wholes[n]],
                    n,
                ),
            )
            available.remove(position)
            order.append(position)
            nearest.take(position)
            statement = body[position]
            start = max(ready_ns[position], free_ns[is_sent(statement)])
            end = start + took_ns[position]
            free_ns[is_sent(statement)] = end
            for each in after[position]:
                ready_ns[each] = max(ready_ns[each], end)
                waiting_for[each] -= 1
                if not waiting_for[each]:
                    available.append(each)
        return order


class _Nearest:
    """The exchanges that wait for each statement first, and the work left before each of them.

    What only moves data is no work: slices that are gathered keep the order of their gathers.
    """

    def __init__(
        self, body: Sequence[Statement], before: Sequence[set[int]], took_ns: Sequence[float]
    ) -> None:
        self.took_ns = [
            0.0 if _only_moves(each) else ns for each, ns in zip(body, took_ns, strict=True)
        ]
        self.waiting: list[set[int]] = [set() for _ in body]
        self.work_ns = [0.0] * len(body)
        for position in reversed(range(len(body))):
            if is_sent(body[position]):
                own = {position}
            else:
                own = self.waiting[position]
                for each in own:
                    self.work_ns[each] += self.took_ns[position]
            for each in before[position]:
                self.waiting[each] |= own
            self.waiting[position] = own

    def left_ns(self, position: int) -> float:
        """The work left before the nearest exchange that waits for a statement, or is it."""
        return min((self.work_ns[each] for each in self.waiting[position]), default=math.inf)

    def take(self, position: int) -> None:
        """Count a statement, which is next, as done."""
        for each in self.waiting[position] - {position}:
            self.work_ns[each] -= self.took_ns[position]


def _only_moves(statement: Statement) -> bool:
    """Whether a statement is a nest that computes nothing."""
    is_map = isinstance(statement, Nest) and statement.reduction is None
    return is_map and isinstance(statement.body, Load)  # type: ignore[union-attr]
