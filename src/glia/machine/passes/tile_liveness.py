"""Liveness of the bytes of tiles within one block: where a tile takes on contents of its own.

Instructions are numbered in program order, those of loops and branches too, as in `Columns`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from glia.base.machine_code.native import Library
from glia.base.machine_code.native_records import arrays_of, as_words
from glia.isa.instructions.vector import Memset
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.columns.extents import extents_of
from glia.machine.columns.table import WRITES, Columns, InstructionSpan, columns_of
from glia.machine.columns.value_numbering import Array, group_rows, row_offsets
from glia.machine.ir import Block, Program, with_blocks
from glia.machine.passes import liveness_rules as rules

FEW_ACCESSES = 1000  # up to so many are faster in Python than compiling the rules
LIVE = ("live", "live_first", "live_last")
LIBRARY = Library(
    rules,
    rules.FUNCTIONS,
    tuple(arrays_of(rules.LivenessRecord)),
    is_optimised=False,
)


@dataclass(frozen=True)
class TileLiveness:
    """The accesses to one tile, in program order, and what is live between them.

    `positions` are the instructions that access it. No byte is live before `redefinitions`, the
    first instruction left out; all that `dead_writes` write is overwritten before it is read, or
    never read.
    """

    positions: list[int]
    redefinitions: frozenset[int]
    dead_writes: frozenset[int]

    def remove_dead(self, removed: Collection[int]) -> TileLiveness:
        """The same where these dead writes are gone."""
        positions = [each for each in self.positions if each not in removed]
        redefinitions = self.redefinitions.difference(removed, positions[:1])
        return TileLiveness(positions, redefinitions, self.dead_writes.difference(removed))


def rewritten_tiles(program: Program) -> set[str]:
    """The tiles on chip of which some place is written twice, other than by an update."""
    patterns = columns_of(program).patterns
    on_chip = patterns.tile.map(lambda tile: tile.memory is not Memory.HBM)
    rows = np.flatnonzero((patterns.access == WRITES) & (on_chip > 0))
    places = group_rows(
        patterns.tile.number[rows],
        patterns.offset.constant[rows],
        patterns.offset.terms.number[rows],
        patterns.partition.constant[rows],
    )
    repeated = places.first[np.bincount(places.number, minlength=places.first.size) > 1]
    numbers = np.unique(patterns.tile.number[rows[repeated]]).tolist()
    return {patterns.tile.distinct[number].name for number in numbers}


def find_liveness(program: Program, names: Collection[str]) -> dict[str, TileLiveness]:
    """The liveness of those of the named tiles on chip that only one block accesses.

    Tiles with addresses are left out, those that other cores access, and those whose contents an
    iteration of a loop may leave to the next.
    """
    columns = columns_of(program)
    patterns = columns.patterns
    asked = {name for name in names if name not in program.addresses}
    numbers = {name: number for number, name in enumerate(sorted(asked))}
    tile = patterns.tile.map(lambda each: numbers.get(each.name, -1))
    rows = np.flatnonzero(tile >= 0)
    rows = rows[np.argsort(tile[rows], kind="stable")]
    if not rows.size:
        return {}
    record = _record(columns, rows, tile[rows], len(numbers))
    LIBRARY.call("find_liveness", record, is_native=rows.size > FEW_ACCESSES)
    excluded = _excluded(columns, rows, tile[rows], record["is_live_in"])
    begin, position = record["begin"], record["position"]
    return {
        name: TileLiveness(
            position[span].tolist(),
            frozenset(position[span][record["redefines"][span] > 0].tolist()),
            frozenset(position[span][record["is_dead"][span] > 0].tolist()),
        )
        for name, number in numbers.items()
        if not excluded[number]
        for span in (slice(begin[number], begin[number + 1]),)
    }


def _record(columns: Columns, rows: Array, tile: Array, tiles: int) -> dict[str, Array]:
    """The record of `liveness_rules` for these rows of patterns, which are grouped by tile."""
    patterns = columns.patterns
    extents = extents_of(patterns)
    forms = [columns.instructions[row] for row in columns.form.first.tolist()]
    writes_all = np.array([_writes_all(form) for form in forms], bool)
    owner = patterns.owner[rows]
    access = patterns.access[rows]
    is_full = (access == WRITES) & writes_all[columns.form.number[owner]]
    begin = row_offsets(np.bincount(tile, minlength=tiles))
    examples = patterns.tile.number[rows[np.minimum(begin[:-1], rows.size - 1)]]
    known = [patterns.tile.distinct[number] for number in examples.tolist()]
    nothing = np.zeros(rows.size, np.int64)
    record = {
        "tiles": np.array([tiles]), "begin": begin,
        "tile_last": [each.bytes_per_partition - 1 for each in known],
        "tile_bottom": [each.partitions - 1 for each in known],
        "position": owner, "is_read": access != WRITES,
        "is_full": is_full & (extents.shape[rows] >= 0),
        **extents.boxes(rows),
        **{name: np.zeros(rules.MAXIMUM_LIVE + 1) for name in LIVE},
        "live_count": np.zeros(1, np.int64),
        "redefines": nothing, "is_dead": nothing.copy(),
        "is_live_in": np.zeros(tiles, np.int64),
    }  # fmt: skip
    return as_words(record)


def _writes_all(instruction: Instr) -> bool:
    """Whether it writes every element of its written operands, whatever the data are."""
    kind = type(instruction)
    chooses = kind.rows_touched is not Instr.rows_touched or kind.arrives == "participants"
    return not chooses and not kind.partly_written


def _excluded(columns: Columns, rows: Array, tile: Array, is_live_in: Array) -> Array:
    """By tile, whether its liveness in a single block does not tell all."""
    owner = columns.patterns.owner[rows]
    block = _block_numbers(columns)[owner]
    first = np.zeros(is_live_in.size, np.int64)
    first[tile[::-1]] = block[::-1]
    excluded = (first > 0) & (is_live_in > 0)
    excluded[tile[block != first[tile]]] = True
    forms = [columns.instructions[row] for row in columns.form.first.tolist()]
    is_shared = np.array([isinstance(form, CrossCoreInstr) for form in forms], bool)
    excluded[tile[is_shared[columns.form.number[owner]]]] = True
    return excluded


def _block_numbers(columns: Columns) -> Array:
    """The number of the block that holds each instruction; 0 is the program's own."""
    result = np.zeros(len(columns.instructions), np.int64)
    blocks = 0

    def number(spans: tuple[InstructionSpan, ...], block: int) -> None:
        nonlocal blocks
        for span in spans:
            if span.statement is None:
                result[span.begin : span.end] = block
            for inner in span.blocks:
                blocks += 1
                number(inner, blocks)

    number(columns.body, 0)
    return result


