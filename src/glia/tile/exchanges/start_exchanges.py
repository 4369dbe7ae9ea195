"""Exchanges start as soon as what they send is computed, and other work runs while they travel.

Statements are ordered as a list scheduler orders instructions: nests take the time of the
core's engines, exchanges that of the links. Of what could begin first, what only an exchange waits
for comes first, then what came first. So a step of training computes the gradient of a weight, and
sends it, before it goes on with the layers below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glia.arch.instances import get_target
from glia.options import CompileOptions
from glia.tile.dependences import predecessors
from glia.tile.estimated_time import estimated_ns
from glia.tile.ir import Branch, Exchange, Program, Statement, While


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
        only_sent = _only_sent(body, before)
        after: list[list[int]] = [[] for _ in body]
        for position, earlier in enumerate(before):
            for each in earlier:
                after[each].append(position)
        waiting_for = [len(earlier) for earlier in before]
        ready_ns = [0.0] * len(body)
        free_ns = {True: 0.0, False: 0.0}  # of the links, and of the engines
        available = [position for position, count in enumerate(waiting_for) if not count]
        order = []
        while available:
            position = min(
                available,
                key=lambda n: (
                    # a queue takes what is ready while it sends what came before
                    ready_ns[n] if is_sent(body[n]) else max(ready_ns[n], free_ns[False]),
                    not only_sent[n],
                    n,
                ),
            )
            available.remove(position)
            order.append(position)
            statement = body[position]
            start = max(ready_ns[position], free_ns[is_sent(statement)])
            end = start + estimated_ns(statement, self.buffers, self.arch)
            free_ns[is_sent(statement)] = end
            for each in after[position]:
                ready_ns[each] = max(ready_ns[each], end)
                waiting_for[each] -= 1
                if not waiting_for[each]:
                    available.append(each)
        return order


def _only_sent(body: Sequence[Statement], before: Sequence[set[int]]) -> list[bool]:
    """By statement, whether it is an exchange, or one alone waits for it in the end."""
    reaches: list[set[int]] = [set() for _ in body]  # the exchanges that wait for it, and the end
    has_follower = [False] * len(body)
    for position in reversed(range(len(body))):
        own = {position} if is_sent(body[position]) else reaches[position]
        if not has_follower[position] and not is_sent(body[position]):
            own = {len(body)}
        for each in before[position]:
            has_follower[each] = True
            if len(reaches[each]) < 2:
                reaches[each] |= own
    return [
        is_sent(each) or (len(found) == 1 and len(body) not in found)
        for each, found in zip(body, reaches, strict=True)
    ]
