"""Arithmetic on 64-bit integers held as two tensors of 32 bits."""

from __future__ import annotations

from typing import NamedTuple

from glia.base.dtype import S32, U32
from glia.graph.ir import Node
from glia.graph.rules.constructors import apply, bitcast, convert, counted_loop, select, splat_like


class Wide(NamedTuple):
    """A 64-bit integer: low and high word, both u32 of one shape."""

    low: Node
    high: Node


def wide_like(value: int, like: Node) -> Wide:
    """`value` modulo 2^64 in every element of the shape of `like`, a u32 tensor."""
    return Wide(splat_like(value & 0xFFFFFFFF, like), splat_like(value >> 32 & 0xFFFFFFFF, like))


def add_wide(a: Wide, b: Wide) -> Wide:
    """a + b modulo 2^64."""
    low = apply("add", a.low, b.low)
    carry = convert(apply("less", low, b.low), U32)
    return Wide(low, apply("add", apply("add", a.high, b.high), carry))


def subtract_wide(a: Wide, b: Wide) -> Wide:
    """a - b modulo 2^64."""
    borrow = convert(apply("less", a.low, b.low), U32)
    high = apply("subtract", apply("subtract", a.high, b.high), borrow)
    return Wide(apply("subtract", a.low, b.low), high)


def negate_wide(a: Wide) -> Wide:
    """-a modulo 2^64."""
    return subtract_wide(wide_like(0, a.low), a)


def full_product(a: Node, b: Node) -> Wide:
    """a * b of two u32 tensors, exact, from products of 16-bit halves."""
    half, mask = splat_like(16, a), splat_like(0xFFFF, a)
    a_low, a_high = apply("and", a, mask), apply("shift_right_logical", a, half)
    b_low, b_high = apply("and", b, mask), apply("shift_right_logical", b, half)
    low = apply("multiply", a_low, b_low)
    middle = apply("multiply", a_high, b_low)
    middle = apply("add", middle, apply("shift_right_logical", low, half))
    other = apply("multiply", a_low, b_high)
    other = apply("add", other, apply("and", middle, mask))
    high = apply("add", apply("multiply", a_high, b_high),
                 apply("shift_right_logical", middle, half))  # fmt: skip
    high = apply("add", high, apply("shift_right_logical", other, half))
    return Wide(apply("multiply", a, b), high)


def multiply_wide(a: Wide, b: Wide) -> Wide:
    """a * b modulo 2^64."""
    low = full_product(a.low, b.low)
    cross = apply("add", apply("multiply", a.low, b.high), apply("multiply", a.high, b.low))
    return Wide(low.low, apply("add", low.high, cross))


def select_wide(predicate: Node, a: Wide, b: Wide) -> Wide:
    """a where the predicate holds, else b."""
    return Wide(select(predicate, a.low, b.low), select(predicate, a.high, b.high))


def equal_wide(a: Wide, b: Wide) -> Node:
    """a == b."""
    return apply("and", apply("equal", a.low, b.low), apply("equal", a.high, b.high))


def less_wide(a: Wide, b: Wide, *, signed: bool) -> Node:
    """a < b, the high words compared with or without sign."""
    dtype = S32 if signed else U32
    above = apply("less", bitcast(a.high, dtype), bitcast(b.high, dtype))
    tie = apply("and", apply("equal", a.high, b.high), apply("less", a.low, b.low))
    return apply("or", above, tie)


def is_negative(a: Wide) -> Node:
    """Whether the top bit is set."""
    high = bitcast(a.high, S32)
    return apply("less", high, splat_like(0, high))


def shift_left_wide(a: Wide, amount: Node) -> Wide:
    """a << amount, for u32 amounts; 0 from 64 on."""
    across = apply("shift_right_logical", a.low, _amount_to_word(amount))
    beyond = apply("shift_left", a.low, _amount_past_word(amount))
    near = apply("or", apply("shift_left", a.high, amount), across)
    low = apply("shift_left", a.low, amount)
    return Wide(low, select(_exceeds_word(amount), beyond, near))


def shift_right_wide(a: Wide, amount: Node, *, arithmetic: bool) -> Wide:
    """a >> amount, for u32 amounts, filling with zeros or with the sign."""
    shift = "shift_right_arithmetic" if arithmetic else "shift_right_logical"
    high = bitcast(a.high, S32) if arithmetic else a.high
    steps = bitcast(amount, high.dtype)
    across = apply("shift_left", a.high, _amount_to_word(amount))
    near = apply("or", apply("shift_right_logical", a.low, amount), across)
    beyond = bitcast(apply(shift, high, bitcast(_amount_past_word(amount), high.dtype)), U32)
    return Wide(
        select(_exceeds_word(amount), beyond, near), bitcast(apply(shift, high, steps), U32)
    )


def _exceeds_word(amount: Node) -> Node:
    return apply("greater_equal", amount, splat_like(32, amount))


def _amount_past_word(amount: Node) -> Node:
    """amount - 32; wraps to a shift past the width where the amount is less."""
    return apply("subtract", amount, splat_like(32, amount))


def _amount_to_word(amount: Node) -> Node:
    """32 - amount, which is past the width for amount 0."""
    return apply("subtract", splat_like(32, amount), amount)


def divide_wide(a: Wide, b: Wide) -> tuple[Wide, Wide]:
    """Quotient and remainder of unsigned integers by long division; by zero all ones and a."""
    zero, one = wide_like(0, a.low), splat_like(1, a.low)

    def step(i: Node, *state: Node) -> tuple[Node, ...]:
        quotient, rest, digits = (Wide(*state[k : k + 2]) for k in (0, 2, 4))
        divisor = Wide(*state[6:8])
        top = apply("shift_right_logical", digits.high, splat_like(31, digits.high))
        overflow = is_negative(rest)
        rest = shift_left_wide(rest, one)
        rest = Wide(apply("or", rest.low, top), rest.high)
        fits = apply("or", overflow, apply("not", less_wide(rest, divisor, signed=False)))
        rest = select_wide(fits, subtract_wide(rest, divisor), rest)
        quotient = shift_left_wide(quotient, one)
        quotient = Wide(apply("or", quotient.low, convert(fits, U32)), quotient.high)
        return (*quotient, *rest, *shift_left_wide(digits, one), *divisor)

    state = counted_loop("divide", 64, (*zero, *zero, *a, *b), step)
    return Wide(*state[0:2]), Wide(*state[2:4])


def raise_wide(a: Wide, b: Wide) -> Wide:
    """a to the power b modulo 2^64, both unsigned."""

    def step(i: Node, *state: Node) -> tuple[Node, ...]:
        result, base, exponent = (Wide(*state[k : k + 2]) for k in (0, 2, 4))
        one = splat_like(1, exponent.low)
        odd = apply("equal", apply("and", exponent.low, one), one)
        result = select_wide(odd, multiply_wide(result, base), result)
        rest = shift_right_wide(exponent, one, arithmetic=False)
        return (*result, *multiply_wide(base, base), *rest)

    return Wide(*counted_loop("power", 64, (*wide_like(1, a.low), *a, *b), step)[0:2])


def leading_zeros_wide(a: Wide) -> Node:
    """The number of zero bits above the highest one bit, as u32."""
    empty = apply("equal", a.high, splat_like(0, a.high))
    low = apply("add", apply("count_leading_zeros", a.low), splat_like(32, a.low))
    return select(empty, low, apply("count_leading_zeros", a.high))
