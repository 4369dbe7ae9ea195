"""A program as columns: what its instructions say, field by field, as arrays of numbers.

A question asked of every instruction is asked of arrays instead, or once of each kind of
instruction there is. `columns_of(program)` gives the columns; see `Columns` for what they hold.

    columns = columns_of(program)
    patterns = columns.patterns
    alike = columns.alike(rows_alike(patterns.dims.number, patterns.dtype.number).number)
    cycles = [columns.instructions[row].cycles(arch) for row in alike.first.tolist()]
    total = np.bincount(alike.number) @ cycles  # one call for each form, shapes and dtypes

Objects that repeat are numbered as `machine.kinds` does it. Integers that do not fit in 64 bits
raise InternalError.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.garbage_collection import collection_paused
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Signal, Wait
from glia.machine.columns.value_numbering import (
    Alike,
    Array,
    Values,
    begins_of,
    column_of,
    integers,
    kinds,
    numbered,
    ranks_of,
    rows_alike,
)
from glia.machine.ir import Block, Branch, Loop, Program, While, blocks

ACCESSES = ("reads", "writes", "updates")
READS, WRITES = 0, 1
MAXIMUM_CACHED_INSTRUCTIONS = 1_000_000  # columns take 400 bytes for each
MOST_ABREAST = 8  # patterns of an instruction that are compared column by column
COMPARED_QUICKLY = {str, type(None), tuple}  # equal only to others of their class
PIECE = 512  # instructions that are read field by field, as many as the cache keeps


@dataclass(frozen=True)
class Expressions:
    """A column of affine expressions: `constant[i]` plus the terms `terms.distinct[...]`."""

    constant: Array
    terms: Values

    @property
    def varying(self) -> Array:
        """The rows that name loop variables or registers."""
        return np.flatnonzero(self.terms.map(bool))


@dataclass(frozen=True)
class Patterns:
    """One row for each operand that is a pattern, those of an instruction one behind the other.

    The rows of instruction i are `begin[i]` to `begin[i + 1]`, in the order of
    `Instr.operands()`; `owner` says whose a row is and `access` what the instruction does to it,
    as an index of ACCESSES.
    """

    begin: Array
    owner: Array
    name: Values  # of the operand
    access: Array
    tile: Values
    dtype: Values
    dims: Values
    offset: Expressions
    partition: Expressions

    def places(self, *others: Array) -> Alike:
        """Rows of one shape and dtype that begin at one place of their tiles.

        Rows of one kind also agree in other columns.
        """
        starts = [(each.constant, each.terms.number) for each in (self.offset, self.partition)]
        return rows_alike(self.dims.number, self.dtype.number, *chain(*starts), *others)


@dataclass(frozen=True)
class Waits:
    """One row for each wait; instruction i has those from `begin[i]` to `begin[i + 1]`."""

    begin: Array
    semaphore: Array  # index of `Columns.semaphores`
    value: Expressions


@dataclass(frozen=True)
class Signals:
    """One row for each signal; instruction i has those from `begin[i]` to `begin[i + 1]`."""

    begin: Array
    semaphore: Array  # index of `Columns.semaphores`
    amount: Array


@dataclass(frozen=True)
class Span:
    """Instructions `begin` to `end`, and the statement they are written in.

    `statement` is None for instructions that follow one another. A Loop has one block, a While its
    condition and its body, a Branch its arms.
    """

    begin: int
    end: int
    statement: Loop | While | Branch | None = None
    blocks: tuple[tuple[Span, ...], ...] = ()


@dataclass(frozen=True)
class Columns:
    """What the instructions of a program say; instruction i is the i-th in program order.

    Two instructions are of one form where they agree in class, engine, queue, all attributes, which
    operands are patterns and what the other operands are: in everything but their patterns, waits,
    signals and source lines. Those of one family agree in as much, but for the values of attributes
    that are affine expressions: a program written out has many forms of few families.
    """

    instructions: list[Instr]
    body: tuple[Span, ...]
    form: Alike
    family: Alike
    patterns: Patterns
    waits: Waits
    signals: Signals
    semaphores: list[str]

    def alike(self, pattern: Array, within: Alike | None = None) -> Alike:
        """Instructions of one form whose patterns agree, one by one, in a column of numbers.

        `pattern` has one number for each row of `patterns`; `within` may say `family` for `form`.
        """
        begin, number = self.patterns.begin, (within or self.form).number
        counts = np.diff(begin)
        for rank in range(min(MOST_ABREAST, int(counts.max(initial=0)))):
            rows = np.flatnonzero(counts > rank)
            met = np.full(counts.size, -1)
            met[rows] = pattern[begin[rows] + rank]
            number = rows_alike(number, met).number
        long = np.flatnonzero(counts > MOST_ABREAST)
        if long.size:
            spans = zip(
                (begin[long] + MOST_ABREAST).tolist(), begin[long + 1].tolist(), strict=True
            )
            rest = np.full(counts.size, -1)
            lists = [tuple(pattern[a:b].tolist()) for a, b in spans]
            rest[long] = numbered(column_of(lists)).number
            number = rows_alike(number, rest).number
        return kinds(number)


def columns_of(program: Program) -> Columns:
    """The columns of a program, from its cache where they are in it."""
    columns = program.cache.get(Columns)
    if columns is None:
        with collection_paused():
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
    everything = column_of(instructions)
    classes = numbered(column_of(list(map(type, instructions))))
    reader = _Reader(len(instructions))
    for number, kind in enumerate(classes.distinct):
        rows = np.flatnonzero(classes.number == number)
        reader.read_class(kind, rows, everything[rows].tolist())
    semaphores, waits, signals = reader.waits_and_signals()
    form, family = kinds(reader.form), kinds(reader.family)
    shown = [instructions[row] for row in family.first.tolist()]
    patterns = reader.patterns_of(shown, family.number)
    return Columns(instructions, body, form, family, patterns, waits, signals, semaphores)


def _spans(body: Block, instructions: list[Instr]) -> tuple[Span, ...]:
    """The structure of a block; its instructions are put at the end of the list."""
    found = []
    control = {Loop, While, Branch}
    places: list[int] = []
    if not control.isdisjoint(map(type, body)):
        places = [place for place, statement in enumerate(body) if type(statement) in control]
    begin = 0
    for place in (*places, len(body)):
        first = len(instructions)
        instructions += body[begin:place]  # type: ignore[arg-type]
        if place > begin:
            found.append(Span(first, len(instructions)))
        if place < len(body):
            found.append(_control(body[place], instructions))  # type: ignore[arg-type]
        begin = place + 1
    return tuple(found)


def _control(statement: Loop | While | Branch, instructions: list[Instr]) -> Span:
    begin = len(instructions)
    inside = tuple([_spans(block, instructions) for block in blocks(statement)])
    return Span(begin, len(instructions), statement, inside)


@dataclass(frozen=True)
class _Same:
    """A piece of a column that holds one value in so many rows."""

    value: Any
    length: int


Piece = dict[str, Array | _Same]  # parts of columns, of one length


class _Table:
    """Columns read piece by piece; rows have an instruction and a rank among its rows."""

    def __init__(self, empty: Piece) -> None:
        nothing = np.zeros(0, np.int64)
        self.pieces: list[Piece] = [empty | {"owner": nothing, "rank": nothing}]

    def integers(self, name: str) -> Array:
        return np.concatenate([piece[name] for piece in self.pieces])  # type: ignore[misc]

    def values(self, name: str) -> Values:
        return _values([piece[name] for piece in self.pieces])

    def in_order(self, instructions: int) -> tuple[Array, Array]:
        """Where each instruction's rows begin, and which rows those are, one behind the other."""
        owner = self.integers("owner")
        begin = begins_of(np.bincount(owner, minlength=instructions))
        order = np.empty(owner.size, np.int64)
        order[begin[owner] + self.integers("rank")] = np.arange(owner.size)
        return begin, order

    def ordered(self, name: str, order: Array) -> Values:
        values = self.values(name)
        return Values(values.number[order], values.distinct)

    def expressions(self, name: str, order: Array) -> Expressions:
        return Expressions(self.integers(name)[order], self.ordered(f"{name} terms", order))


