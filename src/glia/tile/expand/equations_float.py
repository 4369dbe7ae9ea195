"""What functions of floats mean in terms of those the engines have; every term is f32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from glia.base.dtype import BF16, F16, F32, S32, U32, DType
from glia.isa.activation import ACTIVATIONS
from glia.isa.alu import COMPARISONS
from glia.tile.expand.scalar_terms import Term, equation
from glia.tile.ir import Literal

WHOLE_FROM = 2.0**23  # every f32 of at least this magnitude is a whole number
SIGN_BIT = 0x80000000
LEAST_DIVISOR = 2.0**-100  # of which the reciprocal surely does not overflow
LEAST_RSQRT, MOST_RSQRT = ACTIVATIONS["rsqrt"].low, ACTIVATIONS["rsqrt"].high
LARGE_ANGLE = 1e5  # from here on multiples of pi are not taken off by parts
TURNS = (  # 1 / 2 pi in words of 32 bits, of which the first has weight 2^-24
    0x0028BE60, 0xDB939105, 0x4A7F09D5, 0xF47D4D37, 0x7036D8A5, 0x664F10E4,
)  # fmt: skip


def with_sign_of(magnitude: Term, x: Term) -> Term:
    """A non-negative number with the sign bit of x."""
    sign = x.bits(U32) & SIGN_BIT
    return (magnitude.bits(U32) | sign).bits(F32)


def is_negative(x: Term) -> Term:
    """Whether the sign bit is set, also of zeros."""
    return x.bits(S32) < 0


def nearest_magnitude(size: Term) -> Term:
    """A non-negative number rounded to the nearest whole one, ties to even."""
    return (size < WHOLE_FROM).where((size + WHOLE_FROM) - WHOLE_FROM, size)


def nearest_whole(x: Term) -> Term:
    """A number of at most 2^22 in magnitude rounded to the nearest whole one, ties to even."""
    return (x + 1.5 * WHOLE_FROM) - 1.5 * WHOLE_FROM


def truncate_magnitude(size: Term) -> Term:
    """The whole part of a non-negative number."""
    nearest = nearest_magnitude(size)
    return nearest - (nearest > size).to(F32)


@equation("round_nearest_even", "float")
def round_nearest_even(x: Term) -> Term:
    """Adding and subtracting 2^23 drops the fraction of |x|."""
    return with_sign_of(nearest_magnitude(abs(x)), x)


@equation("truncate", "float")
def truncate(x: Term) -> Term:
    """The whole part of |x| with the sign of x."""
    return with_sign_of(truncate_magnitude(abs(x)), x)


@equation("floor", "float")
def floor(x: Term) -> Term:
    """The nearest whole number, less one where that is above x."""
    nearest = round_nearest_even(x)
    return nearest - (nearest > x).to(F32)


@equation("ceil", "float")
def ceil(x: Term) -> Term:
    """-floor(-x)"""
    return -floor(-x)


@equation("round_nearest_away", "float")
def round_nearest_away(x: Term) -> Term:
    """The whole part of |x|, plus one where the fraction is at least a half."""
    size = abs(x)
    whole = truncate_magnitude(size)
    return with_sign_of(whole + (size - whole >= 0.5).to(F32), x)


@equation("divide", "float")
def divide(a: Term, b: Term) -> Term:
    """a * (1 / b): within 1.5 ulp, and one reciprocal for all elements that share b.

    A divisor whose reciprocal could overflow is lifted before and the quotient after. One that is
    different for each element, and surely in the range of the engines' table of 1 / sqrt(b), is
    divided by as that squared, within 4 ulp: in float32 a reciprocal takes as long as eight.
    """
    low, high = b.builder.bounds(b.expression)
    if b.builder.is_whole(b.expression) and low >= LEAST_RSQRT and high <= MOST_RSQRT:
        root = b.apply("rsqrt")
        return a * root.apply("square")
    if low >= LEAST_DIVISOR or high <= -LEAST_DIVISOR:
        inverse = b.apply("reciprocal")
        return inverse if a.expression == Literal(1.0, F32) else a * inverse
    lift = (abs(b) < LEAST_DIVISOR).to(F32) * (1 / LEAST_DIVISOR) + 1.0
    return (a * (b * lift).apply("reciprocal")) * lift


def divide_exactly(a: Term, b: Term) -> Term:
    """a / b rounded as one operation would: the rest a - q b, kept exactly, corrects q.

    Where whole numbers are taken of the quotient an error of one ulp would be an error of one.
    """
    inverse = b.apply("reciprocal")
    quotient = a * inverse
    product, error = exact_product(quotient, b)
    better = quotient + ((a - product) - error) * inverse
    return is_finite(better).where(better, quotient)


def exact_product(a: Term, b: Term) -> tuple[Term, Term]:
    """p and e with p + e = a * b exactly (Dekker)."""
    product = a * b
    a_high, a_low = split_significand(a)
    b_high, b_low = split_significand(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def split_significand(x: Term) -> tuple[Term, Term]:
    """x as a sum of a number of 12 significant bits and a rest."""
    high = (x.bits(U32) & 0xFFFFF000).bits(F32)
    return high, x - high


@equation("clamp", "float")
@equation("clamp", "integer")
@equation("clamp", "pred")
def clamp(low: Term, x: Term, high: Term) -> Term:
    """min(max(low, x), high)"""
    return low.apply("maximum", x).apply("minimum", high)


@equation("is_finite", "float")
def is_finite(x: Term) -> Term:
    """|x| is at most the greatest finite number; NaN is not."""
    return abs(x) <= float(np.finfo(np.float32).max)


@equation("exp2", "float")
def exp2(x: Term) -> Term:
    """2 to the x"""
    return x.of(2.0).apply("power", x)


@equation("log2", "float")
def log2(x: Term) -> Term:
    """log(x) / log(2)"""
    return x.apply("log") * (1 / math.log(2))


@equation("expm1", "float")
def expm1(x: Term) -> Term:
    """2 t / (1 - t) with t = tanh(x / 2) near 0, exp(x) - 1 elsewhere."""
    half = (x * 0.5).apply("tanh")
    near = (half * 2.0) / (1.0 - half)
    return (abs(x) < 0.5).where(near, x.apply("exp") - 1.0)


@equation("log1p", "float")
def log1p(x: Term) -> Term:
    """log(u) * x / (u - 1) with u = 1 + x near 0, which undoes the rounding of u."""
    above = x + 1.0
    logarithm = above.apply("log")
    near = logarithm * (x / (above - 1.0))
    near = above.equals(1.0).where(x, near)
    return (abs(x) < 0.5).where(near, logarithm)


def pi_parts() -> list[float]:
    """pi as a sum of short floats, whose products with small integers are exact."""
    parts, rest = [], math.pi
    for bits in (6, 14, 22, 30):
        part = round(rest * 2**bits) / 2**bits
        parts.append(part)
        rest -= part
    return [*parts, rest]


def sine_of_rest(x: Term, multiples: Term, sign: Term) -> Term:
    """sign * sin(x - pi * multiples), which must be in [-pi / 2, pi / 2].

    Beyond a quarter of a turn from zero the neighbours of an angle lie further apart than those of
    its sine.
    """
    angle = x
    for part in pi_parts():
        angle = angle - multiples * part
    limit = float(np.float32(math.pi / 2))
    inside = angle.apply("maximum", -limit).apply("minimum", limit)
    return x.builder.direct("sin", (inside * sign,), F32)


def reduced_angle(x: Term) -> Term:
    """x, or where it is large the angle in [-pi, pi] that differs from it by whole turns."""
    return (abs(x) < LARGE_ANGLE).where(x, angle_of_large(x))


def angle_of_large(x: Term) -> Term:
    """The angle of |x| >= 2^16, within 3e-7 (Payne and Hanek); NaN for what is not finite.

    x is m 2^e with a whole m, so that those bits of 1 / 2 pi above the one of weight 2^-e only
    give whole turns; the next 64, times m, give the part of a turn.
    """
    pattern = abs(x).bits(U32)
    mantissa = (pattern & 0x7FFFFF) | 0x800000
    exponent = ((pattern >> 23).bits(S32).apply("maximum", 142) - 142).bits(U32)
    words = [_word_of_turns(exponent >> 5, first) for first in range(3)]
    shift = exponent & 31
    rest = 31 - shift
    high, low = ((a << shift) | ((b >> 1) >> rest) for a, b in pairwise(words))
    carried = (low >> 8).to(F32) * mantissa.to(F32) * 2.0**-24
    turns = high.bits(S32) * mantissa.bits(S32) + carried.to(S32)
    angle = turns.to(F32) * (2 * math.pi / 2**32)
    return (x < 0.0).where(-angle, angle) + (x - x)


def _word_of_turns(index: Term, first: int) -> Term:
    """The word number `first` + `index` of TURNS, for an index of at most 3."""
    word = index.of(TURNS[first + 3])
    for number in (2, 1, 0):
        word = (index < number + 1).where(TURNS[first + number], word)
    return word


def alternating_sign(count: Term) -> Term:
    """1 for even whole numbers, -1 for odd ones."""
    half = count * 0.5
    odd = half - round_nearest_even(half)
    return 1.0 - (odd * odd) * 8.0


@equation("sin", "float")
def sin(x: Term) -> Term:
    """(-1)^k sin(x - k pi)"""
    x = reduced_angle(x)
    turns = round_nearest_even(x * (1 / math.pi))
    sine = sine_of_rest(x, turns, alternating_sign(turns))
    return x.equals(0.0).where(x, sine)


@equation("cos", "float")
def cos(x: Term) -> Term:
    """(-1)^(k + 1) sin(x - (k + 1/2) pi)"""
    x = reduced_angle(x)
    turns = round_nearest_even(x * (1 / math.pi) - 0.5)
    return sine_of_rest(x, turns + 0.5, -alternating_sign(turns))


@equation("tan", "float")
def tan(x: Term) -> Term:
    """sin / cos"""
    return sin(x) / cos(x)


@equation("cbrt", "float")
def cbrt(x: Term) -> Term:
    """|x| to the 1/3 and one step of Newton's iteration."""
    size = abs(x)
    guess = size.apply("power", 1 / 3)
    better = (guess * 2.0 + size / (guess * guess)) * (1 / 3)
    is_plain = (size > 0.0) & is_finite(x)
    return is_plain.where(with_sign_of(better, x), x)


