"""Which statements of a block must keep their order, by the buffers that they access."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeGuard

from glia.tile.boxes import Box, overlap, read_boxes, written_box
from glia.tile.ir import (
    Branch,
    Exchange,
    Nest,
    Program,
    Statement,
    While,
    WholeBuffers,
    accessed_buffers,
    leaves,
)


def written_buffers(statement: Statement) -> set[str]:
    """What a statement, or one inside of it, writes."""
    if isinstance(statement, Nest):
        return {statement.target.buffer}
    if isinstance(statement, WholeBuffers):
        return {*statement.outputs}
    inner = statement.body + statement.condition if isinstance(statement, While) else ()
    inner = sum(statement.arms, ()) if isinstance(statement, Branch) else inner
    return set().union(*map(written_buffers, inner))


def is_barrier(statement: Statement) -> TypeGuard[Exchange]:
    """Whether the cores of a logical core meet at a statement."""
    return isinstance(statement, Exchange) and statement.kind == "barrier"


def predecessors(units: Sequence[Sequence[Statement]], program: Program) -> list[set[int]]:
    """By unit of a block of a program, those before it that it must follow.

    A unit is statements that stay together. What nests access are boxes of elements. Barriers keep
    their order: it is the same on all cores.
    """
    aliases = dict(program.aliases)
    found: list[set[int]] = []
    known: dict[str, list[tuple[int, bool, Box | None]]] = {}
    barrier: int | None = None
    for position, unit in enumerate(units):
        before: set[int] = set()
        if any(map(is_barrier, leaves(tuple(unit)))):
            before |= set() if barrier is None else {barrier}
            barrier = position
        own: list[tuple[str, bool, Box | None]] = []
        for name, is_write, box in (each for s in unit for each in accesses_of(s, program)):
            root = aliases.get(name, name)
            is_alike = program.buffers[root].shape == program.buffers[name].shape
            own.append((root, is_write, box if is_alike else None))
        for name, is_write, box in own:
            before.update(
                at
                for at, wrote, other in known.get(name, ())
                if (is_write or wrote) and (box is None or other is None or overlap(box, other))
            )
        for name, is_write, box in own:
            known.setdefault(name, []).append((position, is_write, box))
        before.discard(position)
        found.append(before)
    return found


def accesses_of(statement: Statement, program: Program) -> Iterator[tuple[str, bool, Box | None]]:
    """(buffer, whether it is written, the box; None for all of the buffer) of each access."""
    if isinstance(statement, Nest):
        buffers, target = program.buffers, statement.target
        yield from ((name, False, box) for name, box in read_boxes(statement, buffers))
        yield target.buffer, True, written_box(statement, buffers)
        return
    written = written_buffers(statement)
    yield from ((name, name in written, None) for name in accessed_buffers(statement))
