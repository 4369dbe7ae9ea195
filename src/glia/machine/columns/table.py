"""A program as columns: every field of its instructions as a dictionary-encoded array.

Analyses compute on arrays, or once for each group of equal instructions, instead of once for each
instruction. `columns_of(program)` gives the columns; see `Columns` for what they hold.

    columns = columns_of(program)
    patterns = columns.patterns
    shapes = group_rows(patterns.dims.number, patterns.dtype.number)
    groups = columns.group_by_patterns(shapes.number)
    cycles = [columns.instructions[row].cycles(arch) for row in groups.first.tolist()]
    total = np.bincount(groups.number) @ cycles  # one call for each form, shapes and dtypes

Objects are numbered as `value_numbering` does it. Integers that do not fit in 64 bits raise
InternalError.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any, TypeVar, cast

import numpy as np

from glia.base.affine import Affine
from glia.base.garbage_collection import collector_paused
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Signal, Wait
from glia.machine.columns.value_numbering import (
    Array,
    DictionaryColumn,
    RowGroups,
    dictionary_encode,
    group_column,
    group_rows,
    integer_column,
    object_column,
    ranks_within,
    row_offsets,
)
from glia.machine.ir import Block, Branch, Loop, Program, While, blocks

ACCESSES = ("reads", "writes", "updates")
READS, WRITES = 0, 1
MAXIMUM_CACHED_INSTRUCTIONS = 1_000_000  # columns take 400 bytes for each
MAXIMUM_JOINED_PATTERNS = 8  # patterns of an instruction that are grouped column by column
FAST_EQUALITY_TYPES = {str, type(None), tuple}  # equal to values of their own class only
Row = TypeVar("Row")
PIECE_INSTRUCTIONS = 512  # instructions whose fields are read at a time: they stay in the CPU cache


@dataclass(frozen=True)
class AffineColumn:
    """A column of affine expressions: `constant[i]` plus the terms `terms.distinct[...]`."""

    constant: Array
    terms: DictionaryColumn

    @property
    def varying(self) -> Array:
        """The rows that name loop variables or registers."""
        return np.flatnonzero(self.terms.map(bool))


@dataclass(frozen=True)
class PatternTable:
    """One row for each operand that is a pattern, grouped by instruction.

    The rows of instruction i are `begin[i]` to `begin[i + 1]`, in the order of
    `Instr.operands()`; `owner` is the row's instruction, and `access` an index of ACCESSES.
    """

    begin: Array
    owner: Array
    name: DictionaryColumn  # of the operand
    access: Array
    tile: DictionaryColumn
    dtype: DictionaryColumn
    dims: DictionaryColumn
    offset: AffineColumn
    partition: AffineColumn

    def group_by_place(self, *others: Array) -> RowGroups:
        """Group rows of equal shape, dtype, offset, partition and values of `others`."""
        starts = [(each.constant, each.terms.number) for each in (self.offset, self.partition)]
        return group_rows(self.dims.number, self.dtype.number, *chain(*starts), *others)


@dataclass(frozen=True)
class WaitTable:
    """One row for each wait; those of instruction i are `begin[i]` to `begin[i + 1]`."""

    begin: Array
    semaphore: Array  # index of `Columns.semaphores`
    value: AffineColumn


@dataclass(frozen=True)
class SignalTable:
    """One row for each signal; those of instruction i are `begin[i]` to `begin[i + 1]`."""

    begin: Array
    semaphore: Array  # index of `Columns.semaphores`
    amount: Array


@dataclass(frozen=True)
class InstructionSpan:
    """Instructions `begin` to `end`: a straight line, or those inside one control statement.

    `statement` is None for a straight line. A Loop has one block, a While its condition and its
    body, a Branch its arms.
    """

    begin: int
    end: int
    statement: Loop | While | Branch | None = None
    blocks: tuple[tuple[InstructionSpan, ...], ...] = ()


@dataclass(frozen=True)
class Columns:
    """The instructions of a program as columns; instruction i is the i-th in program order.

    Two instructions have one form where they agree in everything but their patterns, waits, signals
    and source lines: in class, engine, queue, attributes, which operands are patterns, and the
    other operands. A family also joins forms that differ only in the values of affine attributes:
    an unrolled program has many forms of few families.
    """

    instructions: list[Instr]
    body: tuple[InstructionSpan, ...]
    form: RowGroups
    family: RowGroups
    patterns: PatternTable
    waits: WaitTable
    signals: SignalTable
    semaphores: list[str]

    def group_by_patterns(self, pattern: Array, within: RowGroups | None = None) -> RowGroups:
        """Group instructions of one form whose patterns have equal numbers, one by one.

        `pattern` has one number for each row of `patterns`; `within` replaces `form`, as by
        `family`.
        """
        begin, number = self.patterns.begin, (within or self.form).number
        counts = np.diff(begin)
        for rank in range(min(MAXIMUM_JOINED_PATTERNS, int(counts.max(initial=0)))):
            rows = np.flatnonzero(counts > rank)
            of_rank = np.full(counts.size, -1)
            of_rank[rows] = pattern[begin[rows] + rank]
            number = group_rows(number, of_rank).number
        long = np.flatnonzero(counts > MAXIMUM_JOINED_PATTERNS)
        if long.size:
            spans = zip(
                (begin[long] + MAXIMUM_JOINED_PATTERNS).tolist(),
                begin[long + 1].tolist(),
                strict=True,
            )
            rest = np.full(counts.size, -1)
            lists = [tuple(pattern[a:b].tolist()) for a, b in spans]
            rest[long] = dictionary_encode(object_column(lists)).number
            number = group_rows(number, rest).number
        return group_column(number)


def columns_of(program: Program) -> Columns:
    """The columns of a program, from its cache where they are in it."""
    columns = program.cache.get(Columns)
    if columns is None:
        with collector_paused():
            columns = _columns(program)
        cache_columns(program, columns)
    return columns


def cache_columns(program: Program, columns: Columns) -> None:
    """Put a program's columns into its cache, unless the program is large."""
    if len(columns.instructions) <= MAXIMUM_CACHED_INSTRUCTIONS:
        program.cache.put(columns)


