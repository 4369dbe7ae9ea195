"""What functions of integers and preds mean in terms of those the engines have."""

from __future__ import annotations

from glia.base.dtype import F32, S32, U32, DType, Kind
from glia.tile.expand.scalar_terms import Term, equation
from glia.tile.ir import Literal

BELOW_ONE = 1 - 2.0**-21  # scales an estimated quotient so that it is never too great


@equation("convert", "integer")
def convert(x: Term, dtype: DType) -> Term:
    """Wrap to the narrower width before converting, because engines saturate."""
    wide = x.bits(S32) if x.dtype is U32 else x
    if dtype.bits == 32:
        widened = x if x.dtype.bits == 32 else x.builder.direct("convert", (x,), S32)
        return widened.bits(dtype)
    fits = x.dtype.bits < dtype.bits and (
        x.dtype.kind is Kind.UNSIGNED or dtype.kind is Kind.SIGNED
    )
    if fits:
        return x.builder.direct("convert", (x,), dtype)
    if wide.dtype.bits < 32:
        wide = x.builder.direct("convert", (x,), S32)
    spare = 32 - dtype.bits
    is_signed = dtype.kind is Kind.SIGNED
    wrapped = (wide << spare) >> spare if is_signed else wide & ((1 << dtype.bits) - 1)
    return x.builder.direct("convert", (wrapped,), dtype)


@equation("add", "integer")
def add(a: Term, b: Term) -> Term:
    """a + b, in 32 bits for narrower integers"""
    return a + b


@equation("subtract", "integer")
def subtract(a: Term, b: Term) -> Term:
    """a - b, in 32 bits for narrower integers"""
    return a - b


@equation("multiply", "integer")
def multiply(a: Term, b: Term) -> Term:
    """a * b, in 32 bits for narrower integers"""
    return a * b


@equation("negate", "integer")
def negate(x: Term) -> Term:
    """0 - x"""
    return x.of(0) - x


@equation("abs", "integer")
def absolute(x: Term) -> Term:
    """max(x, 0 - x)"""
    return x if x.dtype is U32 else x.apply("maximum", x.of(0) - x)


@equation("square", "integer")
def square(x: Term) -> Term:
    """x * x"""
    return x * x


@equation("sign", "integer")
def sign(x: Term) -> Term:
    """(x > 0) - (x < 0)"""
    above = (x > 0).to(x.dtype)
    return above if x.dtype is U32 else above - (x < 0).to(x.dtype)


@equation("divide", "integer")
def divide(a: Term, b: Term) -> Term:
    """The quotient of the magnitudes with the sign of a * b; -1 where b is 0."""
    if a.dtype is U32:
        return b.equals(0).where(~a.of(0), divide_with_remainder(a, b)[0])
    shift = power_of_two(b)
    if shift is not None:
        return shift_towards_zero(a, shift)
    size = divide_with_remainder(magnitude(a), magnitude(b))[0].bits(S32)
    signed = ((a ^ b) < 0).where(-size, size)
    return b.equals(0).where(-1, signed)


@equation("remainder", "integer")
def remainder(a: Term, b: Term) -> Term:
    """The rest of the magnitudes with the sign of a; a where b is 0."""
    if a.dtype is U32:
        return b.equals(0).where(a, divide_with_remainder(a, b)[1])
    shift = power_of_two(b)
    if shift is not None:
        return a - (shift_towards_zero(a, shift) << shift)
    size = divide_with_remainder(magnitude(a), magnitude(b))[1].bits(S32)
    return b.equals(0).where(a, (a < 0).where(-size, size))


def magnitude(x: Term) -> Term:
    """|x| as an unsigned number."""
    return abs(x).bits(U32)


def power_of_two(x: Term) -> int | None:
    """s where x is the constant 2^s."""
    if not isinstance(x.expression, Literal):
        return None
    value = int(x.expression.value)
    return value.bit_length() - 1 if value > 0 and value & (value - 1) == 0 else None


def shift_towards_zero(x: Term, shift: int) -> Term:
    """x / 2^shift, negative numbers rounded up."""
    return (x + ((x >> 31) & ((1 << shift) - 1))) >> shift


