"""What the back end can change in a kernel: fills to remove, tiles to rename, an order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from glia.isa.instructions.vector import Memset
from glia.isa.kit import Instr
from glia.isa.operand import Memory
from glia.machine.columns.table import Columns, InstructionSpan, columns_of
from glia.machine.columns.update import rearrange
from glia.machine.columns.value_numbering import Array
from glia.machine.ir import Block, Loop, Program, Statement, with_blocks
from glia.machine.passes.rename_tiles import TileVersions, find_versions, renamed_instructions
from glia.machine.passes.tile_liveness import (
    find_liveness,
    rewritten_tiles,
)
from glia.nki.back_end import order_rules
from glia.nki.back_end.straight_line import (
    KernelTables,
    ListPolicy,
    StraightLine,
    TileNumbers,
    line_bounds,
)
from glia.nki.session.recorder import Recorder

POLICIES = (
    ListPolicy(order_rules.OLDEST, window=192),
    ListPolicy(order_rules.OLDEST, window=192, slack_ps=300_000),
    ListPolicy(order_rules.LONGEST, window=192),
)
FEWEST = 8  # instructions of a straight line that is scheduled
LEAST_GAIN = 0.01  # of a kernel's time, predicted, for which it is changed


class BackEndPlan:
    """What can be changed in a kernel, and what that promises.

    Instructions are named by number, as in `Columns`; `removed` are dead fills, `is_kept` are all
    others, and `order` has the number of the instruction in each place.
    """

    def __init__(self, program: Program, session: Recorder, *, orders_loops: bool = False) -> None:
        self.program, self.session, self.orders_loops = program, session, orders_loops
        self.columns: Columns = columns_of(program)
        fills = self._fills()
        names = {fill.dst.tile.name for fill in fills.values()}
        liveness = find_liveness(program, rewritten_tiles(program) | names)
        dead = {number for each in liveness.values() for number in each.dead_writes}
        self.removed = dead & fills.keys()
        self.is_kept = np.ones(len(self.columns.instructions), bool)
        self.is_kept[[*self.removed]] = False
        left = {name: each.remove_dead(self.removed) for name, each in liveness.items()}
        self.versions: TileVersions = find_versions(program, left)
        self.order = np.arange(self.is_kept.size)
        self.written_ps, self.changed_ps = self._schedule()

    def _fills(self) -> dict[int, Memset]:
        """The memsets that may be removed, by number."""
        instructions, form = self.columns.instructions, self.columns.form
        fills = [isinstance(instructions[row], Memset) for row in form.first.tolist()]
        found = {}
        for number in np.flatnonzero(np.array(fills, bool)[form.number]).tolist():
            instruction = instructions[number]
            if isinstance(instruction, Memset) and id(instruction) not in self._in_order:
                found[number] = instruction
        return found

    @cached_property
    def _in_order(self) -> set[int]:
        """The identities of the instructions in blocks whose order the kernel fixes."""
        return {id(each) for each in self.session.in_order}

    @cached_property
    def _is_order_fixed(self) -> bool:
        """Whether the author has given tiles addresses, and with them an order."""
        tiles = (self.program.tiles[name] for name in self.program.addresses)
        return any(tile.memory is not Memory.HBM for tile in tiles)

    @property
    def changes_tiles(self) -> bool:
        """Whether fills are removed or tiles renamed."""
        return bool(self.removed or self.versions.copies)

    @property
    def promises_gain(self) -> bool:
        """Whether it may pay to change the kernel."""
        if self.removed or self.promises_sooner_order:
            return True
        return bool(self.versions.copies) and self._renames_inside

    @property
    def promises_sooner_order(self) -> bool:
        """Whether lines take less in another order, or with other tiles."""
        return self.written_ps - self.changed_ps > LEAST_GAIN * self.written_ps

    @property
    def is_one_line(self) -> bool:
        """Whether `written_ps` is the time of all of the kernel."""
        straight = all(span.statement is None for span in self.columns.body)
        return straight and not self._tables.is_fence.any()

    @cached_property
    def _tables(self) -> KernelTables:
        chains = []
        if self._in_order:
            numbered = enumerate(self.columns.instructions)
            chains = [[number for number, each in numbered if id(each) in self._in_order]]
        return KernelTables(self.program, self.columns, self.session.target.arch, chains)

    def _schedule(self) -> tuple[int, int]:
        """Set `order`; the predicted picoseconds of all straight lines as written, and in order."""
        patterns, versions = self.columns.patterns, self.versions
        numbers = {tile.name: number for number, tile in enumerate(versions.tiles)}
        names = patterns.tile.map(lambda tile: numbers[tile.name])
        self.written = written = TileNumbers(self._tables, names, np.ones(self.is_kept.size, bool))
        changed = written
        if self.changes_tiles:
            changed = TileNumbers(self._tables, versions.number, self.is_kept)
        before = after = 0
        for begin, end, times in self._lines(self.columns.body):
            line = StraightLine(written, begin, end)
            other = StraightLine(changed, begin, end) if self.changes_tiles else line
            took = line.picoseconds(np.arange(end - begin))
            order, least = self._best_order(other, took if other is line else None)
            self.order[other.nodes] = other.nodes[order]
            before, after = before + times * took, after + times * min(least, took)
        return before, after

    def _best_order(self, line: StraightLine, took: int | None) -> tuple[Array, int]:
        """The order in which a line takes least, and how long; `took` as it stands, if known.

        The search ends at what is within LEAST_GAIN of the time that no order goes below.
        """
        best = np.arange(line.nodes.size)
        least = line.picoseconds(best) if took is None else took
        if self._is_order_fixed:
            return best, least
        for policy in POLICIES:
            if least - line.least_ps <= LEAST_GAIN * least:
                break
            order = line.schedule(policy)
            took = line.picoseconds(order)
            if took < least:
                best, least = order, took
        return best, least

    def _lines(
        self, spans: Sequence[InstructionSpan], times: int = 1
    ) -> Iterator[tuple[int, int, int]]:
        """The straight lines that are long enough to be scheduled, and how often they run.

        They are those of the kernel's own block and, if so asked, of loops.
        """
        for span in spans:
            if span.statement is None:
                for begin, end in line_bounds(self._tables, span.begin, span.end):
                    if end - begin >= FEWEST:
                        yield begin, end, times
            elif self.orders_loops and isinstance(span.statement, Loop):
                yield from self._lines(span.blocks[0], times * span.statement.trips)

    @property
    def _renames_inside(self) -> bool:
        """Whether tiles are renamed inside of loops and branches, which have no predicted time."""
        owner = self.columns.patterns.owner[self.versions.number >= self.versions.known]
        spans = (span for span in self.columns.body if span.statement is not None)
        return any(((owner >= span.begin) & (owner < span.end)).any() for span in spans)

    def apply(self, note: str) -> Program:
        """The changed program, with a note that says so."""
        changes: dict[int, Instr | None] = {**renamed_instructions(self.columns, self.versions)}
        changes |= dict.fromkeys(self.removed)
        tiles = {**self.program.tiles, **{tile.name: tile for tile in self.versions.copies}}
        body = self._block(self.program.body, self.columns.body, changes)
        notes = (*self.program.notes, note)
        program = replace(self.program, body=body, tiles=tiles, notes=notes)
        if any(span.statement is not None for span in self.columns.body):
            return program
        order = self.order[self.is_kept[self.order]]
        return rearrange(program, self.columns, order, self.versions.number, self.versions.tiles)

    def _block(
        self, body: Block, spans: Sequence[InstructionSpan], changes: Mapping[int, Instr | None]
    ) -> Block:
        """The statements of a block with instructions replaced or removed, in order."""
        result: list[Statement] = []
        place = 0
        for span in spans:
            if span.statement is None:
                place += span.end - span.begin
                for number in self.order[span.begin : span.end].tolist():
                    changed = changes.get(number, self.columns.instructions[number])
                    if changed is not None:
                        result.append(changed)
                continue
            result.append(self._with_inner(body[place], span, changes))
            place += 1
        return tuple(result)

    def _with_inner(
        self, statement: Statement, span: InstructionSpan, changes: Mapping[int, Instr | None]
    ) -> Statement:
        """A control statement with the instructions in its blocks replaced or removed, in order."""
        spans = iter(span.blocks)
        return with_blocks(statement, lambda block: self._block(block, next(spans), changes))
