"""Exact contractions of 64-bit integers: sums of products of narrow digits, which the PE has.

An operand is a sum of digits in base 2^b, held as bf16. A contraction of two digits adds up whole
numbers in float32, which is exact while the sum stays below 2^24; b follows from how many products
are summed. Digits whose product is a multiple of 2^64 do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from glia.base.dtype import BF16, F32, PRED, S32, U32
from glia.graph.expand.word_pairs import Wide, add_wide, shift_left_wide, shift_right_wide
from glia.graph.ir import Node
from glia.graph.ops import Convert, Convolution, Dot, with_factors
from glia.graph.rules.constructors import apply, bitcast, convert, splat_like

_EXACT_BITS = 24  # of the sums of whole numbers in float32
_MOST_DIGIT_BITS = 8  # of a bf16 significand


def contract_wide(node: Dot | Convolution, left: Wide, right: Wide) -> Wide:
    """The contraction modulo 2^64 of operands given as words."""
    products = _products_per_element(node)
    bits = min(_MOST_DIGIT_BITS, (_EXACT_BITS - (products - 1).bit_length()) // 2)
    first, second = node.operands
    a = _digits(left, bits, _significant_bits(first))
    b = _digits(right, bits, _significant_bits(second))
    total: Wide | None = None
    for place in range(min(len(a) + len(b) - 1, -(-64 // bits))):
        part = _digit_of_result(node, a, b, place)
        moved = shift_left_wide(part, splat_like(place * bits, part.low))
        total = moved if total is None else add_wide(total, moved)
    assert total is not None
    return total


def _products_per_element(node: Dot | Convolution) -> int:
    """How many products an element of the result is the sum of; at least one."""
    if isinstance(node, Dot):
        return max(1, math.prod(node.a.shape[d] for d in node.a_contract))
    return max(1, math.prod(node.kernel.shape[1:]))


def _significant_bits(x: Node) -> int:
    """The bits that determine x, of which the last is the sign if x is signed."""
    dtype = x.x.dtype if isinstance(x, Convert) else x.dtype
    return dtype.bits if dtype.is_integer or dtype is PRED else 64


def _digits(x: Wide, bits: int, significant: int) -> list[Node]:
    """The digits of x in base 2^bits, lowest first; the last one has the sign of a shorter x."""
    count = -(-significant // bits)
    mask = splat_like((1 << bits) - 1, x.low)
    found: list[Node] = []
    for place in range(count):
        moved = shift_right_wide(x, splat_like(place * bits, x.low), arithmetic=True).low
        if place == count - 1 and significant < 64:
            found.append(convert(bitcast(moved, S32), BF16))
        else:
            found.append(convert(apply("and", moved, mask), BF16))
    return found


def _digit_of_result(
    node: Dot | Convolution, a: Sequence[Node], b: Sequence[Node], place: int
) -> Wide:
    """The sum of the contractions of all digits whose places add up to `place`."""
    total: Node | None = None
    for i in range(max(0, place - len(b) + 1), min(place + 1, len(a))):
        part = convert(with_factors(node, a[i], b[place - i], F32), S32)
        total = part if total is None else apply("add", total, part)
    assert total is not None
    sign = apply("shift_right_arithmetic", total, splat_like(31, total))
    return Wide(bitcast(total, U32), bitcast(sign, U32))
