"""Value numbering of columns: rows that hold equal integers or objects get equal numbers.

Numbers count from 0 in the order of first appearance. Two objects are equal here where they compare
equal and have the same type, or are the same object; 0.0 and -0.0 are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import numpy as np

from glia.base.affine import Affine
from glia.base.errors import InternalError
from glia.base.fast_objects import identities

Array = np.ndarray[Any, Any]

FAST_HASH_TYPES = {str, int, bool, float, tuple}
SMALL_COLUMN = 48  # rows below which a dictionary is faster than arrays
MAXIMUM_JOINED_RANGE = 1 << 24  # columns of wider range are renumbered before they are joined
# Odd, with bits all over: the whole parts of 2**64 times the fractions of square roots
FACTORS = np.array(
    [0x6A09E667F3BCC909, 0xBB67AE8584CAA73B, 0x3C6EF372FE94F82B, 0xA54FF53A5F1D36F1], np.uint64
)


@dataclass(frozen=True)
class DictionaryColumn:
    """A dictionary-encoded column of objects: row i holds `distinct[number[i]]`."""

    number: Array
    distinct: list[Any]

    def map(self, function: Callable[[Any], int]) -> Array:
        """The function of each row's object, evaluated once for each distinct object."""
        return np.array([function(value) for value in self.distinct], np.int64)[self.number]


@dataclass(frozen=True)
class RowGroups:
    """A partition of rows: row i is in group `number[i]`, whose first row is `first[number[i]]`."""

    number: Array
    first: Array


def group_column(column: Array) -> RowGroups:
    """Group rows that hold the same integer; groups are in the order of their first row.

    Every value looks up the first row of its slot in a table. Where values are far apart the slot
    is a multiplicative hash: rows whose slot holds another value are hashed again, with another
    factor, among themselves.
    """
    if column.size < SMALL_COLUMN or not column.size:
        return _group_small(column.tolist())
    low, high = int(column.min()), int(column.max())
    everything = np.arange(column.size)
    if low == high:
        return RowGroups(np.zeros(column.size, np.int64), everything[:1])
    if high - low <= 4 * column.size:
        leader = _first_at(column - low, everything, high - low + 1)
    else:
        leader = _leaders(column)
    first = np.flatnonzero(leader == everything)
    rank = np.zeros(column.size, np.int64)
    rank[first] = np.arange(first.size)
    return RowGroups(rank[leader], first)


def _group_small(values: Sequence[object]) -> RowGroups:
    numbers: dict[object, int] = {}
    number = [numbers.setdefault(value, len(numbers)) for value in values]
    first = [number.index(group) for group in range(len(numbers))]
    return RowGroups(np.array(number, np.int64), np.array(first, np.int64))


def _first_at(slots: Array, rows: Array, count: int) -> Array:
    """For each of `rows`, which ascend, the first row of its slot; slots are below `count`."""
    table = np.full(count, rows[-1])
    np.minimum.at(table, slots, rows)
    return cast("Array", table[slots])


def _leaders(column: Array) -> Array:
    """For each row the first that holds the same integer."""
    rows = np.arange(column.size)
    leader = _first_with_hash(column, rows, FACTORS[0])
    rows = rows[column[leader] != column]
    for factor in FACTORS[1:]:
        if not rows.size:
            return leader
        values = column[rows]
        leader[rows] = found = _first_with_hash(values, rows, factor)
        rows = rows[column[found] != values]
    _, first, inverse = np.unique(column[rows], return_index=True, return_inverse=True)
    leader[rows] = rows[first[inverse]]
    return leader


def _first_with_hash(values: Array, rows: Array, factor: int) -> Array:
    """For each of `rows`, the first of them whose value hashes to the same slot."""
    bits = int(2 * rows.size).bit_length()
    slots = (values.view(np.uint64) * factor >> np.uint64(64 - bits)).view(np.int64)
    return _first_at(slots, rows, 1 << bits)


def group_rows(*columns: Array) -> RowGroups:
    """Group rows that agree in every one of the columns of integers."""
    if columns[0].size < SMALL_COLUMN:
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        return _group_small(rows)
    key, extent = np.zeros(columns[0].size, np.int64), 1
    for column in columns:
        low, high = int(column.min(initial=0)), int(column.max(initial=0))
        if high - low >= MAXIMUM_JOINED_RANGE:
            column, low, high = group_column(column).number, 0, column.size
        if extent * (high - low + 1) >= 1 << 62:
            key, extent = group_column(key).number, key.size
        key = key * (high - low + 1) + (column - low)
        extent *= high - low + 1
    return group_column(key)


def dictionary_encode(objects: Array) -> DictionaryColumn:
    """Dictionary-encode an array of objects."""
    identical = group_column(identities(objects))
    objects_once = objects[identical.first].tolist()
    by_value = _number_by_value(objects_once)
    first = group_column(by_value).first.tolist()
    return DictionaryColumn(by_value[identical.number], [objects_once[row] for row in first])


def _number_by_value(values: list[Any]) -> Array:
    types = set(map(type, values))
    if types == {Affine}:  # whose own hash is slow
        constant = integer_column([value.constant for value in values], len(values))
        return group_rows(
            constant, dictionary_encode(object_column([v.terms for v in values])).number
        ).number
    numbers: defaultdict[object, int] = defaultdict(count().__next__)
    if len(types) == 1 and types <= FAST_HASH_TYPES:
        return integer_column(map(numbers.__getitem__, values), len(values))
    return integer_column([numbers[_equality_key(value)] for value in values], len(values))


def _equality_key(value: object) -> object:
    """A hashable key, equal for values that get one number."""
    try:
        hash(value)
    except TypeError:
        return None, id(value)
    return type(value), value


def object_column(values: list[Any]) -> Array:
    """The objects as a one-dimensional array, tuples included."""
    return np.fromiter(values, object, len(values))


def integer_column(values: Iterable[int], length: int) -> Array:
    """`length` integers as a column; InternalError for one that does not fit in 64 bits."""
    try:
        return np.fromiter(values, np.int64, length)
    except OverflowError as error:
        raise InternalError("an integer of an instruction does not fit in 64 bits") from error


def row_offsets(counts: Array) -> Array:
    """Offsets of consecutive groups of `counts` rows, and at the end the number of rows."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def ranks_within(counts: Array) -> Array:
    """The rank of every row in its group, 0, 1, ..., for consecutive groups of `counts` rows."""
    first = np.repeat(np.cumsum(counts) - counts, counts)
    return cast("Array", np.arange(first.size) - first)
