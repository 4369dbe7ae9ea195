"""A program as columns: what its instructions say, field by field, as arrays of numbers.

A question asked of every instruction is asked of arrays instead, or once of each kind of
instruction there is. `columns_of(program)` gives the columns; see `Columns` for what they hold.

    columns = columns_of(program)
    patterns = columns.patterns
    alike = columns.alike(rows_alike(patterns.dims.number, patterns.dtype.number).number)
    cycles = [columns.instructions[row].cycles(arch) for row in alike.first.tolist()]
    total = np.bincount(alike.number) @ cycles  # one call for each form, shapes and dtypes

Objects that repeat are numbered from 0 in the order in which they first appear (`Values`). Two have
one number where they compare equal and are of one type, or are the same object; 0.0 and -0.0 are
equal. Integers that do not fit in 64 bits raise InternalError.
"""

from __future__ import annotations

import ctypes
import gc
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, count
from operator import attrgetter
from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.errors import InternalError
from glia.isa.kit import Instr
from glia.isa.operand import Pattern, Signal, Wait
from glia.machine.ir import Branch, Loop, Program, Statement, While

Array = np.ndarray[Any, Any]

ACCESSES = ("reads", "writes", "updates")
READS, WRITES, UPDATES = range(3)
MOST_KEPT = 50_000  # instructions of a program whose columns stay in memory with it
MOST_ABREAST = 8  # patterns of an instruction that are compared column by column
HASHED_QUICKLY = {str, int, bool, float, tuple}
PIECE = 512  # instructions that are read field by field, as many as the cache keeps
MOST_JOINED = 1 << 24  # a column of greater numbers is numbered anew before it joins others
# Odd, with bits all over: the whole parts of 2**64 times the fractions of square roots
FACTORS = np.array(
    [0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1], np.uint64
)


@dataclass(frozen=True)
class Values:
    """A column of objects that repeat: row i holds `distinct[number[i]]`."""

    number: Array
    distinct: list[Any]

    def map(self, function: Callable[[Any], int]) -> Array:
        """What a function says of each row, asked once for each different object."""
        return np.array([function(value) for value in self.distinct], np.int64)[self.number]


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
class Alike:
    """Rows put into kinds: `number[i]` is the kind of row i, `first[k]` the first row of kind k."""

    number: Array
    first: Array


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
            rest[long] = numbered(_objects(lists)).number
            number = rows_alike(number, rest).number
        return kinds(number)


def columns_of(program: Program) -> Columns:
    """The columns of a program; they are kept with it unless it is large."""
    columns: Columns | None = vars(program).get("_columns")
    if columns is None:
        is_collecting = gc.isenabled()
        gc.disable()  # nothing here has a cycle, and to look for some in long lists takes long
        try:
            columns = _columns(program)
        finally:
            if is_collecting:
                gc.enable()
        if len(columns.instructions) <= MOST_KEPT:
            vars(program)["_columns"] = columns
    return columns


def kinds(column: Array) -> Alike:
    """Rows that hold the same integer are of one kind; kinds are in the order of their first row.

    Every value looks up, in a table under a part of a product, the first row that came to the same
    place. Values that met another there try again among themselves with another factor.
    """
    leader = np.arange(column.size)
    rows = leader.copy()
    for factor in FACTORS:
        if not rows.size:
            break
        values = column[rows]
        bits = int(2 * rows.size).bit_length()
        place = (values.view(np.uint64) * factor >> np.uint64(64 - bits)).view(np.int64)
        table = np.full(1 << bits, column.size)
        np.minimum.at(table, place, rows)
        found = table[place]
        leader[rows] = found
        rows = rows[column[found] != values]
    if rows.size:
        _, first, inverse = np.unique(column[rows], return_index=True, return_inverse=True)
        leader[rows] = rows[first[inverse]]
    first = np.flatnonzero(leader == np.arange(column.size))
    rank = np.zeros(column.size, np.int64)
    rank[first] = np.arange(first.size)
    return Alike(rank[leader], first)


def rows_alike(*columns: Array) -> Alike:
    """Rows of one kind agree in every one of some columns of integers."""
    key, extent = np.zeros(columns[0].size, np.int64), 1
    for column in columns:
        low, high = int(column.min(initial=0)), int(column.max(initial=0))
        if high - low >= MOST_JOINED:
            column, low, high = kinds(column).number, 0, column.size
        if extent * (high - low + 1) >= 1 << 62:
            key, extent = kinds(key).number, key.size
        key = key * (high - low + 1) + (column - low)
        extent *= high - low + 1
    return kinds(key)


def numbered(objects: Array) -> Values:
    """A column of these objects, given as an array of them."""
    same = kinds(_identities(objects))
    different = objects[same.first].tolist()
    by_value = _numbers_by_value(different)
    first = kinds(by_value).first.tolist()
    return Values(by_value[same.number], [different[place] for place in first])


