"""Recovery from a full memory on chip: what overlaps too much runs as it was emitted."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from glia.base.errors import CompileError
from glia.machine.ir import Loop, Program, Statement, walk
from glia.options import CompileOptions

ATTEMPTS_WITH_OVERLAP = 3  # after which nothing is overlapped
LESS_ROOM = 0.6  # of the room of a shared loop whose iterations overlap too much
NEAR = 16  # statements; a tile used farther apart outlives its nest, which is not to blame for it


def fix_order(
    program: Program, options: CompileOptions, error: Exception, attempt: int
) -> Program | None:
    """The emitted program with statements fixed that hold what overflowed, or None without any.

    A fixed statement is neither unrolled nor reordered, so that only the tiles of one nest are live
    in it, and emission has made sure that those fit. The iterations of shared loops overlap less
    first.
    """
    live = error.facts.get("live") if isinstance(error, CompileError) else None
    if not isinstance(live, Set):
        return None
    free = {i for i, statement in enumerate(program.body) if not _is_fixed(statement)}
    if not free:
        return None
    blamed = _statements_of(program, live) & free
    if attempt == 1:
        calmer = tuple(
            _with_less_overlap(each) if i in blamed else each for i, each in enumerate(program.body)
        )
        if calmer != program.body:
            return replace(program, body=calmer)
    chosen = blamed if blamed and attempt <= ATTEMPTS_WITH_OVERLAP else free
    body = tuple(
        Loop(f"fixed.{i}", 1, (each,), is_fixed=True) if i in chosen else each
        for i, each in enumerate(program.body)
    )
    note = f"{len(chosen)} of {len(body)} loops and instructions do not overlap, to fit on chip"
    return replace(program, body=body, notes=(*program.notes, note))


def _with_less_overlap(statement: Statement) -> Statement:
    """The statement with less room for iterations of shared loops, and none for outer ones'."""
    if not isinstance(statement, Loop) or not statement.copies:
        return statement
    body = tuple(map(_with_less_overlap, statement.body))
    has_inner = any(isinstance(each, Loop) and each.copies for each in body)
    room = int(statement.room * LESS_ROOM)
    return replace(statement, body=body, room=room, copies=1 if has_inner else statement.copies)


def _is_fixed(statement: Statement) -> bool:
    return isinstance(statement, Loop) and statement.is_fixed


def _statements_of(program: Program, live: Set[object]) -> set[int]:
    """The statements, by position, that use one of these tiles near each other."""
    emitted = {_emitted_name(str(name), program) for name in live}
    uses: dict[str, list[int]] = {}
    for position, statement in enumerate(program.body):
        for instruction in walk((statement,)):
            for pattern in instruction.patterns():
                name = pattern.tile.name
                if name in emitted:
                    uses.setdefault(name, []).append(position)
    near = (found for found in uses.values() if found[-1] - found[0] < NEAR)
    return {position for found in near for position in found}


def _emitted_name(name: str, program: Program) -> str:
    """The tile that a tile, perhaps a copy made for an unrolled iteration, was copied from."""
    while name not in program.tiles and "'" in name:
        name = name.rpartition("'")[0]
    return name
