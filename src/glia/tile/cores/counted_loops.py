"""Loops that both cores run: those that count, of which each core can count for itself.

How often such a loop runs is known, and what decides it is computed from nothing but itself. Each
core has a counter of its own, and the statements inside are shared like all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from glia.tile.dependences import written_buffers
from glia.tile.ir import Nest, Program, Statement, While

MOST_ELEMENTS = 64  # of a buffer that decides when a loop ends


@dataclass(frozen=True)
class CountedLoop:
    """A loop that both cores run, and what it holds."""

    loop: While
    condition: tuple[Item, ...]
    body: tuple[Item, ...]


Item = int | CountedLoop  # the position of a statement, or a loop around some


@dataclass(frozen=True)
class SharedOrder:
    """The statements that cores share, in program order; those inside of shared loops as well."""

    statements: tuple[Statement, ...]
    times: tuple[int, ...]  # how often each runs
    order: tuple[Item, ...]
    counting: frozenset[int]  # the positions of nests that decide when a loop ends


def shared_order(program: Program) -> SharedOrder:
    """The statements of a program that cores share, with the loops that both cores run."""
    refused: set[str] = set()
    while True:
        found = _Flattening(refused).order(program.body)
        counting: set[int] = set()
        wrong = set()
        for loop in shared_loops(found.order):
            own = _counting(loop.loop, program, found.statements)
            if own is None or not own.issuperset(loop.condition):
                wrong.add(loop.loop.name)
            else:
                counting |= own
        if not wrong:
            return SharedOrder(found.statements, found.times, found.order, frozenset(counting))
        refused |= wrong


def shared_loops(order: Iterable[Item]) -> Iterator[CountedLoop]:
    """All loops that both cores run."""
    for item in order:
        if isinstance(item, CountedLoop):
            yield item
            yield from shared_loops((*item.condition, *item.body))


def positions(order: Iterable[Item], wanted: Collection[int]) -> Iterator[Item]:
    """The order of some positions only, without conditions, of which each core has its own."""
    for item in order:
        if isinstance(item, CountedLoop):
            body = tuple(positions(item.body, wanted))
            if body:
                yield CountedLoop(item.loop, (), body)
        elif item in wanted:
            yield item


class _Flattening:
    """Gives statements positions, and enters loops that run a known number of times."""

    def __init__(self, refused: Collection[str]) -> None:
        self._refused = refused
        self._statements: list[Statement] = []
        self._times: list[int] = []

    def order(self, body: tuple[Statement, ...]) -> SharedOrder:
        order = self._block(body, 1)
        return SharedOrder(tuple(self._statements), tuple(self._times), order, frozenset())

    def _block(self, body: tuple[Statement, ...], times: int) -> tuple[Item, ...]:
        return tuple(self._item(each, times) for each in body)

    def _item(self, statement: Statement, times: int) -> Item:
        if isinstance(statement, While) and self._is_shared(statement):
            times *= statement.iterations
            condition = self._block(statement.condition, times)
            return CountedLoop(statement, condition, self._block(statement.body, times))
        self._statements.append(statement)
        self._times.append(times)
        return len(self._statements) - 1

    def _is_shared(self, loop: While) -> bool:
        return loop.iterations > 0 and loop.name not in self._refused


def _counting(loop: While, program: Program, statements: tuple[Statement, ...]) -> set[int] | None:
    """The positions of the nests that decide when a loop ends; None where each core has not all.

    Those are the writers of its predicate, and of what they read, as far as that is not given.
    """
    writers: dict[str, list[int]] = {}
    for position, statement in enumerate(statements):
        for name in written_buffers(statement):
            writers.setdefault(name, []).append(position)
    aliased = {name for pair in program.aliases for name in pair}
    found: set[int] = set()
    waiting, known = [loop.predicate], {loop.predicate}
    while waiting:
        name = waiting.pop()
        buffer = program.buffers[name]
        if buffer.role in ("input", "constant") and name not in aliased:
            continue
        if buffer.role != "temporary" or name in aliased or buffer.elements > MOST_ELEMENTS:
            return None
        for position in writers.get(name, ()):
            nest = statements[position]
            if not isinstance(nest, Nest) or (nest.reduction and nest.reduction.rank):
                return None
            found.add(position)
            read = {load.buffer for load in nest.loads} - known
            known |= read
            waiting += sorted(read)
    return found