def _columns(program: Program) -> Columns:
    instructions: list[Instr] = []
    body = _spans(program.body, instructions)
    everything = object_column(instructions)
    classes = dictionary_encode(object_column(list(map(type, instructions))))
    reader = _ColumnReader(len(instructions))
    for number, kind in enumerate(classes.distinct):
        rows = np.flatnonzero(classes.number == number)
        reader.read_class(kind, rows, everything[rows].tolist())
    semaphores, waits, signals = reader.waits_and_signals()
    form, family = group_column(reader.form), group_column(reader.family)
    examples = [instructions[row] for row in family.first.tolist()]
    patterns = reader.patterns_of(examples, family.number)
    return Columns(instructions, body, form, family, patterns, waits, signals, semaphores)


def _spans(body: Block, instructions: list[Instr]) -> tuple[InstructionSpan, ...]:
    """The structure of a block; appends its instructions to `instructions`."""
    found = []
    control = {Loop, While, Branch}
    places: list[int] = []
    if not control.isdisjoint(map(type, body)):
        places = [place for place, statement in enumerate(body) if type(statement) in control]
    begin = 0
    for place in (*places, len(body)):
        first = len(instructions)
        instructions += cast("tuple[Instr, ...]", body[begin:place])
        if place > begin:
            found.append(InstructionSpan(first, len(instructions)))
        if place < len(body):
            statement = cast("Loop | While | Branch", body[place])
            found.append(_control(statement, instructions))
        begin = place + 1
    return tuple(found)


def _control(statement: Loop | While | Branch, instructions: list[Instr]) -> InstructionSpan:
    begin = len(instructions)
    inside = tuple([_spans(block, instructions) for block in blocks(statement)])
    return InstructionSpan(begin, len(instructions), statement, inside)


@dataclass(frozen=True)
class _ConstantPiece:
    """A run-length-encoded piece of a column: `value` in `length` rows."""

    value: Any
    length: int


Piece = dict[str, Array | _ConstantPiece]  # parts of columns, of one length


class _PieceTable:
    """Columns in pieces; every row has an owner, an instruction, and a rank among its rows."""

    def __init__(self, empty: Piece) -> None:
        nothing = np.zeros(0, np.int64)
        self.pieces: list[Piece] = [empty | {"owner": nothing, "rank": nothing}]

    def integer_column(self, name: str) -> Array:
        """A column of integers, whose pieces are all arrays."""
        return np.concatenate(cast("list[Array]", [piece[name] for piece in self.pieces]))

    def values(self, name: str) -> DictionaryColumn:
        return _join_pieces([piece[name] for piece in self.pieces])

    def in_order(self, instructions: int) -> tuple[Array, Array]:
        """The offset of each instruction's rows, and the permutation that sorts rows by owner."""
        owner = self.integer_column("owner")
        begin = row_offsets(np.bincount(owner, minlength=instructions))
        order = np.empty(owner.size, np.int64)
        order[begin[owner] + self.integer_column("rank")] = np.arange(owner.size)
        return begin, order

    def ordered(self, name: str, order: Array) -> DictionaryColumn:
        values = self.values(name)
        return DictionaryColumn(values.number[order], values.distinct)

    def expressions(self, name: str, order: Array) -> AffineColumn:
        return AffineColumn(self.integer_column(name)[order], self.ordered(f"{name} terms", order))