def divide_with_remainder(a: Term, b: Term) -> tuple[Term, Term]:
    """a // b and a % b of u32, b not 0.

    Two estimates in f32, each at most the true quotient, leave a rest below 3 b.
    """
    shift = power_of_two(b)
    if shift is not None:
        return a >> shift, a & ((1 << shift) - 1)
    inverse = b.to(F32).apply("reciprocal") * BELOW_ONE
    quotient = a.of(0)
    rest = a
    for _ in range(2):
        step = (rest.to(F32) * inverse - 0.5).apply("maximum", 0.0)
        whole = step.builder.direct("convert", (step,), U32)
        quotient, rest = quotient + whole, rest - whole * b
    for _ in range(2):
        again = rest >= b
        quotient, rest = quotient + again.to(U32), again.where(rest - b, rest)
    return quotient, rest


@equation("power", "integer")
def power(a: Term, b: Term) -> Term:
    """Square and multiply over the bits of b; negative powers are 0 but for bases 1 and -1."""
    result, base = a.of(1), a
    count = 32
    if isinstance(b.expression, Literal):
        count = max(0, int(b.expression.value)).bit_length()
    for bit in range(count):
        is_set = ((b >> bit) & 1).equals(1)
        result = is_set.where(result * base, result)
        if bit + 1 < count:
            base = base * base
    if a.dtype is U32:
        return result
    by_parity = (b & 1).equals(1).where(a, 1)
    inverse = a.equals(-1).where(by_parity, a.equals(1).where(a, 0))
    return (b < 0).where(inverse, result)


def zero_extended(x: Term) -> Term:
    """The bits of x as a u32."""
    if x.dtype.bits == 32:
        return x.bits(U32)
    mask = (1 << x.dtype.bits) - 1
    return (x.to(S32) & mask).bits(U32)


def ones(bits: Term) -> Term:
    """How many bits of a u32 are set: add neighbours, then pairs, nibbles and bytes."""
    bits = bits - ((bits >> 1) & 0x55555555)
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    return (bits * 0x01010101) >> 24


@equation("popcount", "integer", any_width=True)
def popcount(x: Term) -> Term:
    """The set bits of x's own width."""
    return ones(zero_extended(x)).to(x.dtype)


@equation("count_leading_zeros", "integer", any_width=True)
def count_leading_zeros(x: Term) -> Term:
    """The width less the ones after copying the highest one to every lower bit."""
    bits = zero_extended(x)
    for distance in (1, 2, 4, 8, 16):
        bits = bits | (bits >> distance)
    return (x.dtype.bits - ones(bits)).to(x.dtype)


@equation("not", "pred")
def negation(x: Term) -> Term:
    """x xor true"""
    return x ^ 1


@equation("add", "pred")
@equation("maximum", "pred")
def logical_or(a: Term, b: Term) -> Term:
    """a or b"""
    return a | b


@equation("multiply", "pred")
@equation("minimum", "pred")
def logical_and(a: Term, b: Term) -> Term:
    """a and b"""
    return a & b


@equation("power", "pred")
def power_of_preds(a: Term, b: Term) -> Term:
    """a or not b"""
    return a | ~b


@equation("not_equal", "pred")
def not_equal(a: Term, b: Term) -> Term:
    """a xor b"""
    return a ^ b


@equation("equal", "pred")
def equal(a: Term, b: Term) -> Term:
    """not (a xor b)"""
    return ~(a ^ b)


@equation("less", "pred")
def less(a: Term, b: Term) -> Term:
    """not a, and b"""
    return ~a & b


@equation("less_equal", "pred")
def less_equal(a: Term, b: Term) -> Term:
    """not a, or b"""
    return ~a | b


@equation("greater", "pred")
def greater(a: Term, b: Term) -> Term:
    """a, and not b"""
    return a & ~b


@equation("greater_equal", "pred")
def greater_equal(a: Term, b: Term) -> Term:
    """a, or not b"""
    return a | ~b
