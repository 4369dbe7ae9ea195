"""The first elements of sorted rows, found without sorting the rows.

Keys of 32 bits become two floats, of the high 24 bits and of the low 8, which engines compare
exactly. The places of the greatest high parts come first; where the last of them is equal to
others, their low parts decide. Long rows are cut into short groups: the first k elements are in
those k groups whose greatest elements come first, so only these are searched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glia.base.dtype import F32, S32
from glia.graph.ir import Graph, Node
from glia.graph.ops import Get, Slice, Sort
from glia.graph.rules.constructors import (
    apply,
    broadcast_missing,
    concatenate,
    constant,
    convert,
    iota,
    move_back,
    move_last,
    pad,
    pick,
    places,
    reduce,
    reshape,
    select,
    slice_along,
    splat,
    splat_like,
)
from glia.graph.rules.driver import apply_rules, rule, rules_of
from glia.graph.rules.extremes import counts_up
from glia.graph.rules.sort_keys import key_dtype, key_of_sort
from glia.options import CompileOptions

LOW_BITS = 8  # of a key, so that the others are exact in float32
BELOW_HIGH, BELOW_LOW = -(2.0**25), -1.0  # below every part of a key
MOST_SEARCHED = 4096  # elements of a row
EIGHT = 8  # elements that an engine finds at a time, in two passes over a row
ROWS = 128  # that are searched at once
ISSUE = 64  # elements in whose time an instruction begins and ends
STEP = 8  # instructions of one step of a sorting network
AROUND = 40  # passes over a row for its keys, and what is picked from it


def expand_top_k(graph: Graph, options: CompileOptions) -> Graph:
    """The graph with the first elements of sorted rows found by a search, where that is faster."""
    return apply_rules(graph, RULES)


@rule
def search_for_first(op: Slice) -> Node | None:
    """slice(sort(xs), :k) = xs at the places of the first k"""
    sort = op.x.x if isinstance(op.x, Get) else op.x
    if not isinstance(sort, Sort) or not _is_beginning(op, sort.dimension):
        return None
    dimension, count = sort.dimension, op.shape[sort.dimension]
    rows = [move_last(x, dimension) for x in sort.xs]
    wide = key_dtype(sort)
    if wide is None or not is_faster(rows[0].shape, count, 1 if wide.bits <= 16 else 2):
        return None
    key = key_of_sort(sort, rows)
    if key is None:
        return None
    shape = rows[0].shape
    flat = (math.prod(shape[:-1]), shape[-1])
    found = _search(_parts(reshape(key, flat), wide.bits, wide.is_float), max(2, count))
    found = slice_along(found, -1, 0, count)
    row = rows[op.x.index if isinstance(op.x, Get) else 0]
    taken = convert(found, row.dtype) if counts_up(row, len(shape) - 1) else None
    taken = taken or pick(reshape(row, flat), found)
    return move_back(reshape(taken, (*shape[:-1], count)), dimension)


def _is_beginning(op: Slice, dimension: int) -> bool:
    """Whether a slice takes the first of one dimension, and all of the others."""
    whole = all(
        (first, last) == (0, extent)
        for d, (first, last, extent) in enumerate(zip(op.start, op.limit, op.x.shape, strict=True))
        if d != dimension
    )
    is_plain = op.start[dimension] == 0 and set(op.stride) == {1}
    return whole and is_plain and 0 < op.limit[dimension] < op.x.shape[dimension]


def is_faster(shape: Sequence[int], count: int, parts: int) -> bool:
    """Whether a search takes less than a network that sorts rows, by elements of a partition."""
    extent, rows = shape[-1], math.prod(shape[:-1])
    group = group_length(extent, count)
    searched = count * group if group > 1 else extent
    if searched > MOST_SEARCHED or not rows:
        return False
    tiles, steps = -(-rows // ROWS), math.log2(extent) * (math.log2(extent) + 1) / 2
    network = STEP * steps * (tiles * extent + ISSUE)
    passes = 2 * parts * -(-count // EIGHT) * (2 if group > 1 else 1)
    return tiles * (passes * (searched + ISSUE) + AROUND * (extent + ISSUE)) < network


def group_length(extent: int, count: int) -> int:
    """The length of the groups of a row for which the fewest elements are searched."""
    lengths = [1 << power for power in range(extent.bit_length()) if extent >> power >= count]
    return min(lengths or [1], key=lambda n: extent if n == 1 else extent // n + count * n)


@dataclass(frozen=True)
class KeyParts:
    """Keys as floats, greatest first: the high parts, and the low ones where those do not do."""

    high: Node
    low: Node | None

    @property
    def extent(self) -> int:
        return self.high.shape[-1]

    def at(self, found: Node) -> KeyParts:
        """The parts at places of each row."""
        return KeyParts(pick(self.high, found), self.low and pick(self.low, found))


def _parts(key: Node, bits: int, is_float: bool) -> KeyParts:
    """The parts of ascending keys, whose values had so many bits; the least keys are greatest."""
    word = apply("not", key)
    if bits <= 16 and not is_float:
        return KeyParts(convert(word, F32), None)
    shift, mask = splat_like(LOW_BITS, word), splat_like((1 << LOW_BITS) - 1, word)
    high = convert(apply("shift_right_arithmetic", word, shift), F32)
    return KeyParts(high, None if bits <= 16 else convert(apply("and", word, mask), F32))


def _search(keys: KeyParts, count: int) -> Node:
    """The places of the first keys of each row, in order."""
    length = group_length(keys.extent, count)
    if length == 1:
        return _search_all(keys, count)
    missing = -keys.extent % length
    padded = KeyParts(
        _pad_row(keys.high, BELOW_HIGH, missing),
        keys.low and _pad_row(keys.low, BELOW_LOW, missing),
    )
    groups = _search(_first_of_groups(padded, length), count)
    groups = pick(groups, places(apply("negate", convert(groups, F32)), count))  # ascending
    rows = groups.shape[0]
    shape = (rows, count, length)
    begin = broadcast_missing(apply("multiply", groups, splat_like(length, groups)), shape, [2])
    inside = reshape(apply("add", begin, iota(S32, shape, 2)), (rows, count * length))
    found = pick(inside, _search_all(padded.at(inside), count))
    return apply("minimum", found, splat_like(keys.extent - 1, found)) if missing else found


def _pad_row(x: Node, fill: float, missing: int) -> Node:
    return pad(x, constant(fill, F32), (0, 0), (0, missing))


def _first_of_groups(keys: KeyParts, length: int) -> KeyParts:
    """The first key of each group of neighbours."""
    shape = (keys.high.shape[0], keys.extent // length, length)
    high = reshape(keys.high, shape)
    greatest = reduce("maximum", high, BELOW_HIGH, [2])
    if keys.low is None:
        return KeyParts(greatest, None)
    is_among = apply("equal", high, broadcast_missing(greatest, shape, [2]))
    low = select(is_among, reshape(keys.low, shape), splat(BELOW_LOW, F32, shape))
    return KeyParts(greatest, reduce("maximum", low, BELOW_LOW, [2]))


def _search_all(keys: KeyParts, count: int) -> Node:
    """The places of the first keys of each row, in order, by a search of whole rows.

    Those above the last high part are among the first ones found. The low parts of those equal to
    it say which of them follow.
    """
    first = places(keys.high, count)
    if keys.low is None:
        return first
    high = pick(keys.high, first)
    last = slice_along(high, -1, count - 1, count)
    is_tied = apply("equal", keys.high, _along_row(last, keys.extent))
    tied = places(select(is_tied, keys.low, splat_like(BELOW_LOW, keys.low)), count)
    by_low = places(pick(keys.low, first), count)
    high = pick(high, by_low)
    last = _along_row(last, count)
    above = select(apply("greater", high, last), high, splat_like(BELOW_HIGH, high))
    candidates = concatenate([pick(first, by_low), tied], -1)
    return pick(candidates, places(concatenate([above, last], -1), count))


def _along_row(column: Node, extent: int) -> Node:
    """A column in every place of a row."""
    rows = column.shape[0]
    return broadcast_missing(reshape(column, (rows,)), (rows, extent), [1])


RULES = rules_of(globals())
