"""Keys of 32 bits whose order as integers is the order that a sort wants.

Integers are compared by one instruction, and a network of minima and maxima needs no comparison.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glia.base.dtype import F32, S32, U32, DType, Kind
from glia.graph.ir import Node, Parameter
from glia.graph.ops import Constant, Map, Sort
from glia.graph.ops.sort_order import SortKey, sort_key
from glia.graph.rules.constructors import apply, bitcast, convert, iota, select, splat_like
from glia.graph.rules.inline_regions import inline_scalar_graph

SIGN = 0x80000000
MAGNITUDE = 0x7FFFFFFF
INFINITY = 0x7F800000  # as bits of float32
QUIET_NAN = 0x7FC00000
MOST_POSITIONS = 2**22  # twice as many keys have room above those of infinities


def key_of_sort(op: Sort, rows: Sequence[Node]) -> Node | None:
    """Integers that order as the rows are to be; None for a comparator of anything but one key.

    Equal keys are in the order of their positions.
    """
    found = sort_key(op.comparator)
    if found is None:
        return None
    sides = [row for row in rows for _ in range(2)]
    (key,) = inline_scalar_graph(found.function, sides)
    if key.dtype.is_float and key.dtype.bits <= 32:
        word = _total_order(convert(key, F32))
        word = word if found.in_total_order else _with_one_zero(word)
    elif key.dtype.is_integer and key.dtype.bits <= 32:
        word = _signed(key)
    else:
        return None
    return _directed(word, found)


def key_dtype(op: Sort) -> DType | None:
    """The dtype of what a comparator orders by; None unless that is one key."""
    found = sort_key(op.comparator)
    return found.function.results[0].dtype if found else None


def _signed(key: Node) -> Node:
    """An integer as one of 32 bits with sign, in the same order."""
    if key.dtype is not U32:
        return convert(key, S32)
    return bitcast(apply("xor", key, splat_like(SIGN, key)), S32)


def _total_order(x: Node) -> Node:
    """-NaN < -inf < ... < -0 < +0 < ... < inf < NaN"""
    bits = bitcast(x, S32)
    negative = apply("less", bits, splat_like(0, bits))
    return select(negative, apply("xor", bits, splat_like(MAGNITUDE, bits)), bits)


def _with_one_zero(word: Node) -> Node:
    """The key of +0 in place of that of -0, which is equal to it."""
    is_zero = apply("equal", word, splat_like(-1, word))
    return select(is_zero, splat_like(0, word), word)


def _directed(word: Node, key: SortKey) -> Node:
    return apply("not", word) if key.descending else word


# --- sorts of one tensor --------------------------------------------------------------------------


@dataclass(frozen=True)
class ReversibleKey:
    """Keys of which no two are equal unless their values have the same bits, and the way back."""

    order: SortKey
    dtype: DType
    zeros: int  # keys of zeros, by position and sign; 0 where -0 comes before +0

    def value(self, key: Node) -> Node:
        """The values whose keys these are."""
        word = _directed(key, self.order)
        if self.zeros:
            return convert(bitcast(self._bits(word), F32), self.dtype)
        negative = apply("less", word, splat_like(0, word))
        bits = select(negative, apply("xor", word, splat_like(MAGNITUDE, word)), word)
        return convert(bitcast(bits, F32), self.dtype)

    def _bits(self, word: Node) -> Node:
        positive = bitcast(apply("subtract", word, splat_like(self.zeros, word)), U32)
        nan = splat_like(INFINITY + 1, positive)
        positive = select(apply("equal", positive, nan), splat_like(QUIET_NAN, nan), positive)
        magnitude = bitcast(apply("negate", word), U32)
        negative = apply("or", magnitude, splat_like(SIGN, magnitude))
        zero = apply("shift_left", bitcast(word, U32), splat_like(31, magnitude))
        is_below = apply("less", word, splat_like(self.zeros, word))
        bits = select(is_below, zero, positive)
        return select(apply("less", word, splat_like(0, word)), negative, bits)


def reversible_key(op: Sort, row: Node) -> tuple[Node, ReversibleKey] | None:
    """The keys of a row of floats that is sorted alone; None where values cannot be found again.

    Where a comparator takes zeros of both signs for equal, and all NaNs, zeros have keys of their
    own by position, between those of negative and of positive numbers; a NaN becomes the plain one.
    """
    found = sort_key(op.comparator)
    if found is None or not found.in_total_order or not _is_float(row.dtype):
        return None
    (left,) = found.function.results
    x = convert(row, F32)
    if isinstance(left, Parameter):
        key = ReversibleKey(found, row.dtype, 0)
        return _directed(_total_order(x), found), key
    extent = row.shape[-1]
    if not _is_canonical(left) or extent > MOST_POSITIONS:
        return None
    key = ReversibleKey(found, row.dtype, 2 * extent)
    return _directed(_with_zeros_in_order(x, found.descending), found), key


def _is_float(dtype: DType) -> bool:
    return dtype.kind is Kind.FLOAT and dtype.bits <= 32


def _with_zeros_in_order(x: Node, descending: bool) -> Node:
    extent = x.shape[-1]
    bits = bitcast(x, S32)
    magnitude = apply("and", bits, splat_like(MAGNITUDE, bits))
    negative = apply("less", bits, splat_like(0, bits))
    shifted = apply("add", bits, splat_like(2 * extent, bits))
    word = select(negative, apply("negate", magnitude), shifted)
    position = iota(S32, x.shape, -1)
    if descending:
        position = apply("subtract", splat_like(extent - 1, position), position)
    sign = select(negative, splat_like(1, bits), splat_like(0, bits))
    zero = apply("add", apply("add", position, position), sign)
    word = select(apply("equal", magnitude, splat_like(0, bits)), zero, word)
    is_nan = apply("greater", magnitude, splat_like(INFINITY, bits))
    return select(is_nan, splat_like(INFINITY + 1 + 2 * extent, bits), word)


def _is_canonical(key: Node) -> bool:
    """Whether a key is its parameter, but that zeros of both signs are one key, and all NaNs."""
    steps = set()
    while isinstance(key, Map) and key.function == "select":
        condition, when_true, key = key.args
        step = _canonical_step(condition, when_true)
        if step is None or step[0] is not _parameter(key):
            return False
        steps.add(step[1])
    return isinstance(key, Parameter) and steps == {"zero", "nan"}


def _parameter(node: Node) -> Node:
    """The parameter that a chain of selections ends with."""
    while isinstance(node, Map) and node.function == "select":
        node = node.args[2]
    return node


def _canonical_step(condition: Node, value: Node) -> tuple[Node, str] | None:
    """The parameter, and which of its values a selection makes one."""
    if not isinstance(condition, Map) or not isinstance(value, Constant) or value.shape:
        return None
    number = float(value.compute())
    match condition:
        case Map("not_equal", (x, y)) if x is y and number != number:
            return x, "nan"
        case Map("equal", (x, Constant() as other)) if not number and not float(other.compute()):
            return x, "zero"
    return None