def _values(pieces: list[Array | _Same]) -> Values:
    """The column that pieces of it make."""
    if len(pieces) == 1 and isinstance(pieces[0], _Same):
        return Values(np.zeros(pieces[0].length, np.int64), [pieces[0].value])
    if all(isinstance(piece, _Same) for piece in pieces):
        same = numbered(column_of([piece.value for piece in pieces]))  # type: ignore[union-attr]
        lengths = [piece.length for piece in pieces]  # type: ignore[union-attr]
        return Values(np.repeat(same.number, lengths), same.distinct)
    return numbered(np.concatenate([
        np.repeat(column_of([piece.value]), piece.length) if isinstance(piece, _Same) else piece
        for piece in pieces
    ]))  # fmt: skip


class _Reader:
    """Reads the fields of instructions piece by piece, each while it lies in the cache."""

    def __init__(self, instructions: int) -> None:
        self.instructions = instructions
        self.form, self.family = np.zeros((2, instructions), np.int64)
        self.read = 0  # instructions so far
        self.patterns = _Table(_pattern_fields([]) | {"operand": np.zeros(0, np.int64)})
        self.waits = _Table(_wait_fields([]))
        self.signals = _Table(_signal_fields([]))

    def read_class(self, kind: type[Instr], rows: Array, instructions: list[Instr]) -> None:
        """Take in all instructions of one class; `rows` says which of the program they are."""
        told = []
        for begin in range(0, len(instructions), PIECE):
            piece = instructions[begin : begin + PIECE]
            told.append(self._read(kind, rows[begin : begin + PIECE], piece))
        nothing = np.zeros(rows.size, np.int64)
        fine, coarse = [nothing], [nothing]
        for name in told[0] if rows.size > 1 else ():
            pieces = [piece[name] for piece in told]
            if len(pieces) > 1 or not isinstance(pieces[0], _Same):
                values = _values(pieces)
                fine.append(values.number)
                coarse.append(_without_expressions(values))
        for numbers, columns in ((self.form, fine), (self.family, coarse)):
            numbers[rows] = rows_alike(*columns).number + self.read
        self.read += len(instructions)

    def _read(self, kind: type[Instr], rows: Array, piece: list[Instr]) -> Piece:
        """What tells forms apart; patterns, waits and signals go to their own tables."""
        told: Piece = {
            name: _told(list(map(attrgetter(name), piece))) for name in kind.attribute_names
        }
        told |= {"on": _told([i.on for i in piece]), "queue": _told([i.queue for i in piece])}
        self._read_patterns(kind, rows, piece, told)
        for table, lists, fields in (
            (self.waits, [i.waits for i in piece], _wait_fields),
            (self.signals, [i.signals for i in piece], _signal_fields),
        ):
            if lists.count(()) < len(lists):
                counts = integers(map(len, lists), len(lists))
                flat = list(chain.from_iterable(lists))
                table.pieces.append(fields(flat) | _owned(rows, counts))
        return told

    def _read_patterns(
        self, kind: type[Instr], rows: Array, piece: list[Instr], told: Piece
    ) -> None:
        """Read the operands; what they are besides patterns tells forms apart."""
        rank = np.zeros(rows.size, np.int64)
        for number, (name, declared) in enumerate(kind.operand_declarations.items()):
            values = list(map(attrgetter(name), piece))
            taken, patterns = _patterns_in(values, is_several=declared.is_several)
            if len(patterns) == len(piece) and taken.all():
                count: Array | _Same = _Same(1, rows.size)
                other: Array | _Same = _Same(None, rows.size)
                place = {"owner": rows, "rank": rank.copy()}
            else:
                count = column_of(taken.tolist())
                other = column_of(values)
                other[taken > 0] = None
                place = _owned(rows, taken)
                place["rank"] += np.repeat(rank, taken)
            told |= {f"patterns of {name}": count, name: other}
            if patterns:
                place["operand"] = np.full(len(patterns), number)
                self.patterns.pieces.append(_pattern_fields(patterns) | place)
            rank += taken

    def patterns_of(self, shown: list[Instr], family: Array) -> Patterns:
        """All patterns; `shown` is an instruction of each family."""
        table = self.patterns
        begin, order = table.in_order(self.instructions)
        names: dict[str, int] = {}
        most = max([len(each.operand_declarations) for each in shown], default=0)
        name, access = np.zeros((2, len(shown), most), np.int64)
        for row, instr in enumerate(shown):
            for place, operand in enumerate(instr.operand_declarations):
                name[row, place] = names.setdefault(operand, len(names))
                access[row, place] = ACCESSES.index(instr.access(operand))
        owner, operands = table.integers("owner")[order], table.integers("operand")[order]
        return Patterns(
            begin=begin,
            owner=owner,
            name=Values(name[family[owner], operands], list(names)),
            access=access[family[owner], operands],
            tile=table.ordered("tile", order),
            dtype=table.ordered("dtype", order),
            dims=table.ordered("dims", order),
            offset=table.expressions("offset", order),
            partition=table.expressions("partition", order),
        )

    def waits_and_signals(self) -> tuple[list[str], Waits, Signals]:
        """The semaphores of both, and all waits and signals."""
        wait_begin, waits = self.waits.in_order(self.instructions)
        signal_begin, signals = self.signals.in_order(self.instructions)
        pieces = [piece["semaphore"] for piece in self.signals.pieces + self.waits.pieces]
        semaphores = _values(pieces)
        signalled, awaited = np.split(semaphores.number, [signals.size])
        return (
            semaphores.distinct,
            Waits(wait_begin, awaited[waits], self.waits.expressions("value", waits)),
            Signals(signal_begin, signalled[signals], self.signals.integers("amount")[signals]),
        )


