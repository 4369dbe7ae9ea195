"""Tile renaming: independent contents of one tile get tiles of their own.

A tile that every iteration of a loop overwrites delays the next iteration until the last has read
it. Where none of a tile's bytes is live before a write, the write can define a new tile instead;
placement lets the new tiles take turns in what memory there is.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from glia.isa.kit import Instr
from glia.isa.operand import Tile
from glia.machine.columns.table import Columns, columns_of
from glia.machine.columns.value_numbering import Array
from glia.machine.instruction_rewriting import replace_tiles
from glia.machine.ir import Program
from glia.machine.passes.tile_liveness import (
    TileLiveness,
    find_liveness,
    replace_instructions,
    rewritten_tiles,
)


@dataclass(frozen=True)
class TileVersions:
    """The tiles of a program after renaming: pattern r is of tile `tiles[number[r]]`.

    The first `known` of them are those there were; `renamed` is how many of those have copies.
    """

    number: Array
    tiles: list[Tile]
    known: int
    renamed: int

    @property
    def copies(self) -> list[Tile]:
        """The new tiles."""
        return self.tiles[self.known :]


def rename_tiles(program: Program) -> Program:
    """The program with a new tile at each redefinition of an on-chip tile.

    Tiles with addresses are not renamed, nor those that several blocks access.
    """
    versions = find_versions(program, find_liveness(program, rewritten_tiles(program)))
    if not versions.copies:
        return program
    changes: dict[int, Instr | None] = {**renamed_instructions(columns_of(program), versions)}
    tiles = {**program.tiles, **{tile.name: tile for tile in versions.copies}}
    return replace(program, body=replace_instructions(program.body, changes), tiles=tiles)


def find_versions(program: Program, liveness: Mapping[str, TileLiveness]) -> TileVersions:
    """The tiles that renaming at every redefinition gives."""
    patterns = columns_of(program).patterns
    numbers: dict[str, int] = {}
    number = patterns.tile.map(lambda tile: numbers.setdefault(tile.name, len(numbers)))
    tiles = [program.tiles[name] for name in numbers]
    known, renamed = len(tiles), 0
    order = np.argsort(number, kind="stable")
    begin = np.searchsorted(number[order], np.arange(known + 1))
    versions = number.copy()
    for name in sorted(liveness):
        redefinitions = sorted(liveness[name].redefinitions)
        if not redefinitions:
            continue
        original = numbers[name]
        rows = order[begin[original] : begin[original + 1]]
        version = np.searchsorted(redefinitions, patterns.owner[rows], "right")
        versions[rows] = np.where(version > 0, len(tiles) + version - 1, original)
        tiles += _clones(program, tiles[original], len(redefinitions))
        renamed += 1
    return TileVersions(versions, tiles, known, renamed)


def _clones(program: Program, tile: Tile, wanted: int) -> list[Tile]:
    """So many copies of a tile, whose names no tile has."""
    names = free_names(tile.name, program.tiles)
    return [
        Tile(name, tile.memory, tile.dtype, tile.partitions, tile.elements)
        for _, name in zip(range(wanted), names, strict=False)
    ]


def free_names(name: str, taken: Container[str]) -> Iterator[str]:
    """Names for copies of a tile that are not taken."""
    return (free for n in count(1) if (free := f"{name}'{n}") not in taken)


def renamed_instructions(columns: Columns, versions: TileVersions) -> dict[int, Instr]:
    """The instructions that use new tiles, with these, by number."""
    patterns = columns.patterns
    rows = np.flatnonzero(versions.number >= versions.known)
    moves: dict[int, dict[str, Tile]] = {}
    for owner, old, new in zip(
        patterns.owner[rows].tolist(),
        patterns.tile.number[rows].tolist(),
        versions.number[rows].tolist(),
        strict=True,
    ):
        moves.setdefault(owner, {})[patterns.tile.distinct[old].name] = versions.tiles[new]
    return {
        number: replace_tiles(columns.instructions[number], tiles)
        for number, tiles in moves.items()
    }
