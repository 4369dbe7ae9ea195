"""Fills move to before the first use of what they fill, so that less is live at one time."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from operator import is_

from glia.isa.instructions.vector import Memset
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.ir import Block, Program, Statement, blocks, walk, with_blocks

NOTE = "changed by the back end: memsets wait for the first use of their tiles, to fit on chip"


def delay_fills(program: Program) -> Program:
    """The program with every fill of an on-chip tile before its block's next use of that tile.

    Tiles with addresses keep their fills where they are, and so do fills that registers place. The
    program itself where nothing moves, else a note says so.
    """
    fixed = {*program.addresses, *program.constants}
    fixed |= {each.tile.name for each in (*program.inputs, *program.outputs)}
    body = _delayed(program.body, fixed)
    if all(map(is_, walk(body), program.instructions())):
        return program
    return replace(program, body=body, notes=(*program.notes, NOTE))


def _delayed(body: Block, fixed: Set[str]) -> Block:
    result: list[Statement] = []
    waiting: dict[str, list[Memset]] = {}
    for statement in body:
        if isinstance(statement, Memset) and _may_wait(statement, fixed):
            waiting.setdefault(statement.dst.tile.name, []).append(statement)
            continue
        for name in _tiles_of(statement):
            result += waiting.pop(name, ())
        result.append(with_blocks(statement, lambda block: _delayed(block, fixed)))
    return (*result, *(fill for fills in waiting.values() for fill in fills))


def _may_wait(fill: Memset, fixed: Set[str]) -> bool:
    tile = fill.dst.tile
    return not (tile.memory is Memory.HBM or tile.name in fixed or fill.uses_registers)


def _tiles_of(statement: Statement) -> list[str]:
    """The names of the tiles that a statement touches, each once, in order."""
    if isinstance(statement, Instr):
        return [pattern.tile.name for pattern in statement.patterns()]
    inside = (each for block in blocks(statement) for each in walk(block))
    return list(dict.fromkeys(p.tile.name for each in inside for p in each.patterns()))