def _numbers_by_value(values: list[Any]) -> Array:
    types = set(map(type, values))
    if types == {Affine}:  # whose own hash is slow
        constant = _integers([value.constant for value in values], len(values))
        return rows_alike(constant, numbered(_objects([v.terms for v in values])).number).number
    numbers: defaultdict[object, int] = defaultdict(count().__next__)
    if len(types) == 1 and types <= HASHED_QUICKLY:
        return _integers(map(numbers.__getitem__, values), len(values))
    return _integers([numbers[_key(value)] for value in values], len(values))


def _key(value: object) -> object:
    """Equal for values that are to have one number."""
    try:
        hash(value)
    except TypeError:
        return None, id(value)
    return type(value), value


def _objects(values: list[Any]) -> Array:
    return np.fromiter(values, object, len(values))


def _identities(objects: Array) -> Array:
    """`id` of each object, which is the word that an array of objects holds for it."""
    if not objects.size:
        return np.zeros(0, np.int64)
    words = (ctypes.c_int64 * objects.size).from_address(objects.ctypes.data)
    return np.frombuffer(words, np.int64).copy()


def _integers(values: Iterable[int], length: int) -> Array:
    try:
        return np.fromiter(values, np.int64, length)
    except OverflowError as error:
        raise InternalError("an integer of an instruction does not fit in 64 bits") from error


def begins_of(counts: Array) -> Array:
    """Where the rows of each begin when so many lie one behind the other, and where all end."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def ranks_of(counts: Array) -> Array:
    """0, 1, ... for each of so many rows."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _columns(program: Program) -> Columns:
    instructions: list[Instr] = []
    body = _spans(program.body, instructions)
    everything = _objects(instructions)
    classes = numbered(_objects(list(map(type, instructions))))
    reader = _Reader(len(instructions))
    for number, kind in enumerate(classes.distinct):
        rows = np.flatnonzero(classes.number == number)
        reader.read_class(kind, rows, everything[rows].tolist())
    semaphores, waits, signals = reader.waits_and_signals()
    form, family = kinds(reader.form), kinds(reader.family)
    shown = [instructions[row] for row in family.first.tolist()]
    patterns = reader.patterns_of(shown, family.number)
    return Columns(instructions, body, form, family, patterns, waits, signals, semaphores)


def _spans(body: tuple[Statement, ...], instructions: list[Instr]) -> tuple[Span, ...]:
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
    if isinstance(statement, Branch):
        bodies = statement.arms
    elif isinstance(statement, While):
        bodies = (statement.condition, statement.body)
    else:
        bodies = (statement.body,)
    blocks = tuple([_spans(body, instructions) for body in bodies])
    return Span(begin, len(instructions), statement, blocks)


Table = dict[str, Array]  # columns of one length