def replace_instructions(body: Block, changes: Mapping[int, Instr | None], first: int = 0) -> Block:
    """The block with instructions replaced by number, or removed where None stands for them.

    Its first instruction has the number `first`.
    """
    return _Replacement(changes, first).block(body)


def remove_dead_fills(program: Program) -> Program:
    """The program without the memsets whose elements are overwritten before anything reads them."""
    names = {
        pattern.tile.name
        for instruction in program.instructions()
        if isinstance(instruction, Memset)
        for pattern in instruction.written_patterns()
    }
    liveness = find_liveness(program, names) if names else {}
    instructions = columns_of(program).instructions
    dead = [n for each in liveness.values() for n in each.dead_writes]
    fills: dict[int, Instr | None] = {n: None for n in dead if isinstance(instructions[n], Memset)}
    if not fills:
        return program
    return replace(program, body=replace_instructions(program.body, fills))


class _Replacement:
    """Goes through blocks in program order, numbering their instructions."""

    def __init__(self, changes: Mapping[int, Instr | None], first: int) -> None:
        self.changes = changes
        self.position = first

    def block(self, body: Block) -> Block:
        result = []
        for statement in body:
            if not isinstance(statement, Instr):
                result.append(with_blocks(statement, self.block))
                continue
            changed = self.changes.get(self.position, statement)
            self.position += 1
            if changed is not None:
                result.append(changed)
        return tuple(result)
