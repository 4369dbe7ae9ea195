"""Tile renaming: independent contents of one tile get tiles of their own.

A tile that every iteration of a loop overwrites delays the next iteration until the last has read
it. Where none of a tile's bytes is live before a write, the write can define a new tile instead;
placement lets the new tiles take turns in what memory there is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from glia.isa.kit import Instr
from glia.isa.operand import Tile
from glia.machine.columns.table import columns_of
from glia.machine.instruction_rewriting import replace_tiles
from glia.machine.ir import Program
from glia.machine.passes.tile_liveness import find_liveness, replace_instructions, rewritten_tiles


def rename_tiles(program: Program) -> Program:
    """The program with a new tile at each redefinition of an on-chip tile.

    Tiles with addresses are not renamed, nor those that several blocks access.
    """
    tiles = dict(program.tiles)
    replacements: dict[int, dict[str, Tile]] = defaultdict(dict)  # by position and name
    for name, liveness in find_liveness(program, rewritten_tiles(program)).items():
        current, numbers = tiles[name], count(1)
        for position in dict.fromkeys(liveness.positions):
            if position in liveness.redefinitions:
                current = _clone_tile(tiles, name, numbers)
            if current.name != name:
                replacements[position][name] = current
    if not replacements:
        return program
    instructions = columns_of(program).instructions
    changes: dict[int, Instr | None] = {
        position: replace_tiles(instructions[position], renamed)
        for position, renamed in replacements.items()
    }
    return replace(program, body=replace_instructions(program.body, changes), tiles=tiles)


def _clone_tile(tiles: dict[str, Tile], name: str, numbers: Iterator[int]) -> Tile:
    unused = next(each for each in (f"{name}'{n}" for n in numbers) if each not in tiles)
    clone = tiles[unused] = replace(tiles[name], name=unused)
    return clone
