"""What bodies of loops have in common that differ in the names of their tiles and variables.

Layers of a model are alike; what is found for one of them holds for the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from glia.base.affine import Affine
from glia.isa.kit import Instr, is_register
from glia.isa.operand import Pattern, Tile
from glia.isa.rendezvous import CrossCoreInstr
from glia.machine.columns.growing_table import GrowingTable
from glia.machine.columns.value_numbering import Array, row_offsets
from glia.machine.footprint import Footprint
from glia.machine.queues import stream_of

ACCESSES = (
    "is_write", "is_read", "first", "last", "top", "bottom", "shape", "is_dense",
    "start", "row",  # the terms that move it: 0 for none, -1 for those of registers
    "other_start", "other_row",  # the same without the loop's variable
    "start_step", "row_step",  # bytes and rows from one iteration to the next
)  # fmt: skip
LOOP = 0  # the number of the loop's variable
NO_TERMS, REGISTERS = 0, -1


@dataclass(frozen=True)
class Structure:
    """A body without names: equal for bodies that are ordered alike.

    `forms` are the numbers of what instructions have in common, `uses` those of the tiles of their
    patterns in turn; `tiles` are the tiles by number.
    """

    forms: tuple[int, ...]
    uses: tuple[int, ...]
    tiles: tuple[Tile, ...] = field(compare=False)


class Structures:
    """Finds structures, and has what instructions of one form have in common as tables.

    `chains` are what a form uses that keeps its order: registers, states of engines, meetings.
    """

    def __init__(self) -> None:
        self.shapes: list[Footprint] = []  # of runs of bytes that repeat alike
        self._numbers: dict[Hashable, int] = {}
        self._shape_numbers: dict[Hashable, int] = {}
        self._term_numbers: dict[Hashable, int] = {(): NO_TERMS}
        self._chain_numbers: dict[Hashable, int] = {}
        self._heads = GrowingTable(("accesses", "chains", "states"))
        self._accesses = GrowingTable(ACCESSES)
        self._chains = GrowingTable(("chain_of",))

    def of(self, body: Sequence[Instr], variable: str) -> Structure:
        """The structure of the body of a loop with a variable."""
        numbers: dict[str, int] = {}
        tiles: list[Tile] = []
        variables = {variable: LOOP}
        forms: list[int] = []
        uses: list[int] = []
        for instruction in body:
            operands = [(name, pattern) for name, _, pattern in instruction.operands()]
            form = _form(instruction, operands, variables)
            number = self._numbers.setdefault(form, len(self._heads))
            if number == len(self._heads):
                self._add(instruction, operands, variables)
            forms.append(number)
            for _, pattern in operands:
                tile = numbers.setdefault(pattern.tile.name, len(tiles))
                if tile == len(tiles):
                    tiles.append(pattern.tile)
                uses.append(tile)
        return Structure(tuple(forms), tuple(uses), tuple(tiles))

    def accesses(self, forms: Array) -> dict[str, Array]:
        """The accesses of a body, columns as in ACCESSES, and `begin`, where each form's begin."""
        return _gathered(self._accesses, self._heads.columns()["accesses"], forms, "begin")

    def chains(self, forms: Array, is_stateless: Array) -> dict[str, Array]:
        """The chains of a body's nodes; those in `is_stateless` use no state of an engine.

        `chain_of` has them, and `chain` where each node's begin; there are `chain_count`.
        """
        found = _gathered(self._chains, self._heads.columns()["chains"], forms, "chain")
        count = np.diff(found["chain"])
        if is_stateless.any():  # states are the last of a form's chains
            states = np.where(is_stateless, self._heads.columns()["states"][forms], 0)
            place = np.arange(found["chain_of"].size) - np.repeat(found["chain"][:-1], count)
            kept = place < np.repeat(count - states, count)
            found = {
                "chain_of": found["chain_of"][kept], "chain": row_offsets(count - states),
            }  # fmt: skip
        return found

    @property
    def chain_count(self) -> int:
        return len(self._chain_numbers)

    def _add(
        self,
        instruction: Instr,
        operands: Sequence[tuple[str, Pattern]],
        variables: dict[str, int],
    ) -> None:
        """Add what is common to a form that this instruction is the first of."""
        for name, pattern in operands:
            self._accesses.append(self._access(instruction.access(name), pattern, variables))
        others: list[Hashable] = ["registers"] if instruction.uses_registers else []
        if isinstance(instruction, CrossCoreInstr):
            # the n-th of a core meets the n-th of the other; ranks exchange in the order that is
            # planned for the whole program, of which a run shows a part
            others.append(instruction.topic() if instruction.among == "cores" else ("ranks",))
        states = [
            (instruction.runs_on, kept.state.name) for _, kept, _ in instruction.states_touched()
        ]
        for chain in (*others, *states):
            number = self._chain_numbers.setdefault(chain, len(self._chain_numbers))
            self._chains.append((number,))
        self._heads.append((len(operands), len(others) + len(states), len(states)))

    def _access(self, kind: str, pattern: Pattern, variables: dict[str, int]) -> tuple[int, ...]:
        """The row of a pattern in the columns of ACCESSES."""
        footprint = Footprint.of(pattern)
        shape = footprint.width, footprint.steps
        number = self._shape_numbers.setdefault(shape, len(self.shapes))
        if number == len(self.shapes):
            self.shapes.append(footprint)
        starts = [self._terms(each, variables) for each in (footprint.start, footprint.first_row)]
        top = footprint.first_row.constant
        return (
            kind != "reads", kind != "writes", footprint.first, footprint.last,
            top, top + footprint.rows - 1, number, footprint.is_dense,
            *(terms for terms, _, _ in starts), *(others for _, others, _ in starts),
            *(step for _, _, step in starts),
        )  # fmt: skip

    def _terms(self, start: Affine, variables: dict[str, int]) -> tuple[int, int, int]:
        """Numbers of the terms of a start, and of those of other variables, and the loop's step."""
        if not start.terms:
            return NO_TERMS, NO_TERMS, 0
        terms = [(_placed(name, variables), factor) for name, factor in start.terms]
        others = tuple(each for each in terms if each[0] != LOOP)
        step = sum(factor for name, factor in terms if name == LOOP)
        return self._number_of(tuple(terms)), self._number_of(others), step

    def _number_of(self, terms: tuple[tuple[str | int, int], ...]) -> int:
        if any(isinstance(name, str) for name, _ in terms):
            return REGISTERS
        return self._term_numbers.setdefault(terms, len(self._term_numbers))


