"""Which statements of a block must keep their order, by the buffers that they access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glia.tile.ir import (
    Branch,
    Nest,
    Statement,
    While,
    WholeBuffers,
    accessed_buffers,
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


def predecessors(
    units: Sequence[Sequence[Statement]], aliases: Mapping[str, str]
) -> list[set[int]]:
    """By unit of a block, those before it that it must follow.

    A unit is statements that stay together. `aliases` names the buffer that another one shares its
    place with.
    """
    found: list[set[int]] = []
    writers: dict[str, list[int]] = {}  # since the buffer was last written as a whole, or begun
    readers: dict[str, list[int]] = {}
    for position, unit in enumerate(units):
        written = {aliases.get(n, n) for each in unit for n in written_buffers(each)}
        touched = {aliases.get(n, n) for each in unit for n in accessed_buffers(each)}
        before: set[int] = set()
        for name in touched:
            before.update(writers.get(name, ()))
            if name in written:
                before.update(readers.get(name, ()))
        for name in touched:
            (writers if name in written else readers).setdefault(name, []).append(position)
        before.discard(position)
        found.append(before)
    return found