def _merged(pieces: list[Table]) -> Table:
    """Tables of the same columns, one below the other."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


class _Reader:
    """Reads the fields of instructions piece by piece, each while it lies in the cache."""

    def __init__(self, instructions: int) -> None:
        self.instructions = instructions
        self.form, self.family = np.zeros((2, instructions), np.int64)
        self.read = 0  # instructions so far
        self.patterns = [_pattern_fields([])]
        self.waits = [_wait_fields([])]
        self.signals = [_signal_fields([])]
        for tables in (self.patterns, self.waits, self.signals):
            tables[0] |= _owned(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.patterns[0]["operand"] = np.zeros(0, np.int64)

    def read_class(self, kind: type[Instr], rows: Array, instructions: list[Instr]) -> None:
        """Take in all instructions of one class; `rows` says which of the program they are."""
        told = []
        for begin in range(0, len(instructions), PIECE):
            piece = instructions[begin : begin + PIECE]
            told.append(self._read(kind, rows[begin : begin + PIECE], piece))
        fine, coarse = [], []
        for column in _merged(told).values():
            values = Values(column, []) if column.dtype == np.int64 else numbered(column)
            fine.append(values.number)
            coarse.append(_without_expressions(values))
        for numbers, columns in ((self.form, fine), (self.family, coarse)):
            numbers[rows] = rows_alike(*columns).number + self.read
        self.read += len(instructions)

    def _read(self, kind: type[Instr], rows: Array, piece: list[Instr]) -> Table:
        """What tells forms apart; patterns, waits and signals go to their own tables."""
        told = {name: _fetched(piece, name) for name in ("on", "queue", *kind.attribute_names)}
        rank = np.zeros(rows.size, np.int64)
        found: list[Pattern] = []
        places = []
        for number, (name, declared) in enumerate(kind.operand_declarations.items()):
            values = _fetched(piece, name)
            taken, patterns = _patterns_in(values, is_several=declared.is_several)
            values[taken > 0] = None
            told |= {name: values, f"patterns of {name}": taken}
            place = _owned(rows, taken)
            place["rank"] += np.repeat(rank, taken)
            place["operand"] = np.full(len(patterns), number)
            places.append(place)
            found += patterns
            rank += taken
        if found:
            self.patterns.append(_pattern_fields(found) | _merged(places))
        self._read_lists([i.waits for i in piece], rows, self.waits, _wait_fields)
        self._read_lists([i.signals for i in piece], rows, self.signals, _signal_fields)
        return told

    @staticmethod
    def _read_lists(
        lists: list[Any], rows: Array, tables: list[Table], fields: Callable[[list[Any]], Table]
    ) -> None:
        flat = list(chain.from_iterable(lists))
        if flat:
            counts = _integers(map(len, lists), len(lists))
            tables.append(fields(flat) | _owned(rows, counts))

    def _in_order(self, tables: list[Table]) -> tuple[Array, Table]:
        """Where each instruction's rows begin, and all rows in program order."""
        table = _merged(tables)
        counts = np.bincount(table["owner"], minlength=self.instructions)
        begin = begins_of(counts)
        order = np.empty(table["owner"].size, np.int64)
        order[begin[table["owner"]] + table["rank"]] = np.arange(order.size)
        return begin, {name: column[order] for name, column in table.items()}

    def patterns_of(self, shown: list[Instr], family: Array) -> Patterns:
        """All patterns; `shown` is an instruction of each family."""
        begin, table = self._in_order(self.patterns)
        names: dict[str, int] = {}
        most = max([len(each.operand_declarations) for each in shown], default=0)
        name, access = np.zeros((2, len(shown), most), np.int64)
        for row, instr in enumerate(shown):
            for place, operand in enumerate(instr.operand_declarations):
                name[row, place] = names.setdefault(operand, len(names))
                access[row, place] = ACCESSES.index(instr.access(operand))
        owner, operand = table["owner"], table["operand"]
        return Patterns(
            begin=begin,
            owner=owner,
            name=Values(name[family[owner], operand], list(names)),
            access=access[family[owner], operand],
            tile=numbered(table["tile"]),
            dtype=numbered(table["dtype"]),
            dims=numbered(table["dims"]),
            offset=Expressions(table["offset"], numbered(table["offset terms"])),
            partition=Expressions(table["partition"], numbered(table["partition terms"])),
        )

    def waits_and_signals(self) -> tuple[list[str], Waits, Signals]:
        """The semaphores of both, and all waits and signals."""
        wait_begin, waits = self._in_order(self.waits)
        signal_begin, signals = self._in_order(self.signals)
        semaphores = numbered(np.concatenate([signals["semaphore"], waits["semaphore"]]))
        signalled, awaited = np.split(semaphores.number, [signals["semaphore"].size])
        value = Expressions(waits["value"], numbered(waits["value terms"]))
        return (
            semaphores.distinct,
            Waits(wait_begin, awaited, value),
            Signals(signal_begin, signalled, signals["amount"]),
        )


def _without_expressions(values: Values) -> Array:
    """The numbers, but one for all affine expressions."""
    is_expression = np.array([type(value) is Affine for value in values.distinct], bool)
    if not is_expression.any():
        return values.number
    return np.where(is_expression, -1, np.arange(is_expression.size))[values.number]


def _fetched(instructions: list[Instr], name: str) -> Array:
    return np.fromiter(map(attrgetter(name), instructions), object, len(instructions))


def _patterns_in(values: Array, *, is_several: bool) -> tuple[Array, list[Pattern]]:
    """How many patterns each value of an operand is, and the patterns."""
    if is_several:
        lists = [value if _is_patterns(value) else () for value in values.tolist()]
        return _integers(map(len, lists), len(lists)), list(chain.from_iterable(lists))
    classes = np.fromiter(map(type, values.tolist()), object, values.size)
    is_pattern = _identities(classes) == id(Pattern)
    return is_pattern.astype(np.int64), values[is_pattern].tolist()


def _is_patterns(value: object) -> bool:
    return type(value) is tuple and all(type(each) is Pattern for each in value)


def _owned(rows: Array, counts: Array) -> Table:
    """Whose the rows are of which each instruction has so many, and the how-manieth of its."""
    return {"owner": np.repeat(rows, counts), "rank": ranks_of(counts)}


def _pattern_fields(patterns: list[Pattern]) -> Table:
    return {
        "tile": _objects([pattern.tile for pattern in patterns]),
        "dtype": _objects([pattern.dtype for pattern in patterns]),
        "dims": _objects([pattern.dims for pattern in patterns]),
        **_affine_fields("offset", [pattern.offset for pattern in patterns]),
        **_affine_fields("partition", [pattern.partition for pattern in patterns]),
    }


def _wait_fields(waits: list[Wait]) -> Table:
    return {
        "semaphore": _objects([wait.semaphore for wait in waits]),
        **_affine_fields("value", [wait.value for wait in waits]),
    }


def _signal_fields(signals: list[Signal]) -> Table:
    return {
        "semaphore": _objects([signal.semaphore for signal in signals]),
        "amount": _integers([signal.amount for signal in signals], len(signals)),
    }


def _affine_fields(name: str, values: list[Affine]) -> Table:
    return {
        name: _integers([value.constant for value in values], len(values)),
        f"{name} terms": _objects([value.terms for value in values]),
    }