def _gathered(table: GrowingTable, counts: Array, forms: Array, offsets: str) -> dict[str, Array]:
    """The rows of a table that belong to forms, in turn, and where those of each begin."""
    first = row_offsets(counts)[forms]
    begin = row_offsets(counts[forms])
    rows = np.arange(int(begin[-1])) + np.repeat(first - begin[:-1], counts[forms])
    columns = {name: column[rows] for name, column in table.columns().items()}
    return columns | {offsets: begin}


def _placed(name: str, variables: dict[str, int]) -> str | int:
    """The number of a variable by its first appearance; a register keeps its name."""
    return name if is_register(name) else variables.setdefault(name, len(variables))


def _form(
    instruction: Instr, operands: Sequence[tuple[str, Pattern]], variables: dict[str, int]
) -> Hashable:
    """An instruction without the names of tiles, and with numbers for those of variables."""

    def place(value: object) -> object:
        if not isinstance(value, Affine) or not value.terms:
            return value
        terms = [(_placed(name, variables), factor) for name, factor in value.terms]
        return (*terms, value.constant)

    patterns = [
        (name, p.tile.memory.value, p.tile.dtype.name, p.tile.partitions, p.tile.elements,
         p.dtype.name, p.dims, place(p.offset), place(p.partition))
        for name, p in operands
    ]  # fmt: skip
    attributes = [(name, place(value)) for name, value in instruction.numbers()]
    streams = instruction.runs_on, stream_of(instruction)
    return type(instruction), *streams, tuple(patterns), tuple(attributes)
