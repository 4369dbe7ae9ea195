"""The order that a kernel asks for beyond what its data demands: depends_on and with_schedule.

An edge makes one instruction wait until another is complete. Where program order has them the
other way round, the one that waits moves, with all that follows from it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from glia.base.loc import Loc
from glia.isa.instructions.sync import Barrier
from glia.isa.kit import Instr
from glia.isa.rendezvous import Meeting
from glia.machine.ir import Statement, walk, with_blocks
from glia.nki.names.errors import BadSchedule
from glia.nki.session.session import Order, Session, current

Edges = tuple[tuple[str, tuple[str, ...]], ...]


# --- by name -------------------------------------------------------------------------------------


def edges_of(schedule: Iterable[Any], loc: Loc) -> Edges:
    """(consumer, producers) of each pair of names; BadSchedule for what is none."""
    edges = []
    for pair in schedule:
        match pair:
            case (str() as consumer, str() as producer):
                edges.append((consumer, (producer,)))
            case (str() as consumer, [*producers]) if all(isinstance(p, str) for p in producers):
                edges.append((consumer, tuple(producers)))
            case _:
                reason = "a pair is (name, name) or (name, list of names)"
                raise BadSchedule(edge=repr(pair), reason=reason, loc=loc)
    return tuple(edges)


def scheduled(function: Callable[..., Any], edges: Edges, loc: Loc) -> Callable[..., Any]:
    """A kernel with edges between instructions that it names."""

    @functools.wraps(function)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        session = current("kernel.with_schedule")
        returned = function(*args, **kwargs)
        for consumer, producers in edges:
            for producer in producers:
                pair = _named(session, consumer, loc), _named(session, producer, loc)
                session.orders.append(Order(*pair, loc))
        return returned

    return kernel


def _named(session: Session, name: str, loc: Loc) -> Instr:
    found = session.named.get(name, [])
    if len(found) != 1:
        reason = f"{len(found)} instructions have that name"
        raise BadSchedule(edge=repr(name), reason=reason, loc=loc)
    return found[0]


# --- in the program ------------------------------------------------------------------------------


def waits(orders: Sequence[Order]) -> dict[int, list[Instr]]:
    """By the identity of an instruction those that it waits for."""
    result: dict[int, list[Instr]] = {}
    for order in orders:
        result.setdefault(id(order.consumer), []).append(order.producer)
    return result


def in_order(
    body: Iterable[Statement], orders: Sequence[Order], fixed: frozenset[str]
) -> tuple[Statement, ...]:
    """The statements with every producer before its consumer.

    `fixed` are tiles at addresses of the kernel's own, which may overlap. BadSchedule where data
    flows the other way, or from a loop or branch to what is outside.
    """
    block = tuple(body)
    return _Orderer(orders, fixed).block(block) if orders else block


@dataclass(frozen=True)
class _Orderer:
    orders: Sequence[Order]
    fixed: frozenset[str]

    def block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """A block and those inside it in order."""
        statements = [with_blocks(statement, self.block) for statement in body]
        for order in self.orders:
            at = _position(statements, order.consumer)
            after = _position(statements, order.producer)
            if at is None or after is None:
                continue
            if order.consumer is order.producer:
                _refuse(order, "an instruction cannot wait for itself")
            if at != after and statements[after] is not order.producer:
                _refuse(order, "the one to wait for is in a loop or branch of its own")
            if at < after:
                statements = self._moved(statements, at, after, order)
        return tuple(statements)

    def _moved(
        self, statements: list[Statement], at: int, after: int, order: Order
    ) -> list[Statement]:
        """One statement behind another, with those between that must stay behind it."""
        moved: list[Statement] = [statements[at]]
        kept: list[Statement] = []
        for each in statements[at + 1 : after]:
            (moved if self._follows(each, moved) else kept).append(each)
        target = statements[after]
        if self._follows(target, moved):
            _refuse(order, "the one to wait for needs, or waits for, the one that would wait")
        return [*statements[:at], *kept, target, *moved, *statements[after + 1 :]]

    def _follows(self, statement: Statement, others: list[Statement]) -> bool:
        """Whether it has to stay behind one of the others."""
        return any(self._conflict(other, statement) for other in others)

    def _conflict(self, first: Statement, second: Statement) -> bool:
        if not isinstance(first, Instr) or not isinstance(second, Instr):
            return True
        if any(isinstance(each, Barrier | Meeting) for each in (first, second)):
            return True
        if any(o.producer is first and o.consumer is second for o in self.orders):
            return True
        same = first.runs_on == second.runs_on
        if same and all(any(each.states_touched()) for each in (first, second)):
            return True
        if first.uses_registers and second.uses_registers:
            return True
        return self._share(first, second) or self._share(second, first)

    def _share(self, writer: Instr, other: Instr) -> bool:
        """Whether one writes memory that the other touches."""
        written = {p.tile.name for p in writer.written_patterns()}
        touched = {p.tile.name for p in other.patterns()}
        return bool(written & touched) or bool(written & self.fixed and touched & self.fixed)


def _position(statements: list[Statement], instruction: Instr) -> int | None:
    """Which statement is the instruction, or holds it."""
    for position, statement in enumerate(statements):
        if statement is instruction:
            return position
        is_block = not isinstance(statement, Instr)
        if is_block and any(each is instruction for each in walk((statement,))):
            return position
    return None


def _refuse(order: Order, reason: str) -> NoReturn:
    both = (order.consumer, order.producer)
    names = [f"{each.mnemonic()} (line {each.loc.line})" for each in both]
    raise BadSchedule(edge=" after ".join(names), reason=reason, loc=order.loc)
