"""The law of the machine level, asked of a program's columns instead of its instructions.

The rules of an instruction see the shapes, dtypes, memories and partitions of its operands and its
attributes, never where in their tiles the operands lie: instructions that agree in those are asked
once. Where operands lie is arithmetic on columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import is_
from typing import Any

import numpy as np

from glia.arch import Arch
from glia.base.affine import Affine
from glia.base.errors import InternalError
from glia.isa.kit import register_variable
from glia.isa.operand import Memory, Tile, reach
from glia.machine.columns.table import READS, Columns, Span, columns_of
from glia.machine.columns.value_numbering import Array, Values, rows_alike
from glia.machine.ir import Loop, Program, While
from glia.machine.legal_instruction import violations

MOST = 1 << 48  # greater numbers are left to Python's own integers
Extents = dict[str, int]


class _Unsure(Exception):
    """Something may be against the law, or is too large for columns."""


def has_legal_instructions(program: Program, arch: Arch) -> bool:
    """True only where no instruction, loop or branch of a program breaks a law."""
    try:
        columns = columns_of(program)
        _Check(program, arch, columns).run()
    except (_Unsure, InternalError):  # numbers of more than 64 bits have no columns
        return False
    return True


class _Check:
    """Raises _Unsure at the first thing that may be against the law."""

    def __init__(self, program: Program, arch: Arch, columns: Columns) -> None:
        self.program = program
        self.arch = arch
        self.columns = columns
        self.tiles: list[Tile] = columns.patterns.tile.distinct
        self.memory = _integers([_MEMORIES[tile.memory._value_] for tile in self.tiles])
        self.partitions = _integers([tile.partitions for tile in self.tiles])
        self.forms = [columns.instructions[row] for row in columns.form.first.tolist()]
        # Which loops are around an instruction: a number of `extents`
        self.around = np.zeros(len(columns.instructions), np.int64)
        self.extents: list[Extents] = [{}]
        self.registers = self._registers()

    def run(self) -> None:
        self._block(self.columns.body, 0)
        self._counts()
        self._tiles()
        self._kinds()
        self._names()
        self._bounds()
        self._banks()

    # --- statements ----------------------------------------------------------------------------

    def _registers(self) -> dict[str, int]:
        """The first instruction that sets each register, by the name of its variable."""
        found: dict[str, int] = {}
        for form, first in zip(self.forms, self.columns.form.first.tolist(), strict=True):
            if name := form.sets_register:
                found[name] = min(first, found.get(name, first))
        return found

    def _block(self, spans: tuple[Span, ...], around: int) -> None:
        """Number the loops around every instruction of a block, and check its statements."""
        for span in spans:
            statement = span.statement
            if statement is None:
                self.around[span.begin : span.end] = around
                continue
            inside = around
            if isinstance(statement, Loop):
                if statement.trips < 1 or statement.variable in self.extents[around]:
                    raise _Unsure
                inside = len(self.extents)
                self.extents.append({**self.extents[around], statement.variable: statement.trips})
            elif not span.blocks or not self._is_set(statement.register, self._asked_at(span)):
                raise _Unsure
            for block in span.blocks:
                self._block(block, inside)

    @staticmethod
    def _asked_at(span: Span) -> int:
        """The instruction before which a while or branch reads its register."""
        if not isinstance(span.statement, While) or not span.blocks[0]:
            return span.begin
        return span.blocks[0][-1].end

    def _is_set(self, register: str, before: int) -> bool:
        return self.registers.get(register_variable(register), before) < before

    # --- the program ---------------------------------------------------------------------------

    def _counts(self) -> None:
        queues = {form.queue for form in self.forms} - {""}
        _require(len(queues) <= self.arch.dma_queues)
        _require(len(self.columns.semaphores) <= self.arch.semaphores)

    def _tiles(self) -> None:
        """Operands name tiles of the program, and none that is written is a constant."""
        patterns, tiles = self.columns.patterns, self.tiles
        known = [*map(self.program.tiles.get, [tile.name for tile in tiles])]
        _require(all(map(is_, known, tiles)) or known == tiles)
        if self.program.constants:
            written = np.bincount(patterns.tile.number[patterns.access != READS])
            names = {tiles[number].name for number in np.flatnonzero(written).tolist()}
            _require(names.isdisjoint(self.program.constants))

    def _kinds(self) -> None:
        """Every rule, asked of one instruction of each kind."""
        patterns = self.columns.patterns
        number = patterns.tile.number
        seen = rows_alike(
            patterns.dims.number, patterns.dtype.number, self.memory[number],
            self.partitions[number], patterns.partition.constant, patterns.partition.terms.number,
        )  # fmt: skip
        for row in self.columns.alike(seen.number).first.tolist():
            _require(not violations(self.columns.instructions[row], self.arch))

    # --- names ---------------------------------------------------------------------------------

    def _names(self) -> None:
        """Expressions name loops around them and registers that are set before."""
        patterns, waits = self.columns.patterns, self.columns.waits
        awaiting = np.repeat(np.arange(self.around.size), np.diff(waits.begin))
        for terms, owner in (
            (patterns.offset.terms, patterns.owner),
            (patterns.partition.terms, patterns.owner),
            (waits.value.terms, awaiting),
        ):
            varying = np.flatnonzero(terms.map(bool))
            for row in self._met(terms, owner, varying):
                self._are_set(terms.distinct[terms.number[row]], int(owner[row]))
        taking = [any(isinstance(v, Affine) for v in f.attributes().values()) for f in self.forms]
        form = self.columns.form
        rows = np.flatnonzero(np.array(taking, bool)[form.number])
        for row in rows[rows_alike(form.number[rows], self.around[rows]).first].tolist():
            for value in self.columns.instructions[row].attributes().values():
                if isinstance(value, Affine):
                    self._are_set(value.terms, row)

    def _met(self, terms: Values, owner: Array, rows: Array) -> list[int]:
        """The first of those rows that have the same terms inside the same loops."""
        met = rows_alike(terms.number[rows], self.around[owner[rows]])
        return rows[met.first].tolist()

    def _are_set(self, terms: Iterable[tuple[str, int]], instruction: int) -> None:
        extents = self.extents[self.around[instruction]]
        for name, _ in terms:
            if name not in extents:
                _require(self.registers.get(name, instruction) < instruction)

    # --- places --------------------------------------------------------------------------------

    def _bounds(self) -> None:
        """Operands stay inside their tiles, wherever loops take them; registers show in a run."""
        patterns = self.columns.patterns
        is_hbm = (self.memory == _HBM)[patterns.tile.number]
        held = self._held()[patterns.tile.number]
        width = patterns.dtype.map(lambda dtype: dtype.bytes)
        ends = [_mapped(patterns.dims, lambda dims, end=end: reach(dims)[end]) for end in (0, 1)]
        inner = [_mapped(patterns.dims, lambda d, end=end: reach(d[1:])[end]) for end in (0, 1)]
        below, above = (np.where(is_hbm, *pair) for pair in zip(ends, inner, strict=True))
        low, high, is_known = self._reached(patterns.offset.constant, patterns.offset.terms)
        is_inside = (low + below >= 0) & (high + above < held // width)
        _require(bool(np.all(is_inside | ~is_known)))
        low, high, is_known = self._reached(patterns.partition.constant, patterns.partition.terms)
        below, above = (a - b for a, b in zip(ends, inner, strict=True))
        is_inside = (low + below >= 0) & (high + above < self.partitions[patterns.tile.number])
        _require(bool(np.all(is_inside | ~is_known | is_hbm)))

    def _held(self) -> Array:
        """Bytes of each tile that offsets run over: those of a partition, in HBM all."""
        elements = _integers([tile.elements for tile in self.tiles])
        return elements * _integers([tile.dtype.bytes for tile in self.tiles])

    def _reached(self, constant: Array, terms: Values) -> tuple[Array, Array, Array]:
        """The least and greatest value of expressions, and whether loops alone decide them."""
        _require(bool(np.all(np.abs(constant) < MOST)))
        low, high, is_known = constant.copy(), constant.copy(), np.ones(constant.size, bool)
        rows = np.flatnonzero(terms.map(bool))
        if not rows.size:
            return low, high, is_known
        met = rows_alike(terms.number[rows], self.around[self.columns.patterns.owner[rows]])
        found = []
        for row in rows[met.first].tolist():
            expression = Affine(terms.distinct[terms.number[row]])
            extents = self.extents[self.around[self.columns.patterns.owner[row]]]
            is_free = extents.keys() >= set(expression.variables)
            found.append((*(expression.bounds(extents) if is_free else (0, 0)), is_free))
        _require(all(abs(bound) < MOST for bound in chain.from_iterable(found)))
        added = np.array(found, np.int64)[met.number]
        low[rows] += added[:, 0]
        high[rows] += added[:, 1]
        is_known[rows] = added[:, 2] != 0
        return low, high, is_known

    def _banks(self) -> None:
        """A multiplication stays within one PSUM bank before generation 4."""
        if self.arch.generation >= 4:
            return
        columns, patterns = self.columns, self.columns.patterns
        runs = np.array([form.runs_on == "tensor" for form in self.forms], bool)
        addresses = self.program.addresses
        address = _mapped(patterns.tile, lambda t: addresses.get(t.name, -1))
        is_psum = (self.memory == _PSUM)[patterns.tile.number]
        rows = np.flatnonzero(
            runs[columns.form.number[patterns.owner]] & (patterns.access != READS) & is_psum
            & (address >= 0) & ~patterns.offset.terms.map(bool).astype(bool)
        )  # fmt: skip
        width = patterns.dtype.map(lambda dtype: dtype.bytes)[rows]
        low, high = (
            _mapped(patterns.dims, lambda d, end=end: reach(d[1:])[end])[rows] for end in (0, 1)
        )
        start = address[rows] + (patterns.offset.constant[rows] + low) * width
        last = address[rows] + (patterns.offset.constant[rows] + high + 1) * width - 1
        bank = self.arch.psum_bank_bytes
        _require(bool(np.all(start // bank == last // bank)))


_MEMORIES = {memory.value: number for number, memory in enumerate(Memory)}
_HBM, _PSUM = _MEMORIES["HBM"], _MEMORIES["PSUM"]


def _mapped(values: Values, function: Callable[[Any], int]) -> Array:
    """`values.map` for numbers that a program may have made large."""
    return _integers([function(value) for value in values.distinct])[values.number]


def _integers(numbers: list[int]) -> Array:
    _require(min(numbers, default=0) > -MOST and max(numbers, default=0) < MOST)
    return np.array(numbers, np.int64)


def _require(holds: bool) -> None:
    if not holds:
        raise _Unsure
