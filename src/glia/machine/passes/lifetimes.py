"""Live intervals of tiles, in positions of the static program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from glia.base.affine import ZERO, Affine
from glia.isa.kit import Instr, is_register
from glia.isa.operand import Memory
from glia.machine.columns.table import WRITES, Columns, InstructionSpan, columns_of
from glia.machine.columns.value_numbering import group_rows
from glia.machine.footprint import Footprint
from glia.machine.ir import Loop, Program, While

Array = np.ndarray[Any, Any]
ON_CHIP = (Memory.SBUF, Memory.PSUM)


@dataclass
class Lifetime:
    """The live interval of a tile: first and last position, both inclusive."""

    first: int
    last: int


@dataclass(frozen=True)
class _Region:
    """A loop, a while, or a block that may be skipped: an arm of a branch or the body of a while.

    `variable` is that of a counted loop of `trips` iterations, else "".
    """

    first: int
    last: int
    is_loop: bool
    variable: str = ""
    trips: int = 0


@dataclass(frozen=True)
class _ScopedUse:
    """The first and last use of a tile among the instructions of one scope."""

    regions: tuple[int, ...]  # enclosing regions, outermost first
    first: int
    last: int


class _Regions:
    """The enclosing regions of each instruction: `chains[inside[i]]`, outermost first."""

    def __init__(self, instructions: int, body: tuple[InstructionSpan, ...]) -> None:
        self.inside = np.zeros(instructions, np.int64)
        self.chains: list[tuple[int, ...]] = [()]
        self.all: list[_Region] = []
        self._block(body, 0)

    def _block(self, body: tuple[InstructionSpan, ...], inside: int) -> None:
        for span in body:
            statement = span.statement
            if statement is None:
                self.inside[span.begin : span.end] = inside
            elif isinstance(statement, Loop):
                loop = self._enter(span, inside, True, statement.variable, statement.trips)
                self._block(span.blocks[0], loop)
            elif isinstance(statement, While):
                loop = self._enter(span, inside, True)
                self._block(span.blocks[0], loop)
                self._block(span.blocks[1], self._enter(span, loop, False))
            else:
                for arm in span.blocks:
                    self._block(arm, self._enter(span, inside, False))

    def _enter(
        self, span: InstructionSpan, inside: int, is_loop: bool, variable: str = "", trips: int = 0
    ) -> int:
        self.chains.append((*self.chains[inside], len(self.all)))
        last = max(span.begin, span.end - 1)
        self.all.append(_Region(span.begin, last, is_loop, variable, trips))
        return len(self.chains) - 1


def find_lifetimes(program: Program, memories: Collection[Memory] = ON_CHIP) -> dict[str, Lifetime]:
    """The live interval of every tile of these memories that the program accesses.

    A tile used only inside a loop is live within one iteration where no iteration reads what
    another has written; else, as one that is live into or out of a loop, throughout the loop.
    """
    columns = columns_of(program)
    patterns = columns.patterns
    numbers: dict[str, int] = {}
    named = patterns.tile.map(lambda tile: numbers.setdefault(tile.name, len(numbers)))
    rows = np.flatnonzero(patterns.tile.map(lambda tile: tile.memory in memories))
    names = [*numbers]
    if all(span.statement is None for span in columns.body):
        return _in_one_block(names, named[rows], patterns.owner[rows])
    regions = _Regions(len(columns.instructions), columns.body)
    analysis = _Iterations(columns, regions, rows, named)
    return {
        names[number]: analysis.lifetime(number, uses)
        for number, uses in analysis.scoped_uses.items()
    }


def _in_one_block(names: list[str], tile: Array, position: Array) -> dict[str, Lifetime]:
    """From first to last access; `position` has that of each access, to `tile`, in order."""
    found = group_rows(tile)
    last = np.zeros(found.first.size, np.int64)
    np.maximum.at(last, found.number, position)
    spans = zip(
        tile[found.first].tolist(), position[found.first].tolist(), last.tolist(), strict=True
    )
    return {names[number]: Lifetime(begin, end) for number, begin, end in spans}


class _Iterations:
    """Which tiles a loop's iterations pass on to later ones."""

    def __init__(self, columns: Columns, regions: _Regions, rows: Array, named: Array) -> None:
        self.columns = columns
        self.regions = regions
        patterns = columns.patterns
        tile, position = named[rows], patterns.owner[rows]
        inside = regions.inside[position]
        groups = group_rows(tile, inside)
        last = np.zeros(groups.first.size, np.int64)
        np.maximum.at(last, groups.number, position)
        self.scoped_uses: defaultdict[int, list[_ScopedUse]] = defaultdict(list)
        scopes = zip(
            tile[groups.first].tolist(), inside[groups.first].tolist(),
            position[groups.first].tolist(), last.tolist(), strict=True,
        )  # fmt: skip
        for number, chain, begin, end in scopes:
            self.scoped_uses[number].append(_ScopedUse(regions.chains[chain], begin, end))
        begins = np.zeros(int(named.max(initial=0)) + 1, np.int64)
        begins[[*self.scoped_uses]] = [uses[0].first for uses in self.scoped_uses.values()]
        is_read = (begins[tile] == position) & (patterns.access[rows] != WRITES)
        self.read_first = set(tile[is_read].tolist())
        order = np.argsort(tile, kind="stable")
        self._rows = rows[order]
        self._tiles, starts = np.unique(tile[order], return_index=True)
        self._starts = starts
        ends = np.append(starts[1:], rows.size)[: starts.size]
        spans = zip(starts.tolist(), ends.tolist(), strict=True)
        self._spans = dict(zip(self._tiles.tolist(), spans, strict=True))
        self._irregular_patterns = self._are_irregular()
        self._irregular = self._tiles_with(self._irregular_patterns)

    def lifetime(self, tile: int, uses: list[_ScopedUse]) -> Lifetime:
        """The live interval of a tile with these uses."""
        common = uses[0].regions
        for use in uses[1:]:
            depth = 0
            limit = min(len(common), len(use.regions))
            while depth < limit and common[depth] == use.regions[depth]:
                depth += 1
            common = common[:depth]
        crossed = [region for use in uses for region in use.regions[len(common) :]]
        crossed += self._passed_on(tile, common, uses)
        spans = [self.regions.all[each] for each in crossed]
        ends = [(use.first, use.last) for use in uses]
        ends += [(region.first, region.last) for region in spans if region.is_loop]
        return Lifetime(min(first for first, _ in ends), max(last for _, last in ends))

    def _passed_on(
        self, tile: int, common: tuple[int, ...], uses: list[_ScopedUse]
    ) -> tuple[int, ...]:
        """The outermost of the loops around all uses whose iterations need earlier ones' bytes."""
        loops = [n for n, each in enumerate(common) if self.regions.all[each].is_loop]
        if not loops:
            return ()
        rows = self._rows_of(tile)
        if tile in self.read_first and not self._begins_sum(rows, common):
            return common
        skips = any(
            not self.regions.all[region].is_loop
            for use in uses
            for region in use.regions[len(common) :]
        )
        is_regular = not skips and tile not in self._irregular
        for depth in loops:
            variable = self.regions.all[common[depth]].variable
            alike = is_regular and self._moves_alike(tile, variable)
            if not alike and not self._starts_full(rows, depth):
                return common[depth : depth + 1]
        return ()

    def _begins_sum(self, rows: Array, common: tuple[int, ...]) -> bool:
        """Whether what comes first in an iteration reads in later ones of inner loops only.

        So it is with a product that adds to a sum in all steps of a loop but the first.
        """
        patterns = self.columns.patterns
        row = int(rows[np.argmin(patterns.owner[rows])])
        instruction = self.columns.instructions[int(patterns.owner[row])]
        name = patterns.tile.distinct[patterns.tile.number[row]].name
        operands = [o for o, _, pattern in instruction.operands() if pattern.tile.name == name]
        if len(operands) != 1 or operands[0] not in instruction.read_when:
            return False
        condition = instruction.read_condition(operands[0])
        outer = {self.regions.all[region].variable for region in common}
        inner = {variable: ZERO for variable in condition.variables if variable not in outer}
        return not condition.is_constant and condition.substitute(inner) == ZERO

    def _rows_of(self, tile: int) -> Array:
        begin, end = self._spans[tile]
        found: Array = self._rows[begin:end]
        return found

    def _tiles_with(self, is_meant: Array) -> set[int]:
        """The tiles of which any pattern is one of these; a boolean for each pattern."""
        found = np.logical_or.reduceat(is_meant[self._rows], self._starts)
        return set(self._tiles[found].tolist())

    def _are_irregular(self) -> Array:
        """For every pattern whether which bytes it touches depends on registers or data."""
        patterns, form = self.columns.patterns, self.columns.form
        examples = [self.columns.instructions[row] for row in form.first.tolist()]
        chosen = np.array([_chooses_at_run_time(example) for example in examples])
        found: Array = chosen[form.number[patterns.owner]]
        for column in (patterns.offset.terms, patterns.partition.terms):
            found = found | (column.map(_has_register) > 0)
        return found

    def _moves_alike(self, tile: int, variable: str) -> bool:
        """Whether all accesses move by the same distance from one iteration to the next.

        Then each iteration does what the first did, elsewhere, and the first reads only what it
        has written.
        """
        return variable not in self._diverging.get(tile, ())

    @cached_property
    def _diverging(self) -> dict[int, set[str]]:
        """By tile the variables with which some of its accesses move farther than others."""
        patterns, rows = self.columns.patterns, self._rows
        width = patterns.dtype.map(lambda dtype: dtype.bytes)[rows]
        tile = np.repeat(self._tiles, np.diff(np.append(self._starts, rows.size)))
        offset, partition = patterns.offset.terms, patterns.partition.terms
        kinds = group_rows(tile, offset.number[rows], width, partition.number[rows]).first
        moves: dict[int, list[dict[str, tuple[int, int]]]] = {}
        for number, bytes_each, row in zip(
            tile[kinds].tolist(), width[kinds].tolist(), rows[kinds].tolist(), strict=True
        ):
            steps = dict(offset.distinct[offset.number[row]])
            rises = dict(partition.distinct[partition.number[row]])
            moves.setdefault(number, []).append({
                name: (steps.get(name, 0) * bytes_each, rises.get(name, 0))
                for name in steps.keys() | rises.keys()
            })  # fmt: skip
        return {
            number: {
                name
                for name in set().union(*its)
                if len({each.get(name, (0, 0)) for each in its}) > 1
            }
            for number, its in moves.items()
            if len(its) > 1
        }

    def _starts_full(self, rows: Array, depth: int) -> bool:
        """Whether an iteration writes the whole tile, in a statement that does not read it."""
        patterns, regions = self.columns.patterns, self.regions
        first = int(rows[np.argmin(patterns.owner[rows])])
        if self._irregular_patterns[first]:
            return False
        chain = regions.chains[regions.inside[patterns.owner[first]]]
        inner = [regions.all[each] for each in chain[depth + 1 :]]
        if not all(each.variable for each in inner):
            return False
        end = inner[0].last if inner else int(patterns.owner[first])
        reads = patterns.owner[rows[patterns.access[rows] != WRITES]]
        if (reads <= end).any():
            return False
        tile = patterns.tile.distinct[patterns.tile.number[first]]
        footprint = self._footprint(first, tile.memory is not Memory.HBM)
        for region in inner:
            footprint = footprint.swept(region.variable, region.trips)
        return footprint.covers(Footprint.of_tile(tile))

    def _footprint(self, row: int, is_on_chip: bool) -> Footprint:
        patterns = self.columns.patterns
        dims = patterns.dims.distinct[patterns.dims.number[row]]
        width = patterns.dtype.distinct[patterns.dtype.number[row]].bytes
        offset, partition = (
            Affine(column.terms.distinct[column.terms.number[row]], int(column.constant[row]))
            for column in (patterns.offset, patterns.partition)
        )
        return Footprint.at(dims, width, offset * width, partition, is_on_chip)


def _has_register(terms: tuple[tuple[str, int], ...]) -> bool:
    return any(is_register(name) for name, _ in terms)


def _chooses_at_run_time(instruction: Instr) -> bool:
    """Whether data, registers or other cores decide which elements an instruction touches."""
    kind = type(instruction)
    conditions: Iterable[Affine] = (instruction.read_condition(name) for name in kind.read_when)
    return (
        kind.rows_touched is not Instr.rows_touched
        or kind.arrives == "participants"
        or any(instruction.may_be_fresh(name) for name in kind.operand_declarations)
        or any(is_register(name) for each in conditions for name, _ in each.terms)
    )
