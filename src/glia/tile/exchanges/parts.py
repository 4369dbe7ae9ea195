"""Names of the parts in which statements run, and their buffers."""

from __future__ import annotations

from glia.tile.ir import Statement

_MARK = ".part"


def part_name(name: str, number: int) -> str:
    """The name of a part of a statement or a buffer."""
    return f"{name}{_MARK}{number}"


def whole_of(statement: Statement) -> str:
    """The name of the statement of which a statement is a part; its own where it is whole."""
    return statement.name.partition(_MARK)[0]