def _join_pieces(pieces: list[Array | _ConstantPiece]) -> DictionaryColumn:
    """Concatenate pieces to a dictionary-encoded column."""
    if len(pieces) == 1 and isinstance(pieces[0], _ConstantPiece):
        return DictionaryColumn(np.zeros(pieces[0].length, np.int64), [pieces[0].value])
    constant = [piece for piece in pieces if isinstance(piece, _ConstantPiece)]
    if len(constant) == len(pieces):
        encoded = dictionary_encode(object_column([piece.value for piece in constant]))
        lengths = [piece.length for piece in constant]
        return DictionaryColumn(np.repeat(encoded.number, lengths), encoded.distinct)
    return dictionary_encode(np.concatenate([_expand_piece(piece) for piece in pieces]))


def _expand_piece(piece: Array | _ConstantPiece) -> Array:
    """The rows of a piece."""
    if isinstance(piece, _ConstantPiece):
        return np.repeat(object_column([piece.value]), piece.length)
    return piece


class _ColumnReader:
    """Reads the fields of instructions piece by piece, each while it is in the CPU cache."""

    def __init__(self, instructions: int) -> None:
        self.instructions = instructions
        self.form, self.family = np.zeros((2, instructions), np.int64)
        self.read = 0  # instructions so far
        self.patterns = _PieceTable(_pattern_fields([]) | {"operand": np.zeros(0, np.int64)})
        self.waits = _PieceTable(_wait_fields([]))
        self.signals = _PieceTable(_signal_fields([]))

    def read_class(self, kind: type[Instr], rows: Array, instructions: list[Instr]) -> None:
        """Read all instructions of one class, whose numbers in the program are `rows`."""
        fields = []
        for begin in range(0, len(instructions), PIECE_INSTRUCTIONS):
            piece = instructions[begin : begin + PIECE_INSTRUCTIONS]
            fields.append(self._read(kind, rows[begin : begin + PIECE_INSTRUCTIONS], piece))
        nothing = np.zeros(rows.size, np.int64)
        fine, coarse = [nothing], [nothing]
        for name in fields[0] if rows.size > 1 else ():
            pieces = [piece[name] for piece in fields]
            if len(pieces) > 1 or not isinstance(pieces[0], _ConstantPiece):
                values = _join_pieces(pieces)
                fine.append(values.number)
                coarse.append(_merge_expressions(values))
        for numbers, columns in ((self.form, fine), (self.family, coarse)):
            numbers[rows] = group_rows(*columns).number + self.read
        self.read += len(instructions)

    def _read(self, kind: type[Instr], rows: Array, piece: list[Instr]) -> Piece:
        """The columns that distinguish forms; patterns, waits and signals go to their tables."""
        pieces: Piece = {
            name: _piece(list(map(attrgetter(name), piece))) for name in kind.attribute_names
        }
        pieces |= {"on": _piece([i.on for i in piece]), "queue": _piece([i.queue for i in piece])}
        self._read_patterns(kind, rows, piece, pieces)
        waits, counts = _flatten([i.waits for i in piece])
        if waits:
            self.waits.pieces.append(_wait_fields(waits) | _row_owners(rows, counts))
        signals, counts = _flatten([i.signals for i in piece])
        if signals:
            self.signals.pieces.append(_signal_fields(signals) | _row_owners(rows, counts))
        return pieces

    def _read_patterns(
        self, kind: type[Instr], rows: Array, piece: list[Instr], pieces: Piece
    ) -> None:
        """Read the operands; `pieces` gets which are patterns, and the values of the others."""
        rank = np.zeros(rows.size, np.int64)
        for number, (name, declared) in enumerate(kind.operand_declarations.items()):
            values = list(map(attrgetter(name), piece))
            taken, patterns = _split_patterns(values, is_several=declared.is_several)
            if len(patterns) == len(piece) and taken.all():
                count: Array | _ConstantPiece = _ConstantPiece(1, rows.size)
                other: Array | _ConstantPiece = _ConstantPiece(None, rows.size)
                place: Piece = {"owner": rows, "rank": rank.copy()}
            else:
                count = object_column(taken.tolist())
                other = object_column(values)
                other[taken > 0] = None
                place = _row_owners(rows, taken, rank)
            pieces |= {f"patterns of {name}": count, name: other}
            if patterns:
                place["operand"] = np.full(len(patterns), number)
                self.patterns.pieces.append(_pattern_fields(patterns) | place)
            rank += taken

    def patterns_of(self, examples: list[Instr], family: Array) -> PatternTable:
        """All patterns; `examples` holds an instruction of each family."""
        table = self.patterns
        begin, order = table.in_order(self.instructions)
        names: dict[str, int] = {}
        most = max([len(each.operand_declarations) for each in examples], default=0)
        name, access = np.zeros((2, len(examples), most), np.int64)
        for row, instr in enumerate(examples):
            for place, operand in enumerate(instr.operand_declarations):
                name[row, place] = names.setdefault(operand, len(names))
                access[row, place] = ACCESSES.index(instr.access(operand))
        owner = table.integer_column("owner")[order]
        operands = table.integer_column("operand")[order]
        return PatternTable(
            begin=begin,
            owner=owner,
            name=DictionaryColumn(name[family[owner], operands], list(names)),
            access=access[family[owner], operands],
            tile=table.ordered("tile", order),
            dtype=table.ordered("dtype", order),
            dims=table.ordered("dims", order),
            offset=table.expressions("offset", order),
            partition=table.expressions("partition", order),
        )

    def waits_and_signals(self) -> tuple[list[str], WaitTable, SignalTable]:
        """The names of all semaphores, the waits, and the signals."""
        wait_begin, waits = self.waits.in_order(self.instructions)
        signal_begin, signals = self.signals.in_order(self.instructions)
        pieces = [piece["semaphore"] for piece in self.signals.pieces + self.waits.pieces]
        semaphores = _join_pieces(pieces)
        signalled, awaited = np.split(semaphores.number, [signals.size])
        amounts = self.signals.integer_column("amount")
        return (
            semaphores.distinct,
            WaitTable(wait_begin, awaited[waits], self.waits.expressions("value", waits)),
            SignalTable(signal_begin, signalled[signals], amounts[signals]),
        )


