"""Common subexpressions: what an earlier instruction computed from the same operands is used again.

A kernel that negates a column in every turn of a loop, unrolled, computes it many times. Only
results of a few bytes are shared, as they live on until their last use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from glia.isa.instructions.dma import Transfer
from glia.isa.kit import Instr
from glia.isa.operand import Memory, Tile
from glia.machine.columns.table import READS, WRITES, Columns, columns_of
from glia.machine.columns.value_numbering import Array, group_rows
from glia.machine.instruction_rewriting import replace_tiles
from glia.machine.ir import Program, walk
from glia.machine.passes.tile_liveness import replace_instructions

MOST_BYTES = 64  # of a partition, of a result that is shared
MOST_ROUNDS = 4  # results of shared results, and so on


def share_results(program: Program) -> Program:
    """The program without instructions of its top level that compute what a tile has already.

    Tiles with addresses, and those that more than one instruction writes, stay as they are.
    """
    for _ in range(MOST_ROUNDS):
        known = _equal_results(program)
        if not known:
            break
        program = use_earlier(program, known)
    return program


def use_earlier(program: Program, known: Mapping[str, tuple[int, Tile]]) -> Program:
    """The program without these tiles and the instructions that write them; others take over."""
    columns = columns_of(program)
    dead = {number for number, _ in known.values()}
    tiles = {name: tile for name, (_, tile) in known.items()}
    changes: dict[int, Instr | None] = {**_readers(columns, tiles), **dict.fromkeys(dead)}
    body = replace_instructions(program.body, changes)
    kept = {name: tile for name, tile in program.tiles.items() if name not in tiles}
    return replace(program, body=body, tiles=kept)


def _equal_results(program: Program) -> dict[str, tuple[int, Tile]]:
    """By tile to leave out, the instruction that writes it and the tile that has its contents."""
    columns = columns_of(program)
    single = tiles_written_once(program, columns)
    small = columns.patterns.tile.distinct
    single &= np.array([tile.bytes_per_partition <= MOST_BYTES for tile in small], bool)
    owners = [
        number
        for number in owners_of_one_result(program, columns, single)
        if not isinstance(columns.instructions[number], Transfer)
    ]
    return equal_results(columns, single, owners)


def equal_results(
    columns: Columns, single: Array, owners: Sequence[int]
) -> dict[str, tuple[int, Tile]]:
    """Of instructions that write one of the `single` tiles, those that repeat an earlier one.

    By tile that they write: the instruction, and the tile that the first of its kind writes.
    """
    patterns = columns.patterns
    if len(owners) < 2:
        return {}
    is_result = (patterns.access == WRITES) & single[patterns.tile.number]
    known: dict[tuple[object, ...], int] = {}
    kinds = patterns.tile.map(
        lambda t: known.setdefault((t.memory, t.dtype, t.partitions, t.elements), len(known))
    )
    same = group_rows(
        np.where(is_result, -1 - kinds, patterns.tile.number),
        np.where(is_result, 0, _versions(columns)),
        patterns.access,
        patterns.dims.number,
        patterns.dtype.number,
        patterns.partition.constant,
        patterns.partition.terms.number,
        patterns.offset.constant,
        patterns.offset.terms.number,
    ).number
    group = columns.group_by_patterns(same).number
    row_of = {int(patterns.owner[row]): row for row in np.flatnonzero(is_result).tolist()}
    first: dict[int, Tile] = {}
    found: dict[str, tuple[int, Tile]] = {}
    for number in owners:
        tile = patterns.tile.distinct[patterns.tile.number[row_of[number]]]
        earlier = first.setdefault(int(group[number]), tile)
        if earlier is not tile:
            found[tile.name] = number, earlier
    return found


def tiles_written_once(program: Program, columns: Columns) -> Array:
    """By number, whether a tile is on chip, free of an address, and written once."""
    patterns = columns.patterns
    bound = {b.tile.name for b in (*program.inputs, *program.outputs)} | set(program.addresses)
    bound |= set(program.constants)
    is_free = np.array(
        [
            tile.memory is not Memory.HBM and tile.name not in bound
            for tile in patterns.tile.distinct
        ],
        bool,
    )
    written = patterns.tile.number[patterns.access != READS]
    is_single: Array = np.bincount(written, minlength=is_free.size) == 1
    return is_free & is_single


def owners_of_one_result(program: Program, columns: Columns, single: Array) -> list[int]:
    """Top-level instructions of which only one of the `single` tiles keeps a trace."""
    patterns = columns.patterns
    changes = patterns.access != READS
    results = changes & (patterns.access == WRITES) & single[patterns.tile.number]
    count = len(columns.instructions)
    is_one = np.bincount(patterns.owner[results], minlength=count) == 1
    is_one &= np.bincount(patterns.owner[changes], minlength=count) == 1
    top = _top_level(program)
    return [
        number
        for number in np.flatnonzero(is_one).tolist()
        if number in top and _has_value_alone(columns.instructions[number])
    ]


def _has_value_alone(instruction: Instr) -> bool:
    return not (instruction.uses_registers or any(True for _ in instruction.states_touched()))


def _top_level(program: Program) -> set[int]:
    """The numbers of the instructions that stand in no loop or branch."""
    found: set[int] = set()
    number = 0
    for statement in program.body:
        if isinstance(statement, Instr):
            found.add(number)
            number += 1
        else:
            number += sum(1 for _ in walk((statement,)))
    return found


def _versions(columns: Columns) -> Array:
    """For each pattern, how many writes of its tile come before its instruction."""
    patterns = columns.patterns
    rows = np.flatnonzero(patterns.access != READS)
    span = len(columns.instructions) + 1
    written = np.sort(patterns.tile.number[rows] * span + patterns.owner[rows])
    at = patterns.tile.number * span
    before = np.searchsorted(written, at + patterns.owner, "left")
    return before - np.searchsorted(written, at, "left")


def _readers(columns: Columns, tiles: Mapping[str, Tile]) -> dict[int, Instr]:
    """The instructions that access tiles which are replaced, with the others."""
    patterns = columns.patterns
    is_replaced = patterns.tile.map(lambda tile: tile.name in tiles) > 0
    owners = np.unique(patterns.owner[is_replaced]).tolist()
    return {owner: replace_tiles(columns.instructions[owner], tiles) for owner in owners}