def _without_expressions(values: Values) -> Array:
    """The numbers, but one for all affine expressions."""
    if Affine not in map(type, values.distinct):
        return values.number
    is_expression = np.array([type(value) is Affine for value in values.distinct], bool)
    return np.where(is_expression, -1, np.arange(is_expression.size))[values.number]


def _told(values: list[Any]) -> Array | _Same:
    """A piece of a column that tells forms apart."""
    if type(values[0]) in COMPARED_QUICKLY and values.count(values[0]) == len(values):
        return _Same(values[0], len(values))
    return column_of(values)


def _patterns_in(values: list[Any], *, is_several: bool) -> tuple[Array, list[Pattern]]:
    """How many patterns each value of an operand is, and the patterns."""
    if is_several:
        lists = [value if _is_patterns(value) else () for value in values]
        return integers(map(len, lists), len(lists)), list(chain.from_iterable(lists))
    if set(map(type, values)) == {Pattern}:
        return np.ones(len(values), np.int64), values
    taken = np.array([type(value) is Pattern for value in values], np.int64)
    return taken, [value for value in values if type(value) is Pattern]


def _is_patterns(value: object) -> bool:
    return type(value) is tuple and all(type(each) is Pattern for each in value)


def _owned(rows: Array, counts: Array) -> dict[str, Array]:
    """Whose the rows are of which each instruction has so many, and the how-manieth of its."""
    return {"owner": np.repeat(rows, counts), "rank": ranks_of(counts)}


