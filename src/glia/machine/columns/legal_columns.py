"""A fast verifier of the machine level, on a program's columns instead of its instructions.

The rules of an instruction see its attributes and the shapes, dtypes, memories and partitions of
its operands, never their offsets: one instruction stands for all that agree in these. Bounds of
offsets are arithmetic on columns.
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
from glia.machine.columns.table import READS, AffineColumn, Columns, InstructionSpan, columns_of
from glia.machine.columns.value_numbering import Array, DictionaryColumn, group_rows
from glia.machine.ir import Loop, Program, While
from glia.machine.legal_instruction import violations

MAXIMUM_MAGNITUDE = 1 << 48  # with greater numbers int64 arithmetic might overflow
MAXIMUM_SIGNAL = 1 << 15  # counts that one signal adds; timing keeps a moment for each
Extents = dict[str, int]


class _Undecided(Exception):
    """A rule may be broken, or a number is too large for columns."""


def has_legal_instructions(program: Program, arch: Arch) -> bool:
    """True only where no statement of the program breaks a rule; False leaves it undecided."""
    try:
        columns = columns_of(program)
        _ColumnVerifier(program, arch, columns).run()
    except (_Undecided, InternalError):  # numbers of more than 64 bits have no columns
        return False
    return True


class _ColumnVerifier:
    """Raises _Undecided at the first rule that may be broken."""

    def __init__(self, program: Program, arch: Arch, columns: Columns) -> None:
        self.program = program
        self.arch = arch
        self.columns = columns
        self.tiles: list[Tile] = columns.patterns.tile.distinct
        self.memory = _integers([_MEMORIES[tile.memory._value_] for tile in self.tiles])
        self.partitions = _integers([tile.partitions for tile in self.tiles])
        self.forms = [columns.instructions[row] for row in columns.form.first.tolist()]
        # The loop scope of each instruction: an index of `extents`
        self.scope = np.zeros(len(columns.instructions), np.int64)
        self.extents: list[Extents] = [{}]
        self.registers = self._registers()

    def run(self) -> None:
        self._block(self.columns.body, 0)
        self._check_counts()
        self._check_tiles()
        self._check_instructions()
        self._check_variables()
        self._check_bounds()
        self._check_waits()
        self._check_banks()

    # --- statements ----------------------------------------------------------------------------

    def _registers(self) -> dict[str, int]:
        """The first instruction that sets each register, by the name of its variable."""
        found: dict[str, int] = {}
        for form, first in zip(self.forms, self.columns.form.first.tolist(), strict=True):
            if name := form.sets_register:
                found[name] = min(first, found.get(name, first))
        return found

    def _block(self, spans: tuple[InstructionSpan, ...], scope: int) -> None:
        """Set the loop scope of every instruction of a block, and check its statements."""
        for span in spans:
            statement = span.statement
            if statement is None:
                self.scope[span.begin : span.end] = scope
                continue
            inside = scope
            if isinstance(statement, Loop):
                if statement.trips < 1 or statement.variable in self.extents[scope]:
                    raise _Undecided
                inside = len(self.extents)
                self.extents.append({**self.extents[scope], statement.variable: statement.trips})
            elif not span.blocks:
                raise _Undecided
            else:
                _require(self._is_defined(statement.register, self._reading_position(span)))
            for block in span.blocks:
                self._block(block, inside)

    @staticmethod
    def _reading_position(span: InstructionSpan) -> int:
        """The instruction before which a while or branch reads its register."""
        if not isinstance(span.statement, While) or not span.blocks[0]:
            return span.begin
        return span.blocks[0][-1].end

    def _is_defined(self, register: str, before: int) -> bool:
        return self.registers.get(register_variable(register), before) < before

    # --- the program ---------------------------------------------------------------------------

    def _check_counts(self) -> None:
        queues = {form.queue for form in self.forms} - {""}
        _require(len(queues) <= self.arch.dma_queues)
        _require(len(self.columns.semaphores) <= self.arch.semaphores)
        amounts = self.columns.signals.amount
        _require(bool(np.all((amounts >= 1) & (amounts <= MAXIMUM_SIGNAL))))

    def _check_tiles(self) -> None:
        """Operands name tiles of the program; no constant is written."""
        patterns, tiles = self.columns.patterns, self.tiles
        known = [*map(self.program.tiles.get, [tile.name for tile in tiles])]
        _require(all(map(is_, known, tiles)) or known == tiles)
        if self.program.constants:
            written = np.bincount(patterns.tile.number[patterns.access != READS])
            names = {tiles[number].name for number in np.flatnonzero(written).tolist()}
            _require(names.isdisjoint(self.program.constants))

    def _check_instructions(self) -> None:
        """The rules of instructions, checked on one instruction of each group."""
        patterns = self.columns.patterns
        number = patterns.tile.number
        visible = group_rows(
            patterns.dims.number, patterns.dtype.number, self.memory[number],
            self.partitions[number], patterns.partition.constant, patterns.partition.terms.number,
        )  # fmt: skip
        for row in self.columns.group_by_patterns(visible.number).first.tolist():
            _require(not violations(self.columns.instructions[row], self.arch))

    # --- names ---------------------------------------------------------------------------------

    def _check_variables(self) -> None:
        """Expressions name enclosing loops, and registers that an earlier instruction sets."""
        patterns, waits = self.columns.patterns, self.columns.waits
        awaiting = np.repeat(np.arange(self.scope.size), np.diff(waits.begin))
        for terms, owner in (
            (patterns.offset.terms, patterns.owner),
            (patterns.partition.terms, patterns.owner),
            (waits.value.terms, awaiting),
        ):
            varying = np.flatnonzero(terms.map(bool))
            for row in self._first_uses(terms, owner, varying):
                self._require_defined(terms.distinct[terms.number[row]], int(owner[row]))
        has_affine = [
            any(isinstance(v, Affine) for v in f.attributes().values()) for f in self.forms
        ]
        form = self.columns.form
        rows = np.flatnonzero(np.array(has_affine, bool)[form.number])
        for row in rows[group_rows(form.number[rows], self.scope[rows]).first].tolist():
            for value in self.columns.instructions[row].attributes().values():
                if isinstance(value, Affine):
                    self._require_defined(value.terms, row)

    def _first_uses(self, terms: DictionaryColumn, owner: Array, rows: Array) -> list[int]:
        """Of `rows`, the first for each pair of terms and loop scope."""
        groups = group_rows(terms.number[rows], self.scope[owner[rows]])
        return list(rows[groups.first].tolist())

    def _require_defined(self, terms: Iterable[tuple[str, int]], instruction: int) -> None:
        extents = self.extents[self.scope[instruction]]
        for name, _ in terms:
            if name not in extents:
                _require(self.registers.get(name, instruction) < instruction)

    # --- places --------------------------------------------------------------------------------

    def _check_bounds(self) -> None:
        """Operands stay inside their tiles in every iteration; a run checks registers."""
        patterns = self.columns.patterns
        is_hbm = (self.memory == _HBM)[patterns.tile.number]
        tile_bytes = self._bytes_swept()[patterns.tile.number]
        width = patterns.dtype.map(lambda dtype: dtype.bytes)
        ends = _reach_columns(patterns.dims, 0)
        inner = _reach_columns(patterns.dims, 1)
        below, above = (np.where(is_hbm, *pair) for pair in zip(ends, inner, strict=True))
        low, high, is_known = self._value_bounds(patterns.offset, patterns.owner)
        is_inside = (low + below >= 0) & (high + above < tile_bytes // width)
        _require(bool(np.all(is_inside | ~is_known)))
        row = patterns.partition
        low, high, is_known = self._value_bounds(row, patterns.owner)
        below, above = (a - b for a, b in zip(ends, inner, strict=True))
        is_inside = (low + below >= 0) & (high + above < self.partitions[patterns.tile.number])
        _require(bool(np.all(is_inside | ~is_known | is_hbm)))

    def _bytes_swept(self) -> Array:
        """Bytes of each tile that offsets address: of one partition on chip, of all in HBM."""
        elements = _integers([tile.elements for tile in self.tiles])
        return elements * _integers([tile.dtype.bytes for tile in self.tiles])

    def _check_waits(self) -> None:
        """No count that is waited for is beyond 64-bit arithmetic."""
        waits = self.columns.waits
        self._value_bounds(waits.value, np.repeat(np.arange(self.scope.size), np.diff(waits.begin)))

    def _value_bounds(self, expressions: AffineColumn, owner: Array) -> tuple[Array, Array, Array]:
        """Lower and upper bounds of expressions, and whether they depend on loops alone."""
        constant, terms = expressions.constant, expressions.terms
        _require(bool(np.all(np.abs(constant) < MAXIMUM_MAGNITUDE)))
        low, high, is_known = constant.copy(), constant.copy(), np.ones(constant.size, bool)
        rows = np.flatnonzero(terms.map(bool))
        if not rows.size:
            return low, high, is_known
        groups = group_rows(terms.number[rows], self.scope[owner[rows]])
        found = []
        for row in rows[groups.first].tolist():
            expression = Affine(terms.distinct[terms.number[row]])
            extents = self.extents[self.scope[owner[row]]]
            is_free = extents.keys() >= set(expression.variables)
            found.append((*(expression.bounds(extents) if is_free else (0, 0)), is_free))
        _require(all(abs(bound) < MAXIMUM_MAGNITUDE for bound in chain.from_iterable(found)))
        added = np.array(found, np.int64)[groups.number]
        low[rows] += added[:, 0]
        high[rows] += added[:, 1]
        is_known[rows] = added[:, 2] != 0
        return low, high, is_known

    def _check_banks(self) -> None:
        """A matrix product stays within one PSUM bank where the core lets none cross them."""
        if self.arch.capabilities.has_products_across_banks:
            return
        columns, patterns = self.columns, self.columns.patterns
        runs = np.array([form.runs_on == "tensor" for form in self.forms], bool)
        addresses = self.program.addresses
        address = _map_integers(patterns.tile, lambda t: addresses.get(t.name, -1))
        is_psum = (self.memory == _PSUM)[patterns.tile.number]
        rows = np.flatnonzero(
            runs[columns.form.number[patterns.owner]] & (patterns.access != READS) & is_psum
            & (address >= 0) & ~patterns.offset.terms.map(bool).astype(bool)
        )  # fmt: skip
        width = patterns.dtype.map(lambda dtype: dtype.bytes)[rows]
        low, high = (ends[rows] for ends in _reach_columns(patterns.dims, 1))
        start = address[rows] + (patterns.offset.constant[rows] + low) * width
        last = address[rows] + (patterns.offset.constant[rows] + high + 1) * width - 1
        bank = self.arch.psum_bank_bytes
        _require(bool(np.all(start // bank == last // bank)))


_MEMORIES = {memory.value: number for number, memory in enumerate(Memory)}
_HBM, _PSUM = _MEMORIES["HBM"], _MEMORIES["PSUM"]


def _map_integers(values: DictionaryColumn, function: Callable[[Any], int]) -> Array:
    """`values.map`, undecided where a number exceeds MAXIMUM_MAGNITUDE."""
    return _integers([function(value) for value in values.distinct])[values.number]


def _reach_columns(dims: DictionaryColumn, first: int) -> tuple[Array, Array]:
    """The least and greatest element offset that `dims[first:]` of each row reach."""
    ends = [reach(each[first:]) for each in dims.distinct]
    low, high = ([end[side] for end in ends] for side in (0, 1))
    return _integers(low)[dims.number], _integers(high)[dims.number]


def _integers(numbers: list[int]) -> Array:
    low, high = min(numbers, default=0), max(numbers, default=0)
    _require(low > -MAXIMUM_MAGNITUDE and high < MAXIMUM_MAGNITUDE)
    return np.array(numbers, np.int64)


def _require(holds: bool) -> None:
    if not holds:
        raise _Undecided
