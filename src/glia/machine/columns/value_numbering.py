"""Rows of columns put into kinds: which hold the same integers, or equal objects.

Kinds are numbered from 0 in the order in which they first appear. Two objects are of one kind where
they compare equal and are of one type, or are the same object; 0.0 and -0.0 are equal.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from glia.base.affine import Affine
from glia.base.errors import InternalError

Array = np.ndarray[Any, Any]

HASHED_QUICKLY = {str, int, bool, float, tuple}
FEW = 48  # rows that are put into kinds sooner one by one than as an array
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
class Alike:
    """Rows put into kinds: `number[i]` is the kind of row i, `first[k]` the first row of kind k."""

    number: Array
    first: Array


def kinds(column: Array) -> Alike:
    """Rows that hold the same integer are of one kind; kinds are in the order of their first row.

    Every value looks up, in a table, the first row that came to the same place. The place of values
    that lie far apart is a part of a product: those that met another there try again among
    themselves with another factor.
    """
    if column.size < FEW or not column.size:
        return _few_kinds(column.tolist())
    low, high = int(column.min()), int(column.max())
    everything = np.arange(column.size)
    if low == high:
        return Alike(np.zeros(column.size, np.int64), everything[:1])
    if high - low <= 4 * column.size:
        leader = _first_rows(column - low, everything, high - low + 1)
    else:
        leader = _leaders(column)
    first = np.flatnonzero(leader == everything)
    rank = np.zeros(column.size, np.int64)
    rank[first] = np.arange(first.size)
    return Alike(rank[leader], first)


def _few_kinds(values: Sequence[object]) -> Alike:
    numbers: dict[object, int] = {}
    number = [numbers.setdefault(value, len(numbers)) for value in values]
    first = [number.index(kind) for kind in range(len(numbers))]
    return Alike(np.array(number, np.int64), np.array(first, np.int64))


def _first_rows(places: Array, rows: Array, count: int) -> Array:
    """For each of some ascending rows, which have places below `count`, the first at its place."""
    table = np.full(count, rows[-1])
    np.minimum.at(table, places, rows)
    return table[places]


def _leaders(column: Array) -> Array:
    """For each row the first that holds the same integer."""
    rows = np.arange(column.size)
    leader = _meeting(column, rows, FACTORS[0])
    rows = rows[column[leader] != column]
    for factor in FACTORS[1:]:
        if not rows.size:
            return leader
        values = column[rows]
        leader[rows] = found = _meeting(values, rows, factor)
        rows = rows[column[found] != values]
    _, first, inverse = np.unique(column[rows], return_index=True, return_inverse=True)
    leader[rows] = rows[first[inverse]]
    return leader


def _meeting(values: Array, rows: Array, factor: int) -> Array:
    """For each value the first row whose value came to the same place, of the rows they are of."""
    bits = int(2 * rows.size).bit_length()
    places = (values.view(np.uint64) * factor >> np.uint64(64 - bits)).view(np.int64)
    return _first_rows(places, rows, 1 << bits)


def rows_alike(*columns: Array) -> Alike:
    """Rows of one kind agree in every one of some columns of integers."""
    if columns[0].size < FEW:
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        return _few_kinds(rows)
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
        constant = integers([value.constant for value in values], len(values))
        return rows_alike(constant, numbered(column_of([v.terms for v in values])).number).number
    numbers: defaultdict[object, int] = defaultdict(count().__next__)
    if len(types) == 1 and types <= HASHED_QUICKLY:
        return integers(map(numbers.__getitem__, values), len(values))
    return integers([numbers[_key(value)] for value in values], len(values))


def _key(value: object) -> object:
    """Equal for values that are to have one number."""
    try:
        hash(value)
    except TypeError:
        return None, id(value)
    return type(value), value


def column_of(values: list[Any]) -> Array:
    """The objects as an array of them, also where they are tuples."""
    return np.fromiter(values, object, len(values))


def _identities(objects: Array) -> Array:
    """`id` of each object, which is the word that an array of objects holds for it."""
    if not objects.size:
        return np.zeros(0, np.int64)
    words = (ctypes.c_int64 * objects.size).from_address(objects.ctypes.data)
    return np.frombuffer(words, np.int64).copy()


def integers(values: Iterable[int], length: int) -> Array:
    """So many integers as a column; InternalError for one that does not fit in 64 bits."""
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
