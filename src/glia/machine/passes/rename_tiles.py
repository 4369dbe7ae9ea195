"""Give contents that have nothing to do with each other tiles of their own.

A tile that every turn of a loop fills anew holds up the next turn until the last has read it. Where
no byte from before an instruction is read after it, what it writes can as well go elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile
from glia.machine.footprint import Footprint
from glia.machine.instruction_rewriting import substitute_instruction
from glia.machine.ir import Program, walk

MOST_PARTS = 64  # of a tile that are remembered one by one


@dataclass(frozen=True)
class _Access:
    """What an instruction does to a tile; `is_certain` if it writes every byte of `footprint`."""

    position: int
    footprint: Footprint
    is_read: bool
    is_certain: bool


def rename(program: Program) -> Program:
    """The program with a tile for each beginning of new contents in a tile on the chip.

    Tiles with addresses stay as they are, and those that loops and branches access.
    """
    fixed = {*program.addresses, *_accessed_inside(program)}
    accesses: dict[str, list[_Access]] = defaultdict(list)
    for position, statement in enumerate(program.body):
        if isinstance(statement, Instr):
            for name, access in _accesses(statement, position):
                if name not in fixed:
                    accesses[name].append(access)
    tiles = dict(program.tiles)
    others: dict[int, dict[str, Tile]] = defaultdict(dict)  # by position: what replaces which tile
    for name, found in accesses.items():
        current, numbers = tiles[name], count(1)
        begins = _beginnings(current, found)
        for access in found:
            if access.position in begins:
                begins.remove(access.position)
                current = _another(tiles, name, numbers)
            if current.name != name:
                others[access.position][name] = current
    body = tuple(
        substitute_instruction(statement, others[position], {})
        if isinstance(statement, Instr) and position in others
        else statement
        for position, statement in enumerate(program.body)
    )
    return replace(program, body=body, tiles=tiles)


def _accessed_inside(program: Program) -> set[str]:
    """The tiles that instructions under loops and branches access."""
    nested = tuple(each for each in program.body if not isinstance(each, Instr))
    return {pattern.tile.name for instruction in walk(nested) for pattern in instruction.patterns()}


def _accesses(instruction: Instr, position: int) -> Iterator[tuple[str, _Access]]:
    kind = type(instruction)
    writes_all = kind.rows_touched is Instr.rows_touched and kind.arrives != "participants"
    for name, _, pattern in instruction.operands():
        if pattern.memory is Memory.HBM:
            continue
        access = instruction.access(name)
        is_certain = access == "writes" and writes_all and name not in kind.partly_written
        footprint = Footprint.of(pattern)
        found = _Access(position, footprint, access != "writes", is_certain)
        yield pattern.tile.name, found


def _beginnings(tile: Tile, accesses: list[_Access]) -> set[int]:
    """Positions from which on nothing is read that was in the tile before; the first is none.

    Going back, `needed` is what is read later and not written in between: all of the tile where
    that is in too many parts to go through them each time.
    """
    if sum(access.is_certain for access in accesses) < 2:
        return set()
    found: set[int] = set()
    needed: list[Footprint] = []
    by_position: dict[int, list[_Access]] = defaultdict(list)
    for access in accesses:
        by_position[access.position].append(access)
    for position, together in reversed(by_position.items()):
        for access in together:
            if access.is_certain:
                needed = [each for each in needed if not access.footprint.covers(each)]
        reads = [access.footprint for access in together if access.is_read]
        if not needed and not reads:
            found.add(position)
        needed += [read for read in reads if read not in needed]
        if len(needed) > MOST_PARTS:
            needed = [Footprint.whole(tile)]
    return found - {accesses[0].position}


def _another(tiles: dict[str, Tile], name: str, numbers: Iterator[int]) -> Tile:
    fresh = next(each for each in (f"{name}'{n}" for n in numbers) if each not in tiles)
    made = tiles[fresh] = replace(tiles[name], name=fresh)
    return made