def _merge_expressions(values: DictionaryColumn) -> Array:
    """The column's numbers, with -1 for every affine expression."""
    if Affine not in map(type, values.distinct):
        return values.number
    is_expression = np.array([type(value) is Affine for value in values.distinct], bool)
    return np.where(is_expression, -1, np.arange(is_expression.size))[values.number]


def _piece(values: list[Any]) -> Array | _ConstantPiece:
    """A piece of a column, run-length encoded where one comparison shows that it is constant."""
    if type(values[0]) in FAST_EQUALITY_TYPES and values.count(values[0]) == len(values):
        return _ConstantPiece(values[0], len(values))
    return object_column(values)


def _split_patterns(values: list[Any], *, is_several: bool) -> tuple[Array, list[Pattern]]:
    """The number of patterns in each value of an operand, and the patterns."""
    if is_several:
        lists = [value if _is_pattern_tuple(value) else () for value in values]
        return integer_column(map(len, lists), len(lists)), list(chain.from_iterable(lists))
    if set(map(type, values)) == {Pattern}:
        return np.ones(len(values), np.int64), values
    taken = np.array([type(value) is Pattern for value in values], np.int64)
    return taken, [value for value in values if type(value) is Pattern]


def _is_pattern_tuple(value: object) -> bool:
    return type(value) is tuple and all(type(each) is Pattern for each in value)


def _flatten(lists: list[tuple[Row, ...]]) -> tuple[list[Row], Array]:
    """The elements of the lists, and the length of each list."""
    if lists.count(()) == len(lists):
        return [], np.zeros(len(lists), np.int64)
    return list(chain.from_iterable(lists)), integer_column(map(len, lists), len(lists))


def _row_owners(rows: Array, counts: Array, first_rank: Array | None = None) -> Piece:
    """Owner and rank of consecutive rows, `counts[i]` of them for instruction `rows[i]`."""
    rank = ranks_within(counts)
    if first_rank is not None:
        rank += np.repeat(first_rank, counts)
    return {"owner": np.repeat(rows, counts), "rank": rank}


def _pattern_fields(patterns: list[Pattern]) -> Piece:
    return {
        "tile": object_column([pattern.tile for pattern in patterns]),
        "dtype": object_column([pattern.dtype for pattern in patterns]),
        "dims": object_column([pattern.dims for pattern in patterns]),
        **_affine_fields("offset", [pattern.offset for pattern in patterns]),
        **_affine_fields("partition", [pattern.partition for pattern in patterns]),
    }


def _wait_fields(waits: list[Wait]) -> Piece:
    return {
        "semaphore": object_column([wait.semaphore for wait in waits]),
        **_affine_fields("value", [wait.value for wait in waits]),
    }


def _signal_fields(signals: list[Signal]) -> Piece:
    return {
        "semaphore": object_column([signal.semaphore for signal in signals]),
        "amount": integer_column([signal.amount for signal in signals], len(signals)),
    }


def _affine_fields(name: str, values: list[Affine]) -> Piece:
    length = len(values)
    if length and all(map(is_, values, repeat(values[0]))):
        constant = np.repeat(integer_column([values[0].constant], 1), length)
        return {name: constant, f"{name} terms": _ConstantPiece(values[0].terms, length)}
    terms = [value.terms for value in values]
    is_constant = terms.count(()) == length
    return {
        name: integer_column([value.constant for value in values], length),
        f"{name} terms": _ConstantPiece((), length) if is_constant else object_column(terms),
    }