_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)


def polynomial(x: Term, coefficients: Sequence[float]) -> Term:
    """Horner's rule, the highest power first."""
    total = x.of(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def atan_of_ratio(small: Term, large: Term) -> Term:
    """atan(small / large) for 0 <= small <= large (Cephes): around pi / 4 from tan(pi / 8) up."""
    is_steep = small > large * math.tan(math.pi / 8)
    ratio = is_steep.where(small - large, small) / is_steep.where(small + large, large)
    square = ratio * ratio
    near = polynomial(square, _ATAN) * square * ratio + ratio
    return is_steep.where(near + math.pi / 4, near)


@equation("atan", "float")
def atan(x: Term) -> Term:
    """atan(|x|) with the sign of x; above 1 it is pi / 2 - atan(1 / |x|)."""
    size = abs(x)
    above = size > 1.0
    angle = atan_of_ratio(above.where(size.apply("reciprocal"), size), x.of(1.0))
    return with_sign_of(above.where(math.pi / 2 - angle, angle), x)


@equation("atan2", "float")
def atan2(y: Term, x: Term) -> Term:
    """The angle in the first octant, mirrored into that of (x, y)."""
    across, along = abs(x), abs(y)
    small, large = across.apply("minimum", along), across.apply("maximum", along)
    is_diagonal = across.equals(along)
    small = is_diagonal.where((large > 0.0).to(F32), small)
    angle = atan_of_ratio(small, is_diagonal.where(1.0, large))
    angle = (along > across).where(math.pi / 2 - angle, angle)
    angle = is_negative(x).where(math.pi - angle, angle)
    return with_sign_of(angle, y)


@equation("asin", "float")
def asin(x: Term) -> Term:
    """atan2(x, sqrt((1 - x) (1 + x)))"""
    return atan2(x, ((1.0 - x) * (x + 1.0)).apply("sqrt"))


@equation("acos", "float")
def acos(x: Term) -> Term:
    """atan2(sqrt((1 - x) (1 + x)), x)"""
    return atan2(((1.0 - x) * (x + 1.0)).apply("sqrt"), x)


def exponential_halves(x: Term) -> tuple[Term, Term]:
    """exp(|x|) / 2 and exp(-|x|) / 2, without overflow before the result has it."""
    root = (abs(x) * 0.5).apply("exp")
    inverse = root.apply("reciprocal")
    return (root * 0.5) * root, (inverse * 0.5) * inverse


@equation("cosh", "float")
def cosh(x: Term) -> Term:
    """(exp(x) + exp(-x)) / 2"""
    grown, shrunk = exponential_halves(x)
    return grown + shrunk


@equation("sinh", "float")
def sinh(x: Term) -> Term:
    """(exp(x) - exp(-x)) / 2, and (e + e / (e + 1)) / 2 with e = expm1 near 0."""
    grown, shrunk = exponential_halves(x)
    small = expm1(abs(x))
    near = (small + small / (small + 1.0)) * 0.5
    return with_sign_of((abs(x) < 1.0).where(near, grown - shrunk), x)


@equation("asinh", "float")
def asinh(x: Term) -> Term:
    """log1p(|x| + x^2 / (1 + sqrt(x^2 + 1))), log(2 |x|) for large x."""
    size = abs(x)
    square = size * size
    near = log1p(size + square / ((square + 1.0).apply("sqrt") + 1.0))
    far = size.apply("log") + math.log(2)
    return with_sign_of((size < 1e9).where(near, far), x)


@equation("acosh", "float")
def acosh(x: Term) -> Term:
    """log1p(d + sqrt(d) sqrt(d + 2)) with d = x - 1, log(2 x) for large x."""
    above = x - 1.0
    near = log1p(above + above.apply("sqrt") * (above + 2.0).apply("sqrt"))
    return (x < 1e9).where(near, x.apply("log") + math.log(2))


@equation("atanh", "float")
def atanh(x: Term) -> Term:
    """log1p(2 |x| / (1 - |x|)) / 2 with the sign of x."""
    size = abs(x)
    return with_sign_of(log1p((size * 2.0) / (1.0 - size)) * 0.5, x)


@equation("negate", "float")
def negate(x: Term) -> Term:
    """-1 x, which also turns the signs of zeros"""
    return x * -1.0


@equation("copy", "float")
@equation("copy", "integer")
@equation("copy", "pred")
def copy(x: Term) -> Term:
    """x"""
    return x


def ordered_bits(x: Term) -> Term:
    """Integers in XLA's total order: -NaN < -inf < ... < -0 < +0 < ... < NaN."""
    bits = x.bits(S32)
    return (bits < 0).where(bits ^ 0x7FFFFFFF, bits)


def _declare_total_order() -> None:
    for name in COMPARISONS:

        def compare(a: Term, b: Term, name: str = name) -> Term:
            return ordered_bits(a).apply(name, ordered_bits(b))

        def compare_directly(a: Term, b: Term, name: str = name) -> Term:
            return a.apply(name, b)

        equation(f"{name}_total_order", "float")(compare)
        equation(f"{name}_total_order", "integer")(compare_directly)
        equation(f"{name}_total_order", "pred")(compare_directly)


_declare_total_order()

_LEAST_NORMAL_F16 = 2.0**-14
_FORMATS = {"f32": (8, 23), "bf16": (8, 7), "f16": (5, 10)}


@equation("reduce_precision", "float")
def reduce_precision(x: Term, exponent: Term, mantissa: Term, dtype: DType) -> Term:
    """Round the mantissa's bits; magnitudes out of the exponent's range become inf or 0."""
    assert isinstance(exponent.expression, Literal) and isinstance(mantissa.expression, Literal)
    keeps_exponent, keeps_mantissa = _FORMATS.get(dtype.name, (8, 23))
    exponent_bits, mantissa_bits = int(exponent.expression.value), int(mantissa.expression.value)
    wide = x.widened()
    rounded = wide
    if mantissa_bits < keeps_mantissa:
        rounded = round_mantissa(wide, mantissa_bits)
        if dtype is F16:
            rounded = (abs(wide) < _LEAST_NORMAL_F16).where(
                round_subnormal_f16(wide, mantissa_bits), rounded
            )
    if exponent_bits < keeps_exponent:
        rounded = limit_exponent(rounded, exponent_bits)
    is_nan = wide.apply("not_equal", wide)
    return is_nan.where(wide, rounded).to(dtype) if rounded is not wide else x


def round_mantissa(x: Term, bits: int) -> Term:
    """x rounded to a mantissa of `bits` bits, ties to even."""
    if bits == 7:
        return x.builder.direct("convert", (x.to(BF16),), F32)
    dropped = 23 - bits
    pattern = x.bits(U32)
    last = (pattern >> dropped) & 1
    half = last + ((1 << (dropped - 1)) - 1)
    return ((pattern + half) & (0xFFFFFFFF & ~((1 << dropped) - 1))).bits(F32)


def round_subnormal_f16(x: Term, bits: int) -> Term:
    """x, a subnormal float16, rounded to a mantissa of `bits` bits, ties to even.

    Adding and subtracting a float32 whose last place is that of the format drops what lies below.
    """
    scale = _LEAST_NORMAL_F16 * 2.0 ** (23 - bits)
    return with_sign_of((abs(x) + scale) - scale, x)


def limit_exponent(x: Term, bits: int) -> Term:
    """x, or a signed infinity or zero where its exponent does not fit `bits` bits."""
    reach = (1 << (bits - 1)) - 1
    size = abs(x)
    size = (size >= 2.0 ** (reach + 1)).where(math.inf, size)
    size = (size < 2.0 ** (1 - reach)).where(0.0, size)
    return with_sign_of(size, x)
