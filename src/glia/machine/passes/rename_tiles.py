"""Tile renaming: independent contents of one tile get tiles of their own.

A tile that every iteration of a loop overwrites delays the next iteration until the last has read
it. Where none of a tile's bytes is live before a write, the write can define a new tile instead.
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

MAXIMUM_FOOTPRINTS = 64  # live footprints of a tile; with more all of the tile counts as live


@dataclass(frozen=True)
class _TileAccess:
    """An instruction's access to a tile; `is_full_write` if it writes all of `footprint`."""

    position: int
    footprint: Footprint
    is_read: bool
    is_full_write: bool


def rename_tiles(program: Program) -> Program:
    """The program with a new tile at each redefinition of an on-chip tile.

    Tiles with addresses are not renamed, nor those that loops and branches access.
    """
    fixed = {*program.addresses, *_accessed_inside(program)}
    accesses: dict[str, list[_TileAccess]] = defaultdict(list)
    for position, statement in enumerate(program.body):
        if isinstance(statement, Instr):
            for name, access in _accesses(statement, position):
                if name not in fixed:
                    accesses[name].append(access)
    tiles = dict(program.tiles)
    replacements: dict[int, dict[str, Tile]] = defaultdict(dict)  # by position and name
    for name, found in accesses.items():
        current, numbers = tiles[name], count(1)
        redefinitions = _redefinitions(current, found)
        for access in found:
            if access.position in redefinitions:
                redefinitions.remove(access.position)
                current = _clone_tile(tiles, name, numbers)
            if current.name != name:
                replacements[access.position][name] = current
    body = tuple(
        substitute_instruction(statement, replacements[position], {})
        if isinstance(statement, Instr) and position in replacements
        else statement
        for position, statement in enumerate(program.body)
    )
    return replace(program, body=body, tiles=tiles)


def _accessed_inside(program: Program) -> set[str]:
    """The names of tiles accessed inside loops and branches."""
    nested = tuple(each for each in program.body if not isinstance(each, Instr))
    return {pattern.tile.name for instruction in walk(nested) for pattern in instruction.patterns()}


def _accesses(instruction: Instr, position: int) -> Iterator[tuple[str, _TileAccess]]:
    kind = type(instruction)
    writes_all = kind.rows_touched is Instr.rows_touched and kind.arrives != "participants"
    for name, _, pattern in instruction.operands():
        if pattern.memory is Memory.HBM:
            continue
        access = instruction.access(name)
        is_full_write = access == "writes" and writes_all and name not in kind.partly_written
        footprint = Footprint.of(pattern)
        found = _TileAccess(position, footprint, access != "writes", is_full_write)
        yield pattern.tile.name, found


def _redefinitions(tile: Tile, accesses: list[_TileAccess]) -> set[int]:
    """Positions before which no byte of the tile is live, other than its first access.

    A backward pass over the accesses; `live` holds the live footprints.
    """
    if sum(access.is_full_write for access in accesses) < 2:
        return set()
    found: set[int] = set()
    live: list[Footprint] = []
    by_position: dict[int, list[_TileAccess]] = defaultdict(list)
    for access in accesses:
        by_position[access.position].append(access)
    for position, simultaneous in reversed(by_position.items()):
        for access in simultaneous:
            if access.is_full_write:
                live = [each for each in live if not access.footprint.covers(each)]
        reads = [access.footprint for access in simultaneous if access.is_read]
        if not live and not reads:
            found.add(position)
        live += [read for read in reads if read not in live]
        if len(live) > MAXIMUM_FOOTPRINTS:
            live = [Footprint.of_tile(tile)]
    return found - {accesses[0].position}


def _clone_tile(tiles: dict[str, Tile], name: str, numbers: Iterator[int]) -> Tile:
    unused = next(each for each in (f"{name}'{n}" for n in numbers) if each not in tiles)
    clone = tiles[unused] = replace(tiles[name], name=unused)
    return clone
