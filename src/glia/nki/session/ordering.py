"""Order edges that a kernel adds to its data dependences: depends_on and with_schedule.

An edge makes a consumer wait until a producer is complete. Where program order has the consumer
first, it sinks below the producer, together with everything that depends on it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from glia.base.loc import Loc
from glia.isa.instructions.sync import Barrier
from glia.isa.kit import Instr
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.instruction_rewriting import rewrite_at
from glia.machine.ir import Program, Statement, walk, with_blocks
from glia.nki.names.errors import BadSchedule
from glia.nki.session.session import OrderEdge, Session, current

# Of a program that a core of this number recorded: what replaces instructions by number, or None
Edit = Callable[[Program, int], Mapping[int, Instr | None]]
Edges = tuple[tuple[str, tuple[str, ...]], ...]


def is_fence(statement: Statement) -> bool:
    """Whether nothing moves across a statement: what is before it is complete before it ends."""
    return isinstance(statement, Barrier | CrossCoreInstr)


# --- of instructions that are replaced ------------------------------------------------------------


def edit_recorded(
    program: Program, changes: Mapping[int, Instr | None], session: Session
) -> Program:
    """The program with instructions replaced, or left out for None, by number.

    What replaces an instruction keeps its order: in a block, and by edges.
    """
    replaced = {
        id(old): changes[number]
        for number, old in enumerate(walk(program.body))
        if number in changes
    }
    session.in_order += [
        new for old in session.in_order if (new := replaced.get(id(old))) is not None
    ]
    edges = []
    for edge in session.orders:
        consumer, producer = (replaced.get(id(e), e) for e in (edge.consumer, edge.producer))
        if consumer is not None and producer is not None:
            edges.append(replace(edge, consumer=consumer, producer=producer))
    session.orders[:] = edges
    return rewrite_at(program, changes)


# --- by name -------------------------------------------------------------------------------------


def parse_schedule(schedule: Iterable[Any], loc: Loc) -> Edges:
    """(consumer, producers) of each pair of names; BadSchedule for anything else."""
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


def with_edges(function: Callable[..., Any], edges: Edges, loc: Loc) -> Callable[..., Any]:
    """The kernel function with order edges between instructions that it names."""

    @functools.wraps(function)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        session = current("kernel.with_schedule")
        returned = function(*args, **kwargs)
        for consumer, producers in edges:
            for producer in producers:
                pair = (
                    _instruction_named(session, consumer, loc),
                    _instruction_named(session, producer, loc),
                )
                session.orders.append(OrderEdge(*pair, loc))
        return returned

    return kernel


def _instruction_named(session: Session, name: str, loc: Loc) -> Instr:
    found = session.instructions_by_name.get(name, [])
    if len(found) != 1:
        reason = f"{len(found)} instructions have that name"
        raise BadSchedule(edge=repr(name), reason=reason, loc=loc)
    return found[0]


# --- in the program ------------------------------------------------------------------------------


def producers_of(orders: Sequence[OrderEdge]) -> dict[int, list[Instr]]:
    """The producers that each consumer waits for, by the consumer's id()."""
    result: dict[int, list[Instr]] = {}
    for order in orders:
        result.setdefault(id(order.consumer), []).append(order.producer)
    return result


def order_statements(
    body: Iterable[Statement], orders: Sequence[OrderEdge], fixed: frozenset[str]
) -> tuple[Statement, ...]:
    """The statements with every producer before its consumer.

    `fixed` names the tiles at addresses chosen by the kernel, which may alias. BadSchedule where
    dependences are cyclic, or an edge leaves a loop or branch.
    """
    block = tuple(body)
    return _StatementOrder(orders, fixed).block(block) if orders else block


@dataclass(frozen=True)
class _StatementOrder:
    orders: Sequence[OrderEdge]
    fixed: frozenset[str]

    def block(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The statements of a block in order, those of nested blocks too."""
        statements = [with_blocks(statement, self.block) for statement in body]
        for order in self.orders:
            at = _position(statements, order.consumer)
            after = _position(statements, order.producer)
            if at is None or after is None:
                continue
            if order.consumer is order.producer:
                _refuse(order, "an instruction cannot wait for itself")
            if at != after and statements[after] is not order.producer:
                _refuse(order, "the producer is in a loop or branch that the consumer is not in")
            if at < after:
                statements = self._sink(statements, at, after, order)
        return tuple(statements)

    def _sink(
        self, statements: list[Statement], at: int, after: int, order: OrderEdge
    ) -> list[Statement]:
        """Move the statement at `at` behind the one at `after`, with its dependents between."""
        moved: list[Statement] = [statements[at]]
        kept: list[Statement] = []
        for each in statements[at + 1 : after]:
            (moved if self._depends_on_any(each, moved) else kept).append(each)
        target = statements[after]
        if self._depends_on_any(target, moved):
            _refuse(order, "the producer depends on the consumer")
        return [*statements[:at], *kept, target, *moved, *statements[after + 1 :]]

    def _depends_on_any(self, statement: Statement, others: list[Statement]) -> bool:
        """Whether the statement has to stay behind one of the others."""
        return any(self._depends(other, statement) for other in others)

    def _depends(self, first: Statement, second: Statement) -> bool:
        if not isinstance(first, Instr) or not isinstance(second, Instr):
            return True
        if is_fence(first) or is_fence(second):
            return True
        if any(o.producer is first and o.consumer is second for o in self.orders):
            return True
        same = first.runs_on == second.runs_on
        if same and all(any(each.states_touched()) for each in (first, second)):
            return True
        if first.uses_registers and second.uses_registers:
            return True
        return self._has_hazard(first, second) or self._has_hazard(second, first)

    def _has_hazard(self, writer: Instr, other: Instr) -> bool:
        """Whether `writer` writes memory that `other` reads or writes."""
        written = {p.tile.name for p in writer.written_patterns()}
        touched = {p.tile.name for p in other.patterns()}
        return bool(written & touched) or bool(written & self.fixed and touched & self.fixed)


def _position(statements: list[Statement], instruction: Instr) -> int | None:
    """The position of the statement that is or contains the instruction; None without one."""
    for position, statement in enumerate(statements):
        if statement is instruction:
            return position
        is_block = not isinstance(statement, Instr)
        if is_block and any(each is instruction for each in walk((statement,))):
            return position
    return None


def _refuse(order: OrderEdge, reason: str) -> NoReturn:
    both = (order.consumer, order.producer)
    names = [f"{each.mnemonic()} (line {each.loc.line})" for each in both]
    raise BadSchedule(edge=" after ".join(names), reason=reason, loc=order.loc)