def _pattern_fields(patterns: list[Pattern]) -> Piece:
    return {
        "tile": column_of([pattern.tile for pattern in patterns]),
        "dtype": column_of([pattern.dtype for pattern in patterns]),
        "dims": column_of([pattern.dims for pattern in patterns]),
        **_affine_fields("offset", [pattern.offset for pattern in patterns]),
        **_affine_fields("partition", [pattern.partition for pattern in patterns]),
    }


def _wait_fields(waits: list[Wait]) -> Piece:
    return {
        "semaphore": column_of([wait.semaphore for wait in waits]),
        **_affine_fields("value", [wait.value for wait in waits]),
    }


def _signal_fields(signals: list[Signal]) -> Piece:
    return {
        "semaphore": column_of([signal.semaphore for signal in signals]),
        "amount": integers([signal.amount for signal in signals], len(signals)),
    }


def _affine_fields(name: str, values: list[Affine]) -> Piece:
    length = len(values)
    if length and all(map(is_, values, repeat(values[0]))):
        constant = np.repeat(integers([values[0].constant], 1), length)
        return {name: constant, f"{name} terms": _Same(values[0].terms, length)}
    terms = [value.terms for value in values]
    is_constant = terms.count(()) == length
    return {
        name: integers([value.constant for value in values], length),
        f"{name} terms": _Same((), length) if is_constant else column_of(terms),
    }
