"""The remainder of floats in terms of what the engines have: exact, however large the quotient."""

from __future__ import annotations

import math

from glia.base.dtype import F32, S32, U32
from glia.tile.expand.equations_float import (
    SIGN_BIT,
    exact_product,
    nearest_whole,
    with_sign_of,
)
from glia.tile.expand.scalar_terms import Term, equation

LEAST_MAGNITUDE, MOST_MAGNITUDE = 2.0**-149, 2.0**128
BITS_PER_ROUND = 20  # quotients of a round are exact to half a unit, so that |rest| <= divisor < 2
SMALL, LIFT = 2.0**-100, 64  # divisors and dividends below it are multiplied by 2^64
FRACTION_BITS = 23
FRACTION = 2**FRACTION_BITS - 1
EXPONENT_OF_ONE = 127


@equation("remainder", "float")
def remainder(a: Term, b: Term) -> Term:
    """|a| less whole multiples of |b|, exactly, with the sign of a.

    With significands m and n and d = exponent of a - exponent of b, it is (m 2^d mod n) in units of
    b's exponent. m is multiplied by at most 2^20 at a time and reduced; nothing overflows. How many
    rounds there are follows from the greatest d that the bounds of both operands allow.
    """
    dividend, divisor = _Parts(abs(a)), _Parts(abs(b))
    inverse = divisor.significand.apply("reciprocal")
    apart = dividend.exponent - divisor.exponent
    rest = dividend.significand
    for done in range(0, _greatest_difference(a, b) + 1, BITS_PER_ROUND):
        shift = (apart - float(done)).apply("maximum", apart.of(0.0))
        rest = rest * _power_of_two(shift.apply("minimum", apart.of(float(BITS_PER_ROUND))))
        product, error = exact_product(nearest_whole(rest * inverse), divisor.significand)
        rest = (rest - product) - error
    rest = (rest < 0.0).where(rest + divisor.significand, rest)
    rest = rest * divisor.unit * divisor.unlift
    rest = (abs(a) < abs(b)).where(abs(a), rest)
    return with_sign_of(rest + _invalid(a, divisor), a)


class _Parts:
    """A positive number as significand * unit * unlift; both are powers of two.

    `significand` is in [1, 2), `exponent` the logarithm of unit * unlift.
    """

    def __init__(self, size: Term) -> None:
        small = size < SMALL
        is_small = small.to(F32)
        self.lifted = size * (is_small * (2.0**LIFT - 1.0) + 1.0)
        bits = self.lifted.bits(U32)
        self.significand = ((bits & FRACTION) | (EXPONENT_OF_ONE << FRACTION_BITS)).bits(F32)
        self.unit = (bits & (SIGN_BIT - 1 - FRACTION)).bits(F32)
        self.unlift = small.where(size.of(2.0**-LIFT), size.of(1.0))
        field = (bits >> FRACTION_BITS).bits(S32).to(F32)
        self.exponent = field - (is_small * float(LIFT) + float(EXPONENT_OF_ONE))


def _power_of_two(exponent: Term) -> Term:
    """2 to the power of a whole number from 0 to 20."""
    field = (exponent + float(EXPONENT_OF_ONE)) * 2.0**FRACTION_BITS
    return field.to(S32).bits(F32)


def _invalid(a: Term, divisor: _Parts) -> Term:
    """NaN where a is infinite, b is 0 or one of them NaN; else 0."""
    return (abs(a) * 0.0) * divisor.lifted.apply("reciprocal")


def _greatest_difference(a: Term, b: Term) -> int:
    """How much the exponent of a may exceed that of b."""
    (low, high), (least, most) = (each.builder.bounds(each.expression) for each in (a, b))
    greatest = min(max(abs(low), abs(high)), MOST_MAGNITUDE)
    smallest = 0.0 if least <= 0.0 <= most else min(abs(least), abs(most))
    quotient = math.log2(max(greatest, LEAST_MAGNITUDE)) - math.log2(
        min(max(smallest, LEAST_MAGNITUDE), MOST_MAGNITUDE)
    )
    return max(0, math.floor(quotient) + 1)
